"""Text that evidence is hidden in: books, filler, random words; and the lists that it is made of.

All positions and lengths here are in characters: only the server knows tokens.
"""
import bisect
import pathlib
import re

HELD_OUT = pathlib.Path(__file__).resolve().parents[3] / "models/quire-31m/eval/held_out.txt"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
# A sentence ends at its mark and the quotes that close with it, where another one begins.
SENTENCE_END = re.compile(r"(?<!\bMr)(?<!\bMrs)(?<!\bDr)(?<!\bSt)"
                          r"[.!?][\"'’”)]*(?=\s+[\"'‘“(]?[A-Z0-9])")


def read_lists(path):
    """The sections of words.txt: name -> list of words."""
    lists, words = {}, None
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            words = lists[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            words += line.rstrip(",").split(", ")
    return lists


LISTS = read_lists(pathlib.Path(__file__).with_name("words.txt"))


class Books:
    """One long text without an end: past the last page comes the first."""

    def __init__(self, text):
        if not text.strip():
            raise ValueError("the books are empty")
        self.text = text

    @classmethod
    def load(cls, path=HELD_OUT):
        # newline="": line ends are the file's, on every system.
        with open(path, encoding="utf-8", newline="") as file:
            return cls(file.read())

    def passage(self, start, n_chars):
        """From the first word that begins at `start` or later to the end of a word."""
        while not self._breaks_at(start):
            start += 1
        end = start + n_chars
        while end > start and not self._breaks_at(end):
            end -= 1
        return self._slice(start, end).lstrip("\n").rstrip()

    def _breaks_at(self, position):
        return self.text[position % len(self.text)].isspace()

    def _slice(self, start, end):
        pieces, size = [], len(self.text)
        while start < end:
            n = min(end - start, size - start % size)
            pieces.append(self.text[start % size:start % size + n])
            start += n
        return "".join(pieces)


def sentence_of_words(rng):
    """5 to 11 words that mean nothing together."""
    words = [rng.choice(LISTS["words"]) for _ in range(rng.between(5, 11))]
    return " ".join(words).capitalize() + "."


def haystack(kind, rng, n_chars, books):
    """About n_chars of "prose", "filler" or "words"; a greater n_chars only makes it longer."""
    if kind == "prose":
        return books.passage(rng.integer(len(books.text)), n_chars)
    text = []
    size = 0
    while size < n_chars:
        text.append(FILLER if kind == "filler" else sentence_of_words(rng))
        size += len(text[-1]) + 1
    return "".join(" " + sentence for sentence in text)


def weave(text, pieces):
    """Puts each (depth, piece) in at the sentence end nearest to its depth; pieces that meet at one
    place keep their order.  A piece between two paragraphs becomes a paragraph."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)] or [len(text)]
    at = {}
    for depth, piece in pieces:
        at.setdefault(nearest(ends, depth * len(text)), []).append(piece)
    woven, last = [], 0
    for end in sorted(at):
        gap = "\n\n" if text.startswith("\n\n", end) else " "
        woven += [text[last:end], *(gap + piece for piece in at[end])]
        last = end
    return "".join(woven) + text[last:]


def nearest(positions, wanted):
    """The one of the sorted positions that is nearest to `wanted`."""
    i = bisect.bisect_left(positions, wanted)
    return min(positions[max(0, i - 1):i + 1], key=lambda position: abs(position - wanted))


def distinct(n, draw):
    """The first n different values that draw() gives."""
    values = {}
    misses = 0
    while len(values) < n:
        before = len(values)
        values[draw()] = None
        misses = misses + 1 if len(values) == before else 0
        if misses > 1000:
            raise ValueError(f"there are not {n} different values to draw")
    return list(values)


def names_of_things(rng, n):
    """n different names such as `humble-fire`.  Past a quarter of all pairs, which 32K tokens do
    not need, names have one word more."""
    few = n <= len(LISTS["adjectives"]) * len(LISTS["nouns"]) // 4
    words = ["adjectives", "nouns"] if few else ["adjectives", "adjectives", "nouns"]
    return distinct(n, lambda: "-".join(rng.choice(LISTS[name]) for name in words))
