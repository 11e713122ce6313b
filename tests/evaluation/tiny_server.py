"""An OpenAI-compatible server in a page of Python that has nothing to do with quire: no /tokenize,
no usage but the counts, words for tokens, and answers by rules instead of a model.

A mode says what it does about fields that OpenAI does not have:
    ignores    nothing, as most servers do
    refuses    400 in OpenAI's error shape
    confirms   names kv_policy's type in usage.kv.policy
    changes    answers differently, and says nothing about it
    bounds     lists its policies, and says in usage.kv what it kept and evicted, as quire does
"""
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OPENAI_FIELDS = {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options", "echo",
                 "logprobs"}
RULES = ((r"What is the pass key\?", r"The pass key is (\d+)", "The pass key is {}."),
         (r".*in line (\S+)\? I need the number\.", r"line {}: REGISTER_CONTENT is <(\d+)>",
          "The number is <{}>."))


POLICIES = [{"type": "full"}, {"type": "streaming", "sink": 4, "recent": 2044, "chunk": 512}]


def answer_to(prompt):
    """Finds what the last question asks for where the prompt says it; knows nothing else."""
    for question, fact, answer in RULES:
        asked = re.findall(question, prompt)
        if asked:
            found = re.search(fact.format(asked[-1]), prompt)
            return answer.format(found.group(1) if found else "unknown")
    return "I do not know."


def account_of(body, n_tokens):
    """usage.kv of a text that ends behind so many tokens; a prompt's end is cut down, too."""
    policy = body.get("kv_policy", POLICIES[0])
    known = {p["type"]: p for p in POLICIES}[policy["type"]]
    parts = [{**known, **policy}.get(name, 0) for name in ("sink", "recent")]
    budget = sum(round(p * n_tokens) if isinstance(p, float) else p for p in parts)
    n_evicted = max(0, n_tokens - budget) if budget else 0
    return {"policy": policy["type"], "budget_tokens": budget or None,
            "resident_tokens": n_tokens - n_evicted, "evicted_tokens": n_evicted}


def log_probability(token):
    return -0.25 * (token % 7 + 1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send_json(self, status, value, headers=()):
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in (("Content-Type", "application/json"), *headers):
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status, message, param=None, headers=()):
        self.send_json(status, {"error": {"message": message, "param": param}}, headers)

    def do_GET(self):
        if self.path == "/v1/models":
            policies = {"kv_policies": POLICIES} if self.server.tiny.mode == "bounds" else {}
            self.send_json(200, {"object": "list", "data": [{"id": "tiny", **policies}]})
        else:
            self.refuse(404, "no such route")

    def do_POST(self):
        tiny = self.server.tiny
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self.refuse(404, "no such route")
            return
        with tiny.lock:
            tiny.bodies.append(body)
            is_busy, tiny.n_busy = tiny.n_busy > 0, tiny.n_busy - 1
            is_dead, tiny.n_left = tiny.n_left <= 0, tiny.n_left - 1
        if is_dead:
            self.close_connection = True  # nothing was sent: the client sees the end
        elif is_busy:
            self.refuse(429, "busy", headers=[("Retry-After", "0")])
        else:
            self.answer(body, tiny)

    def answer(self, body, tiny):
        unknown = sorted(set(body) - OPENAI_FIELDS)
        if tiny.breaks_at and tiny.breaks_at in body["prompt"]:
            self.refuse(500, "broken")
        elif unknown and tiny.mode == "refuses":
            self.refuse(400, f"unknown field {unknown[0]}", unknown[0])
        elif isinstance(body["prompt"], list):
            self.score(body, tiny.mode)
        else:
            self.complete(body, tiny.mode)

    def score(self, body, mode):
        """The prompt's log-probabilities; like some servers, it wants at least one new token."""
        if body["max_tokens"] < 1:
            self.refuse(400, "max_tokens must be at least 1", "max_tokens")
            return
        ids = body["prompt"] + [0] * body["max_tokens"]
        values = [None, *map(log_probability, ids[1:])]
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        if mode == "bounds":
            usage["kv"] = account_of(body, len(body["prompt"]))
            if usage["kv"]["evicted_tokens"] and not self.server.tiny.pretends:
                values = [None, *(1.01 * value for value in values[1:])]
        self.send_json(200, {
            "choices": [{"text": "", "finish_reason": "length",
                         "logprobs": {"token_logprobs": values}}],
            "usage": usage})

    def complete(self, body, mode):
        text = answer_to(body["prompt"])
        if mode == "changes" and "kv_policy" in body:
            text = text[::-1]
        words = re.findall(r"\S+\s*", text)[:body["max_tokens"]]
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": len(words)}
        if mode == "confirms" and "kv_policy" in body:
            usage["kv"] = {"policy": self.server.tiny.policy or body["kv_policy"]["type"]}
        if mode == "bounds":
            usage["kv"] = account_of(body, len(body["prompt"].split()))
        if self.server.tiny.streams and body.get("stream"):
            self.stream(words, usage)
        else:
            self.send_json(200, {"choices": [{"text": "".join(words), "finish_reason": "stop"}],
                                 "usage": usage})

    def stream(self, words, usage):
        events = [{"choices": [{"text": word, "finish_reason": None}]} for word in words]
        events.append({"choices": [{"text": "", "finish_reason": "stop"}]})
        events.append({"choices": [], "usage": usage})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in [*map(json.dumps, events), "[DONE]"]:
            self.wfile.write(f"data: {event}\n\n".encode())
        self.close_connection = True


class TinyServer:
    """Use as a context manager.  n_busy: so many requests are answered 429 first; n_left: so many
    completions are looked at, all later connections are closed without a word; breaks_at: prompts
    with this text are answered 500; policy: what confirms names instead of what was asked for;
    pretends: bounds tells of evictions that it does not do."""

    def __init__(self, mode="ignores", n_busy=0, n_left=float("inf"), streams=True, breaks_at=None,
                 policy=None, pretends=False):
        self.mode, self.n_busy, self.n_left = mode, n_busy, n_left
        self.streams, self.breaks_at, self.policy = streams, breaks_at, policy
        self.pretends = pretends
        self.bodies = []
        self.lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.tiny = self
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self):
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()
