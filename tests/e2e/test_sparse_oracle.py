"""Sparse prefill of a real process against the oracle that looks at every pair of row and slot:
hundreds of random prompts and patterns, layer by layer in slices of several sizes and in chunks
that choose for themselves, with and without a cached beginning.

Each answer is 64 greedy tokens, behind the prompt's own log-probabilities now and then.  The oracle
computes the prompt as the definition says, then those tokens densely, and must give their
log-probabilities, and the most likely one each time.  How many
pairs were visited is counted, too.  In f32 and f64 two scores nearer than NEAR_TIE may change
places and choose other keys: such prompts are not compared, and the test says how many it must have
seen."""
import collections
import concurrent.futures
import dataclasses
import json
import math
import random

import numpy
import pytest

import bounded_oracle
from oracle_model import Model
from precision import BF16_RANDOM, EXACT, PRECISE, check_errors, row_error, values_of
from random_model import write_random_model
from server import LONG, SLOW, Server
from sparse_oracle import Choice, Pattern, Prefill, Text

# f32 sums of a few probabilities are right to 1e-6 of themselves.
NEAR_TIE = 3e-6 if EXACT else -1
DENSITY = 6e-5 if EXACT else 0.05  # it has four digits; in bf16 heads choose other keys
# Where they do, one prompt's answer is off by up to 13 %; most are off by no more than others.
BF16_EACH = (0.3, math.inf)
N_TOP, N_GENERATED = 20, 64
N_FILES, N_PROMPTS = (1, 3) if SLOW else (4, 5) if LONG else (4, 2)
CONTEXT = 4096
SHAPES = [{}, {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8},
          {"num_key_value_heads": 4}, {"num_key_value_heads": 1}]
MIN_SPARSE = 600  # tokens, under auto
SETTINGS = (*PRECISE, "--max-num-seqs", 8, "--min-sparse-tokens", MIN_SPARSE)


def random_pattern(rng):
    """Narrow, so that few heads become dense."""
    kind = rng.choice(["vertical_and_slash"] * 4 + ["stream_llm", "block_sparse"] * 2 + ["dense"])
    p1, p2 = {"vertical_and_slash": (rng.randint(0, 120), rng.choice([0, 100, 101, 102, 110])),
              "stream_llm": (rng.randint(0, 100), rng.randint(1, 300)),
              "block_sparse": (rng.randint(1, 6), 0), "dense": (0, 0)}[kind]
    return Pattern(kind, p1, p2)


def own_pattern(rng):
    """A request's, in place of the file's."""
    return rng.choice([Pattern("vertical_and_slash", rng.randint(0, 200), 100),
                       Pattern("stream_llm", rng.randint(0, 40), rng.randint(1, 200)),
                       Pattern("block_sparse", rng.randint(1, 4))])


def own_mode(pattern):
    """How a request asks for it."""
    kind, *names = {"vertical_and_slash": ("vertical_slash", "columns", "diagonals"),
                    "stream_llm": ("a_shape", "sink", "recent"),
                    "block_sparse": ("block_sparse", "pages")}[pattern.kind]
    sizes = dict(zip(names, (pattern.p1, pattern.p2)))
    return {"mode": "sparse", "pattern": {"type": kind, **sizes}}


def write_patterns(path, layers):
    def of_head(pattern):
        return [pattern.kind, pattern.p1, pattern.p2, 0]

    path.write_text(json.dumps({"format": "quire-patterns-1", "layers": [
        {str(head): of_head(pattern) for head, pattern in enumerate(heads)} for heads in layers]}))
    return path


def random_tokens(n, rng):
    return rng.choices(range(3, 8000), k=n)


def random_length(rng):
    border = rng.choice([1, 64, 128, 640, 1024]) + rng.randint(0, 2)
    return rng.choice([border, rng.randint(2, 600), *(rng.randint(600, 1400) for _ in range(4))])


class Comparison:
    """Of one server's answers; counts what they were."""

    def __init__(self, server):
        self.server = server
        self.n, self.errors = collections.Counter(), []

    def check(self, text, prompt, mode):
        """The text is at the beginning that the server has stored."""
        n_stored = text.n
        answer = self.server.complete(prompt, prefill=mode, max_tokens=N_GENERATED,
                                      ignore_eos=True, logprobs=N_TOP, return_token_ids=True)
        choice, usage = answer["choices"][0], answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == n_stored
        last = text.prompt(prompt)
        self.n["asked"] += 1
        if text.closest < NEAR_TIE:
            return
        ids = choice["token_ids"]
        rows = numpy.concatenate([last[None], text.more(ids[:-1])])
        errors = [row_error(*row, greedy=True, n_top=N_TOP)
                  for row in zip(values_of(choice), rows, ids, strict=True)]
        check_errors(errors, f"{len(prompt)} tokens, {n_stored} of them stored", BF16_EACH)
        self.errors.extend(errors)
        self.n.update(compared=1, stored=n_stored > 0,
                      sparse=self.check_usage(usage["prefill"], text))

    def check_scored(self, text, prompt):
        """All of the prompt's tokens but the first have log-probabilities; nothing stored is used."""
        answer = self.server.complete(prompt, prefill="sparse", max_tokens=0, echo=True,
                                      logprobs=N_TOP)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        rows = text.scored_prompt(prompt)
        if text.closest < NEAR_TIE:
            return
        errors = [row_error(*row, n_top=N_TOP) for row in
                  zip(values_of(answer["choices"][0])[1:], rows[:-1], prompt[1:], strict=True)]
        check_errors(errors, f"{len(prompt)} tokens, scored", BF16_EACH)
        self.errors.extend(errors)
        self.n.update(scored=self.check_usage(answer["usage"]["prefill"], text))

    def check_usage(self, prefill, text):
        """Returns whether anything was left out."""
        density = text.n_visited / text.n_causal if text.n_causal else 1
        assert prefill["mode"] == ("sparse" if text.n_causal else "dense")
        assert prefill["density"] == pytest.approx(density, abs=DENSITY)
        return bool(density < 1)

    def converse(self, model, prefill, seed):
        """A prompt, then one that begins like it, then the first with patterns of its own, which
        differ in a number: nothing that is stored is theirs."""
        rng = random.Random(seed)
        prompt, text = random_tokens(random_length(rng), rng), Text(model, prefill)
        modes = ["sparse", "auto"] if len(prompt) >= MIN_SPARSE else ["sparse"]
        self.check(text, prompt, rng.choice(modes))
        self.check_next(text, prompt, rng)
        if rng.random() < 0.5:
            self.check_scored(Text(model, prefill), prompt)
        if rng.random() < 0.2:
            pattern = own_pattern(rng)
            for each in (pattern, dataclasses.replace(pattern, p1=pattern.p1 + 3)):
                patterns = [[each] * model.n_heads] * model.n_layers
                own = dataclasses.replace(prefill, patterns=patterns)
                self.check(Text(model, own), prompt, own_mode(each))

    def check_next(self, text, prompt, rng):
        n_shared = rng.randint(0, len(prompt))
        n_new = rng.choice([1, 20, 70, *(rng.randint(200, 900) for _ in range(4))])
        other = prompt[:n_shared] + random_tokens(n_new, rng)
        tails = {min(text.prefill.tail, len(tokens)) for tokens in (prompt, other)}
        # Texts with another dense tail share nothing.
        n_stored = min(n_shared, len(other) - 1) // 64 * 64 if len(tails) == 1 else 0
        self.check(text.beginning(n_stored), other, "sparse")


def compare(directory, settings, seed, n_at_once, **rest):
    """Random models, files and prompts, on servers with these settings; rest: of Prefill."""
    n = collections.Counter()
    for i in range(N_FILES):
        rng = random.Random(seed + i)
        model = write_random_model(directory / f"model{i}", CONTEXT, seed + i,
                                   **SHAPES[i % len(SHAPES)])
        oracle, tail = Model(model), rng.choice([0, 1, 64, 200])
        patterns = [[random_pattern(rng) for _ in range(oracle.n_heads)]
                    for _ in range(oracle.n_layers)]
        file = write_patterns(directory / f"patterns{i}.json", patterns)
        prefill = Prefill(patterns, tail, **rest)
        with Server(directory, *SETTINGS, *settings, "--pattern-file", file, "--dense-tail", tail,
                    model=model) as server, \
                concurrent.futures.ThreadPoolExecutor(n_at_once) as threads:
            comparison = Comparison(server)
            list(threads.map(lambda seed: comparison.converse(oracle, prefill, seed),
                             [1000 * (seed + i) + j for j in range(N_PROMPTS)]))
        check_errors(comparison.errors, "all prompts", (BF16_RANDOM[0], math.inf))
        n += comparison.n
    assert n["asked"] >= 2 * N_FILES * N_PROMPTS and n["compared"] > 0.8 * n["asked"], n
    assert n["sparse"] > 0.3 * n["asked"] and n["stored"] > 0.1 * n["asked"], n
    assert n["scored"] > 0, n


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model(write_random_model(tmp_path_factory.mktemp("oracle"), CONTEXT))


@pytest.mark.parametrize("first, n_rows", [(0, 1000), (192, 700), (960, 40)])
def test_the_oracle_visits_what_the_lines_say(first, n_rows):
    """Row by row, without tiles and groups."""
    rng = numpy.random.default_rng(first)
    queries, keys = rng.normal(size=(n_rows, 8)), rng.normal(size=(first + n_rows, 8))
    everywhere = Prefill([], dense_above=1)
    lines = Choice(Pattern("vertical_and_slash", 50, 103), queries, keys, first, everywhere, 2000)
    a_shape = Choice(Pattern("stream_llm", 40, 77), queries, keys, first, everywhere, 2000)
    assert lines.columns.sum() == 50 and lines.diagonals.sum() == 103
    for row, slot in enumerate(range(first, first + n_rows)):
        seen = numpy.arange(slot + 1)
        asked = lines.columns[seen] | lines.diagonals[slot - seen]
        assert lines.visited[row, seen][asked].all() and not lines.visited[row, slot + 1:].any()
        asked = (seen < 40) | (slot - seen < 77)
        assert a_shape.visited[row, seen][asked].all() and not a_shape.visited[row, slot + 1:].any()
    assert lines.visited.sum() < 0.8 * lines.causal.sum()
    assert a_shape.visited.sum() < 0.6 * a_shape.causal.sum()


@pytest.mark.parametrize("rows", [128, 320, 4096])
def test_layer_by_layer_in_slices(rows, tmp_path):
    """Slices are whole tiles, and others may go on between them."""
    compare(tmp_path, ("--max-num-batched-tokens", rows), seed=rows, n_at_once=3)


@pytest.mark.parametrize("rows, long_rows", [(192, 1), (300, 1), (512, 640)])
def test_in_chunks(rows, long_rows, tmp_path):
    """One after the other: how a prompt is cut depends on what else runs."""
    compare(tmp_path, ("--max-num-batched-tokens", rows, "--max-long-tokens", long_rows),
            seed=rows, n_at_once=1, chunk=rows, long_rows=long_rows // 128 * 128)
