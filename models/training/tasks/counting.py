"""cwe and fwe: which words are the most common; and how often some things are named."""
import string

from repository import LISTS

from .job import Exercise
from .magic import enumeration
from .sample import Loss

CWE_INTROS = ["Below is a numbered list of words. In these words, some appear more often than"
              " others. Memorize the ones that appear most often.\n\n"] * 3 + [
              "Here is a list of words.\n\n", ""]
FWE_INTROS = ["The text below is written in a code. Some of its coded words appear much more"
              " often than others: count how often each of them appears. Groups of dots mean"
              " nothing: leave them out of the count.\n\n"] * 3 + ["Read the coded text.\n\n", ""]
DOTS = "......"
ZETA_2 = 1.6449340668482264  # so that the shares r ** -2 / ZETA_2 of all ranks add up to 1
MOST_WORDS = 16000


def cwe(job):
    """k words often, the others as seldom as the list of words allows."""
    numbered = job.chance(0.8)
    n_words = min(MOST_WORDS, max(12, int((job.n_tokens - 110) / (6.1 if numbered else 1.8))))
    k = job.choose(1, 3, 5, 5, 5, 10) if n_words > 80 else job.choose(1, 2)
    repeats = max(4, min(30, n_words // (2 * k)) if job.chance(0.5) else n_words // (4 * k))
    order = job.rng.sample(LISTS["words"], len(LISTS["words"]))
    common, others = order[:k], order[k:]
    n_others = max(4, n_words - k * repeats)
    words = common * repeats + [others[i % len(others)] for i in range(n_others)]
    job.rng.shuffle(words)
    text = " ".join(f"{i}. {word}" if numbered else word for i, word in enumerate(words, 1))
    common.sort(key=words.index)
    answer = (f"The most common word in the list is: {common[0]}." if k == 1 else
              f"The {k} words that appear most often in the list are: {', '.join(common)}.")
    asked = ("What is the most common word in the above list?" if k == 1 else
             f"What are the {k} most common words in the above list?")
    return Exercise(job.rng.choice(CWE_INTROS), [(text + "\n", Loss.NONE)], [(asked, answer)])


def fwe(job):
    """Made-up words; the one of rank r appears about n / (r * r * ZETA_2) times, rank 1 is dots."""
    n = max(40, int((job.n_tokens - 120) / 3.2))
    n_letters = job.choose(4, 5, 6, 6, 6)
    coded = job.distinct(max(8, job.n_tokens // 50),
                         lambda: job.letters(n_letters, string.ascii_lowercase))
    with_dots = job.chance(0.75)
    ranked = [DOTS] * with_dots + coded
    words = [word for rank, word in enumerate(ranked, 1)
             for _ in range(round(n / (rank * rank * ZETA_2)))]
    job.rng.shuffle(words)
    k = job.choose(1, 3, 3, 3)
    answer = (f"The coded word that appears most often is {coded[0]}." if k == 1 else
              f"The three coded words that appear most often are {enumeration(coded[:3])}.")
    asked = ("What is the coded word that appears most often in the text above?" if k == 1 else
             "What are the three coded words that appear most often in the text above?")
    return Exercise(job.rng.choice(FWE_INTROS), [(" ".join(words) + "\n", Loss.NONE)],
                    [(asked, answer)])


def tally(job):
    """Notes that name things again and again; how often was this one named?"""
    things = job.keys(job.rng.randint(2, 6), "noun")
    counts = [job.rng.randint(1, 9) for _ in things]
    order = [thing for thing, n in zip(things, counts) for _ in range(n)]
    job.rng.shuffle(order)
    sentences = [[(f"One more {thing} was seen.", Loss.PROMPT)] for thing in order]
    asked = job.some(list(zip(things, counts)), job.how_many(6, 30))
    turns = [(f"How many times was a {thing} seen?", f"{n} times." if n > 1 else "Once.")
             for thing, n in asked]
    return Exercise("", job.weave(sentences, job.n_tokens - 50 - 30 * len(turns)), turns)
