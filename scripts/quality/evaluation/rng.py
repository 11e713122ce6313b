"""Random numbers that are the same on every machine and in every Python.

A sample is found again by its name alone (seed, task, length, index), so nothing here depends on
`random`, whose methods may change between versions, or on hash(), which changes between processes.
A name is hashed with SHA-256; its first 8 bytes start SplitMix64.
"""
import hashlib

MASK = (1 << 64) - 1


class Rng:
    """A stream of random numbers; different names give independent streams."""

    def __init__(self, *name):
        digest = hashlib.sha256("/".join(str(part) for part in name).encode()).digest()
        self._state = int.from_bytes(digest[:8], "little")

    def _next(self):
        """64 random bits: one step of SplitMix64."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & MASK
        bits = self._state
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
        return bits ^ (bits >> 31)

    def integer(self, n):
        """One of 0 to n - 1."""
        # Numbers past the last whole multiple of n would make the small results likelier.
        limit = (1 << 64) - (1 << 64) % n
        while (bits := self._next()) >= limit:
            pass
        return bits % n

    def between(self, low, high):
        """One of low to high, both included."""
        return low + self.integer(high - low + 1)

    def choice(self, items):
        return items[self.integer(len(items))]

    def shuffle(self, items):
        """A shuffled copy."""
        items = list(items)
        for last in range(len(items) - 1, 0, -1):
            other = self.integer(last + 1)
            items[last], items[other] = items[other], items[last]
        return items

    def sample(self, items, n):
        """n of the items, none twice, in random order."""
        items = list(items)
        for i in range(n):
            other = i + self.integer(len(items) - i)
            items[i], items[other] = items[other], items[i]
        return items[:n]

    def digits(self, n):
        """A number of n digits as text; it does not begin with 0."""
        return str(self.between(10 ** (n - 1), 10 ** n - 1))
