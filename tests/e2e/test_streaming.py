"""The event stream, byte by byte."""
import json

from raw import RawConnection
from server import sse_events

TALE = "Once upon a time there was"


def stream_body(server, **parameters):
    reply = server.post("/v1/completions", {"prompt": TALE, "temperature": 0, "stream": True,
                                            "max_tokens": 8, "ignore_eos": True, **parameters})
    assert reply.status == 200, reply.body
    return reply


def chunks_of(reply):
    events = sse_events(reply.body)
    assert events[-1] == "[DONE]" and "[DONE]" not in events[:-1]
    return [json.loads(event) for event in events[:-1]]


def test_headers(server):
    reply = stream_body(server)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["X-Accel-Buffering"] == "no"
    assert reply.headers["x-request-id"]


def test_chunks(server):
    chunks = chunks_of(stream_body(server))
    whole = server.complete(TALE, max_tokens=8, ignore_eos=True)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    assert chunks[0]["choices"][0]["text"] != ""  # nothing is sent before there is something to say
    assert {c["object"] for c in chunks} == {"text_completion"}
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons[-1] == "length" and not any(reasons[:-1])
    assert all("usage" not in c or c["usage"] is None for c in chunks)


def test_text_arrives_while_it_is_made(server):
    with RawConnection(server) as connection:
        connection.send_completion(prompt=TALE, stream=True, max_tokens=400, ignore_eos=True)
        status, _ = connection.read_head()
        assert status == 200
        pieces = []
        while piece := connection.read_chunk():
            pieces.append(piece)
        assert len(pieces) > 8  # not one lump at the end


def test_include_usage(server):
    chunks = chunks_of(stream_body(server, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert chunks[-1]["usage"]["total_tokens"] == chunks[-1]["usage"]["prompt_tokens"] + 8
    assert all(c["usage"] is None and len(c["choices"]) == 1 for c in chunks[:-1])


def test_continuous_usage(server):
    chunks = chunks_of(
        stream_body(server, stream_options={"include_usage": True, "continuous_usage_stats": True})
    )
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts) and counts[-1] == 8 and counts[0] >= 1
    assert all(
        c["usage"]["total_tokens"] == c["usage"]["prompt_tokens"] + c["usage"]["completion_tokens"]
        for c in chunks
    )


def test_continuous_usage_knows_from_the_first_event_on_what_was_cached(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    for n in (1, 2):
        prompt = [400 + i for i in range(200 + 64 * n)]
        server.complete([prompt, prompt[::-1]], max_tokens=1)
        chunks = server.stream([prompt, prompt[::-1]], max_tokens=4, n=n, temperature=1,
                               stream_options=options)
        found = [c["usage"]["prompt_tokens_details"]["cached_tokens"] for c in chunks]
        one = (len(prompt) - 1) // 64 * 64
        assert found[0] in (one, 2 * one) and set(found[-2:]) == {2 * one}


def test_many_choices_interleave_and_each_finishes_once(server):
    chunks = chunks_of(stream_body(server, n=3, temperature=1.0, seed=4))
    texts, finished = [""] * 3, [0] * 3
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert not finished[choice["index"]]
        texts[choice["index"]] += choice["text"]
        finished[choice["index"]] += choice["finish_reason"] is not None
    assert finished == [1, 1, 1]
    whole = server.complete(TALE, n=3, temperature=1.0, seed=4, max_tokens=8, ignore_eos=True)
    assert texts == [choice["text"] for choice in whole["choices"]]


def test_logprobs_stream_in_pieces(server):
    chunks = chunks_of(stream_body(server, logprobs=2))
    answer = server.complete(TALE, max_tokens=8, ignore_eos=True, logprobs=2)
    whole = answer["choices"][0]["logprobs"]
    joined = {"tokens": [], "token_logprobs": [], "text_offset": []}
    for chunk in chunks:
        if logprobs := chunk["choices"][0]["logprobs"]:
            for name, values in joined.items():
                values += logprobs[name]
    assert joined["tokens"] == whole["tokens"]
    assert joined["text_offset"] == whole["text_offset"]


def test_echo_streams_the_prompt_first(server):
    chunks = chunks_of(stream_body(server, echo=True))
    text = "".join(c["choices"][0]["text"] for c in chunks)
    assert TALE in text
    whole = server.complete(TALE, echo=True, max_tokens=8, ignore_eos=True)
    assert text == whole["choices"][0]["text"]


def test_a_connection_serves_more_after_a_stream(server):
    with RawConnection(server) as connection:
        for _ in range(3):
            connection.send_completion(prompt=TALE, stream=True, max_tokens=3)
            status, _, body = connection.read_reply()
            assert status == 200 and sse_events(body)[-1] == "[DONE]"


def test_an_error_before_the_first_token_is_no_stream(server):
    reply = server.post("/v1/completions", {"prompt": TALE, "stream": True, "max_tokens": -2})
    assert reply.status == 400
    assert reply.headers["Content-Type"].startswith("application/json")
    assert reply.error["param"] == "max_tokens"
