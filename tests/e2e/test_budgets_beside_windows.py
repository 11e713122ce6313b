"""Budgets in models some of whose layers have a window: those layers keep their window, with the
text's positions, and the budget is that of the others.  A real process against the oracle, texts
beyond the window and, with positions in the cache, beyond the context."""
import dataclasses
import json
import random

import pytest

import test_bounded
from bounded_oracle import Budget, Text
from oracle_model import Model
from precision import (BF16_RANDOM, EXACT, KEPT, N_TOP, PRECISE, check_chosen, check_errors,
                       row_error, values_of)
from random_model import write_random_model
from server import DEVICE, Server
from test_bounded import NEAR_TIE, kv_policy, random_tokens

WINDOW, CONTEXT, N_LAYERS = 100, 512, 4
# In bf16 other tokens of nearly the same score leave, and the texts drift apart with each.  An H200 was
# off by up to 37 times what it is where tokens are kept by their place, and the CPU in bf16 by up to 39
# times: there these tests hold the rest, and tests/cuda/test_evict.c the choices.  The retained
# attention is a mean of the layers that have the budget, in which one choice weighs more where these
# are few.
DRIFT = {"retained": 0.12, "kept": 45}
SOME = {"first": (0,), "last": (3,), "most": (0, 1, 3), "middle": (1, 2), "all": (0, 1, 2, 3)}
BUDGETS = [Budget(4, 60, chunk=50), Budget(0, 200, chunk=64),
           Budget(4, 30, 40, "sum", chunk=64), Budget(2, 90, 110, "mean", chunk=100),
           Budget(1, 20, 60, "decay", chunk=16), Budget(3, 30, 30, "window", chunk=64, window=20),
           Budget(2, 40, 40, "window", whole=True, window=32, pooling="max", kernel=7),
           Budget(4, 60, whole=True), Budget(4, 70, 80, "sum", whole=True)]


class Rig:
    """A server with a model of which some layers have a window, and the oracle's model."""

    def __init__(self, directory, windowed, *settings, context=CONTEXT, rows=96):
        types = ["sliding_attention" if i in windowed else "full_attention"
                 for i in range(N_LAYERS)]
        self.path = write_random_model(
            directory / "model", context, architectures=["MistralForCausalLM"],
            model_type="mistral", num_hidden_layers=N_LAYERS, sliding_window=WINDOW,
            layer_types=types)
        self.model, self.noise = Model(self.path), None
        self.server = Server(directory, "--max-num-batched-tokens", rows, "--max-num-seqs", 16,
                             *PRECISE, *settings, model=self.path)


@pytest.fixture(scope="module", params=SOME)
def rig(request, tmp_path_factory):
    one = Rig(tmp_path_factory.mktemp("beside"), SOME[request.param])
    yield one
    assert one.server.stop() == 0, one.server.log[-8000:]


@pytest.mark.parametrize("positions", ["text", "cache"])
def test_windows_stay_as_they_are(rig, positions):
    """Prompts are longer than the window and the budgets; whole ones count in the cache as far as
    the context."""
    rng = random.Random(7)
    questions = []
    for i, budget in enumerate(BUDGETS):
        budget = dataclasses.replace(budget, cache_positions=positions == "cache")
        outgrows = budget.cache_positions and not budget.whole
        lengths = (560, 680) if EXACT else (460, CONTEXT)  # both outgrow the context with the answer
        n_prompt = rng.randint(*(lengths if outgrows else (250, 400)))
        questions.append((random_tokens(n_prompt, i), budget, 60))
    test_bounded.check_answers(rig.server, rig.model, questions, at_least=0.6, **DRIFT)


def test_texts_around_the_borders_of_windows_and_pages(rig):
    rng = random.Random(8)
    questions = []
    for i, n in enumerate((1, 2, 63, 64, 65, WINDOW - 1, WINDOW, WINDOW + 1, 163, 164, 165, 228)):
        budget = BUDGETS[i % 6]
        questions.append((random_tokens(n, i), dataclasses.replace(
            budget, cache_positions=rng.random() < 0.5), min(20 + n, 80)))
    test_bounded.check_answers(rig.server, rig.model, questions, at_least=0.8, **DRIFT)


def turn_of(server, ids, budget, n):
    return server.complete(ids, kv_policy=kv_policy(budget), max_tokens=n, ignore_eos=True,
                           return_token_ids=True, logprobs=N_TOP, seed=3, temperature=1,
                           cache_salt=json.dumps(kv_policy(budget)))


def follow(text, ids, answer, errors):
    """Lets the oracle read a turn's prompt and its answer, adds the errors of the answer's tokens, and
    returns the next turn's prompt."""
    (choice,) = answer["choices"]
    rows = [text.more(ids[text.n:])[-1]]
    rows += [text.token(token) for token in choice["token_ids"][:-1]]
    if text.closest >= NEAR_TIE:
        errors += [row_error(given, row, token) for given, row, token in
                   zip(values_of(choice), rows, choice["token_ids"], strict=True)]
    return ids + choice["token_ids"] + random_tokens(40, text.n)


def follow_turns(rig, budget):
    """Returns the errors of three turns, each of which goes on from the one before."""
    text, ids, errors = Text(rig.model, budget), random_tokens(230, 1), []
    for turn in range(3):
        answer = turn_of(rig.server, ids, budget, 40)
        n_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert n_cached == (text.n if text.layers else text.n // 64 * 64)
        ids = follow(text, ids, answer, errors)
    assert len(errors) >= 80
    return errors


BY_PLACE = (Budget(4, 60, chunk=50), Budget(4, 60, chunk=50, cache_positions=True))


@pytest.mark.parametrize("scored", [
    Budget(4, 30, 40, "mean", chunk=64), Budget(2, 90, 110, "sum", chunk=100, cache_positions=True),
    Budget(3, 30, 30, "window", chunk=64, window=20)], ids=str)
def test_turns_go_on_from_states(rig, scored):
    """With the windows' pages in them.  Where no layer has the budget, blocks are found instead.  In
    bf16 scores are judged by what is off where tokens are kept by their place."""
    if rig.noise is None:
        rig.noise = max(check_errors(follow_turns(rig, budget), str(budget), BF16_RANDOM)
                        for budget in BY_PLACE)
    errors = follow_turns(rig, scored)
    if EXACT:
        check_errors(errors, str(scored))
    else:
        check_chosen(errors, str(scored), rig.noise, KEPT)


STATEFUL = pytest.mark.parametrize("budget", [
    Budget(4, 60, chunk=50, cache_positions=True), Budget(4, 30, 40, "mean", chunk=64)], ids=str)


def check_turn(server, text, ids, budget):
    """That the turn goes on from all that the text has; returns the next turn's prompt."""
    n_before, errors = text.n, []
    answer = turn_of(server, ids, budget, 40)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == n_before
    ids = follow(text, ids, answer, errors)
    assert text.closest < NEAR_TIE or len(errors) == 40
    check_errors(errors, str(budget), BF16_RANDOM)
    return ids


@STATEFUL
def test_states_come_back_from_the_host_pool(tmp_path, budget):
    """When others have had all pages."""
    rig = Rig(tmp_path, (0, 1, 3), "--kv-cache-memory", "1500K", "--kv-offload-size", "64M",
              "--max-model-len", 512, context=2048)
    with rig.server as server:
        text = Text(rig.model, budget)
        ids = check_turn(server, text, random_tokens(300, 1), budget)
        for i in range(8):
            turn_of(server, random_tokens(400, 10 + i), budget, 60)
        server.wait_idle()
        assert server.metrics()["quire_kv_pages_stored"] > 0
        check_turn(server, text, ids, budget)


@STATEFUL
def test_states_come_back_from_disk(tmp_path, budget):
    """Into another process."""
    settings = ("--kv-disk-path", tmp_path / "disk", "--max-model-len", 512)
    rig = Rig(tmp_path, (0, 1, 3), *settings, context=2048)
    text = Text(rig.model, budget)
    with rig.server as server:
        ids = check_turn(server, text, random_tokens(300, 1), budget)
        server.wait_idle()
    with Server(tmp_path, "--max-num-batched-tokens", 96, "--max-num-seqs", 16, *PRECISE,
                *settings, model=rig.path) as server:
        check_turn(server, text, ids, budget)


@pytest.mark.parametrize("settings", [("--kv-cache-dtype", "fp8"), ("--batch-invariant",)], ids=str)
def test_other_pages_and_all_pages(tmp_path, settings):
    """Eight bits cost what they cost under `full`; --batch-invariant keeps all pages of windows."""
    plain = Rig(tmp_path / "plain", (0, 1, 3), context=2048)
    other = Rig(tmp_path / "other", (0, 1, 3), *settings, context=2048)
    with plain.server as one, other.server as two:
        def apart(policy):
            """The mean difference of a token's log-probability."""
            asked = {"kv_policy": policy, "max_tokens": 0, "echo": True, "logprobs": 1}
            scores = [s.complete(random_tokens(700, 1), **asked)["choices"][0]["logprobs"]
                      ["token_logprobs"][1:] for s in (one, two)]
            return sum(abs(a - b) for a, b in zip(*scores, strict=True)) / len(scores[0])

        usual = apart({"type": "full"})
        for budget in BUDGETS[:2] + BUDGETS[7:8]:
            for in_cache in (False, True):
                policy = kv_policy(dataclasses.replace(budget, cache_positions=in_cache))
                assert apart(policy) < max(1.5 * usual, 1e-3)


@pytest.mark.parametrize("positions", ["text", "cache"])
def test_whole_prompts_that_do_not_fit_are_read_layer_by_layer(tmp_path, positions):
    """Two layers' pages at a time, and those of windows and budgets: 64 pages are too few for the
    prompt's in the three layers that have the budget."""
    rig = Rig(tmp_path, (1,), "--kv-cache-memory", 64 * 2 * 9200 // (1 if EXACT else 2),
              "--max-model-len", 2048, "--max-long-tokens", 2048, "--kv-policy",
              '{"type": "streaming", "recent": 60}', "--allowed-kv-policies", "streaming,heavy_hitter",
              context=4096, rows=128)
    in_cache = positions == "cache"
    budgets = [dataclasses.replace(b, cache_positions=in_cache) for b in BUDGETS if b.whole]
    (by_place,) = [b for b in budgets if b.score == "none"]
    with rig.server as server, Server(tmp_path, "--max-num-seqs", 16, *PRECISE,
                                      model=rig.path) as large:
        test_bounded.check_answers(server, rig.model, [(random_tokens(1500, 1), by_place, 60)])
        for budget in budgets if EXACT else ():
            asked = {"kv_policy": kv_policy(budget), "max_tokens": 60, "logprobs": N_TOP,
                     "return_token_ids": True, "ignore_eos": True}
            answers = [one.complete(random_tokens(1400, 2), **asked) for one in (server, large)]
            assert answers[0]["choices"] == answers[1]["choices"]
            assert answers[0]["usage"]["kv"] == answers[1]["usage"]["kv"]
        server.wait_idle()


@pytest.mark.parametrize("offload", ["0", "16M"])
def test_preempted_requests_go_on_as_they_were(tmp_path, offload):
    """Budgets and windows are taken at the start, but texts grow from a page to their windows."""
    settings = ("--kv-cache-memory", "600K", "--max-model-len", 128, "--kv-offload-size", offload)
    rig = Rig(tmp_path, (0, 1, 3), *settings)
    budgets = [dataclasses.replace(b, cache_positions=True) for b in BUDGETS[:6]] * 2
    with rig.server as server:
        body = [(random_tokens(20 + i, i), kv_policy(b)) for i, b in enumerate(budgets)]

        def ask(i, salt):
            prompt, policy = body[i]
            return server.complete(prompt, kv_policy=policy, max_tokens=200, ignore_eos=True,
                                   return_token_ids=True, logprobs=1, cache_salt=salt)["choices"]
        alone = [ask(i, "alone") for i in range(len(body))]
        together = server.at_once(lambda i: ask(i, "together"), range(len(body)))
        server.wait_idle()
        if DEVICE == "cpu":
            assert together == alone
        assert server.metrics()["quire_preemptions_total"] > 0


def ranged_errors(rig, budget):
    """Returns the errors of a prompt and its answer, of which the first three layers keep a budget."""
    layers = [{"first": 0, "last": 2, "kv_policy": kv_policy(budget)}]
    prompt = random_tokens(300, 5)
    reply = rig.server.post("/v1/completions", {
        "prompt": prompt, "kv_policy": {"type": "full", "layers": layers}, "max_tokens": 60,
        "echo": True, "logprobs": N_TOP, "return_token_ids": True, "ignore_eos": True}, timeout=300)
    assert reply.status == 200, reply.body
    (choice,), usage = reply.json()["choices"], reply.json()["usage"]
    text, values = Text(rig.model, budget, (0, 1, 2)), values_of(choice)
    rows = list(text.prompt(prompt)) + [text.token(t) for t in choice["token_ids"][:-1]]
    tokens = prompt + choice["token_ids"]
    assert text.closest > NEAR_TIE
    assert usage["kv"]["budget_tokens"] == text.capacity
    assert usage["kv"]["evicted_tokens"] == text.n - text.n_kept
    return [row_error(values[i], rows[i - 1], tokens[i]) for i in range(1, len(tokens))]


def test_ranges_leave_windows_alone(rig):
    """A range names layers with a window, too; they keep it."""
    noise = check_errors(ranged_errors(rig, BY_PLACE[0]), "kept by place", BF16_RANDOM)
    errors = ranged_errors(rig, Budget(4, 30, 40, "sum", chunk=64))
    if EXACT:
        check_errors(errors, "ranges")
    else:
        check_chosen(errors, "ranges", noise, DRIFT["kept"])


@pytest.mark.parametrize("windowed", ["first", "most", "all"])
def test_every_policy_that_is_listed_works_with_its_defaults(tmp_path, windowed):
    """Prompts beyond the window, the budget and the context; only positions in the text end there."""
    context, lengths = 4096, (50, 3000, 6000)
    with Rig(tmp_path, SOME[windowed], context=context, rows=512).server as server:
        (model,) = server.get("/v1/models").json()["data"]
        listed = [one["type"] for one in model["kv_policies"]]
        assert {"full", "streaming", "heavy_hitter"} <= {*listed}
        for name in listed:
            for n in lengths:
                reply = server.post("/v1/completions", {
                    "prompt": random_tokens(n, n), "max_tokens": 5, "ignore_eos": True,
                    "kv_policy": {"type": name}}, timeout=300)
                if n > context and name != "streaming":
                    assert reply.status == 400 and "context" in reply.error["message"]
                    continue
                assert reply.status == 200, reply.body
                kv = reply.json()["usage"]["kv"]
                has_budget = name != "full" and windowed != "all"
                assert kv["budget_tokens"] == (None if name == "full" else 2048 * has_budget)
                assert kv["resident_tokens"] == (min(n + 4, 2048) if has_budget else n + 4)
        server.wait_idle()
