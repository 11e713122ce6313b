"""One sample to be made: what was asked for, and the means to make it."""
from dataclasses import dataclass
from typing import Any, Callable

from ..rng import Rng
from .sample import Sample

N_DEPTHS = 10


@dataclass
class Job:
    task: str
    length: int
    index: int
    seed: int | str
    count_tokens: Callable[[str], int]
    books: Any

    def rng(self, *purpose):
        """A stream for one purpose, so that adding a purpose leaves the others as they were."""
        return Rng(self.seed, self.task, self.length, self.index, *purpose)

    def depth(self):
        """Depths lie on a grid from 0 to 1; every N_DEPTHS samples in a row visit all of it, in an
        order of their own."""
        turn, place = divmod(self.index, N_DEPTHS)
        order = Rng(self.seed, self.task, self.length, "depths", turn).shuffle(range(N_DEPTHS))
        return order[place] / (N_DEPTHS - 1)

    def sample(self, context, questions, depth=None):
        return Sample(self.task, self.length, self.index, context, questions, depth)
