"""sections and snapshots: what must be understood while the text is read.

    From here on, the speaker is Clara. ... prose ... The speaker's number is 4821. ... prose ...
    From here on, the speaker is Ben.   ... prose ... The speaker's number is 7030. ... prose ...

Whose number 4821 is depends on the last speaker before that sentence.  A reader must look
back for the speaker there; at the question it is too late, since "the last one before that place"
is nothing that a query can name.  So a sparse prefill that misses the far sentence fails here, though
the last tokens see everything.  One hop of retrieval (passkey, kv, ...) cannot tell.
"""
from ..text import LISTS, distinct, weave
from .sample import Question

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FEWEST, MOST = 3, 6  # sections
TOKENS_PER_SECTION = 1024  # so that the far sentence lies outside of a window of some hundred
NEAREST, FARTHEST = 50, 95  # hundredths of a section between its first sentence and the other


def n_sections(job):
    return max(FEWEST, min(MOST, job.length // TOKENS_PER_SECTION))


def tell(job, pairs, questions):
    """pairs: for each section its first sentence and the one that depends on it."""
    rng, n, pieces = job.rng("places"), len(pairs), []
    for i, (first, second) in enumerate(pairs):
        pieces += [(i / n, first),
                   ((i + rng.between(NEAREST, FARTHEST) / 100) / n, second)]
    kind = job.kind(prose=3, filler=1)
    return job.fill(lambda n_chars: job.sample(f"{weave(job.haystack(kind, n_chars), pieces)}\n",
                                               questions))


def sections(job):
    """The speaker's number, of several speakers."""
    rng = job.rng("values")
    owners = job.rng("owners").sample(LISTS["names"], n_sections(job))
    values = distinct(len(owners), lambda: rng.digits(5))
    pairs = [(f"From here on, the speaker is {owner}.", f"The speaker's number is {value}.")
             for owner, value in zip(owners, values)]
    questions = [Question(f"What is the number of {owner}?", [value], "contains_all", 32,
                          f"The number of {owner} is {value}.", i / len(owners))
                 for i, (owner, value) in enumerate(zip(owners, values))]
    return tell(job, pairs, questions)


def snapshots(job):
    """A variable that is set again and again, and copies that keep the value of their time."""
    rng = job.rng("values")
    name, n = "".join(rng.choice(LETTERS) for _ in range(3)), n_sections(job)
    values = distinct(n, lambda: rng.digits(4))
    copies = distinct(n, lambda: "".join(rng.choice(LETTERS) for _ in range(6)))
    pairs = [(f"Set {name} to {value}.", f"Copy {name} to {copy}.")
             for value, copy in zip(values, copies)]
    questions = [Question(f"What is the value of {copy}?", [value], "contains_all", 32,
                          f"The value of {copy} is {value}.", i / n)
                 for i, (value, copy) in enumerate(zip(values, copies))]
    return tell(job, pairs, questions)
