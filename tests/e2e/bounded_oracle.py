"""What a Llama model with a bounded KV cache must answer, computed from the definition: slow and
obvious, in numpy and float64, for models small enough.

Nothing is ever thrown away here.  A Text keeps the keys before RoPE and the values of all its
tokens, and beside them, for each KV head of each layer, the list of those that a bounded cache
would still hold.  Every row is computed from these lists anew.

  Model(directory)            weights, and the layers' arithmetic
  Budget(sink, recent, ...)   what is kept
  Text(model, budget)         one sequence; prompt() and token() give logits
"""
import dataclasses
import math
import pathlib
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import checkpoint  # noqa: E402  reads safetensors

WINDOW = 64  # queries of a chunk that count under the score "window"


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
    cache_positions: bool = False  # a token's position is its rank among those that are kept

    @property
    def capacity(self):
        return self.sink + self.recent + self.heavy


def softmax(x):
    e = numpy.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(axis=-1, keepdims=True))


def rms_norm(x, weight, eps):
    return x / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def inverse_frequencies(config, head_dim):
    """Radians per position of each pair, with the scalings of both spellings of config.json."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta")
    freq = theta ** -(numpy.arange(0, head_dim, 2) / head_dim)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "linear":
        return freq / rope["factor"]
    if kind == "llama3":
        turns = rope["original_max_position_embeddings"] * freq / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = numpy.clip((turns - low) / (high - low), 0, 1)
        return freq * (keep + (1 - keep) / rope["factor"])
    assert kind == "default", kind
    return freq


class Model:
    def __init__(self, directory):
        c = checkpoint.read_config(directory)
        self.weights = {name: values.astype(numpy.float64)
                        for name, values in checkpoint.read_tensors(directory).items()}
        self.context = c["max_position_embeddings"]
        self.n_layers = c["num_hidden_layers"]
        self.n_heads = c["num_attention_heads"]
        self.n_kv_heads = c.get("num_key_value_heads") or self.n_heads
        self.group = self.n_heads // self.n_kv_heads
        self.head_dim = c.get("head_dim") or c["hidden_size"] // self.n_heads
        self.eps = c["rms_norm_eps"]
        self.inv_freq = inverse_frequencies(c, self.head_dim)
        # Of what a row would see only so many tokens, the newest; Llama has none, whatever is said.
        self.window = math.inf
        if c["architectures"] == ["MistralForCausalLM"]:
            self.window = c["sliding_window"] or math.inf
        self.table = self.weights["model.embed_tokens.weight"]
        self.head = self.weights.get("lm_head.weight", self.table)

    def layer(self, i, name):
        return self.weights[f"model.layers.{i}.{name}"]

    def norm(self, i, name, x):
        return rms_norm(x, self.layer(i, name + ".weight"), self.eps)

    def linear(self, i, name, x):
        y = x @ self.layer(i, name + ".weight").T
        bias = self.weights.get(f"model.layers.{i}.{name}.bias")
        return y if bias is None else y + bias

    def qkv(self, i, x):
        """Queries [rows, heads, dim], keys before RoPE and values [rows, KV heads, dim]."""
        x = self.norm(i, "input_layernorm", x)
        return tuple(self.linear(i, f"self_attn.{name}_proj", x).reshape(len(x), -1, self.head_dim)
                     for name in "qkv")

    def feed_forward(self, i, x):
        x = self.norm(i, "post_attention_layernorm", x)
        gate, up = self.linear(i, "mlp.gate_proj", x), self.linear(i, "mlp.up_proj", x)
        return self.linear(i, "mlp.down_proj", gate / (1 + numpy.exp(-gate)) * up)

    def logits(self, x):
        return rms_norm(x, self.weights["model.norm.weight"], self.eps) @ self.head.T

    def rotate(self, x, positions):
        """x [..., rows, dim] at positions [rows]: pairs are (i, i + dim / 2)."""
        angle = numpy.asarray(positions)[:, None] * self.inv_freq
        cos, sin, half = numpy.cos(angle), numpy.sin(angle), self.head_dim // 2
        a, b = x[..., :half], x[..., half:]
        return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


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
    """What one KV head of one layer knows of the text."""

    def __init__(self, model, budget):
        self.model, self.budget = model, budget
        self.keys, self.values = Rows((model.head_dim,)), Rows((model.head_dim,))
        self.scores = Rows(())
        self.kept = numpy.zeros(0, int)  # positions in the text, ascending
        self.masses = []  # of every eviction, the share of attention that stayed
        self.closest = math.inf  # relative difference of the best score that went and the worst
        # that stayed: the smallest so far

    def attend(self, queries, keys, values, generated):
        """queries [group, rows, dim], keys and values [rows, dim] of the text's next tokens; what
        the queries read, [group, rows, dim].  Afterwards whoever must go is gone."""
        first, rows = self.keys.n, len(keys)
        self.keys.append(keys)
        self.values.append(values)
        self.scores.append(numpy.zeros(rows))
        new = numpy.arange(first, first + rows)
        seen = numpy.concatenate([self.kept, new])
        if self.budget and self.budget.cache_positions:
            at, query_at = numpy.arange(len(seen)), len(self.kept) + numpy.arange(rows)
        else:
            at, query_at = seen, new
        q = self.model.rotate(queries, query_at)
        k = self.model.rotate(self.keys.all[seen], at)
        s = q @ k.T / math.sqrt(self.model.head_dim)
        # A budget and a chunk fit the window, which then hides nothing of what is kept.
        window = math.inf if self.budget else self.model.window
        hidden = (seen > new[:, None]) | (seen <= new[:, None] - window)
        p = softmax(numpy.where(hidden, -numpy.inf, s))
        self.kept = seen
        if self.budget:
            self._score(p.sum(axis=0), seen, generated)
            self._evict(p[:, -1].sum(axis=0), generated)
        return p @ self.values.all[seen]

    def _score(self, p, seen, generated):
        """p [rows, seen], summed over the group."""
        kind, scores = self.budget.score, self.scores.all
        if kind == "window" and not generated:
            scores[:] = 0
            p = p[-WINDOW:]
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
        candidates = numpy.arange(n)[(self.kept >= b.sink) & (self.kept < text - b.recent)]
        order = candidates[numpy.lexsort((self.kept[candidates], judged[candidates]))]
        leaving, stays = order[:n_leaving], numpy.ones(n, bool)
        stays[leaving] = False
        if b.score != "none":
            if n_leaving < len(order):
                went, stayed = judged[order[n_leaving - 1:n_leaving + 1]]
                self.closest = min(self.closest, (stayed - went) / stayed)
            self.masses.append(1 - last_p[leaving[0]] / self.model.group if generated
                               else scores[stays].sum() / scores.sum())
        self.kept = self.kept[stays]


class Text:
    """One sequence.  budget None: it keeps everything."""

    def __init__(self, model, budget=None):
        self.model, self.budget = model, budget
        self.n = 0
        self.heads = [[Head(model, budget) for _ in range(model.n_kv_heads)]
                      for _ in range(model.n_layers)]

    def prompt(self, tokens):
        """Logits after each token.  The text must be at its beginning."""
        assert self.n == 0
        size = self.budget.chunk if self.budget else 512
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
        x = m.table[numpy.asarray(tokens)]
        for i in range(m.n_layers):
            q, k, v = m.qkv(i, x)
            q = q.reshape(len(x), m.n_kv_heads, m.group, m.head_dim).transpose(1, 2, 0, 3)
            read = [head.attend(q[h], k[:, h], v[:, h], generated)
                    for h, head in enumerate(self.heads[i])]
            read = numpy.concatenate(read).transpose(1, 0, 2).reshape(len(x), -1)
            x = x + m.linear(i, "self_attn.o_proj", read)
            x = x + m.feed_forward(i, x)
        self.n += len(tokens)
        return m.logits(x)

    def _all_heads(self):
        return [head for layer in self.heads for head in layer]

    @property
    def n_kept(self):
        (n,) = {len(head.kept) for head in self._all_heads()}
        return n

    @property
    def retained_attention(self):
        """None without scores or evictions."""
        masses = [mass for head in self._all_heads() for mass in head.masses]
        return sum(masses) / len(masses) if masses else None

    @property
    def closest(self):
        """How near any eviction came to a tie, relative to the scores."""
        return min(head.closest for head in self._all_heads())
