"""niah, multikey, multivalue, multiquery: numbers that belong to names, in a text."""
from ..text import LISTS, names_of_things, weave
from .sample import Question

PREAMBLE = ("Some special magic numbers are hidden within the following text. Make sure to memorize"
            " it. I will quiz you about the numbers afterwards.\n\n")
MOST_QUESTIONS = 12


def cities(job, n):
    return job.rng("keys").sample(LISTS["cities"], n)


def keys(job, n):
    """Cities or names of things: there are only so many cities."""
    if job.rng("cities").integer(2) and n <= len(LISTS["cities"]):
        return cities(job, n)
    return names_of_things(job.rng("keys"), n)


def hide(job, needles, questions, depth=None):
    """needles: (depth, sentence)."""
    kind = job.kind(prose=7, filler=2, words=1)

    def build(n_chars):
        text = weave(job.haystack(kind, n_chars), needles)
        return job.sample(f"{PREAMBLE}{text}\n", questions, depth)

    return job.fill(build)


def scatter(rng, sentences):
    """Sentences at random depths, of 1,000 equal steps."""
    return [(rng.integer(1000) / 1000, sentence) for sentence in sentences]


def statement(key, value):
    return f"The special magic number for {key} is {value}."


def question_of_one(key, value, depth):
    return Question(f"What is the special magic number for {key} mentioned in the provided text?",
                    [value], "contains_all", 32, statement(key, value), depth)


def niah(job):
    depth, [key], value = job.depth(), keys(job, 1), job.rng("values").digits(7)
    needle = (depth, statement(key, value))
    return hide(job, [needle], [question_of_one(key, value, depth)], depth)


def multikey(job):
    """One key in 256 tokens."""
    rng = job.rng("values")
    pairs = [(key, rng.digits(7)) for key in keys(job, max(4, min(120, job.length // 256)))]
    needles = scatter(job.rng("places"), [statement(*pair) for pair in pairs])
    asked = job.rng("asked").sample(range(len(pairs)), min(MOST_QUESTIONS, len(pairs)))
    return hide(job, needles, [question_of_one(*pairs[i], needles[i][0]) for i in asked])


def multiquery(job):
    """Four of the keys at once."""
    rng = job.rng("values")
    n_keys = rng.between(4, max(4, min(40, job.length // 94)))
    pairs = [(key, rng.digits(7)) for key in cities(job, n_keys)]
    needles = scatter(job.rng("places"), [statement(*pair) for pair in pairs])
    asked = job.rng("asked").sample(pairs, 4)
    names = [key for key, _ in asked]
    text = f"What are the special magic numbers for {', '.join(names[:3])} and {names[3]}?"
    question = Question(text, [value for _, value in asked], "contains_fraction", 96,
                        "; ".join(f"{key}: {value}" for key, value in asked))
    return hide(job, needles, [question])


def multivalue(job):
    """Four numbers a key; half of the contexts have one key, the others have more."""
    rng = job.rng("values")
    most = max(1, min(9, job.length // 512))
    n_keys = 1 if most == 1 or rng.integer(2) else rng.between(2, most)
    owners = rng.shuffle([key for key in cities(job, n_keys) for _ in range(4)])
    values = {key: [] for key in owners}
    sentences = []
    for key in owners:
        values[key].append(rng.digits(7))
        sentences.append(f"One of the special magic numbers for {key} is: {values[key][-1]}.")
    places = sorted(depth for depth, _ in scatter(job.rng("places"), sentences))
    questions = [Question(
        f"What are all the special magic numbers for {key} mentioned in the provided text?", four,
        "contains_fraction", 80,
        f"The special magic numbers for {key} are {', '.join(four[:3])} and {four[3]}.")
        for key, four in values.items()]
    return hide(job, list(zip(places, sentences)), questions)
