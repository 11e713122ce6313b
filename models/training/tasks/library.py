"""The text that samples are made of: whole documents, cut at paragraphs and sentences."""
import numpy as np

SEPARATOR = b"\0"
MOST_SEARCHED = 4000  # bytes that are looked through for a beginning


class Library:
    """Documents of one file.  The file is mapped, so that worker processes share its memory."""

    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        cuts = np.flatnonzero(self.data == 0)
        self.starts = np.concatenate([[0], cuts + 1])
        self.ends = np.concatenate([cuts, [len(self.data)]])
        by_size = np.argsort(self.ends - self.starts, kind="stable")
        self.starts, self.ends = self.starts[by_size], self.ends[by_size]
        self.sizes = self.ends - self.starts
        self.cumulated = np.concatenate([[0], np.cumsum(self.sizes)])

    def document(self, rng, least_bytes):
        """(start, end) of a document drawn by its size, of least_bytes at least if there is one."""
        first = min(int(np.searchsorted(self.sizes, least_bytes)), len(self.sizes) - 1)
        low, high = int(self.cumulated[first]), int(self.cumulated[-1])
        i = int(np.searchsorted(self.cumulated, rng.randrange(low, high), side="right")) - 1
        return int(self.starts[i]), int(self.ends[i])

    def read(self, start, end):
        return self.data[start:end].tobytes()

    def passage(self, rng, n_bytes, at_start=False):
        """About n_bytes of one document, from the beginning of a paragraph: (text, whether the
        document ends there)."""
        start, end = self.document(rng, n_bytes)
        if not at_start and end - start > n_bytes:
            last = end - n_bytes
            start = self.paragraph_after(rng.randrange(start, last + 1), start, last)
        stop = min(end, start + n_bytes)
        return self.read(start, stop).decode("utf-8", "ignore"), stop == end

    def paragraph_after(self, position, start, last):
        found = self.read(position, min(position + MOST_SEARCHED, last)).find(b"\n\n")
        if found < 0:
            return start if position - start < MOST_SEARCHED else self.word_after(position)
        return position + found + 2

    def word_after(self, position):
        found = self.read(position, position + 100).find(b" ")
        return position + found + 1


class Libraries:
    """Books and technical documents, mixed."""

    def __init__(self, directory, documents_share, names=("books", "documents")):
        self.books, self.documents = (Library(directory / f"{name}.txt") for name in names)
        self.documents_share = documents_share

    def choose(self, rng, n_bytes):
        """Long passages come from books where there is no document of that size."""
        if rng.random() < self.documents_share and self.documents.sizes[-1] >= n_bytes:
            return self.documents
        return self.books

    def passage(self, rng, n_bytes, at_start=False):
        return self.choose(rng, n_bytes).passage(rng, n_bytes, at_start)


class HeldOut:
    """The held-out books alone: what evaluation hides things in."""

    def __init__(self, path):
        self.books = Library(path)

    def passage(self, rng, n_bytes, at_start=False):
        return self.books.passage(rng, n_bytes, at_start)
