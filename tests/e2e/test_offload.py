"""kv_policy offload: what its settings do, what it reports, and that pages and memory come back
whatever happens.  With everything else that a request may ask for it is tested in
test_kv_policies.py; what it computes is judged by its definition elsewhere."""
import concurrent.futures
import contextlib
import json
import pathlib
import random
import shutil
import subprocess
import sys
import time

import pytest

from composition import prompt_of, text_of
from raw import RawConnection
from server import BINARY, DEVICE, MODEL, N_THREADS, PATIENCE, ROOT, WRAPPER, Server

MOVED = {"type": "offload", "selected": 128, "tail": 64, "offload": True}
NOT_MOVED = {**MOVED, "offload": False}
SOAK = pathlib.Path(__file__).resolve().parents[2] / "scripts/load/soak.py"
both_places = pytest.mark.parametrize("policy", [MOVED, NOT_MOVED], ids=["moved", "not_moved"])
LONG = {"max_tokens": 48, "ignore_eos": True}
PROMPT = prompt_of(1200)
N_LAYERS = 12  # of the default model
# Layers 4 to 6 and 9 to 11 are sparse.
FILTERS = {"format": "quire-filters-1", "filters": [2, 7], "wait": 1}
N_FILTERS, N_SPARSE = 2, 6
# Keys and values of a token in one layer: 2 heads of 64.
LAYER_BYTES = 2 * 2 * 64 * {"cpu": 4, "cuda": 2}[DEVICE]
BLOCK_BYTES = 64 * N_SPARSE * LAYER_BYTES
N_BLOCKS = 200


@pytest.fixture(scope="module")
def filters(tmp_path_factory):
    path = tmp_path_factory.mktemp("filters") / "two.json"
    path.write_text(json.dumps(FILTERS))
    return path


@pytest.fixture(scope="module")
def settings(filters):
    return ("--filters-file", filters)


@pytest.fixture(scope="module")
def server(tmp_path_factory, settings, small_model):
    """Tests must leave it idle."""
    with Server(tmp_path_factory.mktemp("offload"), *settings, "--kv-offload-size",
                N_BLOCKS * BLOCK_BYTES, model=small_model) as shared:
        yield shared


def kv_of(answer):
    return answer["usage"]["kv"]


def used_bytes(server):
    return server.metrics()["quire_kv_store_used_bytes"]


def assert_idle(server):
    server.wait_idle(30)
    assert used_bytes(server) == 0


def scores_of(answer):
    return answer["choices"][0]["logprobs"]["token_logprobs"]


# ---- what is reported ----


@both_places
def test_what_was_selected_is_counted(server, policy):
    before = server.metrics()
    kv = kv_of(server.complete(PROMPT, kv_policy=policy, **LONG))
    after = server.metrics()
    n_steps = 47  # the first token is the prompt's

    def gain(name):
        return after[f"quire_kv_{name}_total"] - before[f"quire_kv_{name}_total"]

    assert kv["selected_tokens"] == gain("selected_tokens") == n_steps * N_FILTERS * 128
    n_fetched = gain("fetched_tokens")
    assert N_FILTERS * 128 <= n_fetched < kv["selected_tokens"]  # at first, everything
    assert kv["hit_rate"] == pytest.approx(1 - n_fetched / kv["selected_tokens"])
    n_bytes = n_fetched * LAYER_BYTES * N_SPARSE / N_FILTERS
    assert gain("fetched_bytes") == pytest.approx(n_bytes)
    assert kv["bytes_fetched_per_token"] == pytest.approx(n_bytes / 48)
    # The last step had 1247 tokens; the last whole page that leaves 64 of them ends at 1152.
    assert kv["offloaded_tokens"] == (1152 - 128 if policy["offload"] else 0)
    assert kv["resident_tokens"] == 1247 and kv["evicted_tokens"] == 0
    assert_idle(server)


@both_places
def test_a_short_text_is_served_as_full(server, policy):
    full = server.complete(PROMPT[:150], logprobs=1, **LONG)
    roomy = {**policy, "selected": 1000}
    for prompt, now in ((PROMPT[:150], roomy), (PROMPT[:80], policy)):
        expected = full if now is roomy else server.complete(prompt, logprobs=1, **LONG)
        answer = server.complete(prompt, kv_policy=now, logprobs=1, **LONG)
        if DEVICE == "cpu":
            assert text_of(answer) == text_of(expected)
            assert scores_of(answer) == scores_of(expected)
        kv = kv_of(answer)
        assert kv["policy"] == "offload" and kv["selected_tokens"] == 0
        assert kv["hit_rate"] is None and kv["offloaded_tokens"] == 0


def test_moving_tokens_changes_nothing(server):
    several = {"n": 3, "seed": 3, "temperature": 0.8, "logprobs": 2, **LONG}
    moved = server.complete(PROMPT, kv_policy=MOVED, **several)
    stayed = server.complete(PROMPT, kv_policy=NOT_MOVED, **several)
    full = server.complete(PROMPT, kv_policy={"type": "full"}, **several)
    assert kv_of(moved)["selected_tokens"] == kv_of(stayed)["selected_tokens"]
    if DEVICE == "cpu":  # a GPU's sums are others in other company
        assert moved["choices"] == stayed["choices"]
        assert kv_of(moved)["hit_rate"] == kv_of(stayed)["hit_rate"]
    # The prompt's last token sees everything, the others do not.
    assert scores_of(moved)[0] == pytest.approx(scores_of(full)[0], abs=0.2)
    assert scores_of(moved) != scores_of(full)


def test_a_fraction_is_of_the_prompt(server):
    policy = {**MOVED, "selected": 0.16}  # 192 tokens of 1,200
    kv = kv_of(server.complete(PROMPT, kv_policy=policy, **LONG))
    assert kv["selected_tokens"] == 47 * N_FILTERS * 192


# ---- prefixes ----


def n_cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("first", [MOVED, NOT_MOVED, {"type": "full"}],
                         ids=["moved", "not_moved", "full"])
@pytest.mark.parametrize("then", [MOVED, NOT_MOVED, {"type": "full"}],
                         ids=["moved", "not_moved", "full"])
def test_the_next_turn_finds_the_prompt(server, first, then):
    """Wherever it lies.  Only of `full` is the answer found, too."""
    salt = json.dumps([first, then])
    asked = {"logprobs": 1, "return_token_ids": True, **LONG}
    before = server.complete(PROMPT, kv_policy=first, cache_salt=salt, **asked)
    ids = PROMPT + before["choices"][0]["token_ids"] + [407, 408]
    found = server.complete(ids, kv_policy=then, cache_salt=salt, **asked)
    alone = server.complete(ids, kv_policy=then, cache_salt=salt + "alone", **asked)
    assert n_cached(alone) == 0
    assert n_cached(found) == (1216 if first["type"] == "full" else 1152)
    if DEVICE == "cpu":
        assert text_of(found) == text_of(alone)
        assert scores_of(found) == scores_of(alone)
    assert_idle(server)


def test_requests_at_the_same_time_share_a_context(server):
    with contextlib.ExitStack() as stack:
        for i in range(4):
            connection = stack.enter_context(streaming(server, MOVED, PROMPT + [400 + i],
                                                       cache_salt="shared"))
            read_events(connection, 20)
        used = used_bytes(server)
    # The context once, and a few blocks for what each of them has generated.
    assert 18 * BLOCK_BYTES <= used < 2 * 18 * BLOCK_BYTES
    assert_idle(server)
    again = server.complete(PROMPT + [405], kv_policy=MOVED, cache_salt="shared", max_tokens=1)
    assert n_cached(again) == 1152


def test_what_loses_bits_is_not_shared(serve, small_model, settings):
    lossy = serve(*settings, "--kv-offload-size", N_BLOCKS * BLOCK_BYTES, "--kv-offload-dtype",
                  "fp8", model=small_model)
    for policy, expected in ((MOVED, 0), (MOVED, 0), (NOT_MOVED, 0), (NOT_MOVED, 1152)):
        assert n_cached(lossy.complete(PROMPT, kv_policy=policy, max_tokens=2)) == expected


# ---- memory ----


@contextlib.contextmanager
def streaming(server, policy, prompt, **parameters):
    with RawConnection(server) as connection:
        connection.send_completion(prompt=prompt, stream=True, max_tokens=2000, ignore_eos=True,
                                   kv_policy=policy, **parameters)
        assert connection.read_head()[0] == 200
        yield connection


def read_events(connection, n):
    """Comments, which keep a connection open while a prompt is computed, do not count."""
    for _ in range(n):
        assert connection.read_data()


def held_pages(server, policy, prompt):
    with streaming(server, policy, prompt) as connection:
        read_events(connection, 20)
        pages = server.pages_in_use()
        used = used_bytes(server)
    assert_idle(server)
    return pages, used


def test_sparse_layers_leave_the_pool(server):
    prompt = prompt_of(4000)
    full, nothing = held_pages(server, {"type": "full"}, prompt)
    moved, used = held_pages(server, MOVED, prompt)
    assert nothing == 0 and used >= 62 * BLOCK_BYTES
    # Those of half of the layers go, but for 2 of chosen tokens, the tail's and the states.
    assert full >= 63 * N_LAYERS
    assert moved <= full / 2 + N_SPARSE * 6 + N_FILTERS


def test_a_mixed_load_leaves_nothing_behind(server):
    """Long and short requests of every policy, some of whose clients leave at any moment."""
    policies = [MOVED, NOT_MOVED, {**MOVED, "selected": 64, "tail": 200}, {"type": "full"},
                {"type": "streaming", "recent": 100, "chunk": 64}]
    expected = server.complete(PROMPT, kv_policy=MOVED, **LONG)

    def ask(i):
        choose = random.Random(i)
        prompt = prompt_of(choose.randrange(20, 1500), seed=i)
        policy = choose.choice(policies)
        if choose.random() < 0.5:
            return server.complete(prompt, kv_policy=policy, max_tokens=choose.randrange(1, 40))
        with RawConnection(server) as connection:
            connection.send_completion(prompt=prompt, stream=True, max_tokens=400,
                                       ignore_eos=True, kv_policy=policy)
            if choose.random() < 0.7:
                connection.read_head()
                for _ in range(choose.randrange(30)):
                    connection.read_chunk()
        return None

    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        assert len(list(threads.map(ask, range(48)))) == 48
    assert_idle(server)
    assert server.metrics()["quire_requests_failed_total"] == 0
    again = server.complete(PROMPT, kv_policy=MOVED, **LONG)
    if DEVICE == "cpu":
        assert text_of(again) == text_of(expected)


def soak(server):
    """The script's (exit status, output)."""
    done = subprocess.run(
        [sys.executable, SOAK, "--url", server.url, "--minutes", "0.05", "--warm", "1",
         "--long-clients", "2", "--short-clients", "2", "--long-prompt", "600", "--selected", "64",
         "--max-tokens", "20", "--patience", "0.2", "--pid", str(server.process.pid)],
        capture_output=True, text=True, timeout=PATIENCE * 120)
    return done.returncode, done.stdout + done.stderr


def test_a_soak_leaves_nothing_behind(serve, small_model, settings):
    status, said = soak(serve(*settings, "--kv-offload-size", N_BLOCKS * BLOCK_BYTES,
                              "--enable-prefix-caching", "false", model=small_model))
    assert status == 0 and "everything is as it was" in said, said


@pytest.mark.skipif(DEVICE != "cpu", reason="each replica has a GPU of its own")
def test_a_soak_of_replicas_leaves_nothing_behind(serve, small_model, settings):
    server = serve(*settings, "--kv-offload-size", 2 * N_BLOCKS * BLOCK_BYTES, "--kv-cache-memory", "192M",
                   "--max-model-len", 2048, "--enable-prefix-caching", "false", "--data-parallel-size", 2,
                   model=small_model)
    status, said = soak(server)
    assert status == 0 and "everything is as it was" in said, said
    metrics = server.metrics()
    assert min(metrics[f'quire_replica_requests_submitted_total{{replica="{i}"}}'] for i in range(2)) > 0


def test_a_soak_tells_what_is_left(serve, small_model, settings):
    """Prefixes stay in the cache."""
    status, said = soak(serve(*settings, "--kv-offload-size", N_BLOCKS * BLOCK_BYTES,
                              model=small_model))
    assert status == 1 and "quire_kv_pages_free was" in said, said


def test_waits_without_memory(serve, small_model, settings):
    """Each needs up to 6 of 14 blocks."""
    small = serve(*settings, "--kv-offload-size", 14 * BLOCK_BYTES + 1, model=small_model)
    policy = {**MOVED, "selected": 64}
    prompts = [prompt_of(350, seed=i) for i in range(6)]

    def ask(prompt):
        return small.complete(prompt, kv_policy=policy, **LONG)

    assert small.metrics()["quire_kv_store_bytes"] == 14 * BLOCK_BYTES
    for prompt, answer in zip(prompts, small.at_once(ask, prompts)):
        assert kv_of(answer)["offloaded_tokens"] > 0
        if DEVICE == "cpu" and small.metrics()["quire_preemptions_total"] == 0:
            assert text_of(answer) == text_of(ask(prompt))
    assert_idle(small)
    refused = small.post("/v1/completions", {"prompt": prompt_of(1000), "kv_policy": policy})
    assert refused.status == 400 and refused.error["param"] == "kv_policy"
    assert "moves up to" in refused.error["message"]


def test_a_full_queue_is_told_to_come_back(serve, settings, small_model):
    """Two of three have no memory to run with, and one more may not even wait.  No prompt has what
    another one has, which they would share."""
    small = serve(*settings, "--kv-offload-size", 80 * BLOCK_BYTES, "--max-num-queued-reqs", 1,
                  "--max-num-seqs", 2, model=small_model)
    prompts = [prompt_of(2600, seed=i) for i in range(3)]  # 40 blocks each
    with streaming(small, MOVED, prompts[0]) as first:
        read_events(first, 1)
        with RawConnection(small) as second, RawConnection(small) as third:
            for connection, prompt in zip((second, third), prompts[1:]):
                connection.send_completion(prompt=prompt, kv_policy=MOVED, max_tokens=1)
            deadline = time.monotonic() + 20 * PATIENCE
            while small.metrics()["quire_requests_waiting"] < 2:
                assert time.monotonic() < deadline
            reply = small.post("/v1/completions", {"prompt": "a", "kv_policy": MOVED})
            assert reply.status == 429 and reply.headers["Retry-After"]
            first.close()
            assert second.read_reply()[0] == third.read_reply()[0] == 200
    assert_idle(small)


# ---- settings ----


def test_a_bad_filters_file_ends_the_start(tmp_path):
    for name, text, sentence in (
            ("bad.json", "{", "bad.json"),
            ("other.json", json.dumps({**FILTERS, "format": "quire-patterns-1"}), "format"),
            ("order.json", json.dumps({**FILTERS, "filters": [7, 2]}), "ascending"),
            ("deep.json", json.dumps({**FILTERS, "filters": [2, 12]}), "12 layers"),
            ("none.json", None, "none.json")):
        if text is not None:
            (tmp_path / name).write_text(text)
        server = Server(tmp_path, "--filters-file", tmp_path / name, wait=False)
        assert server.process.wait(30 * PATIENCE) == 1
        assert name in server.log and sentence in server.log, server.log


def test_the_file_is_found_by_the_models_name(tmp_path):
    """In config/filters beside the directory of the binary, where config/quire.json shows that the
    program's data lie."""
    binary = tmp_path / "bin" / "quire"
    directory = tmp_path / "config" / "filters"
    binary.parent.mkdir()
    directory.mkdir(parents=True)
    shutil.copy(BINARY, binary)
    shutil.copy(ROOT / "config" / "quire.json", tmp_path / "config")
    (directory / f"{MODEL.name}.json").write_text(json.dumps(FILTERS))
    with Server(tmp_path, "--max-selected", 256, model=MODEL, binary=binary) as server:
        offload = server.get("/v1/models").json()["data"][0]["offload"]
    assert offload == {"filters_file": f"{MODEL.name}.json", "max_selected": 256, "store_bytes": 0,
                       "store_fp8": False, "layers": {"dense": [0, 1, 3, 8], "filter": [2, 7],
                                  "sparse": [4, 5, 6, 9, 10, 11], "windowed": []}}


def test_a_model_without_filters_is_told_apart(serve, tiny_model, tmp_path):
    tiny = serve("--kv-offload-size", "1M", model=tiny_model)
    assert tiny.get("/v1/models").json()["data"][0]["offload"] is None
    refused = tiny.post("/v1/completions", {"prompt": "a", "kv_policy": MOVED})
    assert refused.status == 400 and refused.error["param"] == "kv_policy.type"
    assert "--filters-file" in refused.error["message"]
    assert "no filter layers" in tiny.log
    failed = Server(tmp_path, "--kv-policy", json.dumps(MOVED), model=tiny_model, wait=False)
    assert failed.process.wait(30 * PATIENCE) == 1
    assert "--kv-policy" in failed.log and "no filter layers" in failed.log


def test_without_memory_nothing_is_moved(serve, settings):
    server = serve(*settings, "--max-selected", 128, "--kv-policy",
                   '{"type": "offload", "selected": 0.1, "tail": 64}')
    kv = kv_of(server.complete(PROMPT, **LONG))
    assert kv["selected_tokens"] == 47 * N_FILTERS * 128 and kv["offloaded_tokens"] == 0
    refused = server.post("/v1/completions", {"prompt": PROMPT, "kv_policy": MOVED})
    assert refused.status == 400 and refused.error["param"] == "kv_policy.offload"
    assert "--kv-offload-size" in refused.error["message"]
    for body in ({"prompt": prompt_of(1500)}, {"prompt": "a", "kv_policy": {"type": "offload"}}):
        refused = server.post("/v1/completions", body)
        assert refused.status == 400 and refused.error["param"] == "kv_policy.selected"
        assert "128" in refused.error["message"]
    model = server.get("/v1/models").json()["data"][0]
    assert model["kv_policy"] == {"type": "offload", "sink": 4, "selected": 0.1, "tail": 64,
                                  "selector": "last", "offload": False}


def test_a_server_may_forbid_it(serve, settings):
    server = serve(*settings, "--allowed-kv-policies", "full")
    refused = server.post("/v1/completions", {"prompt": "a", "kv_policy": NOT_MOVED})
    assert refused.status == 400 and "allowed are full" in refused.error["message"]


@both_places
def test_bench_measures_it(filters, policy):
    flags = ["--device", DEVICE, "--threads", N_THREADS, "--prompts", "600", "--batches", "1",
             "--runs", "1", "--generate", "8", "--kv-policy", json.dumps(policy), "--filters-file", filters,
             "--max-model-len", "2048", "--kv-offload-size", "16M"]
    done = subprocess.run([*WRAPPER, BINARY, "bench", *map(str, flags)], text=True,
                          capture_output=True, timeout=120 * PATIENCE)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "hit rate" in line]
    assert line.startswith("# decode,600,1 offload: hit rate 0.")
