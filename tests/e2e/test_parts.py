"""Layers that keep a budget while others keep everything, or select, in a real process against the
oracles of both: every log-probability of the prompt and of the generated tokens."""
import json
import random

import pytest

import parts_oracle
from bounded_oracle import Budget, Text
from offload_oracle import Selection
from oracle_model import Model
from precision import (BF16_DEEP, BF16_RANDOM, EXACT, KEPT, PRECISE, SELECTED, check_chosen,
                       check_errors, row_error, values_of)
from random_model import write_random_model
from server import Server
from test_bounded import ALL_SCORES, NEAR_TIE, kv_policy, random_budget, random_tokens
from test_offload_oracle import write_filters

CONTEXT, N_LAYERS, N_TOP = 8192, 6, 5
FILTERS, WAIT = (1, 4), 0  # layers 2, 3 and 5 are sparse
LAYERS = ((0,), (1, 2, 5), tuple(range(N_LAYERS)))


@pytest.fixture(scope="module")
def regime(tmp_path_factory):
    directory = write_random_model(tmp_path_factory.mktemp("random"), CONTEXT,
                                   num_hidden_layers=N_LAYERS)
    file = write_filters(directory / "filters.json", FILTERS, WAIT)
    with Server(directory, "--filters-file", file, "--max-num-batched-tokens", 96, *PRECISE,
                "--max-num-seqs", 16, model=directory) as server:
        yield server, Model(directory)


def ranges(budget, layers):
    """Two layers that follow one another are one range."""
    first = [i for i in layers if i - 1 not in layers]
    last = [i for i in layers if i + 1 not in layers]
    return [{"first": a, "last": b, "kv_policy": kv_policy(budget)} for a, b in zip(first, last)]


def ask(server, prompt, policy, n, **parameters):
    body = {"prompt": prompt, "kv_policy": policy, "max_tokens": n, "echo": True,
            "logprobs": N_TOP, "return_token_ids": True, "ignore_eos": True, "seed": 1,
            **parameters}
    reply = server.post("/v1/completions", body, timeout=300)
    assert reply.status == 200, reply.body
    answer = reply.json()
    return answer["choices"][0], answer["usage"]


def budgets(seed):
    rng = random.Random(seed)
    listed = [random_budget(rng, score, False) for score in ALL_SCORES]
    return listed + [Budget(2, 40, 40, "window", whole=True, window=32, pooling="max", kernel=7),
                     Budget(4, 60, whole=True), Budget(4, 40, 60, "sum", whole=True)]


@pytest.mark.parametrize("layers", LAYERS, ids=str)
def test_the_others_keep_everything(regime, layers):
    server, model = regime
    n_seen, n_asked, errors, scored = 0, 0, [], []
    for i, budget in enumerate(budgets(len(layers))):
        prompt = random_tokens(300 + 7 * i, i)
        choice, usage = ask(server, prompt, {"type": "full", "layers": ranges(budget, layers)}, 150)
        text, ids, values = Text(model, budget, layers), choice["token_ids"], values_of(choice)
        rows = text.prompt(prompt)
        own, logits = [], rows[-1]
        if text.closest >= NEAR_TIE:
            own += [row_error(values[j], rows[j - 1], prompt[j], n_top=N_TOP)
                    for j in range(1, len(prompt))]
            for at, (token, given) in enumerate(zip(ids, values[len(prompt):])):
                own.append(row_error(given, logits, token, n_top=N_TOP))
                n_seen += 1
                if at + 1 < len(ids):
                    logits = text.token(token)
                if text.closest < NEAR_TIE:
                    break
        n_asked += len(ids)
        (errors if budget.score == "none" else scored).append((own, str(budget)))
        assert usage["kv"]["policy"] == "full" and usage["kv"]["budget_tokens"] == budget.capacity
        if text.closest >= NEAR_TIE:
            assert usage["kv"]["evicted_tokens"] == text.n - text.n_kept > 0
            wanted = text.retained_attention
            assert usage["kv"]["retained_attention"] == (
                None if budget.score == "none" else pytest.approx(wanted, rel=1e-4 if EXACT else 0.02))
    noise = check_errors(sum((own for own, _ in errors), []), "kept by place", BF16_RANDOM)
    for own, what in scored:
        check_chosen(own, what, noise, KEPT)
    assert n_seen >= 0.7 * n_asked


@pytest.mark.parametrize("layers", [(3,), (0, 2, 5)], ids=str)
def test_the_others_select(regime, layers):
    """Layers of a group that keep a budget do not follow its filter."""
    server, model = regime
    n_seen, n_asked, n_chosen, seen, errors = 0, 0, 0, [], []
    selection = Selection(FILTERS, WAIT, 64, 64)
    for i, budget in enumerate(budgets(10 + len(layers))):
        prompt = random_tokens(300 + 11 * i, i)
        policy = {"type": "offload", "selected": 64, "tail": 64, "offload": False,
                  "layers": ranges(budget, layers)}
        choice, usage = ask(server, prompt, policy, 100)
        text = parts_oracle.Text(model, selection, budget, layers)
        ids, values, own = choice["token_ids"], values_of(choice), []
        n_asked += len(ids)
        rows = text.prompt(prompt)
        logits = rows[-1]
        if text.closest >= NEAR_TIE:
            seen += [row_error(values[j], rows[j - 1], prompt[j], n_top=N_TOP)
                     for j in range(1, len(prompt))]
        for at, (token, given) in enumerate(zip(ids, values[len(prompt):])):
            if text.closest < NEAR_TIE:
                break
            own.append(row_error(given, logits, token, n_top=N_TOP))
            n_seen += 1
            if at + 1 < len(ids):
                following, next_token = values[len(prompt) + at + 1], ids[at + 1]
                logits = text.token(token, lambda tried: row_error(following, tried, next_token,
                                                                   n_top=N_TOP))
        errors += own
        n_chosen += text.n_chosen
        if text.closest >= NEAR_TIE:
            kv = usage["kv"]
            assert kv["policy"] == "offload" and kv["budget_tokens"] == budget.capacity
            assert kv["selected_tokens"] == text.n_chosen
            assert kv["evicted_tokens"] > 0
    check_chosen(errors, "some chosen", check_errors(seen, "prompts", (BF16_DEEP[0], 2)), SELECTED)
    assert n_seen >= 0.7 * n_asked and n_chosen > 0


STREAMING = {"type": "streaming", "recent": 64}
REFUSED = {
    "not an array": ({"layers": {"first": 0}}, "kv_policy.layers", "array"),
    "no range": ({"layers": []}, "kv_policy.layers", "array"),
    "no policy": ({"layers": [{"first": 0, "last": 1}]}, "kv_policy.layers", "a kv_policy"),
    "no last": ({"layers": [{"first": 0, "kv_policy": STREAMING}]}, "kv_policy.layers", "integers"),
    "in disorder": ({"layers": [{"first": 2, "last": 1, "kv_policy": STREAMING}]},
                    "kv_policy.layers", "in order"),
    "too many": ({"layers": [{"first": 0, "last": 1 << 40, "kv_policy": STREAMING}]},
                 "kv_policy.layers", "in order"),
    "negative": ({"layers": [{"first": -1, "last": 1, "kv_policy": STREAMING}]},
                 "kv_policy.layers", "in order"),
    "behind the model": ({"layers": [{"first": 0, "last": 6, "kv_policy": STREAMING}]},
                         "kv_policy", "numbered 0 to 5"),
    "twice": ({"layers": [{"first": 0, "last": 2, "kv_policy": STREAMING},
                          {"first": 2, "last": 3, "kv_policy": STREAMING}]},
              "kv_policy.layers", "once"),
    "two policies": ({"layers": [{"first": 0, "last": 1, "kv_policy": STREAMING},
                                 {"first": 2, "last": 3, "kv_policy": {"type": "streaming"}}]},
                     "kv_policy.layers", "the same"),
    "no budget": ({"layers": [{"first": 0, "last": 1, "kv_policy": {"type": "full"}}]},
                  "kv_policy.layers", "keep a budget"),
    "an unknown member": ({"layers": [{"first": 0, "last": 1, "kv_policy": STREAMING, "x": 1}]},
                          "kv_policy.layers", "x is not known"),
    "a wrong policy": ({"layers": [{"first": 0, "last": 1,
                                    "kv_policy": {"type": "streaming", "recent": 0}}]},
                       "kv_policy.recent", "between"),
    "cache positions": ({"layers": [{"first": 0, "last": 1,
                                     "kv_policy": {**STREAMING, "positions": "cache"}}]},
                        "kv_policy.positions", "text"),
    "inside a budget": ({"type": "streaming",
                         "layers": [{"first": 0, "last": 1, "kv_policy": STREAMING}]},
                        "kv_policy.layers", "full and offload"),
    "a filter": ({"type": "offload", "selected": 64,
                  "layers": [{"first": 1, "last": 2, "kv_policy": STREAMING}]},
                 "kv_policy", "layer 1 is a filter"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(regime, case):
    server, _ = regime
    policy, param, words = REFUSED[case]
    reply = server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2,
                                            "kv_policy": {"type": "full", **policy}})
    assert reply.status == 400, reply.body
    error = reply.json()["error"]
    assert error["param"] == param and words in error["message"], error


def test_the_server_writes_what_it_reads(serve):
    policy = {"type": "full", "layers": [{"first": 3, "last": 4, "kv_policy": STREAMING},
                                         {"first": 5, "last": 7, "kv_policy": STREAMING}]}
    server = serve("--kv-policy", json.dumps(policy))
    written = server.get("/v1/models").json()["data"][0]["kv_policy"]
    assert written["type"] == "full"
    (only,) = written["layers"]
    assert (only["first"], only["last"]) == (3, 7)
    assert only["kv_policy"] == {"type": "streaming", "sink": 4, "recent": 64, "prompt": "chunks",
                                 "chunk": 512, "positions": "text"}
