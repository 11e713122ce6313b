"""Few-shot patterns: a rule that is shown, not said, and goes on."""
from repository import LISTS

from .job import Exercise, tokens_of
from .sample import Loss


def mapping(job, draw_from, draw_to):
    """The same few things with the same answers again and again, in random order."""
    table = {draw_from(): draw_to() for _ in range(job.rng.randint(3, 12))}
    return lambda: job.rng.choice(list(table.items()))


def plus(job):
    step = job.rng.randint(1, 9)

    def draw():
        x = job.rng.randint(0, 89)
        return str(x), str(x + step)
    return draw


def of_words(job, rule):
    def draw():
        words = [job.word() for _ in range(job.rng.randint(2, 5))]
        return " ".join(words), rule(words)
    return draw


def of_lists(job):
    """The list that a word is on."""
    names = job.some(["cities", "foods", "names", "colours", "nouns"], 3)
    labels = job.some(LISTS["nouns"], 3)

    def draw():
        i = job.rng.randrange(3)
        return job.word_of(names[i]), labels[i]
    return draw


RULES = {
    "upper": lambda job: of_words(job, lambda words: " ".join(words).upper()),
    "reverse": lambda job: of_words(job, lambda words: " ".join(reversed(words))),
    "first": lambda job: of_words(job, lambda words: words[0]),
    "last": lambda job: of_words(job, lambda words: words[-1]),
    "copy": lambda job: of_words(job, " ".join),
    "commas": lambda job: of_words(job, ", ".join),
    "count": lambda job: of_words(job, lambda words: str(len(words))),
    "plus": plus,
    "lists": of_lists,
    "table": lambda job: mapping(job, job.thing, lambda: job.digits(4)),
    "words": lambda job: mapping(job, job.word, job.word),
}
FRAMES = [("Input: {a}\nOutput:", " {b}\n\n"), ("{a} ->", " {b}\n"), ("Q: {a}\nA:", " {b}\n"),
          ("{a} =", " {b}\n"), ("- {a}:", " {b}\n")]


def patterns(job):
    """The first examples teach nothing but the rule; behind them each answer counts."""
    draw = RULES[job.rng.choice(list(RULES))](job)
    before, after = job.rng.choice(FRAMES)
    pieces, size, n = [], 0, 0
    while size < job.n_tokens - 60:
        a, b = draw()
        pieces += [(before.format(a=a), Loss.NONE),
                   (after.format(b=b), Loss.ANSWER if n > 3 else Loss.PROMPT)]
        size += tokens_of(pieces[-1][0]) + tokens_of(pieces[-2][0])
        n += 1
    return Exercise("", pieces, [], can_ask_first=False)
