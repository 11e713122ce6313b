"""What a model with a bounded KV cache must answer, computed from the definition: slow and obvious,
in numpy and float64, for models small enough.

Nothing is ever thrown away here.  A Text keeps the keys before RoPE and the values of all its
tokens, and beside them, for each KV head of each layer, the list of those that a bounded cache
would still hold.  Every row is computed from these lists anew.

  Budget(sink, recent, ...)   what is kept
  Text(model, budget)         one sequence; prompt() and token() give logits
"""
import copy
import dataclasses
import math

import numpy

from oracle_model import softmax

LOST_TERMS = 21  # rates at which attention to evicted tokens fades: 1, 1/2, 1/4, ...
RATES = 0.5 ** numpy.arange(LOST_TERMS)
LEAST_KEPT = 2.0 ** -10
AT_ONCE = 128  # rows of a prompt that is not cut
LAST_QUERIES = 64  # whose attention Text.kept_share is of


@dataclasses.dataclass(frozen=True)
class Budget:
    """Between steps each KV head keeps the first `sink` tokens of the text, the `recent` newest,
    and of the others the `heavy` ones with the highest score."""

    sink: int
    recent: int
    heavy: int = 0
    score: str = "none"  # sum, mean, decay, window
    decay: float = 0.99
    chunk: int = 512  # of a prompt: it is cut at multiples of this
    whole: bool = False  # it is not cut
    window: int = 64  # queries of a chunk that count under the score "window"
    pooling: str = "none"  # max, average: of the scores of `kernel` neighbours before the window
    kernel: int = 7
    cache_positions: bool = False  # a token's position is its rank among those that are kept

    @property
    def capacity(self):
        return self.sink + self.recent + self.heavy


class Rows:
    """An array that grows by rows."""

    def __init__(self, shape):
        self.n, self.room = 0, numpy.zeros((256, *shape))

    def append(self, rows):
        while self.n + len(rows) > len(self.room):
            self.room = numpy.concatenate([self.room, numpy.zeros_like(self.room)])
        self.room[self.n:self.n + len(rows)] = rows
        self.n += len(rows)

    @property
    def all(self):
        return self.room[:self.n]


class Head:
    """What one KV head of a layer knows of the text."""

    measures = False

    def __init__(self, model, layer, kv_head, budget):
        self.model, self.layer, self.budget = model, layer, budget
        group = model.n_heads // model.kv_heads[layer]
        self.group = slice(kv_head * group, (kv_head + 1) * group)
        self.sinks = model.sinks(layer)[kv_head]
        dim = model.head_dims[layer]
        self.keys, self.values = Rows((dim,)), Rows((dim,))
        self.turned = Rows((dim,))  # the keys at the text's positions
        self.scores = Rows(())
        self.kept = numpy.zeros(0, int)  # positions in the text, ascending
        self.lost, self.lost_at = numpy.zeros(LOST_TERMS), 0  # engine/device/pages.h
        self.evicted = False
        self.shares = []  # of all that each query would see, what its step or chunk has left
        self.closest = math.inf  # relative difference of the best score that went and the worst
        # that stayed: the smallest so far

    def append(self, keys, values):
        """Adds the text's next tokens, and returns the position of the first."""
        first, rows = self.keys.n, len(keys)
        self.keys.append(keys)
        self.values.append(values)
        self.turned.append(self.model.rotate(self.layer, keys, first + numpy.arange(rows)))
        self.scores.append(numpy.zeros(rows))
        return first

    def attend(self, queries, keys, values, generated, is_last=True):
        """queries [group, rows, dim], keys and values [rows, dim] of the text's next tokens, None if
        a layer before has appended these; what the queries read, [group, rows, dim].  Behind the last
        layer that reads these keys, evicted tokens are gone."""
        rows = queries.shape[1]
        first = self.keys.n - rows if keys is None else self.append(keys, values)
        new = numpy.arange(first, first + rows)
        seen = numpy.concatenate([self.kept, new])
        if not self.budget:  # a window hides what is before it from all rows
            seen = seen[seen > first - self.model.windows[self.layer]]
        if self.budget and self.budget.cache_positions:
            at, query_at = numpy.arange(len(seen)), len(self.kept) + numpy.arange(rows)
            turned = self.model.rotate(self.layer, self.keys.all[seen], at)
        else:
            at, query_at, turned = seen, new, self.turned.all[seen]
        s = self.model.scores(self.model.rotate_queries(self.layer, queries, query_at), turned)
        s += self.model.bias(self.group, query_at, at)
        hidden = (seen > new[:, None] if self.budget
                  else self.model.is_hidden(self.layer, new, seen))
        p = softmax(numpy.where(hidden, -numpy.inf, s), self.sinks)
        if not is_last:
            return p @ self.values.all[seen]
        self.kept = seen
        if self.budget:
            self._score(p.sum(axis=0), seen, generated)
            self._evict(p[:, -1].mean(axis=0), generated)
        if self.measures:
            self._measure(queries[:, -LAST_QUERIES:], new[-LAST_QUERIES:])
        return p @ self.values.all[seen]

    def _score(self, p, seen, generated):
        """p [rows, seen], summed over the group."""
        kind, scores = self.budget.score, self.scores.all
        if kind == "window" and not generated:
            scores[:] = 0
            p = p[-self.budget.window:]
        if kind == "decay":
            for row in p:
                scores[seen] = self.budget.decay * scores[seen] + row
        elif kind != "none":
            scores[seen] += p.sum(axis=0)

    def _evict(self, last_p, generated):
        b, n, text = self.budget, len(self.kept), self.keys.n
        n_leaving = n - b.capacity
        if n_leaving <= 0:
            return
        scores = self.scores.all[self.kept]
        judged = scores / (text - self.kept) if b.score == "mean" else scores
        if b.pooling != "none" and not generated:
            judged = self._pooled(scores)
        candidates = numpy.arange(n)[(self.kept >= b.sink) & (self.kept < text - b.recent)]
        order = candidates[numpy.lexsort((self.kept[candidates], judged[candidates]))]
        leaving, stays = order[:n_leaving], numpy.ones(n, bool)
        stays[leaving] = False
        if b.score != "none":
            if n_leaving < len(order):
                went, stayed = judged[order[n_leaving - 1:n_leaving + 1]]
                self.closest = min(self.closest, (stayed - went) / stayed)
            self._lose(text - self.kept[leaving],
                       last_p[leaving] / max(last_p[stays].sum(), LEAST_KEPT))
        self.kept = self.kept[stays]

    def _pooled(self, scores):
        b = self.budget
        n, half = max(len(scores) - b.window, 0), b.kernel // 2
        function = {"max": numpy.max, "average": numpy.sum}[b.pooling]
        return numpy.array([function(scores[max(i - half, 0):min(i + half + 1, n)]) if i < n
                            else scores[i] for i in range(len(scores))])

    def _lose(self, ages, shares):
        """shares: what the newest query gave, in units of what it gave to those that stay."""
        self.lost *= numpy.exp(-RATES * (self.keys.n - self.lost_at))
        self.lost += (shares * ages * numpy.exp(-RATES[:, None] * ages)).sum(axis=1)
        self.lost_at, self.evicted = self.keys.n, True

    @property
    def retained(self):
        return 1 / (1 + math.log(2) * (RATES * self.lost).sum())

    def _measure(self, queries, at):
        """What those rows would see of the whole text, at the text's positions."""
        everything = numpy.arange(self.keys.n)
        s = self.model.scores(self.model.rotate_queries(self.layer, queries, at), self.turned.all)
        s += self.model.bias(self.group, at, everything)
        p = softmax(numpy.where(everything > at[:, None], -numpy.inf, s), self.sinks).mean(axis=0)
        self.shares += p[:, self.kept].sum(axis=1).tolist()


class Text:
    """One sequence.  budget None: it keeps everything.  layers: those that have the budget, while
    the others keep everything; None: all.  A layer with a window never has it: it sees what its
    window shows it of the whole text, with the text's positions."""

    def __init__(self, model, budget=None, layers=None):
        self.model, self.budget = model, budget
        self.layers = [i for i in (range(model.n_layers) if layers is None else layers)
                       if model.windows[i] == math.inf and model.owners[i] == i]
        self.n = 0
        self.states = {}  # of recurrent layers
        self.heads = [[Head(model, i, head, budget if i in self.layers else None)
                       for head in range(model.kv_heads[i])]
                      for i in range(model.n_layers)]  # unused where keys are another layer's

    def prompt(self, tokens):
        """Logits after each token.  The text must be at its beginning."""
        assert self.n == 0
        return self.more(tokens)

    def more(self, tokens):
        """The same of a later turn's tokens, whose chunks begin here."""
        whole = self.budget and self.budget.whole
        size = len(tokens) if whole else self.budget.chunk if self.budget else AT_ONCE
        return numpy.concatenate([self._rows(tokens[i:i + size], False)
                                  for i in range(0, len(tokens), size)])

    def token(self, token):
        """Logits after one more token, as generated."""
        return self._rows([token], True)[0]

    def greedy(self, logits, n):
        """n tokens after those logits, each the most likely."""
        tokens = []
        for _ in range(n):
            tokens.append(int(logits.argmax()))
            logits = self.token(tokens[-1])
        return tokens

    def _rows(self, tokens, generated):
        m = self.model
        x = m.approach(0, m.embed(tokens, self.n + numpy.arange(len(tokens))), self.states)
        for i in range(m.n_layers):
            q, k, v = m.qkv(i, x)
            q = q.reshape(len(x), m.kv_heads[i], -1, m.head_dims[i]).transpose(1, 2, 0, 3)
            own = (lambda h: (None, None)) if k is None else (lambda h: (k[:, h], v[:, h]))
            read = [head.attend(q[h], *own(h), generated, m.readers[m.owners[i]][-1] == i)
                    for h, head in enumerate(self.heads[m.owners[i]])]
            read = numpy.concatenate(read).transpose(1, 0, 2).reshape(len(x), -1)
            x = m.approach(i + 1, m.finish_layer(i, x, read), self.states)
        self.n += len(tokens)
        return m.logits(x)

    def copy(self):
        """The same text, which grows on its own."""
        return copy.deepcopy(self, {id(self.model): self.model})

    def all_heads(self):
        """Of the layers that have the budget."""
        return [head for i in self.layers for head in self.heads[i]]

    @property
    def capacity(self):
        """0 where no layer has the budget."""
        return self.budget.capacity if self.layers else 0

    @property
    def n_kept(self):
        (n,) = {len(head.kept) for head in self.all_heads()} or {self.n}
        return n

    @property
    def retained_attention(self):
        """What the server estimates; None without scores or evictions."""
        heads = self.all_heads()
        return (numpy.mean([head.retained for head in heads])
                if heads and heads[0].evicted else None)

    @property
    def kept_share(self):
        """What is estimated, of the last queries; for a Text whose heads measure."""
        return numpy.mean([head.shares[-LAST_QUERIES:] for head in self.all_heads()])

    @property
    def closest(self):
        """How near any eviction came to a tie, relative to the scores."""
        return min((head.closest for head in self.all_heads()), default=math.inf)
