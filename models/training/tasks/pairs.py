"""Contexts that are nothing but keys with values: kv, lines, table; stream asks as it goes on."""
from .job import Exercise, tokens_of
from .sample import Loss

MOST_ENTRIES = 4000


def values_for(job):
    kind = job.choose("hexadecimal", "hexadecimal", "hexadecimal", "number", "word", "thing")
    n = job.choose(4, 6, 8, 8, 8, 12)
    draw = {"hexadecimal": lambda: job.hexadecimal(n), "number": lambda: job.digits(n - 1),
            "word": job.word, "thing": job.thing}
    return draw[kind]


def entries(job, n_tokens, cost_of_frame):
    """Different keys with values, as many as fit; a third of the time fewer, with prose around."""
    key, value = values_for(job), values_for(job)
    found, size = {}, 0
    while size < n_tokens and len(found) < MOST_ENTRIES:
        one = key() if len(found) < 600 else job.hexadecimal(8)
        if one not in found:
            found[one] = value()
            size += tokens_of(one) * 1.25 + tokens_of(found[one]) * 1.25 + cost_of_frame
    return list(found.items())


KV_FORMS = [  # opening, one entry, what joins two, closing
    ("{", '"{key}": "{value}"', ", ", "}"), ("{", '"{key}": "{value}"', ", ", "}"),
    ("{\n", '  "{key}": "{value}"', ",\n", "\n}"), ("{", "'{key}': '{value}'", ", ", "}"),
    ("", "{key}: {value}", "\n", ""), ("", "key {key} has value {value}", "\n", ""),
    ("", "{key}={value}", "\n", ""), ("<", "{key} -> {value}", "; ", ">")]
KV_INTROS = ["Extract the value corresponding to the specified key in the JSON object below.\n\n",
             "Extract the value corresponding to the specified key in the JSON object below.\n\n",
             "Here is a list of keys and values.\n\n", "Data:\n", ""]
KV_QUESTIONS = [
    ('Key: "{key}"\nThe value associated with the specified key is:', '"{value}"'),
    ('Key: "{key}"\nThe value associated with the specified key is:', '"{value}"'),
    ("What is the value for {key}?", "{value}"),
    ('What is the value of the key "{key}"?', 'The value of "{key}" is "{value}".')]


def pieces_of(form, found):
    opening, entry, joint, closing = form
    before, _, rest = entry.partition("{key}")
    between, _, after = rest.partition("{value}")
    pieces = [(opening, Loss.PROMPT)]
    for i, (key, value) in enumerate(found):
        pieces += [((joint if i else "") + before, Loss.PROMPT), (key, Loss.NONE),
                   (between, Loss.PROMPT), (value, Loss.NONE), (after, Loss.PROMPT)]
    return [*pieces, (closing + "\n", Loss.PROMPT)]


def surround(job, pieces, n_tokens):
    """The pieces with a haystack before and behind them."""
    if n_tokens < 60:
        return pieces
    before = n_tokens * job.choose(0, 1, job.rng.random())
    parts = []
    for size in (before, n_tokens - before):
        text, loss = job.haystack(size)
        parts.append([(text.rstrip() + "\n", loss)] if text.strip() else [])
    return [*parts[0], *pieces, *parts[1]]


def kv(job):
    form, n_asked = job.rng.choice(KV_FORMS), job.how_many(200, 45)
    room = job.n_tokens - 90 - 42 * n_asked
    size = room if job.chance(0.7) else room * job.rng.uniform(0.1, 0.9)
    found = entries(job, size, 4)
    turns = []
    for key, value in job.some(found, n_asked):
        asked, answer = job.rng.choice(KV_QUESTIONS)
        turns.append((asked.format(key=key), answer.format(key=key, value=value)))
    context = surround(job, pieces_of(form, found), room - size)
    return Exercise(job.rng.choice(KV_INTROS), context, turns)


LINES_INTRO = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>'"
    " and contains a '<REGISTER_CONTENT>' at the end of the line as a numerical value. For each"
    " line index, memorize its corresponding <REGISTER_CONTENT>. At the end of the record, I will"
    " ask you to retrieve the corresponding <REGISTER_CONTENT> of a certain line index.\n\n")
LINES_QUESTIONS = [
    ("Tell me what is the <REGISTER_CONTENT> in line {key}? I need the number.",
     "The <REGISTER_CONTENT> in line {key} is <{value}>."),
    ("What is the REGISTER_CONTENT in line {key}?", "<{value}>"),
    ("What number is in line {key}?", "{value}")]


def line(key, value):
    return [(f"line {key}: REGISTER_CONTENT is <", Loss.PROMPT), (value, Loss.NONE),
            (">\n", Loss.PROMPT)]


def lines(job):
    n_asked = job.how_many(200, 45)
    named = job.chance(0.65)
    n = max(3, int((job.n_tokens - 130 - 42 * n_asked) / (25 if named else 22.5)))
    keys = job.keys(n, "thing") if named else [str(i + 1) for i in range(n)]
    found = [(key, job.digits(5)) for key in keys]
    turns = []
    for key, value in job.some(found, n_asked):
        asked, answer = job.choose(*LINES_QUESTIONS)
        turns.append((asked.format(key=key), answer.format(key=key, value=value)))
    context = [piece for pair in found for piece in line(*pair)]
    return Exercise(LINES_INTRO if job.chance(0.6) else "", context, turns)


COLUMNS = {"city": "cities", "job": "jobs", "colour": "colours", "food": "foods", "pet": "pets"}


def table(job):
    """A table with people as rows: the cell of a row and a column, or the row of a cell."""
    columns = job.some(list(COLUMNS), 3) + ["number"]
    n_asked = job.how_many(60, 45)
    n = max(3, int((job.n_tokens - 100 - 40 * n_asked) / 31))
    names = job.keys(n, "person" if n > 30 else "name")
    rows = []
    for name in names:
        cells = [job.word_of(COLUMNS[column]) if column in COLUMNS else job.digits(6)
                 for column in columns]
        rows.append([name, *cells])
    left, joint, right = job.choose(("| ", " | ", " |"), ("", ",", ""), ("", "\t", ""))
    head = [["name", *columns]] + ([["---"] * (len(columns) + 1)] if left else [])
    text = "".join(f"{left}{joint.join(row)}{right}\n" for row in head + rows)
    turns = []
    for row in job.some(rows, n_asked):
        at = job.rng.randrange(len(columns))
        if columns[at] == "number" and job.chance(0.5):
            turns.append((f"Whose number is {row[at + 1]}?", row[0]))
        else:
            turns.append((f"What is the {columns[at]} of {row[0]}?", row[at + 1]))
    return Exercise(job.choose("Read the table.\n\n", ""), [(text, Loss.NONE)], turns)


def stream(job):
    """Plain text in which every few lines a question asks about one some lines back."""
    back, step = job.choose(5, 10, 20, 20, 20), job.choose(5, 10, 10)
    named, history, pieces, size = job.chance(0.7), [], [], 0
    while size < job.n_tokens - 100:
        key = job.thing() if named else str(len(history) + 1)
        history.append((key, job.digits(5)))
        pieces += line(*history[-1])
        size += 25
        if len(history) % step == 0 and len(history) > back:
            key, value = history[-1 - back]
            pieces += [(f"What is the REGISTER_CONTENT in line {key}?", Loss.PROMPT),
                       (f" The REGISTER_CONTENT is <{value}>\n", Loss.ANSWER)]
            size += 40
    return Exercise("", pieces, [], can_ask_first=False)
