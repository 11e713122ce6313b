"""config/deploy/nginx.conf before four stubs in place of replicas: a conversation keeps its replica from its
first turn on, whatever client sends it, and conversations are spread over all replicas."""
import collections
import http.client
import http.server
import json
import sys
import threading
import time
import types

import pytest

from server import PATIENCE, ROOT

sys.path.insert(0, str(ROOT / "scripts/load"))
from replicas import Nginx  # noqa: E402

N_REPLICAS, N_CONVERSATIONS, N_TURNS = 4, 50, 3
LONG = "You are a careful assistant. Answer briefly, and never invent anything.\n" * 60


class Stub(http.server.BaseHTTPRequestHandler):
    """Answers anything with its port as the id, in a shape that official clients accept."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"id": str(self.server.server_port), "object": "stub", "created": 0, "created_at": 0,
                           "model": "quire", "choices": [], "output": [], "content": [], "type": "message",
                           "role": "assistant", "usage": None}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    stubs = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub) for _ in range(N_REPLICAS)]
    for stub in stubs:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
    replicas = [types.SimpleNamespace(port=stub.server_port) for stub in stubs]
    nginx = Nginx(tmp_path_factory.mktemp("nginx"), replicas, types.SimpleNamespace(spread=False))
    nginx.spawn(nginx.command)
    try:
        nginx.wait_ready()
        yield nginx
    finally:
        nginx.end()
        for stub in stubs:
            stub.shutdown()
            stub.server_close()


def asker(router):
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=30 * PATIENCE)

    def ask(path, body, headers=None):
        data = body if isinstance(body, bytes) else body.encode()
        connection.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return json.loads(answer.read())["id"]

    return ask


def follow(where, n_conversations=N_CONVERSATIONS):
    """where(conversation, turn) names the replica; returns how often one changed, and the first ones."""
    changes, first = 0, collections.Counter()
    for i in range(n_conversations):
        replicas = [where(i, turn) for turn in range(N_TURNS)]
        first[replicas[0]] += 1
        changes += sum(a != b for a, b in zip(replicas, replicas[1:]))
    return changes, first


def holds(changes, first):
    assert changes == 0, changes
    assert len(first) == N_REPLICAS, first


# ---- bodies: (path, body of a turn) ----


def turns(i, turn, ask="question", text=lambda words: words):
    """The messages of a conversation of that many earlier turns."""
    messages = [{"role": "user", "content": text(f"{ask} {i}")}]
    for k in range(turn):
        messages += [{"role": "assistant", "content": text(f"answer {k} to {i}")},
                     {"role": "user", "content": text(f"and then {k}?")}]
    return messages


def parts(kind):
    return lambda words: [{"type": kind, "text": words}]


def chat(i, turn):
    return {"model": "quire", "messages": turns(i, turn), "max_tokens": 8, "temperature": turn / 10}


def chat_short(i, turn):
    """As short as a first turn may be."""
    return {"messages": turns(i, turn, ask="")}


def chat_long_system(i, turn):
    return {"model": "quire", "messages": [{"role": "system", "content": LONG}, *turns(i, turn)]}


def chat_system_differs(i, turn):
    return {"messages": [{"role": "system", "content": f"{LONG}You are number {i}."}, *turns(0, turn)]}


def chat_developer_parts(i, turn):
    return {"messages": [{"role": "developer", "content": parts("text")(f"{LONG}{i}")},
                         *turns(0, turn, text=parts("text"))]}


def chat_tools(i, turn):
    schema = {"type": "object", "properties": {"messages": {"type": "array", "items": {"type": "string"}},
                                               "role": {"const": "user"}, "content": {"default": "no"}}}
    return {"tools": [{"type": "function", "function": {"name": "send", "parameters": schema}}] * (1 + turn),
            "messages": turns(i, turn), "stream": True, "stream_options": {"include_usage": True}}


def chat_content_first(i, turn):
    return {"messages": [{"name": "x", "content": one["content"], "role": one["role"]} for one in turns(i, turn)]}


def chat_signs(i, turn):
    return {"messages": turns(i, turn, ask='"quoted" \\ back \\" [{ }] \n 😀 é \u2028')}


def messages(i, turn):
    return {"model": "quire", "max_tokens": 8, "system": LONG, "messages": turns(i, turn)}


def messages_blocks(i, turn):
    """cache_control moves to the newest turn."""
    told = turns(i, turn, text=parts("text"))
    told[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {"max_tokens": 8, "messages": told,
            "system": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]}


def claude_code(i, turn):
    """As Claude Code sends it: the first block of the system prompt changes with each request."""
    told = turns(i, turn, text=parts("text"))
    told[0]["content"].insert(0, {"type": "text", "text": "<system-reminder>\nCLAUDE.md\n</system-reminder>"})
    session = f"{i:08x}-0000-4000-8000-000000000000"
    user = (f"user_aa_account_bb_session_{session}" if i % 2 else
            json.dumps({"device_id": "aa", "account_uuid": "", "session_id": session}))
    return {"model": "quire", "messages": told, "tools": [], "metadata": {"user_id": user}, "max_tokens": 32000,
            "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={turn};"},
                       {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
                       {"type": "text", "text": LONG}]}


def responses_text(i, turn):
    """The first turn is a string, later ones are items."""
    if turn == 0:
        return {"model": "quire", "input": f"question {i}"}
    return {"model": "quire", "input": turns(i, turn)}


def responses_items(i, turn):
    told = [{"type": "message", "role": one["role"],
             "content": parts("output_text" if one["role"] == "assistant" else "input_text")(one["content"])}
            for one in turns(i, turn)]
    told.insert(1, {"type": "reasoning", "id": "rs_1", "summary": []})
    return {"instructions": LONG, "input": told, "store": False}


def codex(i, turn):
    """As Codex sends it: what is said first is the same for everyone, and the key tells the thread."""
    told = [{"type": "message", "role": "developer", "content": parts("input_text")("permissions")},
            {"type": "message", "role": "user", "content": parts("input_text")("<environment_context>")},
            *({"type": "message", **one} for one in turns(i, turn, text=parts("input_text")))]
    return {"model": "quire", "instructions": LONG, "input": told, "tools": [{"type": "custom", "name": "x"}],
            "prompt_cache_key": f"019a-{i}", "store": False, "stream": True, "include": []}


def completion_of_roles(i, turn):
    told = "".join(f"\n{'User' if one['role'] == 'user' else 'Assistant'}: {one['content']}"
                   for one in turns(i, turn))
    return {"prompt": f"A conversation.{told}\nAssistant:", "stop": ["\nUser:"]}


def completion_of_marks(i, turn):
    told = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n"
                   for one in [{"role": "system", "content": LONG}, *turns(i, turn)])
    return {"model": "quire", "prompt": f"{told}<|im_start|>assistant\n", "max_tokens": 8}


def completion_of_llama(i, turn):
    told = "".join(f"<|start_header_id|>{one['role']}<|end_header_id|>\n\n{one['content']}<|eot_id|>"
                   for one in turns(i, turn))
    return {"prompt": [f"{told}<|start_header_id|>assistant<|end_header_id|>\n\n"]}


def completion_from_user(i, turn):
    told = "\n".join(f"{'Human' if one['role'] == 'user' else 'AI'}: {one['content']}"
                     for one in turns(i, turn))
    return {"prompt": f"{told}\nAI:"}


def completion_long(i, turn):
    """A text that grows: from 2 KiB on it keeps its replica."""
    return {"prompt": f"Chapter {i}. " + "It was a dark and stormy night. " * 70 + "And then. " * turn}


def completion_tokens(i, turn):
    return {"prompt": [1, 2, 3, *(100 + i + k for k in range(1500)), *range(turn)]}


DIALECTS = {
    "/v1/chat/completions": [chat, chat_short, chat_long_system, chat_system_differs, chat_developer_parts,
                             chat_tools, chat_content_first, chat_signs],
    "/v1/messages": [messages, messages_blocks, claude_code],
    "/v1/responses": [responses_text, responses_items, codex],
    "/v1/completions": [completion_of_roles, completion_of_marks, completion_of_llama, completion_from_user,
                        completion_long, completion_tokens],
}
WRITERS = {
    "compact": lambda body: json.dumps(body, separators=(",", ":"), ensure_ascii=False),
    "indented": lambda body: json.dumps(body, indent=2),
    "sorted": lambda body: json.dumps(body, sort_keys=True, indent="\t"),
    "reversed": lambda body: "\r\n " + json.dumps(dict(reversed(body.items()))),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("path, make", [(path, make) for path, all_of in DIALECTS.items() for make in all_of])
def test_conversations_keep_their_replica(router, path, make, writer):
    ask = asker(router)
    holds(*follow(lambda i, turn: ask(path, WRITERS[writer](make(i, turn)))))


def test_the_spread_is_even(router):
    """A quarter each would be 100.  Where servers lie on nginx's ring is a matter of chance."""
    ask = asker(router)
    changes, first = follow(lambda i, turn: ask("/v1/chat/completions", json.dumps(chat(i, turn), indent=4)), 400)
    assert changes == 0 and len(first) == N_REPLICAS and min(first.values()) >= 50, first


@pytest.mark.parametrize("header", ["X-Session-ID", "X-Claude-Code-Session-Id", "x-session-affinity"])
def test_a_session_that_a_header_names_wins(router, header):
    ask = asker(router)
    holds(*follow(lambda i, turn: ask("/v1/chat/completions", json.dumps(chat(turn, 0)), {header: f"s{i}"})))


def test_keys_and_salts_are_told_apart(router):
    """Requests that share no cache need not share a replica."""
    ask = asker(router)
    same = json.dumps(chat(0, 0))
    for headers in ("Authorization", "x-api-key"):
        holds(*follow(lambda i, _, name=headers: ask("/v1/chat/completions", same, {name: f"Bearer {i}"})))
    holds(*follow(lambda i, _: ask("/v1/completions", json.dumps({"prompt": "a", "cache_salt": str(i)}))))


def test_official_clients(router):
    import openai

    with openai.OpenAI(base_url=f"http://127.0.0.1:{router.port}/v1", api_key="k", max_retries=0) as client:
        holds(*follow(lambda i, turn: client.chat.completions.create(**chat_long_system(i, turn)).id))
        holds(*follow(lambda i, turn: client.responses.create(**responses_text(i, turn)).id))
        holds(*follow(lambda i, turn: client.responses.create(model="quire", **responses_items(i, turn)).id))
        holds(*follow(lambda i, turn: client.completions.create(
            model="quire", prompt=completion_of_roles(i, turn)["prompt"]).id))


def test_anthropics_client(router):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{router.port}", api_key="k", max_retries=0) as client:
        for make in (messages, messages_blocks):
            holds(*follow(lambda i, turn, make=make: client.messages.create(
                **{"model": "quire", **make(i, turn)}).id))


def test_questions_about_one_text_meet(router):
    """They are sent where the text is cached, in whatever dialect it comes first in a user's turn."""
    ask = asker(router)
    text = "The quick brown fox jumps over the lazy dog.\n" * 200
    chats = {ask("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": f"{text}{i}?"}]}))
             for i in range(20)}
    prompts = {ask("/v1/completions", json.dumps({"prompt": f"{text}{i}?"})) for i in range(20)}
    assert len(chats) == len(prompts) == 1


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b"not json", b'{"messages":[]}', b'{"messages":[{"role":"assistant","content":"a"}]}',
    b'{"prompt":null}', b'{"messages":{"role":"user"}}', b'{"messages":[{"role":"user","content":null}]}',
    b'{"prompt":"\xff\xfe"}', b'{"a":' + b"[" * 1000000, b'{"a":' + b'{"a":' * 300000,
    b'{"a":"' + b"\\" * 1000001, b'{"messages":[' + b'{"role":' * 200000, b'{"prompt":"' + b"<|im_" * 300000,
    b'{"prompt":"' + b"\\n[" * 500000 + b'"}',
])
def test_any_body_is_passed_on_soon(router, body):
    ask = asker(router)
    begun = time.monotonic()
    assert len({ask("/v1/completions", body) for _ in range(3)}) == 1
    assert time.monotonic() - begun < 30 * PATIENCE
