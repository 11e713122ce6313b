"""jinja_oracle.py - jinja2 set up as the transformers library does for chat templates, and
engine/template/ behind a process of render_lines: what the two make of the same case."""
import datetime
import json
import subprocess

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = [2026, 3, 5, 7, 8, 9]


class Generation(Extension):
    """{% generation %} marks what an assistant said; the text is the same without it."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("same")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment(now=None):
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = datetime.datetime(*(now or NOW)).strftime
    made.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    made.globals["namespace"] = Namespace
    return made


ENVIRONMENT = environment()


class Oracle:
    """What jinja2 makes of a case: (text, None), or (None, why it fails)."""

    def __init__(self, source):
        self.why = None
        try:
            self.template = ENVIRONMENT.from_string(source)
        except Exception as error:  # whatever jinja2 or Python's compiler dislikes
            self.why = f"{type(error).__name__}: {error}"

    def render(self, variables):
        if self.why:
            return None, self.why
        try:
            return self.template.render(**variables), None
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"


class Renderer:
    """A process of render_lines."""

    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, case):
        self.process.stdin.write(json.dumps(case).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"render_lines ended with {self.process.wait()} at {case!r}")
        return json.loads(line)

    def render(self, source, variables, trusted=None, **members):
        return self.ask({"template": source, "variables": variables, "trusted": trusted or {},
                         "now": NOW, **members})

    def close(self):
        self.process.stdin.close()
        return self.process.wait()


def parts(answer):
    """A text as pieces and whether each is trusted."""
    data, at, pieces = answer["text"].encode(), 0, []
    for begin, end in answer["spans"]:
        if begin > at:
            pieces.append((data[at:begin], False))
        pieces.append((data[begin:end], True))
        at = end
    if at < len(data):
        pieces.append((data[at:], False))
    return pieces
