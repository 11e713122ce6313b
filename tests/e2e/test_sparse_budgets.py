"""Sparse prompts that are read whole into a bounded cache, of a real process, against the two
definitions put together: each query head visits what its pattern chose (sparse_oracle), and of the
attention of the prompt's last rows, which are dense, each KV head keeps a budget (bounded_oracle).

Whether a prompt goes layer by layer, where each layer is cut down before the next one is computed,
or in chunks, which keeps everything to the end, is the same to the definition but for what is
indexed together."""
import collections
import math
import random

import numpy
import pytest

import bounded_oracle
from bounded_oracle import Budget, Head
from oracle_model import Model, softmax
from precision import BF16_RANDOM, EXACT, PRECISE, check_errors, row_error, values_of
from random_model import write_random_model
from server import LONG, SLOW, Server
from sparse_oracle import Choice, Pattern, Prefill
from test_sparse_oracle import NEAR_TIE, random_pattern, random_tokens, write_patterns

CONTEXT, N_TOP, N_GENERATED = 4096, 20, 24
N_FILES, N_PROMPTS = (1, 3) if SLOW else (2, 8) if LONG else (2, 5)
RETAINED = 1e-3 if EXACT else 0.1  # it has four digits
DENSITY = 6e-5 if EXACT else 0.05


class SparseHead(Head):
    """A KV head whose query heads visit what their patterns chose while the prompt is read."""

    def __init__(self, model, layer, kv_head, budget, prefill, patterns):
        super().__init__(model, layer, kv_head, budget)
        self.prefill, self.patterns = prefill, patterns
        self.n_visited = self.n_causal = 0
        self.closest_line = math.inf
        self.rows = []  # attention of the prompt's rows, [group, rows, slots then]

    def read(self, queries, keys, values, dense_from):
        """Like attend(), of rows that are indexed together; nothing leaves yet."""
        first = self.append(keys, values)
        slots = numpy.arange(self.keys.n)
        if not self.budget:
            return self._read_window(queries, slots, first)
        queries = self.model.rotate(self.layer, queries, slots[first:])
        p = numpy.stack([self._attend(pattern, q, self.turned.all, first, dense_from)
                         for pattern, q in zip(self.patterns, queries, strict=True)])
        self.rows.append(p)
        return p @ self.values.all

    def _read_window(self, queries, slots, first):
        """In a layer with a window, which is dense and keeps the text."""
        s = self.model.scores(self.model.rotate(self.layer, queries, slots[first:]),
                              self.turned.all)
        hidden = self.model.is_hidden(self.layer, slots[first:], slots)
        self.kept = slots
        return softmax(numpy.where(hidden, -numpy.inf, s)) @ self.values.all

    def _attend(self, pattern, queries, keys, first, dense_from):
        choice = Choice(pattern, queries, keys, first, self.prefill, dense_from, self.model.scores)
        self.n_visited += choice.visited.sum()
        self.n_causal += choice.causal.sum()
        self.closest_line = min(self.closest_line, choice.closest)
        s = self.model.scores(queries, keys)
        return softmax(numpy.where(choice.visited, s, -numpy.inf))

    def end_prompt(self):
        n = self.keys.n
        p = numpy.concatenate([numpy.pad(rows, ((0, 0), (0, 0), (0, n - rows.shape[2])))
                               for rows in self.rows], axis=1)
        self.rows, self.kept = [], numpy.arange(n)
        self._score(p.sum(axis=0), self.kept, False)
        self._evict(p[:, -1].mean(axis=0), False)


class Text(bounded_oracle.Text):
    def __init__(self, model, budget, prefill):
        super().__init__(model, budget)
        self.prefill = prefill
        self.heads = [[SparseHead(model, i, h, budget if i in self.layers else None, prefill,
                                  prefill.patterns[i][h * model.group:(h + 1) * model.group])
                       for h in range(model.n_kv_heads)] for i in range(model.n_layers)]

    def read(self, tokens):
        """Logits after each token of the prompt."""
        n, logits = len(tokens), []
        n_dense = max(self.prefill.tail, self.budget.window if self.budget.score == "window" else 1)
        by_layers = n <= self.prefill.long_rows
        while self.n < n:
            left = n - self.n
            end = n if by_layers or left <= self.prefill.chunk else \
                self.n + self.prefill.chunk // 64 * 64
            is_sparse = by_layers or left > 1
            logits.append(self._read(tokens[self.n:end], max(0, n - n_dense) if is_sparse else 0))
        for head in self.all_heads():
            head.end_prompt()
        return numpy.concatenate(logits)

    def _read(self, tokens, dense_from):
        m = self.model
        x = m.table[numpy.asarray(tokens)]
        for i in range(m.n_layers):
            q, k, v = m.qkv(i, x)
            q = q.reshape(len(x), m.n_kv_heads, m.group, m.head_dim).transpose(1, 2, 0, 3)
            read = [head.read(q[h], k[:, h], v[:, h], dense_from)
                    for h, head in enumerate(self.heads[i])]
            read = numpy.concatenate(read).transpose(1, 0, 2).reshape(len(x), -1)
            x = m.add_feed_forward(i, m.add_attention(i, x, read))
        self.n += len(tokens)
        return m.logits(x)

    @property
    def density(self):
        heads = self.all_heads()
        return sum(head.n_visited for head in heads) / sum(head.n_causal for head in heads)

    @property
    def closest_line(self):
        return min(head.closest_line for head in self.all_heads())


def random_budget(rng):
    sink, recent = rng.choice([0, 4, 70]), rng.choice([1, 30, 64, 200])
    if rng.random() < 0.3:
        return Budget(sink, recent, whole=True)
    window, pooling = rng.choice([1, 20, 64, 100]), rng.choice(["none", "max", "average"])
    if pooling != "none":
        recent = max(recent, window)
    return Budget(sink, recent, rng.choice([1, 50, 128]), "window", whole=True, window=window,
                  pooling=pooling, kernel=rng.choice([1, 5, 7]))


def policy_of(b):
    policy = {"sink": b.sink, "recent": b.recent, "prompt": "whole", "positions": "text"}
    if b.score == "none":
        return {"type": "streaming", **policy}
    pooled = {} if b.pooling == "none" else {"pooling": b.pooling, "kernel": b.kernel}
    return {"type": "heavy_hitter", "heavy": b.heavy, "score": "window", "window": b.window,
            **pooled, **policy}


def random_length(rng):
    border = rng.choice([2, 64, 128, 640, 1024]) + rng.randint(0, 2)
    return rng.choice([border, rng.randint(2, 600), *(rng.randint(600, 1200) for _ in range(4))])


def check(server, model, prefill, rng, n, errors):
    budget = random_budget(rng)
    prompt, text = random_tokens(random_length(rng), rng), Text(model, budget, prefill)
    is_scored = rng.random() < 0.3
    answer = server.complete(prompt, prefill="sparse", kv_policy=policy_of(budget), echo=is_scored,
                             max_tokens=N_GENERATED, ignore_eos=True, logprobs=N_TOP,
                             return_token_ids=True)
    choice, usage = answer["choices"][0], answer["usage"]
    rows = text.read(prompt)
    ids, values = choice["token_ids"], values_of(choice)
    wanted = [rows[-1], *(text.token(token) for token in ids[:-1])]
    n["asked"] += 1
    if text.closest_line < NEAR_TIE or text.closest < NEAR_TIE:
        return
    if is_scored:
        wanted, ids, values = [*rows[:-1], *wanted], [*prompt[1:], *ids], values[1:]
    found = [row_error(*row, n_top=N_TOP) for row in zip(values, wanted, ids, strict=True)]
    errors += check_errors_of(found, len(prompt), budget)
    kv = usage["kv"]
    assert kv["resident_tokens"] == min(text.n, budget.capacity)
    assert kv["evicted_tokens"] == text.n - kv["resident_tokens"]
    if budget.score != "none" and kv["evicted_tokens"] > 0:
        assert kv["retained_attention"] == pytest.approx(text.retained_attention, abs=RETAINED)
    if len(text.layers) == model.n_layers:
        assert usage["prefill"]["density"] == pytest.approx(text.density, abs=DENSITY)
    n.update(compared=1, scored=is_scored, evicted=kv["evicted_tokens"] > 0,
             sparse=bool(text.density < 1), pooled=budget.pooling != "none")


def check_errors_of(found, n_prompt, budget):
    """In bf16 heads keep and choose others, so only all prompts together are judged there."""
    if EXACT:
        check_errors(found, f"{n_prompt} tokens, {budget}")
    return found


def compare(directory, settings, seed, shape=None, **rest):
    n, errors = collections.Counter(), []
    for i in range(N_FILES):
        rng = random.Random(seed + i)
        path = write_random_model(directory / f"model{i}", CONTEXT, seed + i,
                                  **({} if i % 2 else {"num_attention_heads": 6}), **shape or {})
        model, tail = Model(path), rng.choice([0, 1, 64, 200])
        patterns = [[random_pattern(rng) for _ in range(model.n_heads)]
                    for _ in range(model.n_layers)]
        file = write_patterns(directory / f"patterns{i}.json", patterns)
        with Server(directory, *PRECISE, "--max-num-seqs", 8, "--pattern-file", file,
                    "--dense-tail", tail, *settings, model=path) as server:
            for _ in range(N_PROMPTS):
                check(server, model, Prefill(patterns, tail, **rest), rng, n, errors)
    check_errors(errors, "all prompts", (15 * BF16_RANDOM[0], math.inf))
    assert n["compared"] > 0.7 * n["asked"], n
    assert min(n["evicted"], n["sparse"]) > 0.4 * n["compared"] and n["scored"] and n["pooled"], n


@pytest.mark.parametrize("rows", [128, 320, 4096])
def test_layer_by_layer(rows, tmp_path):
    compare(tmp_path, ("--max-num-batched-tokens", rows), seed=rows)


WINDOWS = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 150,
           "num_hidden_layers": 4,
           "layer_types": ["sliding_attention", "full_attention"] * 2}


@pytest.mark.parametrize("chunks", [False, True], ids=["layers", "chunks"])
def test_beside_layers_with_a_window(chunks, tmp_path):
    """These are dense and keep their window, in buffers of pages while a prompt goes layer by layer."""
    settings, rest = ("--max-num-batched-tokens", 192), {}
    if chunks:
        settings, rest = (*settings, "--max-long-tokens", 1), {"chunk": 192, "long_rows": 0}
    compare(tmp_path, settings, 11, WINDOWS, **rest)


@pytest.mark.parametrize("rows", [192, 512])
def test_in_chunks(rows, tmp_path):
    compare(tmp_path, ("--max-num-batched-tokens", rows, "--max-long-tokens", 1), seed=rows,
            chunk=rows, long_rows=0)


def test_a_pool_of_the_budgets_and_two_layers_is_enough(tmp_path):
    """Where the whole prompt would need more than twice the pages."""
    pool = {"cpu": "3M", "cuda": "1500K"}["cpu" if EXACT else "cuda"]
    compare(tmp_path, ("--kv-cache-memory", pool, "--allowed-kv-policies", "streaming,heavy_hitter",
                       "--kv-policy", '{"type": "streaming"}'), seed=5)
