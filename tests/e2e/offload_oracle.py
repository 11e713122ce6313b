"""What a model must answer whose sparse layers see only what filter layers choose, in numpy
and float64: the definition of selections at the top of engine/device/select.h, slow and obvious.

  Selection(filters, wait, selected, ...)   which layers choose, and how many tokens
  Text(model, selection)                    one sequence; prompt() and token() give logits
"""
import dataclasses
import itertools
import math

import numpy

from bounded_oracle import AT_ONCE, Rows
from oracle_model import softmax

PAGE = 64
WINDOW = 16  # queries that a selector looks at
NEAR_TIE = 3e-5  # two candidates worth so nearly the same may change places in f32


def whole_pages(n):
    return -(-n // PAGE) * PAGE


@dataclasses.dataclass(frozen=True)
class Selection:
    filters: tuple  # layers, ascending
    wait: int
    selected: int  # tokens; this and the tail are rounded up to whole pages
    tail: int
    sink: int = 4
    selector: str = "last"

    @property
    def window(self):
        return math.inf if self.selector == "accumulated" else WINDOW

    def weight(self, age):
        """Of the scores that a query gives which is so many tokens older than the newest one."""
        return 2.0 ** -age if self.selector == "exponential" else float(age == 0 or self.selector != "last")

    def n_scored(self, query):
        """How many tokens a query gives scores to: all that it sees, or whole pages of these."""
        seen = query + 1
        return seen // PAGE * PAGE if self.selector == "accumulated" else seen

    def group_of(self, layer):
        """The filter that a sparse layer follows; None: the layer sees everything."""
        behind = max((f for f in self.filters if f <= layer), default=None)
        return None if behind is None or layer <= behind + self.wait else behind

    def n_candidates(self, n_stored):
        """In a step whose row comes behind n_stored tokens; 0: there is nothing to choose."""
        n = (n_stored + 1 - whole_pages(self.tail)) // PAGE * PAGE
        return n if n > whole_pages(self.selected) else 0


class Text:
    """One sequence.  n_chosen, n_fetched: tokens that the groups chose, and those of them that they
    had not chosen in the step before; n_copies: these once for each layer of the group.  Layers
    with a window follow no filter."""

    def __init__(self, model, selection):
        self.model, self.selection = model, selection
        shapes = list(zip(model.kv_heads, model.head_dims))
        self.keys = [Rows(shape) for shape in shapes]  # unused where these are another layer's
        self.values = [Rows(shape) for shape in shapes]
        self.behind = [selection.group_of(owner) if model.windows[owner] == math.inf else None
                       for owner in model.owners]
        behind = [self.behind[i] for i in set(model.owners)]
        self.groups = {group: behind.count(group) for group in behind if group is not None}
        self.states = {}  # of recurrent layers
        self.held = dict.fromkeys(self.groups, frozenset())
        self.scores = {group: {} for group in self.groups}  # of each query, by its place
        self.sums = dict.fromkeys(self.groups, (0, numpy.zeros(0)))  # see _sum()
        self.n_chosen = self.n_fetched = self.n_copies = self.n_ties = 0

    @property
    def n(self):
        return self.keys[0].n

    def prompt(self, tokens):
        """Logits after each token.  All layers see everything."""
        return numpy.concatenate([self._rows(tokens[i:i + AT_ONCE], None)
                                  for i in range(0, len(tokens), AT_ONCE)])

    def token(self, token, off_by):
        """Logits after one more token, as generated.  Where rounding may decide the choice, all
        choices are tried, and that stays which is off_by(logits) least."""
        step, before = Step(self.selection, self.n, ()), dict(self.states)
        logits = self._rows([token], step)[0]
        if step.ties:
            self.n_ties += 1
            subsets = itertools.chain.from_iterable(
                itertools.combinations(sorted(step.ties), n) for n in range(len(step.ties) + 1))
            step, logits = min((self._again(token, swaps, before) for swaps in subsets),
                               key=lambda tried: off_by(tried[1]))
            self._again(token, step.swaps, before)
        for group, chosen in step.chosen.items():
            chosen = frozenset(chosen.tolist())
            self.n_chosen += len(chosen)
            n_new = len(chosen - self.held[group])
            self.n_fetched += n_new
            self.n_copies += n_new * self.groups[group]
            self.held[group] = chosen
        return logits

    def _again(self, token, swaps, before):
        """The newest token in another way, from the states before it: (its step, the logits)."""
        self.states = dict(before)
        for i in set(self.model.owners):
            self.keys[i].n -= 1
            self.values[i].n -= 1
        step = Step(self.selection, self.n, swaps)
        return step, self._rows([token], step)[0]

    def _worth(self, group, n, newest):
        """Of n tokens, by the queries that the selector looks at."""
        worth, window = numpy.zeros(n), self.selection.window
        if window == math.inf:  # all older queries count in full, whatever comes behind them
            sums, window = self._sum(group, newest)[:n], 1
            worth[:len(sums)] = sums
        for query in range(max(0, newest + 1 - window), newest + 1):
            if (scores := self.scores[group].get(query)) is not None:
                own = scores[:min(n, self.selection.n_scored(query))]
                worth[:len(own)] += self.selection.weight(newest - query) * own
        return worth

    def _sum(self, group, end):
        """Of all queries before `end`, each of which is added once."""
        begin, sums = self.sums[group]
        for query in range(begin, end):
            own = self.scores[group].get(query, sums[:0])[:self.selection.n_scored(query)]
            if len(own) > len(sums):
                sums = numpy.concatenate([sums, numpy.zeros(len(own))])
            sums[:len(own)] += own
        self.sums[group] = end, sums
        return sums

    def _rows(self, tokens, step):
        m = self.model
        at = self.n + numpy.arange(len(tokens))
        x = m.approach(0, m.embed(tokens, at), self.states)
        for i in range(m.n_layers):
            read = self._read(i, *m.qkv(i, x), at, step)
            x = m.finish_layer(i, x, read.transpose(1, 0, 2).reshape(len(x), -1))
            x = m.approach(i + 1, x, self.states)
        return m.logits(x)

    def _read(self, layer, q, k, v, at, step):
        """q, k, v [rows, heads, dim], of the tokens `at`; what they read, [heads, rows, dim]."""
        rotate = self.model.rotate
        if k is not None:
            self.keys[layer].append(rotate(layer, k.transpose(1, 0, 2), at).transpose(1, 0, 2))
            self.values[layer].append(v)
        return self._attend(layer, rotate(layer, q.transpose(1, 0, 2), at), at, step)

    def _attend(self, layer, q, at, step):
        """q [heads, rows, dim], of the tokens `at`; what they read, [heads, rows, dim]."""
        m, n = self.model, at[-1] + 1
        chosen = step and step.seen(self.behind[layer], n)
        # Otherwise what no row sees is left out, and nothing is copied.
        first = int(max(0, at[0] + 1 - m.windows[layer]))
        seen = numpy.arange(first, n) if chosen is None else chosen
        k, v = (part[m.owners[layer]].all[slice(first, n) if chosen is None else chosen]
                .transpose(1, 0, 2)[:, None] for part in (self.keys, self.values))
        s = m.scores(q.reshape(m.kv_heads[layer], -1, *q.shape[1:]), k)
        if m.slopes is not None:
            s += m.bias(slice(None), at, seen).reshape(s.shape)
        p = softmax(numpy.where(m.is_hidden(layer, at, seen), -numpy.inf, s), m.sinks(layer))
        if layer in self.groups:
            first = max(0, len(at) - int(min(self.selection.window, len(at))))
            self.scores[layer].update(zip(at[first:], p.max(axis=(0, 1))[first:]))
        if step and layer in self.groups:
            step.choose(layer, self._worth(layer, step.n_candidates, at[-1]))
        return (p @ v).reshape(q.shape)


class Step:
    """What the groups choose for one generated token.  swaps: groups in which the last that would
    be chosen and the first that would not change places."""

    def __init__(self, selection, n_stored, swaps):
        self.selection, self.swaps = selection, swaps
        self.n_candidates = selection.n_candidates(n_stored)
        self.chosen, self.ties = {}, set()

    def choose(self, group, worth):
        n = whole_pages(self.selection.selected)
        if not self.n_candidates:
            return
        worth = worth[:self.n_candidates].copy()
        worth[:self.selection.sink] = numpy.inf
        order = numpy.argsort(-worth, kind="stable")
        if worth[order[n - 1]] * (1 - NEAR_TIE) < worth[order[n]]:
            self.ties.add(group)
        if group in self.swaps:
            order[[n - 1, n]] = order[[n, n - 1]]
        self.chosen[group] = order[:n]

    def seen(self, group, n):
        """Of a text of n tokens, in a layer of a group; None: everything."""
        if group not in self.chosen:
            return None
        tail = numpy.arange(self.n_candidates, n)
        return numpy.concatenate([numpy.sort(self.chosen[group]), tail])
