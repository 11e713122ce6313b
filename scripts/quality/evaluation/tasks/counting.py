"""cwe and fwe: which words are the most common."""
from ..text import LISTS, distinct
from .sample import Question

CWE_PREAMBLE = ("Below is a numbered list of words. In these words, some appear more often than"
                " others. Memorize the ones that appear most often.\n\n")
N_COMMON = 5

FWE_PREAMBLE = ("The text below is written in a code. Some of its coded words appear much more"
                " often than others: count how often each of them appears. Groups of dots mean"
                " nothing: leave them out of the count.\n\n")
FWE_QUESTION = "What are the three coded words that appear most often in the text above?"
DOTS = "......"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ZETA_2 = 1.6449340668482264  # so that the shares r ** -2 / ZETA_2 of all ranks add up to 1


def cwe(job):
    """Five words 10 times each (30 times from 3K on), the others as seldom as the list of words
    allows."""
    repeats = max(10, min(30, job.length // 102))
    order = job.rng("words").shuffle(LISTS["words"])
    common, others = order[:N_COMMON], order[N_COMMON:]

    def build(n):
        words = common * repeats + [others[i % len(others)] for i in range(n)]
        words = job.rng("order").shuffle(words)
        text = " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))
        in_order = sorted(common, key=words.index)
        question = Question(
            f"What are the {N_COMMON} most common words in the above list?", common,
            "contains_fraction", 48,
            f"The {N_COMMON} words that appear most often in the list are: {', '.join(in_order)}.")
        return job.sample(f"{CWE_PREAMBLE}{text}\n", [question])

    return job.fill(build, tokens_per_unit=6)


def fwe(job):
    """Made-up words; the one of rank r appears about n / (r * r * ZETA_2) times, and rank 1 is
    dots.  Rank 4 has half as many again as rank 5, so there is one right answer."""
    rng = job.rng("words")
    coded = distinct(max(8, job.length // 50),
                     lambda: "".join(rng.choice(LETTERS) for _ in range(6)))
    vocabulary = [DOTS] + coded
    asked = vocabulary[1:4]
    question = Question(
        FWE_QUESTION, asked, "contains_fraction", 50,
        f"The three coded words that appear most often are {', '.join(asked[:2])} and {asked[2]}.")

    def build(n):
        words = [word for rank, word in enumerate(vocabulary, 1)
                 for _ in range(round(n / (rank * rank * ZETA_2)))]
        words = job.rng("order").shuffle(words)
        return job.sample(f"{FWE_PREAMBLE}{' '.join(words)}\n", [question])

    return job.fill(build, least=40, tokens_per_unit=3)
