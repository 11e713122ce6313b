"""Ranks with what reads and writes tokens beside the model: guesses and grammars.

A sum over ranks is rounded in another place than one rank's, so a greedy text may turn where two tokens are
nearly equally likely, and nowhere else.  Ranks that share rows take no sums, and have one rank's bits.  With the same number of ranks the bits of a row are the same, alone
and in company: there texts must be equal.  The engine alone is compared by tests/engine/test_team.c."""
import re
import subprocess
import sys

import pytest

from composition import prompt_of
from server import BINARY, DEVICE, LONG, MODEL, PATIENCE, ROOT, SLOW, WRAPPER, Server
from test_structured import PERSON, has_library, is_person

N_ANSWERS = 10 if LONG else 6
NEAR_TIE = 0.02  # of log-probabilities
pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="each rank has a GPU of its own")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The default model on one rank: it repeats what it reads, so that guesses are right."""
    with Server(tmp_path_factory.mktemp("one"), "--max-model-len", 2048) as shared:
        yield shared


@pytest.fixture(scope="module", params=[("tensor", 2), ("tensor", 4), ("context", 2)],
                ids=lambda param: f"{param[0]}-{param[1]}")
def ranks(tmp_path_factory, request):
    """The same on two ranks, and on four, which is more than its KV heads.  Tests must leave it idle."""
    with Server(tmp_path_factory.mktemp("ranks"), "--max-model-len", 2048,
                f"--{request.param[0]}-parallel-size", request.param[1]) as shared:
        yield shared


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Four ranks that share rows."""
    with Server(tmp_path_factory.mktemp("rows"), "--max-model-len", 2048,
                "--context-parallel-size", 4) as shared:
        yield shared


def ask(server, prompt, **parameters):
    answer = server.complete(prompt, return_token_ids=True, logprobs=2, **{"max_tokens": 40, **parameters})
    choice = answer["choices"][0]
    return choice["token_ids"], choice["logprobs"]["top_logprobs"], answer


def assert_like(ours, theirs):
    """The same tokens, up to one where the two best were nearly equal."""
    for at, (a, b) in enumerate(zip(ours[0], theirs[0])):
        if a == b:
            continue
        best = sorted(theirs[1][at].values(), reverse=True)
        assert best[0] - best[1] < NEAR_TIE, (at, theirs[1][at], ours[1][at])
        return
    assert len(ours[0]) == len(theirs[0])


def quoting(i):
    """A prompt whose end has been there before."""
    ids = prompt_of(90 + 37 * (i % 7), i)
    return ids + ids[:14]


@pytest.mark.parametrize("temperature", [0, 0.6])
def test_guesses_change_no_answer(ranks, temperature):
    n_accepted = n_rejected = 0
    for i in range(N_ANSWERS):
        parameters = {"temperature": temperature, "seed": i, "ignore_eos": True}
        guessed = ask(ranks, quoting(i), speculation="suffix", **parameters)
        assert guessed[0] == ask(ranks, quoting(i), speculation="off", **parameters)[0]
        spent = guessed[2]["usage"]["speculation"]
        n_accepted += spent["accepted"]
        n_rejected += spent["drafted"] - spent["accepted"]
    assert n_accepted > 0 and n_rejected > 0
    ranks.wait_idle()


def test_guessed_answers_are_those_of_one_rank(one, ranks):
    for i in range(N_ANSWERS):
        assert_like(ask(ranks, quoting(i), speculation="suffix", ignore_eos=True),
                    ask(one, quoting(i), speculation="off", ignore_eos=True))
    ranks.wait_idle()


GRAMMARS = [{"guided_json": PERSON}, {"guided_regex": "[a-f]{3,9}-[0-9]{1,6}x"},
            {"guided_choice": ["north", "south", "northwest"]}]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: next(iter(grammar)))
def test_grammars_allow_what_they_allow_one_rank(one, ranks, grammar):
    if not has_library(one):
        pytest.skip("built without xgrammar")
    n_whole = 0
    for i in range(N_ANSWERS // 2):
        parameters = {"temperature": 0, "max_tokens": 120, **grammar}
        text = f"Number {i}: write what is asked for. "
        ours, theirs = ask(ranks, text, **parameters), ask(one, text, **parameters)
        assert_like(ours, theirs)
        choice = ours[2]["choices"][0]
        if choice["finish_reason"] != "stop":
            continue
        n_whole += 1
        if "guided_json" in grammar:
            assert is_person(choice["text"])
        elif "guided_regex" in grammar:
            assert re.fullmatch(grammar["guided_regex"], choice["text"])
        else:
            assert choice["text"] in grammar["guided_choice"]
    assert n_whole > 0
    ranks.wait_idle()


@pytest.mark.parametrize("score", ["sum", "decay", "window"])
def test_heads_of_several_ranks_evict_the_same_tokens(one, ranks, score):
    """Four ranks have each KV head twice, with half of its queries each."""
    policy = {"type": "heavy_hitter", "heavy": 96, "recent": 64, "score": score,
              **({"prompt": "whole"} if score == "window" else {"chunk": 64})}
    for i in range(N_ANSWERS // 2):
        ours, theirs = (ask(server, prompt_of(300 + 61 * i, 40 + i), kv_policy=policy, ignore_eos=True)
                        for server in (ranks, one))
        assert_like(ours, theirs)
        if ours[0] == theirs[0]:
            retained = [answer["usage"]["kv"]["retained_attention"] for answer in (ours[2], theirs[2])]
            assert 0 < retained[0] < 1 and abs(retained[0] - retained[1]) < 1e-3, retained
    ranks.wait_idle()


def test_metrics_tell_of_each_rank(one, ranks):
    ranks.complete(prompt_of(200, 5), max_tokens=20, ignore_eos=True)
    ranks.wait_idle()
    metrics = ranks.metrics()

    def of_each(name):
        return [value for key, value in metrics.items() if key.startswith(f'quire_rank_{name}{{rank="')]

    weights, busy, waited = (of_each(name) for name in ("weights_bytes", "busy_seconds_total",
                                                        "waited_seconds_total"))
    assert len(weights) == len(busy) == len(waited) > 1
    assert sum(weights) == metrics["quire_weights_bytes"]
    assert all(0 < w < b for w, b in zip(waited, busy))
    assert len(set(of_each("kv_bytes"))) == 1 and of_each("kv_bytes")[0] > 0
    assert not any("quire_rank" in name for name in one.metrics())


def test_a_cache_on_disk_is_found_by_as_many_ranks(tmp_path):
    """Another number of ranks, or other ones, finds nothing, and the log says why."""
    def ask_once(*arguments):
        with Server(tmp_path, "--max-model-len", 1024, "--kv-cache-memory", "48M", "--threads", 4,
                    "--kv-disk-path", tmp_path / "cache", *arguments) as server:
            usage = server.complete(prompt_of(300, 77), max_tokens=4)["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert server.stop() == 0
        told = re.search(r"the cache on disk: its files are of a server with (\S+ \d), and this one, with (\S+ \d), "
                         "finds none of them", server.log)
        return cached, told and told.groups()

    one, two, rows = ("--tensor-parallel-size", 1), ("--tensor-parallel-size", 2), ("--context-parallel-size", 2)
    assert ask_once() == (0, None)
    assert ask_once() == (256, None)
    assert ask_once(*two) == (0, tuple(" ".join(map(str, had)) for had in (one, two)))
    assert ask_once(*two) == (256, None)
    assert ask_once(*rows) == (0, tuple(" ".join(map(str, had)) for had in (two, rows)))


SPARSE = {"mode": "sparse", "pattern": {"type": "vertical_slash", "columns": 60, "diagonals": 130}}
BODIES = {"full": {}, "streaming": {"kv_policy": {"type": "streaming", "sink": 4, "recent": 300}},
          "sparse": {"prefill": SPARSE}, "echo": {"echo": True}}


@pytest.mark.parametrize("name", BODIES)
def test_ranks_that_share_rows_have_one_ranks_bits(one, rows, name):
    body = {"ignore_eos": True, "max_tokens": 12, **BODIES[name]}
    for seed in range(3 if LONG else 2):
        prompt = prompt_of(900 + 61 * seed, seed)
        ours, theirs = ask(rows, prompt, **body), ask(one, prompt, **body)
        assert ours[:2] == theirs[:2]
        if name == "sparse":
            assert 0 < ours[2]["usage"]["prefill"]["density"] < 0.9
    again = ask(rows, prompt + [5, 6, 7], **body)
    assert again[:2] == ask(one, prompt + [5, 6, 7], **body)[:2]
    if name == "full":
        assert again[2]["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompt) // 64 * 64
    rows.wait_idle()


@pytest.mark.parametrize("arguments,why", [
    (("--tensor-parallel-size", 2, "--context-parallel-size", 2),
     "--context-parallel-size does not go with --tensor-parallel-size"),
    (("--context-parallel-size", 3), "--context-parallel-size 3 does not divide the model's heads"),
])
def test_what_ranks_cannot_share_is_refused(arguments, why):
    done = subprocess.run([*WRAPPER, BINARY, "serve", str(MODEL), "--device", "cpu", "--port", "0",
                           *map(str, arguments)],
                          capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 1 and why in done.stderr, done.stderr


def test_sampled_grammars_hold(ranks):
    """Many at once: each step masks the tokens that rank 0 samples."""
    if not has_library(ranks):
        pytest.skip("built without xgrammar")
    answer = ranks.complete("x", n=8, temperature=1.0, seed=3, max_tokens=200,
                            guided_json=PERSON)
    whole = [c["text"] for c in answer["choices"] if c["finish_reason"] == "stop"]
    assert whole and all(is_person(text) for text in whole)
    ranks.wait_idle()


@pytest.mark.parametrize("way,n,places", [("tensor", 4, "gptoss"), ("tensor", 2, "lfm2"), ("tensor", 2, "qwen3next"),
                                          ("context", 4, "gemma4-gqa")])
def test_mixed_requests(way, n, places):
    """The script's own comparison of all families is run by hand; its short form is of the newest here."""
    done = subprocess.run([sys.executable, ROOT / "scripts/load/mixed_ranks.py", "--binary", BINARY,
                           f"--{way}-parallel-size", str(n), "--places", places, "--requests", "24" if SLOW else "48"],
                          capture_output=True, text=True, timeout=300 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert int(re.search(r": (\d+) the same", done.stdout)[1]) > 12, done.stdout
