"""What is asked about requests: their prompts without running them, how far a prompt is, and their
end before they are done."""
import json
import re
import threading

import pytest

from server import sse_events

HELLO = [{"role": "user", "content": "Hello there"}]
LONG = "one two three four five " * 500


# ---- prompts ----

@pytest.mark.quick("POST /v1/completions/render")
def test_render_gives_the_ids_that_run(server):
    prompts = ["Once upon a time", "The end"]
    body = {"prompt": prompts, "max_tokens": 1, "return_token_ids": True, "model": "quire-31m"}
    ran = server.post("/v1/completions", body).json()["choices"]
    assert server.post("/v1/completions/render", body).json() == [
        {"token_ids": choice["prompt_token_ids"]} for choice in ran]
    assert server.post("/v1/completions/render", {"prompt": [5, 6]}).json() == [
        {"token_ids": [5, 6]}]


@pytest.mark.quick("POST /v1/chat/completions/render")
def test_chats_are_rendered_and_tokenized(server):
    body = {"messages": HELLO, "max_tokens": 1, "return_token_ids": True}
    ids = server.post("/v1/chat/completions", body).json()["choices"][0]["prompt_token_ids"]
    assert server.post("/v1/chat/completions/render", body).json() == {"token_ids": ids}
    tokenized = server.post("/tokenize", {"messages": HELLO, "return_token_strs": True}).json()
    assert (tokenized["tokens"], tokenized["count"]) == (ids, len(ids))
    assert tokenized["token_strs"][:2] == ["<|begin_of_text|>", "<|im_start|>"]
    shorter = server.post("/tokenize", {"messages": HELLO, "add_generation_prompt": False}).json()
    assert shorter["tokens"] == ids[:shorter["count"]] and shorter["count"] < len(ids)


@pytest.mark.parametrize("path", ["/v1/completions/render", "/v1/chat/completions/render",
                                  "/tokenize"])
def test_bad_bodies_are_refused(server, path):
    for body in ({}, {"prompt": 3}, {"messages": 3}, {"messages": [{"role": "x"}]}, "{"):
        reply = server.post(path, body)
        assert reply.status == 400 and reply.error["message"], (body, reply.body)


# ---- progress ----

def progress_of(server, path, body):
    reply = server.post(path, {**body, "stream": True, "return_progress": True})
    assert reply.status == 200, reply.body
    found = [json.loads(line.removeprefix("data: ")) for line in reply.body.decode().splitlines()
             if "prompt_progress" in line and line.startswith("data: ")]
    return [event["prompt_progress"] for event in found]


@pytest.mark.parametrize("path, body, mode", [
    ("/v1/completions", {"prompt": LONG, "max_tokens": 2}, "dense"),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 2}, "auto"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2},
     "dense"),
    ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2}, "dense"),
    ("/v1/responses", {"input": LONG, "max_output_tokens": 2}, "dense")])
def test_progress_of_a_prompt(server, path, body, mode):
    """In chunks, and layer by layer."""
    salt = f"{path} {mode}"
    body = {**body, "cache_salt": salt, "prefill": {"mode": mode}}
    first = progress_of(server, path, body)
    total = first[0]["total"]
    assert total > 2500 and len(first) > 1
    assert all(p["total"] == total and p["cache"] == 0 for p in first)
    done = [p["processed"] for p in first]
    assert done == sorted(done) and 0 < done[0] < done[-1] == total
    times = [p["time_ms"] for p in first]
    assert times == sorted(times)
    if mode != "dense":
        return  # what was computed sparsely is not shared with dense prompts
    again = progress_of(server, path, body)
    assert again[-1]["processed"] == total
    assert again[0]["processed"] > again[0]["cache"] > 0


def test_progress_needs_a_stream(server):
    reply = server.post("/v1/completions", {"prompt": "x", "return_progress": True})
    assert reply.status == 400 and reply.error["param"] == "return_progress"
    assert progress_of(server, "/v1/completions", {"prompt": "x", "max_tokens": 0})


# ---- cancelling ----

def cancel(server, request_id):
    return server.request("POST", f"/v1/requests/{request_id}/cancel")


def begin(server, path, body, request_id):
    """Starts a request that would take long, and returns its thread and where its reply will be."""
    replies = []
    thread = threading.Thread(target=lambda: replies.append(
        server.post(path, body, headers={"X-Request-Id": request_id})))
    thread.start()
    server.wait_running(1)
    return thread, replies


LASTING = {"max_tokens": 20000, "temperature": 0, "ignore_eos": True}


@pytest.mark.quick("POST /v1/requests/{id}/cancel")
@pytest.mark.parametrize("prefix", ["", "cmpl-"])
def test_a_cancelled_request_answers_what_it_has(server, prefix):
    thread, replies = begin(server, "/v1/completions", {"prompt": "Once", **LASTING}, "to-cancel")
    reply = cancel(server, f"{prefix}to-cancel")
    assert (reply.status, reply.json()) == (200, {"id": f"{prefix}to-cancel", "cancelled": 1})
    thread.join()
    choice = replies[0].json()["choices"][0]
    assert replies[0].status == 200 and choice["finish_reason"] == "abort"
    server.wait_idle()
    assert cancel(server, "to-cancel").status == 404


@pytest.mark.parametrize("path, body, end", [
    ("/v1/chat/completions", {"messages": HELLO, **LASTING}, '"finish_reason":"abort"'),
    ("/v1/messages", {"messages": HELLO, **LASTING}, '"stop_reason":"abort"'),
    ("/v1/responses", {"input": "Hello", "ignore_eos": True}, '"status":"cancelled"')])
def test_cancelled_streams_end(server, path, body, end):
    thread, replies = begin(server, path, {**body, "stream": True}, "a-stream")
    assert cancel(server, "a-stream").status == 200
    thread.join()
    assert replies[0].status == 200 and end in replies[0].body.decode().split("\n\n")[-3] + (
        replies[0].body.decode().split("\n\n")[-2])
    if "chat" in path:
        assert sse_events(replies[0].body)[-1] == "[DONE]"
    server.wait_idle()


@pytest.mark.parametrize("theirs", [{}, {"Authorization": "Bearer other"}, {"x-api-key": "other"},
                                    {"Authorization": "Bearer mine", "x-api-key": "other"}],
                         ids=["none", "bearer", "x-api-key", "both"])
def test_only_its_client_cancels_a_request(server, theirs):
    """The bearer's key counts where there are two.  The server asks for no key, and still tells them apart."""
    mine = {"x-api-key": "mine"}
    replies = []
    thread = threading.Thread(target=lambda: replies.append(server.post(
        "/v1/completions", {"prompt": "Once", **LASTING}, headers={"X-Request-Id": "known", **mine})))
    thread.start()
    server.wait_running(1)
    path = "/v1/requests/known/cancel"
    allowed = theirs.get("Authorization") == "Bearer mine"
    assert server.request("POST", path, headers=theirs).status == (200 if allowed else 404)
    if not allowed:
        assert server.request("POST", path, headers=mine).status == 200
    thread.join()
    assert replies[0].json()["choices"][0]["finish_reason"] == "abort"
    server.wait_idle()


def test_ids_made_by_the_server_cannot_be_guessed(server):
    ids = [server.get("/v1/models").headers["X-Request-Id"] for _ in range(64)]
    bits = [int(one, 16) for one in ids]
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids) and len(set(ids)) == 64
    for bit in range(128):
        assert 8 < sum(one >> bit & 1 for one in bits) < 56


def test_what_cannot_be_cancelled(server):
    assert cancel(server, "nothing").status == 404
    assert server.request("POST", "/v1/requests/cancel").status == 404
    assert server.request("POST", "/v1/requests/x/other").status == 404
    assert server.get("/v1/requests/x/cancel").status == 405


def ignored(server):
    return [line.split(" ignored ")[1] for line in server.log.splitlines() if " ignored field=" in line]


def test_unknown_fields_are_named_once_in_the_log(serve, tiny_model):
    server = serve(model=tiny_model)
    for _ in range(2):
        server.complete("x", max_tokens=1, max_token=2, **{"new\nline": {"a": 1}})
    server.wait_logged("new\\x0aline")
    assert ignored(server) == ["field=max_token: there is no such field; the likeliest is max_tokens",
                               'field="new\\x0aline": there is no such field']
    server.complete("x", max_tokens=1, **{f"nothing_like_it_{i}": i for i in range(40)})
    server.wait_logged("nothing_like_it_15")
    server.complete("x", max_tokens=1, last_of_all=1)
    server.wait_logged("last_of_all")
    assert len(ignored(server)) == 2 + 16 + 1


MESSAGES = [{"role": "user", "content": "hi"}]


def test_unknown_fields_are_refused_where_that_is_asked(serve):
    server = serve("--strict-fields")
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": MESSAGES}),
                       ("/v1/responses", {"input": "hi"}), ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1})):
        reply = server.post(path, {**body, "temprature": 1})
        assert reply.status == 400, path
        assert "no field temprature: the likeliest is temperature" in reply.error["message"]
        if path != "/v1/messages":
            assert (reply.error["param"], reply.error["code"]) == ("temperature", "unknown_field")
        limit = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
        assert server.post(path, {**body, "temperature": 0, limit: 1}).status == 200, path
    assert ignored(server) == []
