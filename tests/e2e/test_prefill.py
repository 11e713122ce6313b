"""prefill: dense and sparse, layer by layer, in chunks and by filters, with everything else that a request may
ask for.  The table of docs/sparse-prefill.md names the test behind each of its rows, and is read
here to hold it to that.

Which keys a pattern visits is judged by its definition elsewhere (tests/cpu, tests/cuda); here
sparse must be what it is whatever is around it, and must never be quietly ignored or mixed with
dense."""
import concurrent.futures
import contextlib
import json
import shutil
import threading
import time

import pytest

from composition import assert_table, prompt_of, text_of
from raw import RawConnection
from server import BINARY, DEVICE, INVARIANT, MODEL, PATIENCE, ROOT, WRAPPER, Server

N_LAYERS, N_HEADS = 12, 6  # of the default model
WAYS = ("dense", "by_layers", "in_chunks", "filters")
every_way = pytest.mark.parametrize("way", WAYS)
every_sparse_way = pytest.mark.parametrize("way", WAYS[1:3])

# How far log-probabilities may move when sums are taken in another order (test_completions.py).
SAME_TOKEN = {"cpu": 1e-3, "cuda": 0.25}[DEVICE]
STEP = 256  # tokens: a prompt is several steps
SETTINGS = ("--max-model-len", 8192, "--max-num-batched-tokens", STEP, "--max-num-seqs", 16,
            "--kv-offload-size", "64M")
WAY_SETTINGS = {"dense": (), "by_layers": (), "in_chunks": ("--max-long-tokens", 1), "filters": ()}

# One head of each kind in every layer, and one that no layer names.
HEADS = {"0": ["vertical_and_slash", 30, 100, 0.9], "1": ["stream_llm", 64, 128, 0.8],
         "2": ["block_sparse", 2, 0, 0.7], "3": ["dense", 0, 0, 1],
         "4": ["vertical_and_slash", 200, 50, 0.6]}
# Bounded caches that sparse prompts do not go with, and what they lack; and those that do.
READ_WHOLE = [
    {"type": "streaming", "sink": 4, "recent": 156, "prompt": "whole", "positions": "text"},
    {"type": "heavy_hitter", "sink": 4, "recent": 80, "heavy": 76, "prompt": "whole",
     "score": "window", "pooling": "max"}]
CUT = [({"type": "streaming", "recent": 100, "positions": "text"}, "kv_policy.prompt whole"),
       ({**READ_WHOLE[0], "positions": "cache"}, "kv_policy.positions text"),
       ({"type": "heavy_hitter", "prompt": "whole"}, "kv_policy.score window")]
NARROW = {"type": "a_shape", "sink": 0, "recent": 16}
# Of which two fit a step, and twelve a prompt.
FILTERS = {"mode": "sparse", "pattern": {"type": "filters", "selected": 128, "chunk": 128}}


PROMPT = prompt_of(1500)
LONG = {"max_tokens": 24, "ignore_eos": True}


def write_patterns(path, heads=None, **members):
    layers = [heads if heads is not None else HEADS] * N_LAYERS
    path.write_text(json.dumps({"format": "quire-patterns-1", "provenance": {"by": "a test"},
                                "layers": layers, **members}))
    return path


@pytest.fixture(scope="module")
def pattern_file(tmp_path_factory):
    return write_patterns(tmp_path_factory.mktemp("patterns") / "narrow.json")


@contextlib.contextmanager
def a_server_for_each_way(directory, pattern_file, model):
    common = (*SETTINGS, "--pattern-file", pattern_file)
    with Server(directory, *common, model=model) as whole, \
            Server(directory, *common, *WAY_SETTINGS["in_chunks"], model=model) as chunks:
        yield {"dense": whole, "by_layers": whole, "in_chunks": chunks, "filters": whole}


@pytest.fixture(scope="module")
def servers(tmp_path_factory, pattern_file, light_model):
    """Tests must leave them idle."""
    directory = tmp_path_factory.mktemp("prefill")
    with a_server_for_each_way(directory, pattern_file, light_model) as servers:
        yield servers


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pattern_file):
    """The same of the default model, whose texts grow less likely where it sees less."""
    directory = tmp_path_factory.mktemp("trained")
    with a_server_for_each_way(directory, pattern_file, MODEL) as servers:
        yield servers


class Way:
    """A server and the member that makes it compute prompts in one way."""

    def __init__(self, name, server):
        self.name, self.server = name, server
        self.mode = "dense" if name == "dense" else "sparse"
        self.prefill = FILTERS if name == "filters" else self.mode

    def complete(self, prompt=PROMPT, **parameters):
        return self.server.complete(prompt, **{"prefill": self.prefill, **parameters})


@pytest.fixture
def asked(way, servers):
    return Way(way, servers[way])


def prefill_of(answer):
    return answer["usage"]["prefill"]


def n_cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def scores_of(answer):
    return answer["choices"][0]["logprobs"]["token_logprobs"]


def assert_same_scores(answer, expected):
    """Of another way to compute the same.  On a GPU sums differ, so a near tie may end the
    likeness, but not at once."""
    tokens, wanted = (each["choices"][0]["logprobs"]["tokens"] for each in (answer, expected))
    n = next((i for i, pair in enumerate(zip(tokens, wanted)) if pair[0] != pair[1]), len(wanted))
    assert n >= {"cpu": len(wanted), "cuda": 4}[DEVICE]
    assert scores_of(answer)[:n] == pytest.approx(scores_of(expected)[:n], abs=SAME_TOKEN)


def assert_prefill(prefill, mode):
    assert set(prefill) == {"mode", "density", "index_ms", "attention_ms", "reused_tokens",
                            "why_dense"}
    assert (prefill["why_dense"] is None) == (mode == "sparse")
    assert prefill["mode"] == mode
    if mode == "dense":
        assert prefill == {"mode": "dense", "density": 1, "index_ms": None, "attention_ms": None,
                           "reused_tokens": 0, "why_dense": prefill["why_dense"]}
    else:
        assert 0.02 < prefill["density"] < 0.98
        assert prefill["index_ms"] > 0 and prefill["attention_ms"] > 0


def without_times(prefill):
    return {"mode": prefill["mode"], "density": prefill["density"]}


# ---- the rows of the table of docs/sparse-prefill.md, each in every way ----


@every_way
def test_event_streams(asked):
    whole = asked.complete(cache_salt="streams", **LONG)
    assert_prefill(prefill_of(whole), asked.mode)
    chunks = asked.server.stream(PROMPT, prefill=asked.prefill, cache_salt="streams again",
                                 stream_options={"include_usage": True}, **LONG)
    last = chunks.pop()
    assert "".join(text_of(chunk) for chunk in chunks) == text_of(whole)
    assert without_times(prefill_of(last)) == without_times(prefill_of(whole))
    each = asked.server.stream(PROMPT, prefill=asked.prefill, **LONG, stream_options={
        "include_usage": True, "continuous_usage_stats": True})
    assert all("prefill" not in chunk["usage"] for chunk in each[:-2])  # known at the end only


@every_way
def test_several_choices(asked):
    drawn = {"seed": 5, "temperature": 0.9, **LONG}
    together = asked.complete(n=3, **drawn)
    assert prefill_of(together)["mode"] == asked.mode
    best = asked.complete(n=1, best_of=3, **drawn)
    if DEVICE == "cpu":  # a GPU's sums are others in other company
        for i in range(3):
            alone = asked.complete(**{**drawn, "seed": 5 + i})
            assert text_of(together, i) == text_of(alone)
        assert text_of(best) in [text_of(together, i) for i in range(3)]
    several = asked.complete([PROMPT[:900], PROMPT[:1200]], cache_salt="several", **LONG)
    assert_prefill(prefill_of(several), asked.mode)


@every_way
def test_echo_and_logprobs(asked):
    answer = asked.complete(logprobs=2, cache_salt="scores", **LONG)
    assert len(scores_of(answer)) == 24 and all(x <= 0 for x in scores_of(answer))
    assert_prefill(prefill_of(answer), asked.mode)
    echoed = asked.complete(echo=True, cache_salt="echo", **LONG)
    assert text_of(echoed).endswith(text_of(answer))
    assert_prefill(prefill_of(echoed), asked.mode)
    reply = asked.server.post("/v1/completions", {"prompt": PROMPT, "echo": True, "logprobs": 1,
                                                  "max_tokens": 0, "prefill": asked.prefill})
    scored = reply.json()
    assert reply.status == 200 and len(scores_of(scored)) == 1500
    assert prefill_of(scored)["mode"] == asked.mode
    again = asked.server.stream(PROMPT, echo=True, logprobs=1, prefill=asked.prefill, **LONG)
    listed = [score for chunk in again for score in scores_of(chunk)]
    assert listed[1:1500] == pytest.approx(scores_of(scored)[1:], abs=SAME_TOKEN)
    assert listed[1500:] == pytest.approx(
        scores_of(asked.complete(logprobs=1, cache_salt="alone", **LONG)), abs=SAME_TOKEN)


@every_way
def test_bounded_caches(asked):
    for policy, needed in CUT:
        reply = asked.server.post("/v1/completions", {"prompt": PROMPT, "kv_policy": policy,
                                                      "max_tokens": 4, "prefill": asked.prefill})
        if asked.mode == "dense":
            assert reply.status == 200 and reply.json()["usage"]["kv"]["policy"] == policy["type"]
        else:
            assert reply.status == 400 and reply.error["param"] == "prefill"
            assert needed in reply.error["message"]
    if asked.name == "filters":
        for policy in READ_WHOLE:
            reply = asked.server.post("/v1/completions", {"prompt": PROMPT, "kv_policy": policy,
                                                          "prefill": asked.prefill})
            assert reply.status == 400 and reply.error["param"] == "prefill"
            assert "kv_policy that evicts" in reply.error["message"]
        return
    full = asked.complete(logprobs=1, cache_salt="bounded", **LONG)
    first = None  # all tokens are there until the prompt's last row has seen them
    for policy in READ_WHOLE:
        answer = asked.complete(kv_policy=policy, logprobs=1, **LONG)
        assert_prefill(prefill_of(answer), asked.mode)
        kv = answer["usage"]["kv"]
        assert kv["resident_tokens"] == 160 and kv["evicted_tokens"] == 1523 - 160
        assert (kv["retained_attention"] or 0) < 1 and n_cached(answer) == 0
        events = asked.server.stream(PROMPT, kv_policy=policy, prefill=asked.prefill, **LONG)
        assert "".join(map(text_of, events)) == text_of(answer)
        if asked.mode == "dense":
            first = scores_of(full)[0]
        first = first or scores_of(answer)[0]
        assert scores_of(answer)[0] == pytest.approx(first, abs=SAME_TOKEN)
        assert scores_of(answer)[1:] != scores_of(full)[1:]


@every_way
def test_selections(asked):
    """They begin behind the prompt: the first token sees what it sees without."""
    scored = {"logprobs": 1, **LONG}
    full = asked.complete(cache_salt="selections, full", **scored)
    answers = []
    for moved in (True, False):
        policy = {"type": "offload", "selected": 128, "tail": 64, "offload": moved}
        answer = asked.complete(kv_policy=policy, cache_salt=f"selections {moved}", **scored)
        assert_prefill(prefill_of(answer), asked.mode)
        assert scores_of(answer)[0] == pytest.approx(scores_of(full)[0], abs=SAME_TOKEN)
        assert scores_of(answer) != scores_of(full)
        kv = answer["usage"]["kv"]
        assert kv["selected_tokens"] > 0 and (kv["offloaded_tokens"] > 0) == moved
        answers.append(answer)
    if DEVICE == "cpu":
        assert text_of(answers[0]) == text_of(answers[1])
        assert scores_of(answers[0]) == scores_of(answers[1])


@every_way
def test_prefix_cache(asked):
    """What one way has stored another never finds, in either order; its own it does."""
    other = {"dense": "sparse", "sparse": "dense"}[asked.mode]
    salt = f"shared, first {asked.name}"
    fresh = asked.complete(cache_salt=salt, logprobs=0, **LONG)
    assert n_cached(fresh) == 0
    crossed = asked.complete(cache_salt=salt, **{**LONG, "prefill": other})
    assert n_cached(crossed) == 0
    again = asked.complete(cache_salt=salt, logprobs=0, **LONG)
    assert n_cached(again) >= 1408
    assert prefill_of(again)["reused_tokens"] == (asked.mode == "sparse") * n_cached(again)
    assert_same_scores(again, fresh)
    if asked.mode == "sparse":  # nor is one pattern's another's
        narrow = asked.complete(cache_salt=salt, max_tokens=1,
                                prefill={"mode": "sparse", "pattern": NARROW})
        assert n_cached(narrow) == 0


@every_way
def test_chunked_prefill(asked, serve, light_model, pattern_file):
    """Steps of another size: layer by layer and dense compute the same; chunks are chunks."""
    other = serve(*INVARIANT, *SETTINGS, "--max-num-batched-tokens", 1024, "--pattern-file",
                  pattern_file, *WAY_SETTINGS[asked.name], model=light_model)
    if DEVICE == "cuda" and asked.name in ("in_chunks", "filters"):
        pytest.skip("under --batch-invariant these prompts are dense")
    expected = asked.complete(cache_salt="sizes", logprobs=0, **LONG)
    answer = other.complete(PROMPT, prefill=asked.prefill, logprobs=0, **LONG)
    assert prefill_of(answer)["mode"] == prefill_of(expected)["mode"] == asked.mode
    if asked.name == "in_chunks":
        again = asked.complete(cache_salt="sizes again", logprobs=0, **LONG)
        assert scores_of(again) == pytest.approx(scores_of(expected), abs=SAME_TOKEN)
        assert prefill_of(answer)["density"] != prefill_of(expected)["density"]
    elif DEVICE == "cpu":  # a GPU's sums are others for other sizes of step
        assert scores_of(answer) == pytest.approx(scores_of(expected), abs=SAME_TOKEN)
        assert prefill_of(answer)["density"] == pytest.approx(prefill_of(expected)["density"],
                                                              abs=1e-3)


@every_way
def test_preemption(serve, small_model, way, pattern_file):
    """Two fit a pool of 24 blocks until they have answered for a while."""
    pool = {"cpu": "19M", "cuda": "10M"}[DEVICE]
    small = serve(*SETTINGS, "--max-model-len", 1100, "--kv-cache-memory", pool, "--pattern-file",
                  pattern_file, *WAY_SETTINGS[way], model=small_model)
    asked = Way(way, small)

    def ask(seed):
        return asked.complete(prompt_of(600, seed), max_tokens=400, ignore_eos=True)

    together = small.at_once(ask, range(2))
    assert small.metrics()["quire_preemptions_total"] > 0
    for seed, answer in enumerate(together):
        assert prefill_of(answer)["mode"] == asked.mode
        assert answer["usage"]["completion_tokens"] == 400
        if way in ("dense", "by_layers") and DEVICE == "cpu":  # where it is cut depends on the company
            assert text_of(answer) == text_of(ask(seed))
    small.wait_idle()


@every_way
def test_cancellation(asked):
    with RawConnection(asked.server) as connection:
        connection.send_completion(prompt=PROMPT, stream=True, max_tokens=5000, ignore_eos=True,
                                   prefill=asked.prefill)
        connection.read_head()
        for _ in range(10):
            connection.read_chunk()
    asked.server.wait_idle()
    for pause in (0, 0.2):  # in the middle of its prompt, wherever that is
        with RawConnection(asked.server) as connection:
            with asked.server.taking(1):
                connection.send_completion(prompt=prompt_of(7900 if DEVICE == "cuda" else 4000), max_tokens=200, prefill=asked.prefill)
            time.sleep(pause)
        asked.server.wait_idle()
    assert_prefill(prefill_of(asked.complete(cache_salt="after", **LONG)), asked.mode)


@every_way
def test_stop_strings(asked):
    whole = text_of(asked.complete(**LONG))
    middle = len(whole) // 2
    stop = whole[middle:middle + 6]
    answer = asked.complete(stop=stop, **LONG)
    assert text_of(answer) == whole[:whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == stop


@every_way
def test_seeds(asked):
    def drawn(seed):
        return text_of(asked.complete(temperature=1, seed=seed, **LONG))

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@every_way
def test_others_go_on(asked):
    """Requests are given tokens while a long prompt is computed, and the ones it would have
    been given alone."""
    def generate(on_token=lambda: None):
        with RawConnection(asked.server, timeout=60) as connection:
            connection.send_completion(prompt=PROMPT[:20], stream=True, max_tokens=400,
                                       temperature=0, ignore_eos=True)
            assert connection.read_head()[0] == 200
            text = ""
            while event := connection.read_data():
                text += text_of(event)
                on_token()
            return text

    alone = generate()

    def n_meanwhile(salt):
        """How many tokens came while the prompt was computed."""
        times, begun = [], threading.Event()

        def note():
            times.append(time.monotonic())
            if len(times) == 5:
                begun.set()

        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            stream = threads.submit(generate, note)
            assert begun.wait(20 * PATIENCE)
            start = time.monotonic()
            answer = asked.complete(prompt_of(4000, seed=3), max_tokens=1, cache_salt=salt)
            end = time.monotonic()
            text = stream.result()
        assert_prefill(prefill_of(answer), asked.mode)
        assert DEVICE != "cpu" or text == alone
        return sum(start < at < end for at in times)

    # A busy machine may let the client ask so late, or read so late, that none is seen.
    assert any(n_meanwhile(f"{asked.name} {i}") > 4 for i in range(10))


@every_way
def test_batch_invariance(serve, light_model, way, pattern_file):
    """The same bits in any company: layer by layer, and nothing sparse is shared; where that does
    not fit, dense."""
    invariant = serve(*SETTINGS, "--batch-invariant", "true", "--pattern-file", pattern_file,
                      *WAY_SETTINGS[way], model=light_model)
    asked = Way(way, invariant)
    alone = asked.complete(logprobs=0, **LONG)
    assert_prefill(prefill_of(alone), "sparse" if way == "by_layers" else "dense")
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        with invariant.taking(1):
            others = [threads.submit(asked.complete, PROMPT[:1000] + prompt_of(300, seed), **LONG)
                      for seed in range(1, 4)]
        company = asked.complete(logprobs=0, **LONG)
        for each in others:
            each.result()
    assert text_of(company) == text_of(alone)
    assert scores_of(company) == scores_of(alone)


# ---- what others have left ----

ALONE = {"mode": "sparse", "reuse": False}
SHORT = {"max_tokens": 4, "ignore_eos": True, "logprobs": 0}


def with_end(end, salt, server, prefill, **parameters):
    """An answer to a prompt with a beginning that all share."""
    return server.complete(PROMPT[:1000] + prompt_of(400, end), prefill=prefill, cache_salt=salt,
                           **{**SHORT, **parameters})


def test_an_answer_depends_on_what_others_have_left(servers):
    """Unless it reuses nothing: then cold and warm answers are equal to the bit."""
    server = servers["by_layers"]
    cold = with_end(2, "cold", server, "sparse")
    with_end(1, "warm", server, "sparse")
    warm = with_end(2, "warm", server, "sparse")
    assert prefill_of(cold)["reused_tokens"] == 0
    assert prefill_of(warm)["reused_tokens"] == n_cached(warm) >= 896
    assert scores_of(warm) != scores_of(cold)
    for salt in ("cold", "warm"):  # once more, behind two
        alone = with_end(2, salt, server, ALONE)
        assert prefill_of(alone)["reused_tokens"] == n_cached(alone) == 0
        assert without_times(prefill_of(alone)) == without_times(prefill_of(cold))
        if DEVICE == "cpu":
            assert scores_of(alone) == scores_of(cold) and text_of(alone) == text_of(cold)


def test_nothing_is_reused_by_choices_patterns_or_selections(servers):
    server = servers["by_layers"]
    own = {"pattern": {"type": "vertical_slash", "columns": 40, "diagonals": 110}}
    offload = {"kv_policy": {"type": "offload", "selected": 128, "tail": 64}}
    for name, prefill, parameters in (
            ("choices", {}, {"n": 2, "temperature": 1, "seed": 4}),
            ("best", {}, {"n": 1, "best_of": 2, "temperature": 1, "seed": 4}),
            ("pattern", own, {}),
            ("moved", {}, offload),
            ("selected", {}, {"kv_policy": {**offload["kv_policy"], "offload": False}})):
        cold = with_end(3, f"{name} cold", server, {**ALONE, **prefill}, **parameters)
        with_end(1, f"{name} warm", server, {**ALONE, **prefill, "reuse": True})
        warm = with_end(3, f"{name} warm", server, {**ALONE, **prefill}, **parameters)
        for answer in (cold, warm):
            assert prefill_of(answer)["mode"] == "sparse", name
            assert prefill_of(answer)["reused_tokens"] == n_cached(answer) == 0, name
        if DEVICE == "cpu":
            for a, b in zip(cold["choices"], warm["choices"]):
                assert a["text"] == b["text"], name
                assert a["logprobs"]["token_logprobs"] == b["logprobs"]["token_logprobs"], name


def test_what_cannot_go_by_layers_must_reuse(servers):
    reply = servers["in_chunks"].post("/v1/completions", {"prompt": PROMPT, "prefill": ALONE})
    assert reply.status == 400 and reply.error["param"] == "prompt"
    assert "reuse false" in reply.error["message"]


# ---- the table itself ----

HEADER = ("| together with | dense | sparse, layer by layer | sparse, in chunks | filters | "
          "tested by |")


def test_the_docs_say_what_is_tested():
    """Each row's test exists and is run in every way of the columns; each test has its row."""
    assert_table("sparse-prefill.md", HEADER, __name__, every_way)


# ---- what is computed ----


@every_sparse_way
def test_a_narrow_pattern_sees_less(way, trained):
    asked = Way(way, trained[way])
    scored = {"echo": True, "logprobs": 0, "max_tokens": 0, "cache_salt": "scored"}
    prompt = PROMPT[:1000]
    whole = asked.complete(prompt, prefill="dense", **scored)
    blind = asked.complete(prompt, prefill={"mode": "sparse", "pattern": NARROW}, **scored)
    assert sum(scores_of(blind)[1:]) < sum(scores_of(whole)[1:]) - 100
    exact = asked.complete(prompt, prefill="dense", logprobs=0, **LONG)
    narrow = asked.complete(prompt, prefill={"mode": "sparse", "pattern": NARROW}, logprobs=0,
                            **LONG)
    assert prefill_of(narrow)["density"] < 0.5  # most of it the dense tail's
    difference = max(abs(a - b) for a, b in zip(scores_of(narrow), scores_of(exact)))
    assert difference > 2 * SAME_TOKEN or DEVICE == "cuda"  # an H200: 0.24, beside 0.21 of bf16


@every_sparse_way
def test_metrics_count_by_pattern(asked):
    def counters():
        samples = asked.server.metrics()
        return {name: value for name, value in samples.items() if name.startswith(
            ("quire_sparse_", "quire_prefill_"))}

    asked.server.wait_idle()
    before = counters()
    usage = prefill_of(asked.complete(cache_salt="metrics", **LONG))
    asked.complete(PROMPT[:10], prefill="dense", max_tokens=1)
    now = counters()
    grown = {name: now[name] - before[name] for name in now}
    assert grown['quire_prefill_prompts_total{mode="sparse"}'] == 1
    assert grown['quire_prefill_prompts_total{mode="dense"}'] == 1
    visited = {}
    for kind in ("dense", "a_shape", "vertical_slash", "block_sparse"):
        visited[kind] = grown[f'quire_sparse_visited_pairs_total{{pattern="{kind}"}}']
        causal = grown[f'quire_sparse_causal_pairs_total{{pattern="{kind}"}}']
        assert 0 < visited[kind] <= causal
        assert visited[kind] == causal if kind == "dense" else visited[kind] < causal
    n_causal = sum(value for name, value in grown.items() if "causal" in name)
    assert sum(visited.values()) / n_causal == pytest.approx(usage["density"], abs=1e-3)
    seconds = grown["quire_sparse_index_seconds_total"]
    assert seconds == pytest.approx(usage["index_ms"] / 1000, abs=1e-4)


# ---- what decides ----


def test_auto_is_sparse_from_a_length_on(serve, tmp_path, light_model):
    file = write_patterns(tmp_path / "tuned.json", min_sparse_tokens={DEVICE: 1200})
    server = serve(*SETTINGS, "--pattern-file", file, model=light_model)
    for mode in ({}, {"prefill": "auto"}):
        assert_prefill(prefill_of(server.complete(PROMPT[:1199], **mode, **LONG)), "dense")
    assert_prefill(prefill_of(server.complete(PROMPT, **LONG)), "sparse")
    again = server.complete(PROMPT, prefill="sparse", **LONG)
    assert n_cached(again) >= 1408  # what auto chose is what was asked for
    assert_prefill(prefill_of(server.complete(PROMPT, echo=True, logprobs=0, **LONG)), "dense")
    policy = {"type": "streaming", "recent": 100}
    assert_prefill(prefill_of(server.complete(PROMPT, kv_policy=policy, **LONG)), "dense")
    model = server.get("/v1/models").json()["data"][0]
    assert model["prefill"] == {"mode": "auto", "modes": ["auto", "dense", "sparse"],
                                "pattern_file": "tuned.json", "min_sparse_tokens": 1200,
                                "measured_on": DEVICE, "dense_tail": 64}
    assert "(measured on this backend)" in server.log


def test_a_dense_prompt_says_why(serve, tmp_path, tiny_model, light_model):
    def why(server, prompt=PROMPT, **parameters):
        return prefill_of(server.complete(prompt, **parameters, **LONG))["why_dense"]

    file = write_patterns(tmp_path / "tuned.json", min_sparse_tokens={DEVICE: 1200})
    server = serve(*SETTINGS, "--pattern-file", file, model=light_model)
    assert why(server, prefill="dense") == "asked"
    assert why(server, PROMPT[:1199]) == why(server, PROMPT[:1199], prefill="auto") == "short"
    assert why(server, kv_policy={"type": "streaming", "recent": 100}) == "kv_policy"
    assert why(server, echo=True, logprobs=0) == "logprobs"
    assert why(server, cache_salt="why") is None
    assert why(server, cache_salt="why") == "cached"
    assert why(server, [PROMPT[:400], PROMPT[400:]]) == "short"
    server = serve(*SETTINGS, "--pattern-file", file, *WAY_SETTINGS["in_chunks"], model=light_model)
    assert why(server, prefill={"mode": "auto", "reuse": False}) == "long"
    server = serve("--min-sparse-tokens", 600, model=tiny_model)
    assert why(server) == why(server, prefill="auto") == "no_pattern_file"
    server = serve("--prefill", "dense", model=tiny_model)
    assert why(server) == "asked" and why(server, prefill="auto") == "unavailable"


def test_the_setting_beats_the_file(serve, tmp_path, light_model):
    file = write_patterns(tmp_path / "tuned.json", min_sparse_tokens={DEVICE: 1200})
    server = serve(*SETTINGS, "--pattern-file", file, "--min-sparse-tokens", 1000, "--dense-tail",
                   100, model=light_model)
    assert prefill_of(server.complete(PROMPT[:1100], **LONG))["mode"] == "sparse"
    prefill = server.get("/v1/models").json()["data"][0]["prefill"]
    assert prefill["min_sparse_tokens"] == 1000 and prefill["dense_tail"] == 100
    assert prefill["measured_on"] is None and "auto (--min-sparse-tokens)" in server.log


def test_another_backends_break_even_is_not_this_ones(serve, tmp_path, light_model):
    server = serve(*SETTINGS, "--pattern-file",
                   write_patterns(tmp_path / "tuned.json", min_sparse_tokens={"abacus": 600}),
                   model=light_model)
    assert prefill_of(server.complete(PROMPT, **LONG))["mode"] == "dense"
    prefill = server.get("/v1/models").json()["data"][0]["prefill"]
    assert prefill["min_sparse_tokens"] == 32768 and prefill["measured_on"] is None
    assert "the default: the pattern file has no measurement on this backend" in server.log


def test_a_sparse_server_is_dense_where_it_must(serve, pattern_file, light_model):
    server = serve(*SETTINGS, "--prefill", "sparse", "--pattern-file", pattern_file,
                   model=light_model)
    assert prefill_of(server.complete(PROMPT[:400], **LONG))["mode"] == "sparse"
    scored = {"echo": True, "logprobs": 0}
    assert prefill_of(server.complete(PROMPT[:400], **scored))["mode"] == "sparse"
    exact = server.complete(PROMPT[:400], prefill="auto", **scored)
    assert prefill_of(exact)["mode"] == "dense"
    policy = {"type": "streaming", "recent": 100}
    assert prefill_of(server.complete(PROMPT[:400], kv_policy=policy))["mode"] == "dense"
    assert prefill_of(server.complete(PROMPT[:400], prefill="auto"))["mode"] == "dense"


def test_a_dense_server_refuses_sparse(serve, pattern_file, light_model):
    server = serve(*SETTINGS, "--prefill", "dense", "--pattern-file", pattern_file,
                   model=light_model)
    assert prefill_of(server.complete(PROMPT, prefill="auto", **LONG))["mode"] == "dense"
    reply = server.post("/v1/completions", {"prompt": PROMPT, "prefill": "sparse"})
    assert reply.status == 400 and reply.error["param"] == "prefill"
    assert "--prefill dense" in reply.error["message"]
    prefill = server.get("/v1/models").json()["data"][0]["prefill"]
    assert prefill["mode"] == "dense" and prefill["modes"] == ["auto", "dense"]


def test_without_a_file_only_requests_that_ask_get_sparse(serve, tiny_model):
    """No file is named after the tiny model's directory."""
    server = serve("--min-sparse-tokens", 600, model=tiny_model)
    only_if_asked = "layer by layer, for requests that ask for sparse prefill"
    assert "no pattern file" in server.log and only_if_asked in server.log
    prefill = server.get("/v1/models").json()["data"][0]["prefill"]
    assert prefill["pattern_file"] is None and prefill["min_sparse_tokens"] is None
    assert prefill_of(server.complete(PROMPT, **LONG))["mode"] == "dense"
    assert prefill_of(server.complete(PROMPT, prefill="sparse", **LONG))["mode"] == "sparse"
    server = serve("--prefill", "sparse", model=tiny_model)
    assert "layer by layer" in server.log and only_if_asked not in server.log
    assert prefill_of(server.complete(PROMPT, **LONG))["mode"] == "sparse"


@pytest.mark.skipif(WRAPPER != [], reason="a wrapper names the binary it runs")
def test_the_file_is_found_by_the_models_name(tmp_path):
    binary = tmp_path / "bin" / "quire"
    binary.parent.mkdir()
    (tmp_path / "config" / "patterns").mkdir(parents=True)
    shutil.copy(BINARY, binary)
    shutil.copy(ROOT / "config" / "quire.json", tmp_path / "config")
    file = write_patterns(tmp_path / "config" / "patterns" / f"{MODEL.name}.json",
                          min_sparse_tokens={DEVICE: 4321})
    with Server(tmp_path, *SETTINGS, "--served-model-name", "other", model=MODEL,
                binary=binary) as server:
        prefill = server.get("/v1/models").json()["data"][0]["prefill"]
        assert prefill["pattern_file"] == file.name and prefill["min_sparse_tokens"] == 4321


def test_a_bad_pattern_file_ends_the_start(tmp_path):
    heads = {**HEADS, "1": ["stream_llm", 4, -1, 0]}
    for name, text, sentence in (
            ("bad.json", json.dumps([HEADS] * 7 + [heads] + [HEADS] * 4), "layer 7, head 1"),
            ("short.json", json.dumps([HEADS] * 3), "patterns of 3 layers, the model has 12"),
            ("none.json", None, "none.json")):
        if text is not None:
            (tmp_path / name).write_text(text)
        server = Server(tmp_path, "--pattern-file", tmp_path / name, wait=False)
        assert server.process.wait(30 * PATIENCE) == 1
        assert name in server.log and sentence in server.log, server.log


BAD_CHOICES = [
    ("fast", "prefill"),
    (1, "prefill"),
    ({"pattern": NARROW}, "prefill.mode"),
    ({"mode": "sparse", "patterns": []}, "prefill"),
    ({"mode": "dense", "pattern": NARROW}, "prefill.pattern"),
    ({"mode": "dense", "reuse": False}, "prefill.reuse"),
    ({"mode": "sparse", "reuse": "no"}, "prefill.reuse"),
    ({"mode": "sparse", "pattern": {"type": "a_shape", "pages": 3}}, "prefill.pattern"),
    ({"mode": "sparse", "pattern": {"type": "diagonal"}}, "prefill.pattern.type"),
    ({"mode": "sparse", "pattern": {"type": "vertical_slash", "columns": 10**6}},
     "prefill.pattern.columns"),
]


@pytest.mark.parametrize("choice,parameter", BAD_CHOICES,
                         ids=[json.dumps(case[0]) for case in BAD_CHOICES])
def test_a_bad_choice_is_refused_by_name(server, choice, parameter):
    reply = server.post("/v1/completions", {"prompt": "a", "prefill": choice, "stream": True})
    assert reply.status == 400, reply.body
    assert reply.error["param"] == parameter
    assert parameter in reply.error["message"]
