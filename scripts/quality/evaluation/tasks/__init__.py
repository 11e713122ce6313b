"""The tasks, by name.

`generate` makes one sample.  It is a function of its arguments alone: the same call gives the same
bytes on every machine, and a longer run begins with the samples of a shorter one.

    sample = generate("passkey", 4096, 0, seed, count_tokens, books)

count_tokens(text) says how many tokens a request with this text has, the template's included
(count_tokens("") is what the template costs): `length` is what the prompt and the answer may fill.
"""
from .card import card
from .counting import cwe, fwe
from .job import Job
from .magic import multikey, multiquery, multivalue, niah
from .needle import number, passkey
from .pairs import kv, lines
from .people import people
from .reading import sections, snapshots
from .sample import Question, Sample
from .scoring import judge
from .seam import seam
from .twostage import twostage
from .variables import vt

__all__ = ["TASKS", "Question", "Sample", "card", "generate", "judge"]

TASKS = {task.__name__: task for task in (
    passkey, number, kv, niah, multikey, multivalue, multiquery, vt, cwe, fwe, twostage, lines,
    people, seam, sections, snapshots)}


def generate(task, length, index, seed, count_tokens, books):
    """Raises ValueError when the length is too short for the task."""
    return TASKS[task](Job(task, length, index, seed, count_tokens, books))
