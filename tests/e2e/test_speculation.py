""""speculation": answers are those without it, whatever else runs; what it does not go with is refused by
name; it is counted; nothing stays taken.

A CPU gives a row the same bits alone and in company, so answers are compared token by token.  A GPU does
not: there a text may turn where two tokens are equally likely, so only lengths and counts are compared."""
import concurrent.futures
import json
import subprocess
import sys

import pytest

from composition import prompt_of, text_of
from server import DEVICE, LONG, ROOT, SLOW, Server

N_ANSWERS = 900 if LONG else 20 if SLOW else 60


@pytest.fixture(scope="module")
def server(tmp_path_factory, small_model):
    """Tests must leave it idle."""
    with Server(tmp_path_factory.mktemp("speculation"), model=small_model) as shared:
        yield shared


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The default model: it repeats what it reads, so that guesses are right and strings come.
    Tests must leave it idle."""
    with Server(tmp_path_factory.mktemp("trained")) as shared:
        yield shared


def quoting(n, seed=0, n_more=12):
    """A prompt of n tokens, and its beginning once more."""
    ids = prompt_of(n - n_more, seed)
    return ids + ids[:n_more]


def ask(server, prompt, speculation="suffix", **parameters):
    return server.complete(prompt, speculation=speculation, ignore_eos=True, return_token_ids=True,
                           **{"max_tokens": 80, **parameters})


def ids_of(answer):
    return answer["choices"][0]["token_ids"]


def assert_same(one, other):
    assert len(ids_of(one)) == len(ids_of(other))
    if DEVICE == "cpu":
        assert ids_of(one) == ids_of(other) and text_of(one) == text_of(other)
        assert one["usage"]["kv"] == other["usage"]["kv"]


def counts(server):
    metrics = server.metrics()
    names = ("drafts", "drafted_tokens", "accepted_tokens")
    ours = [metrics[f"quire_speculation_{name}_total"] for name in names]
    theirs = [metrics[f'vllm:spec_decode_num_{name}_total{{model_name="quire-31m",engine="0"}}']
              for name in ("drafts", "draft_tokens", "accepted_tokens")]
    assert ours == theirs
    return ours


# At 1 the small model accepts next to no guess, and the default model takes minutes.
@pytest.mark.parametrize("temperature", [0, 0.3, 0.6, *[1] * LONG])
def test_answers_are_those_without_it(server, temperature):
    """Greedy ones, and with a seed sampled ones."""
    n_accepted = n_rejected = 0
    for seed in range(N_ANSWERS // 3):
        parameters = {"temperature": temperature, "seed": seed, "top_p": 0.9 if seed % 2 else 1,
                      "max_tokens": 40 + seed % 60}
        prompt = quoting(60 + 37 * (seed % 11), seed)
        answer = ask(server, prompt, **parameters)
        assert_same(answer, ask(server, prompt, "off", **parameters))
        spent = answer["usage"]["speculation"]
        n_accepted += spent["accepted"]
        n_rejected += spent["drafted"] - spent["accepted"]
    # Both kinds of row were there.  On a GPU prices are measured, and what seems dear is not guessed.
    assert n_accepted > 0 and (n_rejected > 0 or DEVICE == "cuda")
    server.wait_idle()


# A GPU guesses for one or two sequences only.
ALONE = () if DEVICE == "cpu" else ("--streams", 1, "--choices", 1)


def check_exact(server, *arguments):
    command = [sys.executable, ROOT / "scripts/load/speculation_exact.py",
               "--url", f"http://127.0.0.1:{server.port}", *map(str, (*arguments, *ALONE))]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_greedy_answers_of_many_kinds(server):
    """A short form of scripts/load/speculation_exact.py."""
    done = check_exact(server, "--requests", 30, "--samples", 0,
                       "--tolerance", 0 if DEVICE == "cpu" else 0.3)
    assert done.returncode == 0, done.stdout + done.stderr


def test_samples_have_the_distribution_that_they_have_without_it(trained):
    """The same script's test, which must also tell another temperature apart."""
    sizes = {"cpu": ("--samples", 120, "--control", 1.8),
             "cuda": ("--samples", 4000, "--length", 16)}[DEVICE]  # there short answers have no guesses
    done = check_exact(trained, "--requests", 0, "--prompts", 1, *sizes)
    assert done.returncode == 0, done.stdout + done.stderr


def test_log_probabilities_and_stops_are_those_without_it(trained):
    prompt = "One two three four. " * 12
    for parameters in ({"logprobs": 3}, {"stop": [" four. One two"]}, {"max_tokens": 1}, {"max_tokens": 2},
                       {"min_tokens": 30, "ignore_eos": False}, {"logit_bias": {"300": 5}},
                       {"stop": ["three"], "include_stop_str_in_output": True},
                       {"n": 3, "temperature": 1, "seed": 4}, {"echo": True, "logprobs": 0}):
        answers = [trained.complete(prompt, speculation=mode, **{"max_tokens": 60, **parameters})
                   for mode in ("off", "suffix")]
        assert answers[1]["usage"]["speculation"] is not None
        if DEVICE == "cpu":
            assert answers[0]["choices"] == answers[1]["choices"], parameters


def test_a_quotation_takes_few_steps(trained):
    prompt = "The first line is here. The second line is there. The third line is nowhere. " * 8
    steps = {}
    for mode in ("off", "suffix"):
        before = trained.metrics()["quire_steps_total"]
        answer = ask(trained, prompt, mode, max_tokens=200)
        steps[mode] = trained.metrics()["quire_steps_total"] - before
    spent, details = answer["usage"]["speculation"], answer["usage"]["completion_tokens_details"]
    assert steps["suffix"] < steps["off"] / 2
    assert details == {"accepted_prediction_tokens": spent["accepted"],
                       "rejected_prediction_tokens": spent["drafted"] - spent["accepted"]}
    assert spent["accepted"] > 100


def test_what_cannot_be_guessed_costs_few_rows(trained):
    """At a high temperature the text repeats nothing; an account bounds what is tried."""
    answer = ask(trained, prompt_of(300), temperature=2, seed=1, max_tokens=400)
    spent = answer["usage"]["speculation"]
    assert spent["drafted"] <= 8 + 400 / 8 + 8 * spent["accepted"]


def test_it_is_counted(server):
    before = counts(server)
    answers = [ask(server, quoting(200, seed)) for seed in range(3)]
    after = counts(server)
    spent = [answer["usage"]["speculation"] for answer in answers]
    assert after[1] - before[1] == sum(one["drafted"] for one in spent) > 0
    assert after[2] - before[2] == sum(one["accepted"] for one in spent)
    assert 0 < after[0] - before[0] <= after[1] - before[1]
    assert ask(server, quoting(200), "off")["usage"]["speculation"] is None


def recent(server):
    metrics = server.metrics()
    return [metrics[f"quire_speculation_recent_{name}_tokens_total"] for name in ("drafted", "accepted")]


def test_a_recent_answer_is_found_by_its_salt_and_client_alone(server):
    """A sampled answer that quotes nothing is asked for again, with its seed."""
    def one(salt, key, speculation="suffix"):
        before = recent(server)
        reply = server.post("/v1/completions", {
            "prompt": prompt_of(100, 5), "temperature": 1.2, "seed": 3, "max_tokens": 60, "ignore_eos": True,
            "return_token_ids": True, "speculation": speculation, **({"cache_salt": salt} if salt else {})},
            headers={"Authorization": f"Bearer {key}"} if key else {})
        assert reply.status == 200, reply.body
        answers.append(reply.json())
        return [now - then for now, then in zip(recent(server), before)]

    answers = []
    for salt, key in (("mine", None), ("mine", "k"), ("yours", None), ("yours", "k"), ("mine", "l")):
        assert one(salt, key, "off") == [0, 0]
        assert one(salt, key) == [0, 0], (salt, key)
        drafted, accepted = one(salt, key)
        assert drafted >= accepted > (20 if DEVICE == "cpu" else 4), (salt, key)
    assert DEVICE != "cpu" or len({tuple(ids_of(answer)) for answer in answers}) == 1


def test_without_prefix_caching_no_answer_is_kept(serve):
    server = serve("--no-enable-prefix-caching")
    for _ in range(2):
        ask(server, prompt_of(100, 5), temperature=1.2, seed=3)
    assert recent(server) == [0, 0]


def test_streams_have_all_tokens(server):
    prompt = quoting(300)
    events = server.stream(prompt, speculation="suffix", max_tokens=100, ignore_eos=True,
                           return_token_ids=True, stream_options={"include_usage": True})
    ids = [id for event in events for choice in event["choices"] for id in choice["token_ids"]]
    assert len(ids) == 100 and events[-1]["usage"]["speculation"]["accepted"] >= 0
    if DEVICE == "cpu":
        assert ids == ids_of(ask(server, prompt, "off", max_tokens=100))


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say it again. " * 20}], "max_tokens": 30}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Say it again. " * 20}], "max_tokens": 30}),
    ("/v1/responses", {"input": "Say it again. " * 20, "max_output_tokens": 30})])
def test_every_route_has_it(trained, path, body):
    texts = []
    for mode in ("off", "suffix"):
        reply = trained.post(path, {"model": "quire-31m", "temperature": 0, "speculation": mode, **body})
        assert reply.status == 200, reply.body
        answer = reply.json()
        assert (answer["usage"]["speculation"] is None) == (mode == "off")
        texts.append(json.dumps(answer.get("choices") or answer.get("content") or
                                answer["output"][0]["content"]))
    assert DEVICE != "cpu" or texts[0] == texts[1]


REFUSED = {
    "repetition_penalty": {"repetition_penalty": 1.2},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": -0.5},
    "structured outputs": {"guided_choice": ["yes", "no"]},
    "a kv_policy that evicts": {"kv_policy": {"type": "streaming", "sink": 4, "recent": 60}},
    "evicts or selects": {"kv_policy": {"type": "heavy_hitter", "sink": 4, "recent": 30, "heavy": 30}},
    "or selects": {"kv_policy": {"type": "offload", "selected": 64, "tail": 64, "offload": False}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_does_not_go_with_is_refused_by_name(server, what):
    body = {"prompt": prompt_of(400), "max_tokens": 4, **REFUSED[what]}
    reply = server.post("/v1/completions", {**body, "speculation": "suffix"})
    assert reply.status == 400 and what in reply.error["message"], reply.body
    assert reply.error["param"] == "speculation"
    assert server.post("/v1/completions", {**body, "speculation": "off"}).status == 200


@pytest.mark.parametrize("value", [True, 1, "on", "", {}, ["suffix"]])
def test_other_values_are_refused(server, value):
    reply = server.post("/v1/completions", {"prompt": "a", "speculation": value})
    assert (reply.status, reply.error["param"]) == (400, "speculation")


def test_a_short_text_under_offload_is_kept_whole(server):
    policy = {"type": "offload", "selected": 128, "tail": 128, "offload": False}
    answer = ask(server, quoting(60), kv_policy=policy, max_tokens=20)
    assert answer["usage"]["speculation"] is not None


@pytest.fixture(scope="module")
def speculating(tmp_path_factory, small_model):
    with Server(tmp_path_factory.mktemp("speculating"), "--speculation", "suffix",
                model=small_model) as one:
        yield one


def test_the_servers_default_leaves_out_what_it_does_not_go_with(speculating):
    def usage(**parameters):
        body = {"prompt": quoting(400), "max_tokens": 8, **parameters}
        reply = speculating.post("/v1/completions", body)
        assert reply.status == 200, reply.body
        return reply.json()["usage"]["speculation"]

    assert usage() is not None
    assert usage(speculation="off") is None
    for parameters in REFUSED.values():
        assert usage(**parameters) is None
    speculating.wait_idle()


@pytest.mark.parametrize("settings, what", [(("--batch-invariant", "true"), "--batch-invariant"),
                                            (("--kv-cache-dtype", "fp8"), "--kv-cache-dtype fp8")])
def test_a_server_says_what_it_does_not_go_with(tmp_path, serve, settings, what):
    refused = Server(tmp_path, *settings, "--speculation", "suffix", wait=False)
    assert refused.process.wait(60) != 0
    assert f"--speculation suffix does not go with {what}" in refused.log
    reply = serve(*settings).post("/v1/completions", {"prompt": "a", "speculation": "suffix"})
    assert reply.status == 400 and what in reply.error["message"]


@pytest.mark.parametrize("settings", [(), ("--batch-invariant", "true"), ("--kv-cache-dtype", "fp8")])
def test_left_to_itself_it_guesses_where_that_pays(serve, settings):
    """On a CPU, unless a setting excludes it."""
    server = serve("--speculation", "auto", *settings)
    usage = server.post("/v1/completions", {"prompt": quoting(400), "max_tokens": 8}).json()["usage"]
    assert (usage["speculation"] is not None) == (DEVICE == "cpu" and not settings)


POOL = ("--kv-cache-memory", {"cpu": "24M", "cuda": "12M"}[DEVICE], "--max-model-len", 1024)


@pytest.mark.parametrize("settings", [(), ("--no-enable-prefix-caching",),
                                      ("--no-enable-prefix-caching", "--kv-offload-size", "256M",
                                       "--allowed-kv-policies", "full")],
                         ids=["cached", "not_cached", "swapped"])
def test_sequences_that_lose_their_places(serve, small_model, settings):
    server = serve(*POOL, *settings, model=small_model)
    prompts = [quoting(300, seed) for seed in range(8)]
    answers = server.at_once(lambda prompt: ask(server, prompt, max_tokens=150), prompts)
    server.wait_idle()
    metrics = server.metrics()
    assert metrics["quire_preemptions_total"] > 0
    if "--kv-offload-size" in settings:
        assert metrics["quire_kv_pages_swapped_in_total"] > 0
    for prompt, answer in zip(prompts[:4], answers):
        assert_same(answer, ask(server, prompt, "off", max_tokens=150))
    server.wait_idle()


def test_a_sparse_prompt(server):
    """Its generated tokens are dense, and so are guesses."""
    prefill = {"mode": "sparse", "pattern": {"type": "a_shape"}, "reuse": False}
    prompt = quoting(1500, seed=9, n_more=100)
    answers = [ask(server, prompt, mode, prefill=prefill) for mode in ("off", "suffix")]
    assert answers[1]["usage"]["prefill"]["mode"] == "sparse"
    assert answers[1]["usage"]["speculation"]["drafted"] > 0
    assert_same(*answers)
    server.wait_idle()


def test_mixed_company(server):
    """Sequences that guess, that do not, and that evict, in the same steps."""
    bodies = [{"prompt": quoting(150 + 20 * i, i), "max_tokens": 60, "temperature": i % 3 / 2, "seed": i,
               **({} if i % 4 else {"speculation": "off",
                                    "kv_policy": {"type": "streaming", "sink": 4, "recent": 60}})}
              for i in range(12)]

    def one(body):
        return server.complete(**{"speculation": "suffix", "ignore_eos": True, "return_token_ids": True, **body})

    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as threads:
        together = list(threads.map(one, bodies))
    server.wait_idle()
    for body, answer in zip(bodies, together):
        assert_same(answer, one({**body, "speculation": "off"}))


def test_clients_that_leave(server):
    import http.client

    for n_events in range(6):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"prompt": quoting(200), "max_tokens": 2000, "stream": True, "ignore_eos": True,
                "temperature": 0, "speculation": "suffix"}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        for _ in range(2 * n_events):
            reply.readline()
        connection.close()
    server.wait_idle()


def test_a_conversation_goes_on_from_an_answer_that_was_guessed(trained):
    """The next turn finds the answer's pages in the prefix cache, and none of a wrong guess's."""
    prompt = quoting(400, seed=77)
    first = ask(trained, prompt, max_tokens=150, temperature=0.8, seed=5)
    longer = prompt + ids_of(first) + [400, 401]
    again = ask(trained, longer, "off", max_tokens=20)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 512
    if DEVICE == "cpu":
        assert ids_of(again) == ids_of(ask(trained, longer, "off", max_tokens=20, cache_salt="alone"))
