"""Which texts were seen before: books by their long sentences, documents by their paragraphs."""
import collections
import hashlib
import re

LONG_SENTENCE = 40  # letters; shorter ones are shared by chance
HELD_OUT_SHARE, DUPLICATE_SHARE = 0.02, 0.25
SHORT_PARAGRAPH, MOST_COPIES = 60, 2
LONGEST_PARAGRAPH = 20_000
TABLE_LENGTH, LEAST_LETTERS = 400, 0.35


def digest(text):
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def sentences(text):
    """Digests of the long sentences, by their letters alone."""
    letters = (re.sub(r"[^a-z]", "", part) for part in re.split(r"[.!?;]\s+|\n+", text.lower()))
    return [digest(part) for part in letters if len(part) >= LONG_SENTENCE]


def share(digests, known):
    return sum(one in known for one in digests) / len(digests)


class Books:
    """Takes a book unless it is a held-out one under another title, or a second edition."""

    def __init__(self, held_out):
        self.held_out = {one for text in held_out for one in sentences(text)}
        self.seen = set()

    def refuse(self, text):
        """Why the book is not taken, or None; what is taken counts as seen."""
        digests = sentences(text)
        if not digests:
            return "no long sentence"
        if share(digests, self.held_out) > HELD_OUT_SHARE:
            return "held out"
        if share(digests, self.seen) > DUPLICATE_SHARE:
            return "seen before"
        self.seen.update(digests)
        return None


class Paragraphs:
    """Drops a paragraph that was seen twice (licences, warnings, navigation), and tables."""

    def __init__(self):
        self.copies = collections.Counter()

    def keep(self, paragraph):
        if len(paragraph) > SHORT_PARAGRAPH:
            key = digest(re.sub(r"\W", "", paragraph.lower()))
            self.copies[key] += 1
            if self.copies[key] > MOST_COPIES:
                return False
        if len(paragraph) > LONGEST_PARAGRAPH:
            return False
        n_letters = sum(c.isalpha() or c.isspace() for c in paragraph)
        return len(paragraph) <= TABLE_LENGTH or n_letters >= LEAST_LETTERS * len(paragraph)

    def clean(self, text):
        return "\n\n".join(filter(self.keep, text.split("\n\n")))
