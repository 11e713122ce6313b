"""passkey and number: one odd sentence in a text that has nothing to do with it."""
from ..text import weave
from .sample import Question

PREAMBLE = ("There is an important info hidden inside a lot of irrelevant text. Find it and"
            " memorize it. I will quiz you about the important information there.\n\n")


def digits_with_repeats(rng):
    """Five digits, then five times a copy of one beside it: equal neighbours are easily miscounted.
    The first one is not 0."""
    digits = list(rng.digits(5))
    for _ in range(5):
        at = rng.integer(len(digits))
        digits.insert(at, digits[at])
    return "".join(digits)


def hidden_sentence(job, name, value, max_tokens):
    kind, depth = job.kind(prose=4, filler=1), job.depth()
    sentence = f"The {name} is {value}. Remember it. {value} is the {name}."
    question = Question(f"What is the {name}?", [value], "contains_all", max_tokens,
                        f"The {name} is {value}.", depth)

    def build(n_chars):
        text = weave(job.haystack(kind, n_chars), [(depth, sentence)])
        return job.sample(f"{PREAMBLE}{text}\n", [question], depth)

    return job.fill(build)


def passkey(job):
    return hidden_sentence(job, "pass key", job.rng("value").digits(5), 16)


def number(job):
    return hidden_sentence(job, "sequence of digits", digits_with_repeats(job.rng("value")), 24)
