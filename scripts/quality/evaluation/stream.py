"""StreamEval: one endless text of lines; after every 10 new lines the line 20 back is asked for,
and the answer stays in the text, as the turns of a chat do.  In the wording of the task `lines`.

A cache that keeps a window of more than 20 lines, and the sinks, answers for ever; one that keeps
fewer lines never does.
"""
from .rng import Rng
from .tasks.pairs import LINES_PREAMBLE, line, question_of_line
from .text import names_of_things

STEP = 10
DISTANCE = 20
# A name comes back after so many lines, which is farther than any question reaches.
N_NAMES = 2000


class Stream:
    """The turns of one stream, made as they are asked for.  distances: how many lines back the
    questions ask, in turn; below N_NAMES."""

    def __init__(self, seed, index, step=STEP, distances=(DISTANCE,)):
        self._rng = Rng(seed, "streameval", index)
        self._names = names_of_things(self._rng, N_NAMES)
        self._step, self._distances = step, distances
        self._lines = []  # (name, number)
        self._n_turns = 0

    def turn(self):
        """(text of the next turn, its Question): new lines, then the question about one."""
        text = "" if self._lines else LINES_PREAMBLE
        for _ in range(self._step if self._lines else max(self._distances)):
            name = self._names[len(self._lines) % N_NAMES]
            self._lines.append((name, self._rng.digits(5)))
            text += line(*self._lines[-1])
        distance = self._distances[self._n_turns % len(self._distances)]
        self._n_turns += 1
        question = question_of_line(*self._lines[-distance])
        return text + question.text, question
