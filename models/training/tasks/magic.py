"""One thing to be found in a long text, or several: passkey, number, niah, multikey, multivalue,
multiquery.  Much of the wording is that of scripts/quality/evaluation."""
from .job import Exercise
from .sample import Loss

SECRETS = ["pass key", "pass key", "pass key", "secret code", "access code", "password",
           "locker number"]
SECRET_INTRO = ("There is an important info hidden inside a lot of irrelevant text. Find it and"
                " memorize it. I will quiz you about the important information there.\n\n")
MAGIC_INTROS = [
    "Some special magic {what}s are hidden within the following text. Make sure to memorize it. I"
    " will quiz you about the {what}s afterwards.\n\n",
    "The text below hides some {what}s. Remember each of them.\n\n", ""]


def hidden(job, name, value):
    sentence = job.choose(
        [(f"The {name} is ", Loss.PROMPT), (value, Loss.NONE), (". Remember it. ", Loss.PROMPT),
         (value, Loss.TEXT), (f" is the {name}.", Loss.PROMPT)],
        [(f"Remember that the {name} is ", Loss.PROMPT), (value, Loss.NONE), (".", Loss.PROMPT)])
    question, answer = job.choose(
        (f"What is the {name}?", f"The {name} is {value}."),
        (f"What is the {name}?", f"The {name} is {value}."),
        (f"What is the {name} mentioned in the text?", f"The {name} is {value}."),
        (f"Tell me the {name}. Answer with the {name} only.", value))
    context = job.weave([sentence], job.n_tokens - 100)
    return Exercise(SECRET_INTRO if job.chance(0.7) else "", context, [(question, answer)])


def passkey(job):
    return hidden(job, job.rng.choice(SECRETS), job.digits(job.choose(5, 5, 5, 4, 6, 7)))


def number(job):
    """Digits with repeats, which are easily miscounted."""
    digits = list(job.digits(5))
    for _ in range(job.choose(2, 4, 5, 5)):
        at = job.rng.randrange(len(digits))
        digits.insert(at, digits[at])
    return hidden(job, "sequence of digits", "".join(digits))


def value_of(job, what):
    if what == "number":
        return job.digits()
    return job.word() if what == "word" else job.hexadecimal(8)


STATEMENTS = [
    ("The special magic {what} for {key} is ", "."),
    ("One of the special magic {what}s for {key} is: ", "."),
    ("The {what} that belongs to {key} is ", "."),
    ("Note that {key} has the {what} ", ".")]
QUESTIONS = [
    [("What is the special magic {what} for {key} mentioned in the provided text?",
      "The special magic {what} for {key} is {value}."),
     ("What is the special magic {what} for {key}?",
      "The special magic {what} for {key} is {value}."),
     ("What is the special magic {what} for {key}? Answer with the {what} only.", "{value}"),
     ("Find the magic {what} for {key} in the text.",
      "The special magic {what} for {key} is {value}.")],
    [("Which {what} belongs to {key}?", "The {what} that belongs to {key} is {value}."),
     ("Which {what} belongs to {key}? Answer with the {what} only.", "{value}")],
    [("Which {what} does {key} have?", "{key} has the {what} {value}."),
     ("{key}: which {what}?", "{value}")]]


def pairs(job, n_keys):
    """(what the values are, form of the statements, [(key, value)])."""
    what = job.choose("number", "number", "number", "number", "word", "code")
    form = job.choose(0, 0, 0, 0, 1, 2, 3)
    return what, form, [(key, value_of(job, what)) for key in job.keys(n_keys)]


def statement(form, what, key, value):
    before, after = STATEMENTS[form]
    return [(before.format(what=what, key=key), Loss.PROMPT), (value, Loss.NONE),
            (after, Loss.PROMPT)]


def question(job, form, what, key, value):
    asked, answer = job.rng.choice(QUESTIONS[max(0, form - 1)])
    return (asked.format(what=what, key=key), answer.format(what=what, key=key, value=value))


def intro(job, what):
    return job.rng.choice(MAGIC_INTROS).format(what=what)


def find(job, n_keys):
    what, form, found = pairs(job, n_keys)
    asked = job.some(found, job.how_many(n_keys))
    turns = [question(job, form, what, *pair) for pair in asked]
    size = job.n_tokens - 60 - 48 * len(turns)
    context = job.weave([statement(form, what, *pair) for pair in found], size)
    return Exercise(intro(job, what), context, turns)


def niah(job):
    return find(job, 1)


def multikey(job):
    most = max(2, min(120, job.n_tokens // 60))
    return find(job, job.rng.randint(2, most) if job.chance(0.6) else max(2, job.n_tokens // 256))


def enumeration(values):
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"


def multivalue(job):
    few, many = (max(1, min(most, job.n_tokens // 300)) for most in (9, 48))
    n_keys = job.rng.randint(1, few) if job.chance(0.4) else job.rng.randint(few, many)
    keys = job.keys(n_keys)
    owners = [key for key in keys for _ in range(job.choose(2, 3, 4, 4, 4))]
    job.rng.shuffle(owners)
    what = job.choose("number", "number", "number", "code")
    sentences, values = [], {}
    for key in owners:
        values.setdefault(key, []).append(value_of(job, what))
        sentences.append(statement(1, what, key, values[key][-1]))
    turns = []
    for key in job.some(keys, job.how_many(n_keys, 90)):
        asked, answer = job.choose(
            (f"What are all the special magic {what}s for {key} mentioned in the provided text?",
             f"The special magic {what}s for {key} are {enumeration(values[key])}."),
            (f"List all magic {what}s for {key}, in the order of the text.",
             ", ".join(values[key])))
        turns.append((asked, answer))
    context = job.weave(sentences, job.n_tokens - 60 - 75 * len(turns))
    return Exercise(intro(job, what), context, turns)


def multiquery(job):
    n_keys = job.rng.randint(4, max(4, min(40, job.n_tokens // 94)))
    what, form, found = pairs(job, n_keys)
    turns = []
    for _ in range(job.how_many(40, 150)):
        asked = job.some(found, job.choose(2, 3, 4, 4, 4))
        keys = enumeration([key for key, _ in asked])
        turns.append((f"What are the special magic {what}s for {keys}?",
                      "; ".join(f"{key}: {value}" for key, value in asked)))
    context = job.weave([statement(form, what, *pair) for pair in found],
                        job.n_tokens - 60 - 110 * len(turns))
    return Exercise(intro(job, what), context, turns)
