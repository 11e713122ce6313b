"""What a model must answer to a prompt that is computed sparsely, in numpy and float64: the
definition at the top of engine/device/sparse.h, slow and obvious.

There are no lists of groups here.  A query head has a matrix of booleans that says of each row and
each slot whether the row visits it, and attention is a softmax over what it visits.

  Pattern(kind, p1, p2)            one head's, as pattern files say it
  Prefill(patterns, tail, ...)     how a prompt is computed
  Choice(pattern, queries, ...)    which slots one head of one layer visits
  Text(model, prefill)             one sequence; prompt() and more() give logits
"""
import dataclasses
import functools
import math

import numpy

from oracle_model import softmax

GROUP, PAGE, TILE = 16, 64, 128
HALF = TILE // 2  # whose rows visit the same groups
QUERIES = 64  # the last rows, by whose attention lines are chosen
MIN_DIAGONALS, MIN_COLUMNS = 100, 30  # always chosen


@dataclasses.dataclass(frozen=True)
class Pattern:
    kind: str  # vertical_and_slash, stream_llm, block_sparse, dense
    p1: int = 0
    p2: int = 0


@dataclasses.dataclass(frozen=True)
class Prefill:
    patterns: list  # [layer][head]
    tail: int = 64  # rows before the prompt's last one that are dense, as that one is in any case
    chunk: int = 2048  # rows of a step
    long_rows: float = math.inf  # where more are left, chunks choose for themselves
    dense_above: float = 0.7

    def pieces(self, n_stored, n):
        """(begin, end, whether it is sparse, whether it leaves the last layer) of what is computed
        together of a prompt of n tokens.  Layer by layer is one piece, of which nothing is needed
        but keys and values, and the last token is another."""
        if n_stored < n - 1 <= n_stored + self.long_rows:
            return [(n_stored, n - 1, True, False), (n - 1, n, False, True)]
        pieces = []
        while n_stored < n:
            end = n if n - n_stored <= self.chunk else n_stored + self.chunk // PAGE * PAGE
            pieces.append((n_stored, end, n - n_stored > 1, True))
            n_stored = end
        return pieces


def scaled_products(queries, keys):
    return queries @ keys.T / math.sqrt(queries.shape[1])


class Choice:
    """What a query head visits in rows that are indexed together.  queries [rows, dim] stand in the
    slots from `first` on, keys [slots, dim] in all, and both end together.  scores: what the model
    makes of them.

    visited, causal   [rows, slots]
    closest           how near a choice came to a tie: the smallest difference of the last score
                      that was chosen and the first that was not, relative to what rounding is
                      relative to

    sink: the head's, of softmax"""

    def __init__(self, pattern, queries, keys, first, prefill, dense_from,
                 scores=scaled_products, scale=1, slope=0, sink=-math.inf):
        self.scale, self.slope, self.sink = scale, slope, sink
        self.pattern, self.queries, self.keys, self.first = pattern, queries, keys, first
        self.n_slots, self.closest = len(keys), math.inf
        slots = numpy.arange(self.n_slots)
        self.causal = slots <= slots[first:, None]
        self.visited = self.causal
        seen_by = {"vertical_and_slash": self._lines, "stream_llm": self._a_shape,
                   "block_sparse": self._pages, "dense": None}[pattern.kind]
        tiles = [tile for tile in range(first, self.n_slots, TILE)
                 if min(tile + TILE, self.n_slots) <= dense_from]
        if not seen_by or not tiles:
            return
        if pattern.kind == "vertical_and_slash":
            self.columns, self.diagonals = self._best_lines(scores(queries[-QUERIES:], keys))
        visited, n_sparse = self.causal.copy(), min(TILE * len(tiles), len(queries))
        for half in (half for tile in tiles for half in (tile, tile + HALF)):
            tile = half - (half - first) % TILE
            visited[half - first:half - first + HALF] &= seen_by(tile, half)
        density = visited[:n_sparse].sum() / self.causal[:n_sparse].sum()
        if density <= numpy.float32(prefill.dense_above):
            self.visited = visited

    def _best(self, scores, n, n_forced=0, scale=None):
        """Whether each is one of the n best or of the first n_forced, which count as the best; the
        lower index is better when scores are equal."""
        n = min(len(scores), max(n, n_forced))
        order = numpy.argsort(-scores[n_forced:], kind="stable") + n_forced
        last, left = order[:n - n_forced], order[n - n_forced:]
        if len(last) and len(left):
            gap = scores[last[-1]] - scores[left[0]]
            self.closest = min(self.closest, gap / (scale or scores[last[-1]]))
        chosen = numpy.arange(len(scores)) < n_forced
        chosen[last] = True
        return chosen

    def _best_lines(self, s):
        """Whether each slot is a column, and whether each distance is a diagonal, by the scores of
        the last rows."""
        p = softmax(numpy.where(self.causal[-QUERIES:], s, -numpy.inf), self.sink)
        diagonals = numpy.zeros(self.n_slots)
        for row, slot in zip(p, range(self.n_slots - len(p), self.n_slots)):
            diagonals[:slot + 1] += row[slot::-1]
        return (self._best(p.sum(axis=0), self.pattern.p1, MIN_COLUMNS),
                self._best(diagonals, self.pattern.p2, MIN_DIAGONALS))

    def _groups(self, tile, half, n_first, is_near):
        """Slots in the tile's own groups, in the first ones, and in those at distances from half of
        it that are near."""
        seen = numpy.zeros(self.n_slots, bool)
        for group in range(-(-self.n_slots // GROUP)):
            is_own = tile // GROUP <= group < (tile + TILE) // GROUP
            if is_own or group < n_first or is_near(half // GROUP - group):
                seen[GROUP * group:GROUP * (group + 1)] = True
        return seen

    def _lines(self, tile, half):
        def is_near(distance):
            """Whether a chosen diagonal is among the five sixteens that a group may meet."""
            begin = max(0, GROUP * (distance - 1))
            return self.diagonals[begin:max(0, GROUP * (distance + 4))].any()

        seen = self._groups(tile, half, -(-MIN_COLUMNS // GROUP), is_near)
        return seen | self.columns & (numpy.arange(self.n_slots) < tile)

    def _a_shape(self, tile, half):
        def is_near(distance):
            """Whether the group's last slot is among the p2 newest of the half's first row."""
            return GROUP * distance - (GROUP - 1) < self.pattern.p2

        return self._groups(tile, half, -(-self.pattern.p1 // GROUP), is_near)

    def _pages(self, tile, _half):
        page, own = numpy.arange(self.n_slots) // PAGE, tile // PAGE
        begin = tile - self.first
        query = self.queries[begin:begin + TILE].mean(axis=0)
        scores = numpy.array([self.keys[page == i].mean(axis=0) @ query for i in range(own)])
        if self.slope:  # the mean over pairs of row and slot, but for what all pages have
            scores = scores * self.scale + self.slope * PAGE * numpy.arange(own)
        chosen = self._best(scores, self.pattern.p1, scale=abs(scores).max(initial=0))
        return numpy.isin(page, [0, own, own + 1, *numpy.flatnonzero(chosen)])


class Text:
    """One sequence.  n_visited, n_causal: pairs of row and slot of the sparse pieces."""

    def __init__(self, model, prefill):
        self.model, self.prefill = model, prefill
        empty = numpy.zeros((model.n_kv_heads, 0, model.head_dim))
        self.keys, self.values = [empty] * model.n_layers, [empty] * model.n_layers
        self.states = {}  # of recurrent layers
        self.n_visited = self.n_causal = 0
        self.closest = math.inf

    @property
    def n(self):
        return self.keys[0].shape[1]

    def beginning(self, n):
        """Another text whose first n tokens are this one's, as they were computed here."""
        text = Text(self.model, self.prefill)
        assert not self.states or n == 0  # they are known at the end alone
        text.keys = [keys[:, :n] for keys in self.keys]
        text.values = [values[:, :n] for values in self.values]
        text.closest = self.closest
        return text

    def prompt(self, tokens):
        """Logits after the last token; those that the text has are not computed again."""
        return self.model.logits([*self._pieces(tokens, False)][-1][-1])

    def scored_prompt(self, tokens):
        """Logits after each token; the text must be at its beginning."""
        assert self.n == 0
        return self.model.logits(numpy.concatenate([*self._pieces(tokens, True)]))

    def _pieces(self, tokens, is_scored):
        dense_from = max(0, len(tokens) - self.prefill.tail)
        for begin, end, is_sparse, leaves_last in self.prefill.pieces(self.n, len(tokens)):
            yield self._rows(tokens[begin:end], dense_from if is_sparse else None,
                             leaves_last or is_scored)

    def more(self, tokens):
        """Logits after each of more tokens, as generated."""
        return self.model.logits(self._rows(tokens, None, True))

    def _rows(self, tokens, dense_from, leaves_last):
        """What leaves the last layer; if nothing needs that, it only stores keys and values, and
        chooses none.  dense_from None: all rows are dense."""
        m, first = self.model, self.n
        at = numpy.arange(first, first + len(tokens))
        x = m.approach(0, m.embed(tokens, at), self.states)
        for i in range(m.n_layers):
            q, k, v = (part.transpose(1, 0, 2) for part in m.qkv(i, x))
            self.keys[i] = numpy.concatenate([self.keys[i], m.rotate(i, k, at)], axis=1)
            self.values[i] = numpy.concatenate([self.values[i], v], axis=1)
            if i + 1 == m.n_layers and not leaves_last:
                return None
            read = [self._attend(i, head, m.rotate(i, q[head], at), first, dense_from)
                    for head in range(m.n_heads)]
            x = m.finish_layer(i, x, numpy.concatenate(read, axis=1))
            x = m.approach(i + 1, x, self.states)
        return x

    def _attend(self, layer, head, queries, first, dense_from):
        kv_head = head // self.model.group
        keys, values = self.keys[layer][kv_head], self.values[layer][kv_head]
        if dense_from is None or self.model.windows[layer] < math.inf:
            slots = numpy.arange(len(keys))
            visited = ~self.model.is_hidden(layer, slots[first:], slots)
        else:
            visited = self._choose(layer, head, queries, keys, first, dense_from)
        s = self._scores(head, queries, keys)
        return softmax(numpy.where(visited, s, -numpy.inf), self._sink(layer, head)) @ values

    def _sink(self, layer, head):
        return self.model.sinks(layer).flat[head]

    def _scores(self, head, queries, keys):
        """Of the head's queries of the last tokens that have keys."""
        n = len(keys)
        bias = self.model.bias(slice(head, head + 1), range(n - len(queries), n), numpy.arange(n))
        return self.model.scores(queries, keys) + (0 if self.model.slopes is None else bias[0])

    def _choose(self, layer, head, queries, keys, first, dense_from):
        choice = Choice(self.prefill.patterns[layer][head], queries, keys, first, self.prefill,
                        dense_from, functools.partial(self._scores, head), self.model.scale,
                        0 if self.model.slopes is None else self.model.slopes[head],
                        self._sink(layer, head))
        self.n_visited += choice.visited.sum()
        self.n_causal += choice.causal.sum()
        self.closest = min(self.closest, choice.closest)
        return choice.visited
