"""--kv-offload-dtype fp8: what it takes and moves, and how little it changes.  What a token becomes
in 8 bits is judged by its definition elsewhere."""
import json

import pytest

from server import DEVICE, LONG, MODEL

MOVED = {"type": "offload", "selected": 128, "tail": 64, "offload": True}
NOT_MOVED = {**MOVED, "offload": False}
FILTERS = {"format": "quire-filters-1", "filters": [2, 7], "wait": 1}
N_FILTERS, N_SPARSE = 2, 6
# Keys and values of a token in one layer, 2 heads of 64: as pages have them; a byte each and four
# scales, up to a multiple of 16.
PAGE_BYTES = 2 * 2 * 64 * {"cpu": 4, "cuda": 2}[DEVICE]
FP8_BYTES = 272
N_BLOCKS = 200
TEXT = (MODEL / "eval/held_out.txt").read_text(encoding="utf-8")
N_TOKENS = 24
N_TEXTS = 8 if LONG else 3


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("filters") / "two.json"
    path.write_text(json.dumps(FILTERS))
    return ("--filters-file", path, "--kv-offload-size",
            N_BLOCKS * 64 * N_SPARSE * FP8_BYTES)


def test_it_takes_and_moves_half(serve, settings):
    server = serve(*settings, "--kv-offload-dtype", "fp8")
    assert "in 8 bits" in server.log
    assert server.get("/v1/models").json()["data"][0]["offload"]["store_fp8"] is True
    assert server.metrics()["quire_kv_store_bytes"] == N_BLOCKS * 64 * N_SPARSE * FP8_BYTES
    n_bytes = 0
    for policy, layer_bytes in ((MOVED, FP8_BYTES), (NOT_MOVED, PAGE_BYTES)):
        before = server.metrics()["quire_kv_fetched_tokens_total"]
        kv = server.complete(TEXT[:5000], kv_policy=policy, max_tokens=20,
                             ignore_eos=True)["usage"]["kv"]
        n_fetched = server.metrics()["quire_kv_fetched_tokens_total"] - before
        assert n_fetched >= N_FILTERS * MOVED["selected"]
        fetched_bytes = n_fetched * layer_bytes * N_SPARSE / N_FILTERS
        assert kv["bytes_fetched_per_token"] == pytest.approx(fetched_bytes / 20)
        n_bytes += fetched_bytes
    assert server.metrics()["quire_kv_fetched_bytes_total"] == pytest.approx(n_bytes)


def answers_of(server):
    """Of each text, the tokens and the log-probabilities of the likeliest."""
    found = []
    for first in range(0, 5000 * N_TEXTS, 5000):
        answer = server.complete(TEXT[first:first + 5000], kv_policy=MOVED, temperature=0,
                                 max_tokens=N_TOKENS, ignore_eos=True, logprobs=5)
        logprobs = answer["choices"][0]["logprobs"]
        found.append(list(zip(logprobs["tokens"], logprobs["top_logprobs"])))
    return found


def differences(exact, rough):
    """Of log-probabilities behind the same text, which ends where another token was chosen.  The
    first token is the prompt's, which is computed before anything is fetched."""
    found = []
    for one, other in zip(exact, rough):
        if DEVICE == "cpu":
            assert one[0] == other[0]
        for at in range(1, N_TOKENS):
            if one[at - 1][0] != other[at - 1][0]:
                break
            found += [abs(p - other[at][1][token]) for token, p in one[at][1].items()
                      if token in other[at][1]]
    return found


def test_it_changes_little(serve, settings):
    exact, rough = (answers_of(serve(*settings, "--kv-offload-dtype", dtype))
                    for dtype in ("auto", "fp8"))
    found = differences(exact, rough)
    assert len(found) > 25 * N_TEXTS
    mean = sum(found) / len(found)
    assert 0.0005 < mean < 0.03 and max(found) < 0.5
