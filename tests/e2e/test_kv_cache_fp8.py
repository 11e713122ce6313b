"""--kv-cache-dtype fp8: every policy over it, how much more it holds, and how little it changes.
What a token becomes in 8 bits is judged by its definition elsewhere, as is attention over it."""

import pytest

import server as settings
from composition import text_of
from server import DEVICE, MODEL, Server
from test_kv_policies import FULL, LONG, MOVED, NOT_MOVED, PROMPT, STORE, assert_kv, every_policy

FP8 = ("--kv-cache-dtype", "fp8")
TEXT = (MODEL / "eval/held_out.txt").read_text(encoding="utf-8")
N_TOKENS = 24
N_TEXTS = 8 if settings.LONG else 3


@pytest.fixture(scope="module")
def server(tmp_path_factory, small_model):
    with Server(tmp_path_factory.mktemp("fp8"), *STORE, *FP8, model=small_model) as shared:
        yield shared


@pytest.fixture(scope="module")
def invariant(tmp_path_factory, small_model):
    """Found in the prefix cache, a prompt is computed in fewer rows: on a GPU with other last bits,
    which a random model's near ties show."""
    with Server(tmp_path_factory.mktemp("invariant"), *STORE, *FP8, "--batch-invariant",
                model=small_model) as shared:
        yield shared


@every_policy
def test_policies(server, invariant, policy):
    """A request gives the same again, found in the prefix cache or not."""
    for which in (server, invariant):
        first, found, again = (which.complete(PROMPT, kv_policy=policy, **LONG) for _ in range(3))
        assert text_of(found) == text_of(again)
        if which is invariant or DEVICE == "cpu":
            assert text_of(first) == text_of(found)
        assert_kv(first["usage"]["kv"], policy, len(PROMPT) + LONG["max_tokens"])


def test_moving_changes_nothing(server):
    """The store has what pages have, byte for byte."""
    assert server.get("/v1/models").json()["data"][0]["offload"]["store_fp8"] is True
    moved, not_moved = (server.complete(TEXT[:5000], kv_policy=policy, **LONG)
                        for policy in (MOVED, NOT_MOVED))
    assert text_of(moved) == text_of(not_moved)
    assert moved["usage"]["kv"]["offloaded_tokens"] > 0


def test_sparse_prompts(server):
    dense, sparse = (server.complete(PROMPT, prefill=mode, **LONG) for mode in ("dense", "sparse"))
    assert sparse["usage"]["prefill"]["mode"] == "sparse"
    assert dense["usage"]["prefill"]["mode"] == "dense"


def test_it_holds_nearly_twice_16_bits(serve):
    def n_pages(*arguments):
        return serve("--kv-cache-memory", "64M", "--max-model-len", 4096, "--allowed-kv-policies",
                     "full", *arguments).metrics()["quire_kv_pages_total"]

    wide = n_pages("--kv-cache-dtype", "bfloat16")
    assert n_pages(*FP8) == pytest.approx(wide * 128 / 65, rel=0.01)  # a scale for each 64


def answers_of(server):
    """Of each text, the tokens and the log-probabilities of the likeliest."""
    found = []
    for first in range(0, 5000 * N_TEXTS, 5000):
        answer = server.complete(TEXT[first:first + 5000], kv_policy=FULL, max_tokens=N_TOKENS,
                                 ignore_eos=True, logprobs=5)
        logprobs = answer["choices"][0]["logprobs"]
        found.append(list(zip(logprobs["tokens"], logprobs["top_logprobs"])))
    return found


def differences(exact, rough):
    """Of log-probabilities behind the same text, which ends where another token was chosen."""
    found = []
    for one, other in zip(exact, rough):
        for at in range(N_TOKENS):
            found += [abs(p - other[at][1][token]) for token, p in one[at][1].items()
                      if token in other[at][1]]
            if one[at][0] != other[at][0]:
                break
    return found


def test_it_changes_little(serve):
    """Answers of the default model: how much a random one's change means nothing."""
    found = differences(answers_of(serve()), answers_of(serve(*FP8)))
    assert len(found) > 25 * N_TEXTS
    mean = sum(found) / len(found)
    assert 0.001 < mean < 0.1 and max(found) < 1.5, (DEVICE, mean, max(found))
