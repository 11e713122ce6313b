"""Models with recurrent layers whose other layers leave something out: selections, on the device and
moved to the host, sparse prompts in every order, and prompts that filters choose for.  Answers are
those of oracles, or of a server that finds nothing again; texts go on from checkpoints.

test_family_policies.py has the oracles' shorter texts."""
import json
import random
import subprocess

import pytest

import test_filtered_prompts
from offload_oracle import Selection
from oracle_model import Model
from precision import BF16_DEEP, ELEMENT_BYTES, PRECISE, check_errors
from server import BINARY, DEVICE, INVARIANT, LONG, Server
from test_hybrids import PAGE_TOKENS, ask, leave, make_model, text
from test_offload_oracle import Errors, read_generated, write_filters
from test_offload_oracle import ask as ask_selecting
from test_sparse_oracle import Comparison

CHECKPOINTS = ["qwen3_5-gqa-bf16-head32-deep", "granite4h-gqa-bf16-head32-deep",
               *["nemotronh-gqa-bf16-head32-experts"] * (DEVICE == "cpu")]
N_ATTENDING, CONTEXT, TAIL = 4, 8192, 5
FILTERS = (0,), 0  # and how long layers wait
MOVED = {"type": "offload", "selected": 64, "tail": 64}
A_SHAPE = {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 64, "recent": 128}}
FILTERED = {"mode": "sparse", "pattern": {"type": "filters", "selected": 64, "chunk": 512}}
SETTINGS = ("--max-num-seqs", 8, "--max-model-len", CONTEXT, "--max-num-batched-tokens", 1024,
            "--dense-tail", TAIL, "--kv-offload-size", "64M", *INVARIANT)
# Which parameters a request has, and which settings its server; what is computed together ends at a
# multiple of so many tokens.
WAYS = {
    "moved": ({"kv_policy": MOVED}, (), 1),
    "on the device": ({"kv_policy": {**MOVED, "offload": False}}, (), 1),
    "sparse, layer by layer": ({"prefill": A_SHAPE}, (), 128),
    "sparse, in chunks": ({"prefill": A_SHAPE}, ("--max-long-tokens", 1), 128),
    "filters": ({"prefill": FILTERED}, (), 512),
    "sparse and moved": ({"prefill": A_SHAPE, "kv_policy": MOVED}, (), 128),
    "budget of some layers": ({"kv_policy": {**MOVED, "offload": False, "layers": [
        {"first": 3, "last": 3, "kv_policy": {"type": "streaming", "recent": 508}}]}}, (), None),
}


@pytest.fixture(scope="module", params=CHECKPOINTS)
def model(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("hybrid_policies"), request.param)


def start(model, *settings):
    filters = write_filters(model.parent / "filters.json", *FILTERS)
    return Server(model.parent, *SETTINGS, "--filters-file", filters, *settings, model=model)


def start_fresh(model, *settings):
    """A server that finds nothing again."""
    return start(model, "--kv-cache-memory", "96M", "--enable-prefix-caching", "false", *settings)


@pytest.mark.parametrize("way", [way for way in WAYS if WAYS[way][2]])
def test_the_third_prompt_finds_what_all_share(model, way):
    """As with dense prompts that keep everything: test_hybrids.py."""
    parameters, settings, unit = WAYS[way]
    if INVARIANT and "prefill" in parameters:
        pytest.skip("sparse prompts share nothing under --batch-invariant, or are dense")
    with start(model, "--kv-cache-memory", "96M", *settings) as server, \
            start_fresh(model, *settings) as fresh:
        for n_shared in (1550, 3090):
            shared = text(n_shared, f"{way} {n_shared}")
            for i in range(4 if LONG else 3):
                # Chunks end where the prompt leaves a state.  The last one is where a server that
                # leaves none ends a tile, or a chunk, too: what its rows see is the same.
                n = (3600 // max(unit, 64) + i) * max(unit, 64) + 20
                prompt = shared + text(n - n_shared, f"tail {n_shared} {i}")
                answer, n_cached = ask(server, prompt, max_tokens=20, **parameters)
                assert n_cached <= n_shared
                if i >= 2:
                    assert n_cached >= n_shared // unit * unit - PAGE_TOKENS
                assert answer == ask(fresh, prompt, max_tokens=20, **parameters)[0]
        server.wait_idle()
        metrics = server.metrics()
        assert metrics["quire_recurrent_states_used"] == metrics["quire_checkpoints"]


class Turns:
    """Conversations whose turns select.  They share their prompts, not what was generated then."""

    def __init__(self, fresh, policy):
        self.fresh, self.policy = fresh, policy
        self.texts, self.n_before = [text(300 + 170 * i, f"turns {i}") for i in range(3)], [0] * 3

    def take(self, server, turn):
        for i, so_far in enumerate(self.texts):
            leave(server, so_far + text(500, f"{turn} {i}, left"))
            answer, n_cached = ask(server, so_far, max_tokens=60, kv_policy=self.policy)
            assert answer == ask(self.fresh, so_far, max_tokens=60, kv_policy=self.policy)[0]
            assert n_cached >= self.n_before[i]
            self.n_before[i] = (len(so_far) - 1) // PAGE_TOKENS * PAGE_TOKENS
            self.texts[i] = so_far + answer[0][0] + text(40, f"{turn} {i}")


@pytest.mark.parametrize("offload", [True, False])
def test_turns_go_on_where_the_last_prompt_ended(model, offload):
    """With so few states that checkpoints are evicted to the host's memory."""
    with start_fresh(model) as fresh, start(model, "--kv-cache-memory", "4M", "--max-num-seqs", 1,
                                            "--max-model-len", 2048) as server:
        turns = Turns(fresh, {**MOVED, "offload": offload})
        for turn in range(5):
            turns.take(server, turn)


def test_turns_go_on_after_restarts(model, tmp_path):
    """The disk has what stays on the device."""
    with start_fresh(model) as fresh:
        turns = Turns(fresh, {**MOVED, "offload": False})
        for turn in range(4):
            with start(model, "--kv-cache-memory", "4M", "--max-model-len", 2048,
                       "--kv-disk-path", tmp_path / "disk") as server:
                turns.take(server, turn)


def test_texts_of_all_ways_beside_one_another(model):
    """With few pages and few states: they wait, are preempted, and begin again at checkpoints.  What
    a preempted one has selected, or read sparsely, may then be another: answers are compared where
    everything is seen or saved."""
    ways = [{}, *(WAYS[way][0] for way in WAYS if not WAYS[way][1])]
    prompts = [text(400 + 90 * (i % 4), f"crowd {i % 9}") + text(5 * i, i) for i in range(21)]
    asked = [(prompt, ways[i % len(ways)]) for i, prompt in enumerate(prompts)]
    with start(model, "--kv-cache-memory", "2600K", "--max-model-len", 1024) as server:
        answers = server.at_once(lambda each: ask(server, each[0], max_tokens=200, **each[1])[0], asked)
        preempted = server.metrics()["quire_preemptions_total"]
        server.wait_idle()
        metrics = server.metrics()
        assert metrics["quire_recurrent_states_used"] == metrics["quire_checkpoints"]
    assert (preempted == 0) == bool(INVARIANT)
    with start_fresh(model, "--max-model-len", 1024) as fresh:
        for (prompt, parameters), answer in zip(asked, answers, strict=True):
            if parameters in ({}, WAYS["budget of some layers"][0]):
                assert answer == ask(fresh, prompt, max_tokens=200, **parameters)[0]


def scarce_memory(oracle, n_blocks):
    """Pages of so many blocks, and half as much for states."""
    page_bytes = 2 * oracle.n_kv_heads * PAGE_TOKENS * oracle.head_dim * ELEMENT_BYTES
    return n_blocks * N_ATTENDING * page_bytes * 3 // 2


@pytest.mark.parametrize("n_prompt", [1700, 1665, 1601])
def test_a_prompt_without_room_goes_layer_by_layer(model, tmp_path, n_prompt):
    """The recurrent layers run with the slices.  Prompts that share their first tokens go on from
    states that slices have left."""
    oracle = Model(model)
    selection = Selection(*FILTERS, selected=64, tail=64)
    with start(model, *PRECISE, "--kv-cache-memory", scarce_memory(oracle, 18),
               "--max-model-len", 1800) as server:
        errors = Errors()
        assert int(server.metrics()["quire_kv_pages_total"]) < N_ATTENDING * (n_prompt // PAGE_TOKENS + 1)
        prompt = text(n_prompt, f"scarce {n_prompt}")
        prompts = [prompt, prompt[:1200] + text(n_prompt - 1200, "other")]
        prompts += [prompts[1][:1200] + text(n_prompt - 1200, "third")]
        for i, each in enumerate(prompts):
            choice, usage = ask_selecting(server, each, selection, True, 20, echo=False,
                                          prefill="dense")
            n_cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert n_cached >= (0, 0, 1200 // 128 * 128 - 128)[i]
            read_generated(choice, oracle, each, selection, errors)
        errors.check(BF16_DEEP)


def test_prompts_that_filters_choose_for_are_as_defined(model):
    oracle, rng = Model(model), random.Random(3)
    with start(model, *PRECISE, "--kv-cache-memory", "96M", "--batch-invariant", "false") as server:
        comparison = Comparison(server)
        for selected, chunk in ((40, 64), (200, 128), (100, 512)):
            mode = {"mode": "sparse", "pattern": {"type": "filters", "selected": selected,
                                                  "chunk": chunk}}
            for n in (chunk, chunk + 1, 3 * chunk - 1, rng.randint(700, 1500)):
                asked = test_filtered_prompts.Text(oracle, selected, chunk, TAIL, FILTERS)
                comparison.check(asked, text(n, f"{selected} {n}"), mode)
    check_errors(comparison.errors, "all prompts", test_filtered_prompts.BF16)
    assert comparison.n["compared"] >= 9 and comparison.n["sparse"] >= 3


def test_tuned_files_are_read(model, tmp_path):
    """Both have the layers that attend, and no others."""
    files = tmp_path / "patterns.json", tmp_path / "filters.json"
    subprocess.run([BINARY, "tune", model, "--device", DEVICE, "--load-format", "dummy", "--lengths",
                    "1024", "--samples", "1", "--max-model-len", "2048", "--out", files[0],
                    "--filters-out", files[1]], check=True, capture_output=True, timeout=300)
    patterns, filters = (json.loads(file.read_text()) for file in files)
    assert len(patterns["layers"]) == N_ATTENDING
    assert max(filters["filters"]) < N_ATTENDING
    with Server(tmp_path, *SETTINGS, "--pattern-file", files[0], "--filters-file", files[1],
                "--batch-invariant", "false", model=model) as server:
        answer = server.complete(text(900, "tuned"), prefill="sparse", kv_policy=MOVED, max_tokens=8)
        assert answer["usage"]["prefill"]["mode"] == "sparse"
        assert answer["usage"]["kv"]["selected_tokens"] > 0
