"""One exercise to be made: its random numbers, its size, and what it can be made of."""
import random
import string
from dataclasses import dataclass

from repository import FILLER, LISTS

from .sample import Loss

CHARACTERS_PER_TOKEN = 3.9  # of prose; other text is estimated by tokens_of()
MOST_QUESTIONS = 160
DIGITS = str.maketrans("", "", string.digits)


def tokens_of(text):
    """About how many tokens a text has.  Digits are tokens of their own."""
    others = text.translate(DIGITS)
    return len(text) - len(others) + len(others) / 3.4


@dataclass
class Exercise:
    """A context and what is asked about it.  context: pieces (text, Loss); turns: (question,
    answer).  Where can_ask_first is set, the first question may also stand before the context."""
    intro: str
    context: list
    turns: list
    can_ask_first: bool = True


class Job:
    """rng: random.Random.  n_tokens: what the whole sample may have.  library: passage()."""

    def __init__(self, rng, n_tokens, library):
        self.rng, self.n_tokens, self.library = rng, n_tokens, library

    def chance(self, probability):
        return self.rng.random() < probability

    def digits(self, n=None):
        n = n or self.rng.choice([4, 5, 5, 6, 7, 7, 7, 8])
        return str(self.rng.randrange(10 ** (n - 1), 10 ** n))

    def hexadecimal(self, n=None):
        n = n or self.rng.choice([4, 6, 8, 8, 8, 10, 12])
        return f"{self.rng.getrandbits(4 * n):0{n}x}"

    def letters(self, n, alphabet=string.ascii_uppercase):
        return "".join(self.rng.choices(alphabet, k=n))

    def word(self):
        return self.rng.choice(LISTS["words"])

    def word_of(self, name):
        """One of a list of words.txt."""
        return self.rng.choice(LISTS[name])

    def thing(self):
        return f"{self.rng.choice(LISTS['adjectives'])}-{self.rng.choice(LISTS['nouns'])}"

    def person(self):
        return f"{self.rng.choice(LISTS['names'])} {self.rng.choice(LISTS['surnames'])}"

    def key(self, kind=None):
        kind = kind or self.rng.choice(KINDS_OF_KEY)
        return KEYS[kind](self)

    def keys(self, n, kind=None):
        """n different ones of one kind; where a kind has too few, of a richer one."""
        kind = kind or self.rng.choice(KINDS_OF_KEY)
        if n > KIND_SUFFICES.get(kind, 1 << 30):
            kind = self.rng.choice(["thing", "person", "hexadecimal"]) if n < 900 else "long thing"
        found = {}
        while len(found) < n:
            found[self.key(kind)] = None
        return list(found)

    def distinct(self, n, draw):
        found = {}
        while len(found) < n:
            found[draw()] = None
        return list(found)

    def prose(self, n_tokens):
        text, _ = self.library.passage(self.rng, int(max(n_tokens, 20) * CHARACTERS_PER_TOKEN))
        return text[:text.rfind(" ")] if " " in text else text

    def haystack(self, n_tokens):
        """(text, loss): prose, which is learned from as it is, or filler, which is not."""
        kind = self.rng.random()
        if n_tokens < 16:
            return "", Loss.NONE
        if kind < 0.84:
            return self.prose(n_tokens), Loss.TEXT
        if kind < 0.92:
            return (FILLER + " ") * (1 + int(n_tokens / 27)), Loss.NONE
        sentences = [self.sentence_of_words() for _ in range(1 + int(n_tokens / 14))]
        return " ".join(sentences), Loss.NONE

    def sentence_of_words(self):
        words = self.rng.choices(LISTS["words"], k=self.rng.randint(5, 11))
        return " ".join(words).capitalize() + "."

    def weave(self, sentences, n_tokens):
        """The sentences (lists of pieces), in their order, at random places of a haystack that
        makes n_tokens of all."""
        size = sum(tokens_of(text) for pieces in sentences for text, _ in pieces)
        text, loss = self.haystack(n_tokens - size - 2 * len(sentences))
        places = sorted(self.break_near(text, self.rng.randrange(len(text) + 1)) for _ in sentences)
        woven, last = [], 0
        for (place, gap), pieces in zip(places, sentences):
            woven.append((text[last:place], loss))
            before = "".join(piece for piece, _ in woven[-3:])
            if gap == " " and before and not before[-1].isspace():
                woven.append((gap, Loss.PROMPT))
            woven += pieces
            if gap != " ":
                woven.append((gap, Loss.PROMPT))
            last = place
        rest = text[last:]
        woven.append((rest if rest[:1].isspace() or not rest else " " + rest, loss))
        return [(piece, loss) for piece, loss in woven if piece]

    def break_near(self, text, position):
        """(position, gap): an end of a paragraph or sentence behind the position, or the end."""
        end = text.find(". ", position, position + 1500)
        paragraph = text.find("\n\n", position, end if end >= 0 else position + 1500)
        if paragraph >= 0:
            return paragraph + 2, "\n\n"
        if end >= 0:
            return end + 1, " "
        return len(text), " "

    def how_many(self, most, tokens_each=50):
        """How many questions to ask: many teach more per token than one, above all behind a long
        text, whose reading costs the same for one."""
        most = max(1, min(most, int(self.n_tokens / 4 / tokens_each), MOST_QUESTIONS))
        return most if self.chance(0.5) else self.rng.randint(1, most)

    def choose(self, *options):
        return self.rng.choice(options)

    def some(self, sequence, n):
        return self.rng.sample(sequence, min(n, len(sequence)))


KEYS = {
    "city": lambda job: job.rng.choice(LISTS["cities"]),
    "thing": Job.thing,
    "long thing": lambda job: f"{job.rng.choice(LISTS['adjectives'])}-{job.thing()}",
    "noun": lambda job: job.rng.choice(LISTS["nouns"]),
    "name": lambda job: job.rng.choice(LISTS["names"]),
    "person": Job.person,
    "word": Job.word,
    "hexadecimal": Job.hexadecimal,
}
KINDS_OF_KEY = ["city", "city", "thing", "thing", "noun", "name", "person", "word"]
KIND_SUFFICES = {"city": len(LISTS["cities"]) // 2, "noun": len(LISTS["nouns"]) // 2,
                 "name": len(LISTS["names"]) // 2, "word": len(LISTS["words"]) // 2,
                 "person": 900, "thing": 2500}
