"""kv and lines: contexts that are nothing but keys with values.  Any of them may be asked for, so
nothing in them can be left out."""
from ..text import distinct, names_of_things
from .sample import Question

N_QUESTIONS = 12
KV_PREAMBLE = ("Extract the value corresponding to the specified key in the JSON object below.\n\n")
LINES_PREAMBLE = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>'"
    " and contains a '<REGISTER_CONTENT>' at the end of the line as a numerical value. For each"
    " line index, memorize its corresponding <REGISTER_CONTENT>. At the end of the record, I will"
    " ask you to retrieve the corresponding <REGISTER_CONTENT> of a certain line index.\n\n")


def asked(job, n):
    """Evenly spread over 0 to n - 1, in random order."""
    n_asked = min(N_QUESTIONS, n)
    first = job.rng("first").integer(1000) / 1000
    return job.rng("asked").shuffle(int((i + first) * n / n_asked) for i in range(n_asked))


def hexadecimal(rng):
    return f"{rng.integer(1 << 32):08x}"


def kv(job):
    def build(n):
        rng = job.rng("pairs")
        keys = distinct(n, lambda: hexadecimal(rng))
        rng = job.rng("values")
        values = [hexadecimal(rng) for _ in keys]
        pairs = ", ".join(f'"{key}": "{value}"' for key, value in zip(keys, values))
        questions = [Question(
            f'Key: "{keys[i]}"\nThe value associated with the specified key is:', [values[i]],
            "contains_all", 48, f'"{values[i]}"', i / n) for i in asked(job, n)]
        return job.sample(f"{KV_PREAMBLE}{{{pairs}}}\n", questions)

    return job.fill(build, least=1, tokens_per_unit=20)


def line(key, value):
    return f"line {key}: REGISTER_CONTENT is <{value}>\n"


def question_of_line(key, value, depth=None):
    return Question(f"Tell me what is the <REGISTER_CONTENT> in line {key}? I need the number.",
                    [value], "contains_all", 48,
                    f"The <REGISTER_CONTENT> in line {key} is <{value}>.", depth)


def lines(job):
    def build(n):
        keys = names_of_things(job.rng("keys"), n)
        rng = job.rng("values")
        values = [rng.digits(5) for _ in keys]
        record = "".join(map(line, keys, values))
        return job.sample(LINES_PREAMBLE + record, [
            question_of_line(keys[i], values[i], i / n) for i in asked(job, n)])

    return job.fill(build, least=1, tokens_per_unit=23)
