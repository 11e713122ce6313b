"""generate.py - seeded templates and conversations for the comparison with jinja2.

Expressions know what type they mostly have, so that most templates render; some are of any type,
so that errors are compared, too."""
import random

WORDS = ["user", "assistant", "system", "tool", "a", "b", "x y", "", " pad ", "Zoë", "日本語", "😀!",
         "it's", 'say "hi"', "line\nbreak", "tab\t", "<|im_end|>", "<s>", "1", "42", "-7", "3.5",
         "ß", "ÉCOLE", "a,b,,c", "one two  three", "\r\nx\r", "back\\slash", "{{ x }}", "%d", "&<>"]
KEYS = ["role", "content", "name", "k", "items", "x"]
SEPARATORS = ["' '", "','", "'\\n'", "''", "'a'", "none", "', '"]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = []  # assigned by the template, each with its type
        self.depth = 0
        self.n_loops = 0
        self.n_macros = 0

    # Variables.

    def pick(self, *options):
        return self.random.choice(options)

    def chance(self, probability):
        return self.random.random() < probability

    def word(self):
        return self.random.choice(WORDS)

    def json(self, depth=2):
        kind = self.random.randrange(9 if depth else 6)
        if kind < 2:
            return self.word()
        if kind == 2:
            return self.random.randrange(-5, 100)
        if kind == 3:
            return self.pick(0.5, -1.25, 1e20, 1e-7, 3.0, 123456.789, 0.1)
        if kind == 4:
            return self.pick(True, False, None)
        if kind == 5:
            return self.pick([], {}, "", 0)
        if kind < 8:
            return {self.pick(*KEYS): self.json(depth - 1)
                    for _ in range(self.random.randrange(4))}
        return [self.json(depth - 1) for _ in range(self.random.randrange(4))]

    def message(self):
        message = {"role": self.pick("user", "assistant", "system", "tool"), "content": self.word()}
        if self.chance(0.2):
            message["content"] = [{"type": "text", "text": self.word()}
                                  for _ in range(self.random.randrange(3))]
        if self.chance(0.2):
            message["tool_calls"] = [{"type": "function", "function": {
                "name": self.word(), "arguments": {self.word(): self.json()}}}]
        if self.chance(0.2):
            message["reasoning_content"] = self.word()
        return message

    def variables(self):
        pick = self.random.randrange
        return {"messages": [self.message() for _ in range(pick(5))],
                "tools": self.pick(None, [], [{"type": "function", "function": self.json()}]),
                "add_generation_prompt": self.chance(0.5),
                "s": self.word(), "t": self.word(), "n": pick(-3, 12), "m": pick(1, 5),
                "f": self.pick(0.5, 2.5, -1.75, 1e16), "flag": self.chance(0.5),
                "d": {self.pick(*KEYS): self.json() for _ in range(pick(4))},
                "l": [self.json(1) for _ in range(pick(5))],
                "words": [self.word() for _ in range(pick(5))],
                "numbers": [pick(-9, 20) for _ in range(pick(5))],
                "rows": [{"k": pick(4), "name": self.word()} for _ in range(pick(5))],
                "any": self.json()}

    # Expressions.

    def expression(self, kind):
        if self.chance(0.01):
            kind = self.pick("str", "int", "bool", "list", "dict", "any")
        if self.depth > 3:
            return self.leaf(kind)
        self.depth += 1
        made = getattr(self, "make_" + kind)()
        self.depth -= 1
        if self.chance(0.06):
            other = self.expression(kind)
            made = f"({made} if {self.expression('bool')} else {other})"
        return made

    def leaf(self, kind):
        known = [name for name, of in self.names if of == kind]
        if known and self.chance(0.5):
            return self.random.choice(known)
        if kind == "str":
            return self.pick("s", "t", "bos_token", self.literal(), "'abc'", "'é-x_y'")
        if kind == "int":
            return self.pick("n", "m", "0", "1", "2", "7", "10", "-3")
        if kind == "number":
            return self.pick("f", "n", "2.5", "1e3", "0.1")
        if kind == "bool":
            return self.pick("flag", "true", "False", "add_generation_prompt")
        if kind == "list":
            return self.pick("words", "words", "['b', 'A', 'c']", "[]")
        if kind == "dict":
            return self.pick("d", "{'a': 1, 'k': 'v'}", "{}", "(rows|first or {})")
        return self.pick("any", "nope", "none", "l", "d", "s", "n", "messages", "tools", "f")

    def literal(self):
        word = self.word()
        for char, escape in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
            word = word.replace(char, escape)
        return f"'{word}'"

    def make_str(self):
        e, pick = self.expression, self.pick
        return pick(
            lambda: self.leaf("str"),
            lambda: self.leaf("str"),
            lambda: f"({e('str')} ~ {e('any')})",
            lambda: f"({e('str')} + {e('str')})",
            lambda: f"({e('str')})|{pick('trim', 'upper', 'lower', 'title', 'capitalize')}",
            lambda: f"({e('str')}).{pick('strip', 'lstrip', 'rstrip')}({pick('', self.leaf('str'))})",
            lambda: f"({e('str')}).{pick('upper', 'lower', 'title', 'capitalize')}()",
            lambda: f"({e('str')}).replace({self.leaf('str')}, {self.leaf('str')}"
                    f"{pick('', ', 1', ', -1', ', 0')})",
            lambda: f"({e('str')})|replace({self.leaf('str')}, {e('str')}{pick('', ', 2')})",
            lambda: f"({e('str')})[{pick(':', '1:', ':-1', '::2', '::-1', '1:3', '-2:', '5:1')}]",
            lambda: f"({e('list')})|join({self.leaf('str')})",
            lambda: f"({e('list')})|map('upper')|join(',')",
            lambda: f"({self.leaf('str')}).join({e('list')}|map('string'))",
            lambda: f"({e('any')})|tojson{pick('', '(indent=2)', '(ensure_ascii=true)', '(sort_keys=true)')}",
            lambda: f"({e('any')})|string",
            lambda: f"({e('str')})|indent({pick('', '2', '4, true', 'first=true', 'blank=true')})",
            lambda: f"({e('str')})|truncate(" + pick("5", "3, true", "8, false, '..'", "4, true, '', 0") + ")",
            lambda: f"({e('str')})|default({self.leaf('str')}{pick('', ', true')})",
            lambda: f"({e('str')}).split({pick(*SEPARATORS)}{pick('', ', 1')})[{pick('0', '-1')}]",
            lambda: f"'%s-%s' % ({e('any')}, {e('int')})",
            lambda: f"'{pick('%5d|%-4d|', '%03d%d', '%+d %x', '%i%o')}' % ({e('int')}, {e('int')})",
            lambda: f"'{pick('%.2f', '%8.3f|', '%e', '%g', '%d')}' % {self.leaf('number')}",
            lambda: f"'{pick('{} {}', '{1}{0}', '{0!r} {1:>4}', '{:5}|{:<5}|', '{0:^7}{{}}{1}')}'"
                    f".format({self.leaf('str')}, {self.leaf('int')})",
            lambda: f"'{pick('{:.2f}', '{:,}', '{:08.2f}', '{:+}', '{:e}')}'.format({self.leaf('number')})",
            lambda: f"{self.leaf('str')} * {pick('0', '2', '3', '-1')}",
            lambda: f"({e('str')})|{pick('e', 'safe', 'escape', 'string', 'center(9)')}",
            lambda: f"({e('str')}).{pick('removeprefix', 'removesuffix')}({self.leaf('str')})",
            lambda: f"({e('str')}).{pick('partition', 'rpartition')}('a')|string",
            lambda: f"({e('str')})|reverse",
            lambda: f"(({e('str')})|safe) + {self.leaf('str')}",
            lambda: f"(messages[{self.leaf('int')}] or d).content|string",
            lambda: f"(messages|first or d)['{pick('role', 'content', 'nope', 'reasoning_content')}']",
        )()

    def make_int(self):
        e, pick = self.expression, self.pick
        return pick(
            lambda: self.leaf("int"),
            lambda: self.leaf("int"),
            lambda: f"({e('int')} {pick('+', '-', '*', '//', '%')} {e('int')})",
            lambda: f"({e(pick('str', 'list', 'dict'))})|{pick('length', 'count')}",
            lambda: f"({e(pick('str', 'int', 'number'))})|int{pick('', '(7)', '(base=16)')}",
            lambda: f"({e('str')}).{pick('find', 'rfind', 'count')}({self.leaf('str')}{pick('', ', 1')})",
            lambda: f"-({e('int')})",
            lambda: f"({e('int')})|abs",
            lambda: f"numbers|{pick('sum', 'min', 'max', 'first', 'last', 'length')}",
            lambda: f"rows|sum(attribute='k')",
            lambda: f"({e('str')})|wordcount",
            lambda: f"{self.leaf('int')} ** {pick('0', '1', '2', '3')}",
        )()

    def make_number(self):
        e, pick = self.expression, self.pick
        return pick(
            lambda: self.leaf("number"),
            lambda: f"({e('int')} / {e('number')})",
            lambda: f"({e('number')} {pick('+', '-', '*', '//', '%', '/')} {e('number')})",
            lambda: f"({e('number')})|round" + pick("", "(1)", "(2)", "(1, 'floor')", "(0, 'ceil')"),
            lambda: f"({e('str')})|float{pick('', '(1.5)')}",
            lambda: f"({e('number')})|abs",
        )()

    def make_bool(self):
        e, pick = self.expression, self.pick
        kind = pick("str", "int", "number")
        return pick(
            lambda: self.leaf("bool"),
            lambda: f"({e('bool')} {pick('and', 'or')} {e('bool')})",
            lambda: f"(not {e('bool')})",
            lambda: f"({e(kind)} {pick('==', '!=', '<', '<=', '>', '>=')} {e(kind)})",
            lambda: f"({e('int')} < {e('int')} <= {e('int')})",
            lambda: f"({e('str')} {pick('in', 'not in')} {e(pick('str', 'list', 'dict'))})",
            lambda: f"({e('any')}) is {pick('', 'not ')}"
                    f"{pick('defined', 'none', 'string', 'mapping', 'iterable', 'number', 'sequence', 'boolean', 'integer', 'float', 'undefined', 'true', 'callable')}",
            lambda: f"({e('int')}) is {pick('odd', 'even', 'divisibleby 3', 'divisibleby(2)', 'gt 3', 'in numbers')}",
            lambda: f"({e('str')}) is {pick('lower', 'upper', 'eq s', 'equalto(t)', 'ne t')}",
            lambda: f"({e('str')}).{pick('startswith', 'endswith')}({pick(self.leaf('str'), '(s, t)')})",
            lambda: f"({e('str')}).{pick('isdigit', 'isalpha', 'isspace', 'isupper', 'islower', 'isalnum')}()",
            lambda: f"({e('any')}) == ({e('any')})",
            lambda: f"({e('any')} in l)",
        )()

    def make_list(self):
        e, pick = self.expression, self.pick
        return pick(
            lambda: self.leaf("list"),
            lambda: f"[{', '.join(e(pick('str', 'int', 'any')) for _ in range(self.random.randrange(4)))}]",
            lambda: f"({e('list')})[{pick('1:', ':2', '::-1', ':', '-2:', '::2')}]",
            lambda: f"({e('str')}).{pick('split', 'rsplit')}({pick(*SEPARATORS)}{pick('', ', 1', ', maxsplit=2')})",
            lambda: f"({e('str')}).splitlines({pick('', 'true')})",
            lambda: f"({e('list')} + {e('list')})",
            lambda: f"({e(pick('list', 'str', 'dict'))})|list",
            lambda: f"words|{pick('sort', 'sort(reverse=true)', 'unique|list', 'reverse|list', 'sort(case_sensitive=true)')}",
            lambda: f"rows|{pick('sort', 'map')}(attribute={pick(chr(39) + 'k' + chr(39), chr(39) + 'name' + chr(39), chr(39) + 'k,name' + chr(39))})|list",
            lambda: f"rows|{pick('selectattr', 'rejectattr')}('k', {pick(repr('odd'), repr('>') + ', 1', repr('in') + ', [1, 2]', repr('defined'))})|map(attribute='name')|list",
            lambda: f"words|{pick('select', 'reject')}({pick('', repr('string'), repr('in') + ', t', repr('lower'))})|list",
            lambda: f"messages|map(attribute='{pick('role', 'content', 'nope')}'{pick('', ', default=1')})|list",
            lambda: f"range({pick('3', '1, 4', '5, 0, -2', 'm')})|list",
            lambda: f"({e('list')})|{pick('batch(2)|list', 'batch(2, 0)|list', 'slice(2)|list', 'map(' + repr('string') + ')|list')}",
            lambda: f"({e('dict')}){pick('.keys()', '.values()', '.items()', '|items', '|dictsort')}|list",
            lambda: f"rows|groupby('k')|list",
            lambda: f"rows|groupby('k')|map('last')|list",
        )()

    def make_dict(self):
        e, pick = self.expression, self.pick
        return pick(
            lambda: self.leaf("dict"),
            lambda: "{" + ", ".join(f"'{self.pick(*KEYS)}': {e(pick('str', 'int', 'any'))}"
                                    for _ in range(self.random.randrange(3))) + "}",
            lambda: f"dict(a={e('any')}, b=2)",
            lambda: f"dict({e('dict')}, c={e('str')})",
            lambda: "(messages|last or {})",
        )()

    def make_any(self):
        e, pick = self.expression, self.pick
        return pick(
            lambda: self.leaf("any"),
            lambda: e("str"), lambda: e("int"), lambda: e("number"), lambda: e("bool"),
            lambda: e("list"), lambda: e("dict"),
            lambda: f"({e('dict')}).{pick(*KEYS)}",
            lambda: f"({e('dict')})['{pick(*KEYS)}']",
            lambda: f"({e('dict')}).get({self.leaf('str')}{pick('', ', 3')})",
            lambda: f"({e('list')})[{e('int')}]",
            lambda: f"({e('list')})|{pick('first', 'last', 'max', 'min', 'length')}",
            lambda: f"({e('any')})|default({e('any')})",
            lambda: f"({e('any')} {pick('or', 'and')} {e('any')})",
            lambda: f"({e('str')}, {e('int')})",
            lambda: f"range({self.leaf('int')})",
            lambda: "nope.deep" if self.chance(0.1) else "nope",
        )()

    # Statements.

    def tag(self, body):
        return f"{{%{self.pick('', '', '-', '+')} {body} {self.pick('', '', '-', '+')}%}}"

    def text(self):
        return self.pick("", " ", "\n", "text ", "  \n  ", "\n\n", "é", "<|im_start|>", "a\n  ", "{ }")

    def name(self, kind):
        name = self.pick("v", "w", "q", "s", "messages")
        kind = "any" if name == "messages" else kind
        self.names.append((name, kind))
        return name

    def block(self, n):
        names = list(self.names)
        made = "".join(self.text() + self.statement() for _ in range(self.random.randrange(1, n)))
        if self.chance(0.7):  # sometimes what a block assigned is used behind it
            self.names = names
        return made + self.text()

    def statement(self):
        e, pick = self.expression, self.pick
        self.depth += 1
        kind = self.random.randrange(16 if self.depth < 4 else 6)
        made = self.simple(kind) if kind < 6 else self.compound(kind)
        self.depth -= 1
        return made

    def simple(self, kind):
        e, pick = self.expression, self.pick
        if kind < 3:
            return f"{{{{{pick('', '-', '+', '')} {e(pick('str', 'any', 'int', 'list'))} {pick('', '', '-')}}}}}"
        if kind == 3:
            of = pick("str", "int", "list", "any")
            value = e(of)
            return self.tag(f"set {self.name(of)} = {value}")
        if kind == 4:
            return pick("{# a comment #}", "{#- c -#}\n ", "{# #}\n", "{%- raw %} {{ x }} {% endraw %}",
                        "{% raw -%}\n {% if %}{% endraw -%}\n ")
        if self.n_loops and self.chance(0.6):
            return pick(f"{{{{ loop.{pick('index', 'index0', 'first', 'last', 'length', 'revindex', 'revindex0', 'depth')} }}}}",
                        "{{ loop.previtem }}", "{{ loop.nextitem is defined }}",
                        "{{ loop.cycle('a', 'b') }}", "{{ loop.changed(n) }}",
                        self.tag(f"if {e('bool')}") + self.tag(pick("break", "continue")) + "{% endif %}")
        return self.tag(f"set ns.x = {e('any')}") + "{{ ns.x }}"

    def compound(self, kind):
        e, pick = self.expression, self.pick
        if kind < 9:
            made = self.tag(f"if {e(pick('bool', 'any'))}") + self.block(3)
            if self.chance(0.3):
                made += self.tag(f"elif {e('bool')}") + self.block(3)
            if self.chance(0.4):
                made += self.tag("else") + self.block(3)
            return made + self.tag("endif")
        if kind < 12:
            return self.loop()
        if kind == 12:
            filters = pick("", "|upper", "|trim", "|replace('a', 'b')|length")
            return self.tag(f"set {self.name('str')}{filters}") + self.block(3) + self.tag("endset")
        if kind == 13:
            return self.macro()
        if kind == 14:
            return self.tag(f"filter {pick('upper', 'trim', 'indent(2)|trim', 'replace(t, s)')}") + \
                self.block(3) + self.tag("endfilter")
        return pick(
            lambda: self.tag(f"with v = {e('any')}, w = {e('str')}") + self.block(3) + self.tag("endwith"),
            lambda: self.tag("generation") + self.without_loops() + self.tag("endgeneration"))()

    def without_loops(self):
        loops, self.n_loops = self.n_loops, 0
        made = self.block(3)
        self.n_loops = loops
        return made

    def loop(self):
        e, pick = self.expression, self.pick
        target, source = pick(("i", e("list")), ("i", e("str")), ("i", e("dict")), ("m", "messages"),
                              ("v, w", f"({e('dict')}).items()"), ("i", f"range({self.leaf('int')})"),
                              ("i", "words|map('upper')"), ("i", e("any")), ("key, (v)", "d|items"))
        names = list(self.names)
        condition = f" if {e('bool')}" if self.chance(0.25) else ""
        if self.chance(0.1):
            condition = f" if i is {pick('string', 'defined', 'number')}"
        recursive = " recursive" if self.chance(0.05) else ""
        self.names.append(("i", "any"))
        if target == "m":
            self.names += [("m.role", "str"), ("m.content", "str")]
        self.n_loops += 1
        made = self.tag(f"for {target} in {source}{condition}{recursive}") + self.block(4)
        self.n_loops -= 1
        self.names = names
        if self.chance(0.2):
            made += self.tag("else") + self.block(2)
        return made + self.tag("endfor")

    def macro(self):
        e, pick = self.expression, self.pick
        self.n_macros += 1
        name = f"mac{self.n_macros}"
        loops, self.n_loops = self.n_loops, 0
        names = list(self.names)
        self.names += [("a", "any"), ("b", "str")]
        body = self.block(3) + pick("", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}")
        self.names = names
        made = self.tag(f"macro {name}(a, b={self.leaf('str')})") + body + self.tag("endmacro")
        calls = [f"{{{{ {name}({e('any')}) }}}}", f"{{{{ {name}(1, b={e('str')})|upper }}}}",
                 f"{{{{ {name}() }}}}"]
        if "varargs" in body or self.chance(0.1):
            calls += [f"{{{{ {name}(1, 2, 3) }}}}"]
        if "kwargs" in body or self.chance(0.1):
            calls += [f"{{{{ {name}(1, z=3) }}}}"]
        if "caller" in body or self.chance(0.1):
            calls += [self.tag(f"call {name}({e('any')})") + self.block(2) + self.tag("endcall")]
        self.n_loops = loops
        return made + "".join(self.random.choice(calls) for _ in range(self.random.randrange(1, 3)))

    def template(self):
        return "{% set ns = namespace(x=0) %}" + self.block(6)


def case(seed):
    """A template, its variables, and its trusted ones."""
    generator = Generator(seed)
    variables = generator.variables()
    return generator.template(), variables, {"bos_token": "<s>", "eos_token": "</s>"}
