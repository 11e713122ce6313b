"""return_kept_positions: which tokens of the text the KV cache still has, on a real process: known
for policies that do not look at scores, and by the oracles for those that do."""
import json
import random

import pytest

import bounded_oracle
import offload_oracle
from bounded_oracle import Budget
from offload_oracle import Selection
from oracle_model import Model
from precision import PRECISE
from random_model import write_random_model
from server import DEVICE, Server
from test_families import FAMILIES, WINDOWS, link_checkpoint

CONTEXT, N_LAYERS = 2048, 4
FILTERS, WAIT = (0, 2), 0
STREAMING = {"type": "streaming", "sink": 4, "recent": 28}
HITTERS = {"type": "heavy_hitter", "sink": 4, "recent": 20, "heavy": 40, "chunk": 64}
OFFLOAD = {"type": "offload", "selected": 64, "tail": 64}

only_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="only the CPU can tell what it has kept")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("kept"), CONTEXT,
                              num_hidden_layers=N_LAYERS)


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    filters = directory / "filters.json"
    filters.write_text(json.dumps({"format": "quire-filters-1", "filters": FILTERS, "wait": WAIT}))
    with Server(directory, "--filters-file", filters, "--kv-offload-size", "16M", *PRECISE,
                model=model) as one:
        yield one


def random_tokens(n, seed=1):
    return random.Random(seed).choices(range(3, 8000), k=n)


def ask(server, n_prompt, n, policy, **rest):
    """(kept_positions, all tokens but the last, which is never stored, usage)."""
    prompt = random_tokens(n_prompt)
    body = {"prompt": prompt, "max_tokens": n, "kv_policy": policy, "ignore_eos": True, "seed": 1,
            "return_kept_positions": True, "return_token_ids": True, **rest}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    answer = reply.json()
    (choice,) = answer["choices"]
    return (choice["kept_positions"], (prompt + choice["token_ids"])[:-1],
            answer["usage"]["kv"])


def shares_of(kept):
    """A share for each token, or for each `stride` of them."""
    shares = [0.0] * -(-kept["n_tokens"] // kept["stride"])
    for first, last, share in kept["ranges"]:
        for i in range(first // kept["stride"], last // kept["stride"] + 1):
            assert shares[i] == 0 and 0 < share <= 1
            shares[i] = share
    return shares


def test_full_keeps_everything(server):
    kept, text, _ = ask(server, 100, 10, {"type": "full"})
    assert kept == {"n_tokens": len(text), "stride": 1, "ranges": [[0, len(text) - 1, 1]]}


@only_cpu
@pytest.mark.parametrize("n_prompt, n", [(200, 30), (200, 1), (10, 100), (20, 3), (33, 1), (32, 2)])
def test_streaming_keeps_sinks_and_the_newest(server, n_prompt, n):
    kept, text, usage = ask(server, n_prompt, n, STREAMING)
    last = len(text) - 1
    wanted = [[0, last, 1]] if last < 32 else [[0, 3, 1], [last - 27, last, 1]]
    assert kept == {"n_tokens": len(text), "stride": 1, "ranges": wanted}
    assert sum(shares_of(kept)) == usage["resident_tokens"]


@only_cpu
@pytest.mark.parametrize("n_prompt, n", [(150, 40), (150, 1), (30, 120), (64, 2), (50, 10)])
def test_heavy_hitters_are_those_of_the_oracle(server, model, n_prompt, n):
    kept, text, usage = ask(server, n_prompt, n, HITTERS)
    oracle = bounded_oracle.Text(Model(model), Budget(4, 20, 40, "sum", chunk=64))
    oracle.prompt(text[:n_prompt])
    for token in text[n_prompt:]:
        oracle.token(token)
    heads = oracle.all_heads()
    assert oracle.closest > 1e-4  # no rounding decides
    wanted = [sum(i in set(head.kept) for head in heads) / len(heads) for i in range(len(text))]
    assert shares_of(kept) == pytest.approx(wanted, abs=1e-4)
    assert any(0 < share < 1 for share in wanted) == (len(text) > 64)
    assert sum(wanted) == pytest.approx(usage["resident_tokens"])


@only_cpu
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("n_prompt, n", [(300, 20), (400, 2), (100, 5)])
def test_a_selection_is_that_of_the_oracle(server, model, moved, n_prompt, n):
    kept, text, _ = ask(server, n_prompt, n, {**OFFLOAD, "offload": moved})
    selection = Selection(FILTERS, WAIT, 64, 64)
    oracle = offload_oracle.Text(Model(model), selection)
    oracle.prompt(text[:n_prompt])
    for token in text[n_prompt:]:
        oracle.token(token, lambda logits: 0)
    n_seen, wanted = selection.n_candidates(len(text) - 1), [0] * len(text)
    for behind in oracle.behind:
        for i in range(len(text)):
            wanted[i] += behind is None or i >= n_seen or i in oracle.held[behind]
    assert oracle.n_ties == 0
    assert shares_of(kept) == pytest.approx([each / N_LAYERS for each in wanted], abs=1e-4)
    assert (min(wanted) < N_LAYERS) == (n_prompt > 200)


@only_cpu
def test_some_layers_keep_a_budget(server):
    part = {"first": 1, "last": 1, "kv_policy": STREAMING}
    kept, text, _ = ask(server, 100, 10, {"type": "full", "layers": [part]})
    last = len(text) - 1
    assert kept["ranges"] == [[0, 3, 1], [4, last - 28, 0.75], [last - 27, last, 1]]


def test_windows_hide_the_text_before_them(tmp_path):
    (family, window), *_ = WINDOWS.items()
    path = link_checkpoint(tmp_path / family, FAMILIES[family])
    config = json.loads((path / "config.json").read_text())
    n_layers = config["num_hidden_layers"]
    types = config.get("layer_types") or ["sliding_attention"] * n_layers
    share = types.count("full_attention") / n_layers
    with Server(tmp_path, "--allowed-kv-policies", "full", model=path) as one:
        body = {"prompt": [5] * (window + 20), "max_tokens": 3, "ignore_eos": True,
                "return_kept_positions": True}
        kept = one.post("/v1/completions", body).json()["choices"][0]["kept_positions"]
    last = window + 21
    wanted = [[last - window + 2, last, 1]]
    if share > 0:
        wanted.insert(0, [0, last - window + 1, pytest.approx(share, abs=1e-4)])
    assert kept["n_tokens"] == last + 1 and kept["ranges"] == wanted


@only_cpu
def test_a_long_text_is_told_in_strides(server):
    kept, text, _ = ask(server, 20000, 3, {**STREAMING, "recent": 29, "positions": "cache"})
    assert kept["n_tokens"] == len(text) == 20002 and kept["stride"] == 2
    # The newest 29 tokens begin with the second one of a stride.
    assert kept["ranges"] == [[0, 3, 1], [19972, 19973, 0.5], [19974, 20001, 1]]


@only_cpu
@pytest.mark.parametrize("stream", [False, True])
def test_chats_tell_it_too(shared_chat, stream):
    body = {"messages": [{"role": "user", "content": "Tell me a story about the sea. " * 10}],
            "max_tokens": 20, "kv_policy": STREAMING, "return_kept_positions": True,
            "ignore_eos": True, "stream": stream}
    reply = shared_chat.post("/v1/chat/completions", body)
    assert reply.status == 200
    if not stream:
        answers = [reply.json()["choices"][0]]
    else:
        lines = [line[6:] for line in reply.body.decode().splitlines() if line.startswith("data: {")]
        answers = [json.loads(line)["choices"][0] for line in lines]
    *before, last = answers
    assert not any("kept_positions" in each for each in before)
    n = last["kept_positions"]["n_tokens"]
    assert last["kept_positions"]["ranges"] == [[0, 3, 1], [n - 28, n - 1, 1]]


@pytest.fixture(scope="module")
def shared_chat(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("chat")) as one:
        yield one


@pytest.mark.parametrize("rest", [{"n": 2}, {"best_of": 2}, {"prompt": ["a", "b"]}])
def test_only_one_sequence_can_be_asked(server, rest):
    reply = server.post("/v1/completions", {"prompt": "a", "return_kept_positions": True, **rest})
    assert reply.status == 400
    assert reply.error["param"] == "return_kept_positions"


@pytest.mark.skipif(DEVICE == "cpu", reason="the CPU can tell")
@pytest.mark.parametrize("policy", [STREAMING, HITTERS, OFFLOAD])
def test_a_device_that_runs_ahead_refuses_by_name(server, policy):
    reply = server.post("/v1/completions", {"prompt": random_tokens(300), "kv_policy": policy,
                                            "return_kept_positions": True})
    assert reply.status == 400
    assert reply.error["param"] == "return_kept_positions" and DEVICE in reply.error["message"]
