"""One sample to be made: what was asked for, and the means to make it."""
from dataclasses import dataclass
from typing import Any, Callable

from ..rng import Rng
from ..text import haystack
from .sample import Sample

N_DEPTHS = 10
# A prompt may stay this far below its budget: less is not worth another question to the server.
SLACK_TOKENS = 32
# Questions about one context differ by a few tokens; the longest text need not have the most.
QUESTIONS_DIFFER_TOKENS = 8


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

    def kind(self, **weights):
        """The kind of haystack of this sample: each is drawn as often as its weight says."""
        return self.rng("kind").choice([kind for kind, n in weights.items() for _ in range(n)])

    def haystack(self, kind, n_chars, purpose="haystack"):
        return haystack(kind, self.rng(purpose), n_chars, self.books)

    def sample(self, context, questions, depth=None):
        return Sample(self.task, self.length, self.index, context, questions, depth)

    def tokens_over(self, sample):
        """How many tokens the longest prompt of a sample and its answer take beyond the length."""
        longest = max(sample.questions, key=lambda question: len(question.text))
        prompt = self.count_tokens(sample.context + longest.text)
        spare = QUESTIONS_DIFFER_TOKENS if len(sample.questions) > 1 else 0
        return prompt + spare + max(q.max_tokens for q in sample.questions) - self.length

    def fill(self, build, least=0, most=None, tokens_per_unit=0.25):
        """The longest sample that fits.  build(n) makes one of n units (characters of a haystack,
        lines, pairs; `least` to `most`), whose tokens grow with n.  Counting tokens may be a
        request to a server, so the next n is guessed from the last two (three or four counts as a
        rule); every fifth time it is the middle, which ends in any case."""
        fits, sample = least, build(least)
        over = self.tokens_over(sample)
        if over > 0:
            raise ValueError(f"{self.task} needs {over} tokens more than {self.length}")
        fits_over, slope = over, tokens_per_unit
        too_many = None if most is None else most + 1
        for attempt in range(1, 100):
            if fits_over >= -SLACK_TOKENS or too_many == fits + 1:
                break
            n = fits + max(1, int((-fits_over - SLACK_TOKENS / 2) / slope))
            if too_many is not None:
                n = (fits + too_many) // 2 if attempt % 5 == 0 else min(n, too_many - 1)
            candidate = build(n)
            over = self.tokens_over(candidate)
            slope = max((over - fits_over) / (n - fits), tokens_per_unit / 100)
            if over > 0:
                too_many = n
            else:
                fits, fits_over, sample = n, over, candidate
        return sample
