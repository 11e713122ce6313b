"""Conversations under bounded KV caches over HTTP: a request goes on from the state that an earlier
one left.  To the bit it is compared in tests/engine/test_states.c; here, that all this holds for
what clients see, in company, and that nothing stays behind."""
import concurrent.futures
import itertools
import json
import random
import threading

import pytest

from composition import prompt_of, text_of
from raw import RawConnection
from server import DEVICE, INVARIANT, LONG, Server

STREAMING = {"type": "streaming", "sink": 4, "recent": 60, "chunk": 64}
HEAVY = {"type": "heavy_hitter", "sink": 4, "recent": 40, "heavy": 60, "chunk": 96}
WINDOW = {**HEAVY, "score": "window", "positions": "cache"}
WHOLE = {"type": "heavy_hitter", "sink": 4, "recent": 30, "heavy": 60, "prompt": "whole",
         "score": "window", "window": 16, "pooling": "max"}
POLICIES = [STREAMING, {**HEAVY, "score": "mean"}, WINDOW, WHOLE]
every_policy = pytest.mark.parametrize("policy", POLICIES,
                                       ids=["streaming", "mean", "window", "whole"])
# A GPU's sums are others for other sizes of step and in other company.
exact = pytest.mark.skipif(DEVICE != "cpu", reason="compares texts in other company")


@pytest.fixture(scope="module")
def server(tmp_path_factory, small_model):
    """Tests must leave it idle."""
    with Server(tmp_path_factory.mktemp("states"), model=small_model) as shared:
        yield shared


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def ids_of(answer):
    return answer["choices"][0]["token_ids"]


def ask(server, prompt, policy, salt, **parameters):
    return server.complete(prompt, kv_policy=policy, cache_salt=salt, return_token_ids=True,
                           ignore_eos=True, **parameters)


def stream_ids(server, prompt, policy, salt, **parameters):
    events = server.stream(prompt, kv_policy=policy, cache_salt=salt, return_token_ids=True,
                           ignore_eos=True, stream_options={"include_usage": True}, **parameters)
    ids = [i for event in events for choice in event["choices"] for i in choice["token_ids"]]
    return ids, events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]


@every_policy
def test_a_second_turn_finds_what_was_there(server, policy):
    """All but the answer's last token, which was drawn but never computed."""
    salt = f"second {json.dumps(policy)}"
    prompt = prompt_of(300)
    first = ask(server, prompt, policy, salt, max_tokens=40)
    assert cached(first) == 0
    before = server.metrics()["quire_cached_tokens_total"]
    turn = prompt + ids_of(first) + prompt_of(50, seed=1)
    second = ask(server, turn, policy, salt, max_tokens=40)
    assert cached(second) == 339
    assert server.metrics()["quire_cached_tokens_total"] - before == 339
    kv = second["usage"]["kv"]
    assert kv["resident_tokens"] + kv["evicted_tokens"] == len(turn) + 39
    # Asked again, it goes on from the same state: that was a copy.
    again = ask(server, turn, policy, salt, max_tokens=40)
    assert cached(again) == 339 and ids_of(again) == ids_of(second)
    assert cached(ask(server, turn, policy, salt + " other", max_tokens=1)) == 0
    server.wait_idle()


@every_policy
def test_streamed_turns_equal_plain_ones(server, policy):
    def converse(salt, one_turn):
        prompt, texts, found = prompt_of(200), [], []
        for i in range(3):
            ids, n_cached = one_turn(prompt, f"{salt} {json.dumps(policy)}")
            texts.append(ids)
            found.append(n_cached)
            prompt = prompt + ids + prompt_of(30, seed=i + 1)
        return texts, found

    def plain(prompt, salt):
        answer = ask(server, prompt, policy, salt, max_tokens=30)
        return ids_of(answer), cached(answer)

    def streamed(prompt, salt):
        return stream_ids(server, prompt, policy, salt, max_tokens=30)

    texts, found = converse("plain", plain)
    assert found == [0, 229, 289]
    assert converse("streamed", streamed) == (texts, found)
    server.wait_idle()


@exact
@every_policy
@pytest.mark.parametrize("how", [{"n": 4}, {"n": 1, "best_of": 4}], ids=["n", "best_of"])
def test_choices_copy_the_state_of_their_prompt(server, policy, how):
    """They equal runs of their own, and the prompt is read once; usage counts it once, too."""
    salt = f"choices {json.dumps([policy, how])}"
    prompt, drawn = prompt_of(400), {"max_tokens": 30, "temperature": 1}
    before = server.metrics()["quire_cached_tokens_total"]
    together = ask(server, prompt, policy, salt, seed=9, **drawn, **how)
    assert cached(together) == 0
    assert server.metrics()["quire_cached_tokens_total"] - before == 3 * 399
    alone = [ask(server, prompt, policy, f"{salt} {i}", seed=9 + i, **drawn) for i in range(4)]
    assert all(cached(answer) == 0 for answer in alone)
    if how["n"] == 4:
        assert [text_of(together, i) for i in range(4)] == [text_of(answer) for answer in alone]
    else:
        assert text_of(together) in [text_of(answer) for answer in alone]
    server.wait_idle()


def test_without_the_prefix_cache_nothing_is_kept(serve, small_model):
    server = serve("--enable-prefix-caching", "false", model=small_model)
    for n in (1, 1, 2):
        assert cached(ask(server, prompt_of(300), HEAVY, "salt", n=n, max_tokens=5)) == 0
    m = server.metrics()
    assert m["quire_kv_pages_cached"] == 0 and m["quire_cached_tokens_total"] == 0


class Conversation:
    """Turns that depend on their number alone, and a client that now and then leaves."""

    def __init__(self, server, number, salt):
        self.server, self.salt = server, salt
        self.rng = random.Random(number)
        self.policy = POLICIES[number % len(POLICIES)]
        self.prompt = prompt_of(self.rng.randrange(100, 400), seed=number)
        self.answers = []

    def leave(self):
        """Asks for another answer, and goes away in the middle of it.  With the turn's own seed it
        might leave a state that is one token longer than the turn's."""
        with RawConnection(self.server) as connection:
            connection.send_completion(prompt=self.prompt, stream=True, max_tokens=5000,
                                       ignore_eos=True, kv_policy=self.policy, priority=1,
                                       cache_salt=self.salt, temperature=1, seed=1000)
            connection.read_head()
            for _ in range(5):
                connection.read_chunk()

    def turn(self, number):
        n_tokens, n_new = self.rng.randrange(8, 40), self.rng.randrange(1, 60)
        if self.rng.random() < 0.4:
            self.leave()
        asked = {"max_tokens": n_tokens, "temperature": 1, "seed": number, "priority": 1}
        if self.rng.random() < 0.5:
            answer = ask(self.server, self.prompt, self.policy, self.salt, **asked)
            ids, found = ids_of(answer), cached(answer)
        else:
            ids, found = stream_ids(self.server, self.prompt, self.policy, self.salt, **asked)
        self.answers.append((ids, found))
        self.prompt = self.prompt + ids + prompt_of(n_new, seed=number)

    def run(self, n_turns):
        for number in range(n_turns):
            self.turn(number)
        return self.answers


@exact
def test_conversations_at_once_equal_each_alone(serve, light_model):
    """Eight of five turns, with clients that leave, which changes nothing: what they asked is found
    where they left it, or read again."""
    server = serve(*INVARIANT, "--max-num-seqs", 16, model=light_model)
    alone = [Conversation(server, i, f"alone {i}").run(5) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda i: Conversation(server, i, f"together {i}").run(5),
                                    range(8)))
    for one, other in zip(alone, together):
        assert [ids for ids, _ in one] == [ids for ids, _ in other]
        assert all(found > 0 for _, found in other[1:])
    server.wait_idle()


@exact
@pytest.mark.parametrize("n,n_turns,pool", [(8, 3, "10500K"), *[(64, 20, "24M")] * LONG])
def test_preempted_conversations_at_once_equal_each_alone(serve, small_model, n, n_turns, pool):
    """In a pool of 13 or 30 blocks, beside full requests that matter more and take most of it.  Where a
    state has given way, its text is read again in other chunks: from there on answers may differ."""
    alone_server = serve(*INVARIANT, model=small_model)
    alone = [Conversation(alone_server, i, f"alone {i}").run(n_turns) for i in range(n)]
    server = serve(*INVARIANT, "--max-num-seqs", 16, "--kv-cache-memory", pool,
                   "--max-model-len", 512, "--kv-offload-size", "1G", model=small_model)
    total = server.metrics()["quire_kv_pages_total"]
    attempts = itertools.count()

    def converse():
        salt, done = f"at once {next(attempts)}", threading.Event()

        def disturb(number):
            for i in itertools.count():
                if done.wait(0.2):
                    return
                server.complete(prompt_of(150, seed=1000 * number + i), max_tokens=300,
                                ignore_eos=True, kv_policy={"type": "full"}, cache_salt=salt)

        with concurrent.futures.ThreadPoolExecutor(n + 2) as threads:
            beside = [threads.submit(disturb, number) for number in range(2)]
            together = list(threads.map(lambda i: Conversation(server, i, f"{salt} {i}").run(n_turns),
                                        range(n)))
            done.set()
            for each in beside:
                each.result()
        return together

    together = server.until("quire_preemptions_total", converse)
    n_same = 0
    for one, other in zip(alone, together):
        for number, ((ids, found), (other_ids, other_found)) in enumerate(zip(one, other)):
            if number > 0 and other_found != found:
                break
            assert other_ids == ids
            n_same += 1
    server.wait_idle()
    m = server.metrics()
    print(f"{n_same} of {n * n_turns} turns compared, {m['quire_preemptions_total']} preemptions")
    assert n_same > 0.8 * n * n_turns
    assert m["quire_kv_pages_free"] + m["quire_kv_pages_cached"] == total


@exact
def test_memory_is_as_it_was_when_states_have_given_way(serve, small_model):
    """A pool of 13 blocks: states of many conversations, then requests that need all of it."""
    server = serve("--kv-cache-memory", "10500K", "--max-model-len", 768, model=small_model)
    total = server.metrics()["quire_kv_pages_total"]
    assert server.metrics()["quire_kv_pages_free"] == total
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda i: Conversation(server, i, f"many {i}").run(3), range(8)))
    server.wait_idle()
    m = server.metrics()
    assert 0 < m["quire_kv_pages_cached"] <= total
    assert m["quire_kv_pages_free"] + m["quire_kv_pages_cached"] == total
    # All of it is to be had, and afterwards only the full request's own blocks are cached.
    server.complete(prompt_of(760), max_tokens=5, kv_policy={"type": "full"})
    server.wait_idle()
    m = server.metrics()
    assert m["quire_kv_pages_free"] + m["quire_kv_pages_cached"] == total


@exact
def test_preempted_conversations_go_on_as_if_they_had_not_been(serve, small_model):
    server = serve("--kv-cache-memory", "10500K", "--max-model-len", 512, model=small_model)
    prompt = prompt_of(300)

    def converse(salt, beside):
        first = ask(server, prompt, HEAVY, salt, max_tokens=20)
        turn = prompt + ids_of(first) + prompt_of(40, seed=1)
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            with server.taking(1):
                second = threads.submit(ask, server, turn, HEAVY, salt, max_tokens=250, priority=1)
            if beside:
                for i in range(2):
                    threads.submit(server.complete, prompt_of(200, seed=9 + i), max_tokens=250,
                                   ignore_eos=True, kv_policy={"type": "full"})
            answer = second.result()
        return cached(answer), ids_of(answer)

    alone = converse("alone", False)
    assert alone[0] == 319
    for i in range(3):
        assert converse(f"beside {i}", True) == alone
    server.wait_idle()
