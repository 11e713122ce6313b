"""The client against a server that is busy, broken, gone, or does not stream."""
import asyncio
import socket

import pytest

from evaluation import client as client_module
from evaluation.client import Client, Gone, Refused, base_url
from tiny_server import TinyServer, log_probability

PROMPT = "The pass key is 12345. What is the pass key?"


def ask(server_or_url, question):
    async def go():
        async with Client(getattr(server_or_url, "url", server_or_url), "tiny",
                          timeout_s=60) as client:
            return await question(client)

    return asyncio.run(go())


def complete(server, **fields):
    return ask(server, lambda client: client.complete(PROMPT, 16, fields))


def test_a_streamed_answer_is_whole_and_timed():
    with TinyServer() as server:
        answer = complete(server)
    assert answer.text == "The pass key is 12345."
    assert answer.finish_reason == "stop"
    assert answer.usage == {"prompt_tokens": 10, "completion_tokens": 5}
    assert 0 < answer.ttft_s <= answer.duration_s


def test_a_server_that_does_not_stream_is_understood():
    with TinyServer(streams=False) as server:
        answer = complete(server)
    assert answer.text == "The pass key is 12345."
    assert answer.ttft_s is None and answer.duration_s > 0


def test_a_busy_server_is_asked_again():
    with TinyServer(n_busy=3) as server:
        assert complete(server).text == "The pass key is 12345."
        assert len(server.bodies) == 4


def test_a_server_that_stays_busy_is_refused_in_the_end():
    async def go(url):
        async with Client(url, "tiny", patience_s=0.2) as client:
            await client.complete(PROMPT, 16, {})

    with TinyServer(n_busy=10**9) as server, pytest.raises(Refused, match="429: busy"):
        asyncio.run(go(server.url))


def test_a_refusal_names_the_field():
    with TinyServer("refuses") as server, pytest.raises(Refused, match="400.*kv_policy"):
        complete(server, kv_policy={"type": "streaming"})


def test_a_server_that_is_gone_is_not_mistaken_for_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(client_module, "CONNECT_TRIES", 2)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(Gone, match=url):
            complete(url)


def test_scores_of_a_prompt_leave_out_what_was_generated():
    ids = [5, 3, 8, 1]
    with TinyServer() as server:
        values, usage = ask(server, lambda client: client.score(ids, {}))
        forms = [(body["max_tokens"], body["logprobs"]) for body in server.bodies]
    assert values == [log_probability(token) for token in ids[1:]]
    assert usage["prompt_tokens"] == 4
    assert forms == [(0, 0), (1, 1)]  # it refuses the first


def test_the_form_that_a_server_takes_is_remembered():
    async def twice(client):
        await client.score([1, 2], {})
        await client.score([1, 2], {})

    with TinyServer() as server:
        ask(server, twice)
        assert [body["max_tokens"] for body in server.bodies] == [0, 1, 1]


def test_the_v1_of_a_url_is_optional():
    assert base_url("http://host:1/v1/") == base_url("http://host:1") == "http://host:1"
