"""POST /v1/messages and count_tokens on a real process: the same text as a chat has, streams, errors,
keys, pings."""
import json
import re

import pytest

from raw import RawConnection
from server import DEVICE

HELLO = [{"role": "user", "content": "Hello there"}]
BODY = {"messages": HELLO, "max_tokens": 8, "temperature": 0}
PATH = "/v1/messages"


def ask(server, status=200, path=PATH, **fields):
    reply = server.post(path, {**BODY, **fields})
    assert reply.status == status, reply.body
    return reply.json()


def events_of(body):
    """The events of a stream, each of the type that its name says."""
    events = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


@pytest.mark.quick("POST /v1/messages")
def test_the_text_is_that_of_a_chat(server):
    chat = server.post("/v1/chat/completions", BODY).json()
    answer = ask(server)
    assert answer["content"] == [{"type": "text", "citations": None,
                                  "text": chat["choices"][0]["message"]["content"]}]
    usage, other = answer["usage"], chat["usage"]
    assert (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]) == (
        other["prompt_tokens"], other["completion_tokens"])


def test_a_stream_is_the_whole_answer(server):
    whole = ask(server)
    events = events_of(server.post(PATH, {**BODY, "stream": True}).body)
    assert events[0]["message"]["content"] == [] and events[-1]["type"] == "message_stop"
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_cached_tokens_are_no_input(server):
    messages = [{"role": "user", "content": "A cache is a place for things. " * 40}]
    first = ask(server, messages=messages, cache_salt="messages")["usage"]
    again = ask(server, messages=messages, cache_salt="messages")["usage"]
    assert first["cache_read_input_tokens"] == 0 and again["cache_read_input_tokens"] > 64
    assert (again["input_tokens"] + again["cache_read_input_tokens"]) == first["input_tokens"]
    events = events_of(server.post(PATH, {**BODY, "messages": messages, "cache_salt": "messages", "stream": True}).body)
    counts = [(usage["input_tokens"], usage["cache_read_input_tokens"])
              for usage in (events[0]["message"]["usage"], events[-2]["usage"])]
    assert counts == 2 * [(again["input_tokens"], again["cache_read_input_tokens"])]


@pytest.mark.quick("POST /v1/messages/count_tokens")
@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief.",
                                                   "cache_control": {"type": "ephemeral"}}]])
def test_count_tokens_counts_the_prompt(server, system):
    counted = server.post(f"{PATH}/count_tokens", {"messages": HELLO, "system": system}).json()
    used = ask(server, system=system)["usage"]
    assert counted == {"input_tokens": used["input_tokens"] + used["cache_read_input_tokens"]}


def test_count_tokens_counts_more_than_the_context_holds(server):
    long = [{"role": "user", "content": "many words " * 40000}]
    assert server.post(f"{PATH}/count_tokens", {"messages": long}).json()["input_tokens"] > 32768
    assert "maximum context length" in ask(server, 400, messages=long)["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_is_too_long_is_refused_in_the_words_that_clients_look_for(server, stream):
    """Claude Code shortens the conversation on the first, and asks for a shorter answer on the
    second.  Numbers are those that count_tokens gives."""
    long = [{"role": "user", "content": "many words " * 40000}]
    n = server.post(f"{PATH}/count_tokens", {"messages": long}).json()["input_tokens"]
    said = ask(server, 400, messages=long, stream=stream)["error"]
    assert said["type"] == "invalid_request_error"
    assert said["message"].startswith(f"prompt is too long: {n} tokens > 32768 maximum")
    def words(count):
        return [{"role": "user", "content": "many" + " many" * count}]
    m = server.post(f"{PATH}/count_tokens", {"messages": words(0)}).json()["input_tokens"]
    said = ask(server, 400, messages=words(32768 - m), stream=stream)["error"]["message"]
    assert said.startswith("input length and `max_tokens` exceed context limit: 32768 + 1 > 32768")
    far = [{"role": "user", "content": "x " * 2_000_000}]
    assert re.match(r"prompt is too long: \d{6,} tokens > 32768 maximum",
                    ask(server, 400, messages=far)["error"]["message"])
    bounded = ask(server, 400, messages=long, 
                  kv_policy={"type": "streaming", "positions": "text"})
    assert bounded["error"]["message"].startswith(f"prompt is too long: {n} tokens > ")


def test_the_answer_continues_a_last_message_of_the_assistant(server):
    begun = [*HELLO, {"role": "assistant", "content": "Hello! My name is"}]
    chat = server.post("/v1/chat/completions", {**BODY, "messages": begun,
                                                "continue_final_message": True}).json()
    assert ask(server, messages=begun)["content"][0]["text"] == (
        chat["choices"][0]["message"]["content"])


def test_stop_sequences(server):
    text = ask(server)["content"][0]["text"]
    answer = ask(server, stop_sequences=["\n\n\n", text[3:6]])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", text[3:6])
    assert answer["content"][0]["text"] == text[:3]


def test_more_tokens_than_the_context_leaves_are_no_error(server):
    assert ask(server, max_tokens=10**6)["stop_reason"] == "end_turn"


def test_policies_of_quire(server):
    policy = {"type": "streaming", "sink": 4, "recent": 64}
    assert ask(server, kv_policy=policy)["usage"]["kv"]["policy"] == "streaming"


@pytest.mark.parametrize("field", ["temperature", "max_tokens", "tools", "system"])
def test_errors_have_anthropics_shape_and_name_the_field(server, field):
    answer = ask(server, 400, **{field: {"a": 1}})
    assert answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
    assert field in answer["error"]["message"]


def test_the_key_in_either_header(serve):
    server = serve("--api-key", "secret")
    for headers, status in (({}, 401), ({"x-api-key": "wrong"}, 401), ({"x-api-key": "secret"}, 200),
                            ({"Authorization": "Bearer secret"}, 200)):
        reply = server.post(PATH, BODY, headers={"anthropic-version": "2023-06-01", **headers})
        assert reply.status == status
        if status == 401:
            assert reply.json()["error"]["type"] == "authentication_error"


def test_a_silent_stream_gets_pings(serve):
    """A prompt that takes a while, in small chunks on a GPU also; the client leaves when it has seen enough."""
    server = serve("--max-num-batched-tokens", {"cpu": 256, "cuda": 8}[DEVICE], "--max-num-seqs", 8)
    messages = [{"role": "user", "content": "one two three four " * 2500}]
    body = json.dumps({**BODY, "messages": messages, "stream": True}).encode()
    with RawConnection(server) as connection:
        connection.send(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.read_head()[0] == 200
        said = b""
        while said.count(b"event: ping") < 3:
            chunk = connection.read_chunk()
            assert chunk, said
            said += chunk
    assert {e["type"] for e in events_of(said)} <= {"message_start", "ping"}, said
    server.wait_idle(20)


def test_models_have_the_shape_of_the_client_that_asks(server):
    """Claude Code asks for the models at its start, and reads the members of Anthropic's API."""
    version = {"anthropic-version": "2023-06-01"}
    theirs = server.request("GET", "/v1/models?limit=1000", headers=version).json()
    (model,) = theirs["data"]
    assert (model["type"], theirs["has_more"]) == ("model", False)
    assert theirs["first_id"] == theirs["last_id"] == model["id"] == model["display_name"]
    assert model["created_at"].endswith("Z") and model["max_input_tokens"] == model["max_model_len"]
    assert server.request("GET", f"/v1/models/{model['id']}", headers=version).json() == model
    refused = server.request("GET", "/v1/models/other", headers=version)
    assert refused.status == 404 and refused.json()["error"]["type"] == "not_found_error"
    ours = server.get("/v1/models").json()
    assert ours["object"] == "list" and ours["data"][0]["object"] == "model"
