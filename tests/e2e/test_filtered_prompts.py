"""Prompts whose filter layers choose for the layers behind them (OmniKV's variant for prompts), of a
real process against an oracle in numpy: chunk by chunk, the slots before a chunk with the largest
sums over its queries of the largest weight of any head; the layers behind a filter visit those and
the chunk itself.

Each answer is 64 greedy tokens, as in test_sparse_oracle.py; how many pairs were visited is counted,
too, over all layers."""
import math
import random

import numpy
import pytest

import sparse_oracle
from offload_oracle import Selection
from oracle_model import Model, softmax
from precision import BF16_DEEP, EXACT, PRECISE, check_errors
from random_model import write_random_model
from server import Server
from test_offload_oracle import scarce_server, write_filters
from test_sparse_oracle import Comparison

N_LAYERS, CONTEXT, TAIL = 7, 4096, 5
FILTERS = (1, 4), 1  # and how long layers wait
SETTINGS = (*PRECISE, "--max-num-seqs", 8, "--dense-tail", TAIL)

# In bf16 filters choose others of nearly the same worth, as in test_sparse_oracle.py.
BF16 = (BF16_DEEP[0], math.inf)


class Text(sparse_oracle.Text):
    """selected, chunk: the request's.  A prompt that begins with whole chunks of another one may
    begin with what is stored of it."""

    def __init__(self, model, selected, chunk, tail=TAIL, filters=FILTERS):
        super().__init__(model, sparse_oracle.Prefill([], tail))
        self.selected, self.chunk = selected, chunk
        self.groups = Selection(*filters, selected=64, tail=64)

    def beginning(self, n):
        text = Text(self.model, self.selected, self.chunk, self.prefill.tail)
        text.keys = [keys[:, :n] for keys in self.keys]
        text.values = [values[:, :n] for values in self.values]
        return text

    def prompt(self, tokens):
        dense_from = max(0, len(tokens) - self.prefill.tail)
        while self.n < len(tokens):
            x = self._chunk(tokens[self.n:self._chunk_end(len(tokens))], dense_from)
        return self.model.logits(x[-1])

    def _chunk_end(self, n):
        """Of a prompt of n tokens.  Recurrent layers leave a state at its last whole page."""
        last = (n - 1) // 64 * 64
        end = self.n + self.chunk
        return min(end, last) if self.model.recurrent and self.n < last else end

    def _chunk(self, tokens, dense_from):
        m, first = self.model, self.n
        at, chosen = numpy.arange(first, first + len(tokens)), {}
        x = m.approach(0, m.embed(tokens, at), self.states)
        for i in range(m.n_layers):
            q, k, v = (part.transpose(1, 0, 2) for part in m.qkv(i, x))
            self.keys[i] = numpy.concatenate([self.keys[i], m.rotate(i, k, at)], axis=1)
            self.values[i] = numpy.concatenate([self.values[i], v], axis=1)
            visited = self._visited(at, dense_from, chosen.get(self.groups.group_of(i)))
            s = m.scores(m.rotate(i, q, at), numpy.repeat(self.keys[i], m.group, axis=0))
            p = softmax(numpy.where(visited, s, -numpy.inf))
            if i in self.groups.filters:
                chosen[i] = self._best(p.max(axis=0)[:, :first].sum(axis=0))
            self.n_visited += m.n_heads * visited.sum()
            self.n_causal += m.n_heads * (numpy.arange(self.n) <= at[:, None]).sum()
            read = (p @ numpy.repeat(self.values[i], m.group, axis=0)).transpose(1, 0, 2)
            x = m.finish_layer(i, x, read.reshape(len(x), -1))
            x = m.approach(i + 1, x, self.states)
        return x

    def _visited(self, at, dense_from, chosen):
        """Whether rows visit slots.  Rows at dense_from, and the rest of their tile, visit all."""
        slots = numpy.arange(at[-1] + 1)
        causal = slots <= at[:, None]
        if chosen is None:
            return causal
        tile_end = numpy.minimum((at - at[0]) // 128 * 128 + 128 + at[0], at[-1] + 1)
        is_dense = (tile_end > dense_from)[:, None]
        return causal & (is_dense | (slots >= at[0]) | numpy.isin(slots, chosen))

    def _best(self, worth):
        order = numpy.argsort(-worth, kind="stable")
        if self.selected < len(order):
            last, next_one = worth[order[self.selected - 1:self.selected + 1]]
            self.closest = min(self.closest, (last - next_one) / last)
        return order[:self.selected]


def mode(selected, chunk):
    return {"mode": "sparse", "pattern": {"type": "filters", "selected": selected, "chunk": chunk}}


def random_tokens(n, rng):
    return rng.choices(range(3, 8000), k=n)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("random"), CONTEXT,
                              num_hidden_layers=N_LAYERS)


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("filters")
    with Server(directory, *SETTINGS, "--max-num-batched-tokens", 512, "--kv-offload-size", "64M",
                "--filters-file", write_filters(directory / "filters.json", *FILTERS),
                model=model) as one:
        yield one


@pytest.mark.parametrize("selected, chunk", [(1, 64), (40, 64), (200, 128), (256, 320), (100, 512)])
def test_prompts_are_as_defined(server, model, selected, chunk):
    """One at a time: a chunk is shorter where its step has other rows."""
    comparison, oracle, rng = Comparison(server), Model(model), random.Random(selected)
    for n in (chunk, chunk + 1, 3 * chunk - 1, rng.randint(700, 1500)):
        comparison.check(Text(oracle, selected, chunk), random_tokens(n, rng), mode(selected, chunk))
    check_errors(comparison.errors, "all prompts", BF16)
    assert comparison.n["compared"] >= 3 and comparison.n["sparse"] >= 1


def test_what_is_stored_is_shared_by_the_same_pattern_only(server, model):
    oracle, rng = Model(model), random.Random(1)
    prompt = random_tokens(640, rng)
    text, comparison = Text(oracle, 100, 128), Comparison(server)
    comparison.check(text, prompt, mode(100, 128))
    comparison.check(text.beginning(512), prompt[:512] + random_tokens(200, rng), mode(100, 128))
    comparison.check(Text(oracle, 101, 128), prompt, mode(101, 128))
    comparison.check(Text(oracle, 100, 192), prompt, mode(100, 192))
    check_errors(comparison.errors, "all prompts", BF16)
    assert comparison.n["stored"] == 1


@pytest.mark.parametrize("policy", [
    {"type": "offload", "selected": 128, "tail": 64, "offload": False, "selector": "uniform"},
    {"type": "offload", "selected": 128, "tail": 64, "offload": True}])
def test_answers_may_select_behind_such_a_prompt(server, policy):
    prompt = random_tokens(700, random.Random(4))
    ask = dict(prompt=prompt, prefill=mode(64, 128), max_tokens=20, temperature=0, logprobs=5)
    first = server.complete(**ask)
    answer = server.complete(**ask, kv_policy=policy)
    assert answer["usage"]["kv"]["selected_tokens"] > 0
    assert answer["usage"]["prefill"]["mode"] == "sparse"
    # The first token comes from the prompt alone.
    assert (answer["choices"][0]["logprobs"]["token_logprobs"][0]
            == pytest.approx(first["choices"][0]["logprobs"]["token_logprobs"][0],
                             abs=0 if EXACT else 0.2))


@pytest.mark.parametrize("body, needle", [
    ({"prefill": {**mode(64, 128), "reuse": False}}, "reuse"),
    ({"prefill": mode(64, 63)}, "prefill.pattern.chunk"),
    ({"prefill": mode(0, 64)}, "prefill.pattern.selected"),
    ({"prefill": mode(64, 64), "kv_policy": {"type": "streaming"}}, "sparse prefill needs"),
    ({"prefill": {"mode": "sparse", "pattern": {"type": "filters", "pages": 1}}}, "pages")])
def test_what_does_not_go_is_refused_by_name(server, body, needle):
    reply = server.post("/v1/completions", {"prompt": [5] * 300, **body})
    assert reply.status == 400 and needle in reply.error["message"], reply.body


def test_without_filters_it_is_refused(serve, model):
    reply = serve("--threads", 1, model=model).post(
        "/v1/completions", {"prompt": "x", "prefill": mode(64, 64)})
    assert reply.status == 400 and "--filters-file" in reply.error["message"], reply.body
    assert reply.error["param"] == "prefill"


def test_a_prompt_that_goes_layer_by_layer_is_refused(model, tmp_path):
    """Its pages fit only where sparse layers give theirs back, so it has no chunks."""
    policy = {"type": "offload", "selected": 64, "tail": 64, "offload": True}
    body = {"prompt": [5] * 970, "kv_policy": policy, "max_tokens": 4}
    with scarce_server(model, tmp_path, 13) as (server, *_):
        reply = server.post("/v1/completions", {**body, "prefill": mode(64, 64)})
        assert reply.status == 400 and reply.error["param"] == "prefill", reply.body
        assert "fits the KV cache" in reply.error["message"]
        assert server.post("/v1/completions", body, timeout=300).status == 200


def test_batch_invariant_prompts_are_dense(model, tmp_path):
    """Where chunks end depends on what else runs."""
    file = write_filters(tmp_path / "filters.json", *FILTERS)
    prompt = random_tokens(600, random.Random(6))
    with Server(tmp_path, *SETTINGS, "--batch-invariant", "true", "--filters-file", file,
                model=model) as server:
        answer = server.complete(prompt=prompt, prefill=mode(10, 64), max_tokens=1)
    assert answer["usage"]["prefill"]["mode"] == "dense"
