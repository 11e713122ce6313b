"""A server whose allocations fail where a test says, and what each kind of request must do then.

scripts/load/fail_allocations.py fails every one; test_failed_allocations.py takes a sample."""
import contextlib
import json
import mmap
import os
import pathlib
import re
import socket
import struct
import subprocess
import time

from raw import completion_request
from server import BINARY, PATIENCE, Server
from tiny_model import write_tiny_model

LIBRARY = pathlib.Path(BINARY).resolve().parent / "tests" / "e2e" / "failing_memory.so"
COUNT, FIRST, N, FAILED, ARMED = range(5)  # as failing_memory.c has them
FOR_EVER = 1 << 60
N_SMALL = 280  # tokens: the bytes, and some that are merged
SETTINGS = ("--threads", 1, "--kv-cache-memory", "48M", "--kv-offload-size", "8M",
            "--max-model-len", 2048, "--max-num-seqs", 8, "--max-connections", 64)


def preload(library, directory):
    """The library's path for LD_PRELOAD, which a space or a colon would end: a link in the directory."""
    link = pathlib.Path(directory) / library.name
    if not link.is_symlink():
        link.symlink_to(library)
    return str(link)


class Control:
    """The page that the library reads; see failing_memory.c."""

    def __init__(self, directory):
        self.path = pathlib.Path(directory) / "failing_memory"
        self.path.write_bytes(bytes(4096))
        with open(self.path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), 4096)

    def __getitem__(self, field):
        return struct.unpack_from("<Q", self.page, 8 * field)[0]

    def __setitem__(self, field, value):
        struct.pack_into("<Q", self.page, 8 * field, value)

    def arm(self, first, n=1):
        for field, value in ((ARMED, 0), (COUNT, 0), (FAILED, 0), (FIRST, first), (N, n)):
            self[field] = value
        self[ARMED] = 1

    def disarm(self):
        self[ARMED] = 0

    @property
    def environment(self):
        return {"LD_PRELOAD": preload(LIBRARY, self.path.parent), "FAILING_MEMORY": str(self.path)}

    prefix = ()  # of the server's command

    def judge_silent(self, status, log):
        """What a start that ends without a sentence of ours means."""
        raise Fault(f"ended with {status}: {log[-600:]}")


def completion(**parameters):
    return completion_request(keep_alive=False, **{"max_tokens": 3, "ignore_eos": True,
                                                   **parameters})


def other(method, path, body=None):
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Length: {len(data)}\r\n"
    return head.encode() + b"\r\n" + data


WORDS = "Once upon a time there was a quire of paper, and it had twenty-four sheets. "
LONG_PROMPT = WORDS * 8
BAD = completion(prompt="x").replace(b'"prompt"', b'{prompt"')
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

SHORT = {"max_tokens": 3, "ignore_eos": True, "temperature": 0}
TOOL = {"name": "look", "parameters": {"type": "object"}}
DOCUMENT = {"type": "document", "title": "a", "source": {"type": "text", "media_type": "text/plain", "data": "b"}}
FOUND = {"type": "search_result", "source": "a", "title": "b", "content": [{"type": "text", "text": "c"}]}
TURNS = [{"role": "user", "content": [{"type": "text", "text": WORDS}, {"type": "text", "text": "x"}]},
         {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}, {"type": "unknown"}], "tool_calls": [
             {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
             {"id": "2", "type": "custom", "custom": {"name": "write", "input": "x"}}]},
         {"role": "tool", "tool_call_id": "1", "content": [DOCUMENT, FOUND]}]
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": WORDS}]},
          {"role": "assistant", "content": [
              {"type": "thinking", "thinking": "a", "signature": ""},
              {"type": "thinking", "thinking": "b", "signature": ""},
              {"type": "text", "text": "c"},
              {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "it"}}]},
          {"role": "user", "content": [
              {"type": "tool_result", "tool_use_id": "1",
               "content": [{"type": "text", "text": "blue"}, FOUND]}, DOCUMENT]},
          {"role": "system", "content": [
              {"type": "text", "text": "d"}, {"type": "tool_addition", "tool": {
                  "type": "tool_definition", "definition": {"name": "f", "input_schema": {"type": "object"}}}}]}]
ITEMS = [{"role": "user", "content": [{"type": "input_text", "text": WORDS}]},
         {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
         {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
         {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
         {"type": "custom_tool_call", "call_id": "2", "name": "write", "input": "x"},
         {"type": "function_call_output", "call_id": "1", "output": "blue"},
         {"type": "custom_tool_call_output", "call_id": "2", "output": "done"},
         {"type": "local_shell_call", "call_id": "3", "action": {"type": "exec", "command": ["ls"]}},
         {"type": "local_shell_call_output", "call_id": "3", "output": {"content": "a"}},
         {"type": "additional_tools", "tools": [{"type": "function", "name": "g"}]},
         {"type": "compaction", "encrypted_content": "x"}, {"type": "agent_message", "content": [FOUND]}]
NAMESPACE = {"type": "namespace", "name": "notes", "description": "a", "tools": [{"type": "function", "name": "read"}]}

# What is sent, and which status a server with memory gives.
KINDS = {
    "whole": (completion(prompt=WORDS), 200),
    "streamed": (completion(prompt=WORDS, **STREAM), 200),
    "tokens": (completion(prompt=[[5, 6, 7], [8, 9]], return_token_ids=True), 200),
    "choices": (completion(prompt=WORDS, n=2, best_of=3, temperature=1, seed=1), 200),
    "logprobs": (completion(prompt=WORDS, logprobs=4), 200),
    "echo": (completion(prompt=WORDS, echo=True, logprobs=1), 200),
    "stop": (completion(prompt=WORDS, stop=["paper", "\n\n"], stop_token_ids=[3],
                        logit_bias={"7": 1}, **STREAM), 200),
    "too_long": (completion(prompt=WORDS * 400), 400),
    "streaming": (completion(prompt=LONG_PROMPT, kv_policy={"type": "streaming", "sink": 4,
                                                            "recent": 124}), 200),
    "heavy_hitter": (completion(prompt=LONG_PROMPT, kv_policy={"type": "heavy_hitter",
                                                               "heavy": 64,
                                                               "recent": 64}), 200),
    "offload": (completion(prompt=LONG_PROMPT, kv_policy={"type": "offload", "selected": 64,
                                                          "tail": 64}), 200),
    "kept": (completion(prompt=LONG_PROMPT, return_kept_positions=True,
                        kv_policy={"type": "heavy_hitter", "heavy": 64, "recent": 64}, **STREAM), 200),
    "sparse": (completion(prompt=LONG_PROMPT, prefill={"mode": "sparse"}), 200),
    "tokenize": (other("POST", "/tokenize", {"prompt": WORDS, "return_token_strs": True}), 200),
    "detokenize": (other("POST", "/detokenize", {"tokens": list(range(10, 40))}), 200),
    "chat": (other("POST", "/v1/chat/completions", {
        "messages": TURNS, "tools": [{"type": "function", "function": TOOL}], **SHORT}), 200),
    "messages": (other("POST", "/v1/messages", {
        "messages": BLOCKS, "system": [{"type": "text", "text": WORDS}],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"}, **SHORT}), 200),
    "messages_streamed": (other("POST", "/v1/messages", {
        "messages": BLOCKS, "stream": True, "return_progress": True, **SHORT}), 200),
    "messages_bad": (other("POST", "/v1/messages", {"messages": BLOCKS[:1]}), 400),
    "count_tokens": (other("POST", "/v1/messages/count_tokens", {"messages": BLOCKS}), 200),
    "responses": (other("POST", "/v1/responses", {
        "input": ITEMS, "instructions": WORDS, "max_output_tokens": 3, "ignore_eos": True, "temperature": 0,
        "tools": [{"type": "function", "name": "look"}, {"type": "custom", "name": "write"}, NAMESPACE],
        "top_logprobs": 2, "metadata": {"a": "b"}}), 200),
    "responses_streamed": (other("POST", "/v1/responses", {
        "input": ITEMS, "max_output_tokens": 3, "ignore_eos": True, "temperature": 0, "stream": True}), 200),
    "responses_go_on": (other("POST", "/v1/responses", {
        "input": [{"type": "item_reference", "id": "item_made_in0"}, {"role": "user", "content": WORDS}],
        "previous_response_id": "resp_made", "max_output_tokens": 3, "ignore_eos": True, "temperature": 0}), 200),
    "response_stored": (other("GET", "/v1/responses/resp_made"), 200),
    "response_items": (other("GET", "/v1/responses/resp_made/input_items?limit=2&order=asc"), 200),
    "response_dropped": (other("DELETE", "/v1/responses/resp_nothing"), 404),
    "render": (other("POST", "/v1/completions/render", {"prompt": [WORDS, WORDS]}), 200),
    "cancel": (other("POST", "/v1/requests/nothing/cancel"), 404),
    "openapi": (other("GET", "/openapi.json"), 200),
    "models": (other("GET", "/v1/models"), 200),
    "metrics": (other("GET", "/metrics"), 200),
    "bad_json": (BAD, 400),
    "bad_value": (completion(prompt=WORDS, temperature="hot"), 400),
    "no_route": (other("GET", "/nowhere"), 404),
    "left": (completion(prompt=WORDS, max_tokens=1500, **STREAM), None),
    "left_early": (completion(prompt=LONG_PROMPT, n=2), None),
}


class Fault(Exception):
    """What a server did that it must not do."""


class Failing:
    """A server under failing_memory.c, asked one request at a time."""

    def __init__(self, directory, *settings, control=Control, server=Server, **rest):
        self.control = control(directory)
        self.directory, self.settings = directory, (*SETTINGS, *settings)
        self.make_server, self.rest = server, rest
        self.server = None
        self.n_runs = self.n_failed = 0
        self.start()

    def start(self):
        self.server = self.make_server(self.directory, *self.settings, prefix=self.control.prefix,
                                       env=self.control.environment, **self.rest)
        self.server.complete(WORDS, max_tokens=2)
        self.server.complete(LONG_PROMPT, max_tokens=2, prefill={"mode": "sparse"})
        made = self.server.post("/v1/responses", {"input": [{"role": "user", "content": WORDS}] * 3, "max_output_tokens": 3},
                                headers={"X-Request-Id": "made"})
        assert made.status == 200, made.body
        self.answer = self.greedy_answer()
        self.descriptors = self.settled_descriptors()

    def greedy_answer(self):
        return self.server.complete(LONG_PROMPT, max_tokens=8)["choices"]

    def close(self):
        """Stops the server, which must answer as before and end well."""
        self.control.disarm()
        if self.greedy_answer() != self.answer:
            raise Fault("another answer than before")
        status = self.server.stop()
        if status != 0:
            raise Fault(f"ended with {status}")

    def n_descriptors(self):
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def settled_descriptors(self):
        """Those open with no connection left."""
        last, since = self.n_descriptors(), time.monotonic()
        while time.monotonic() - since < 0.3:
            time.sleep(0.02)
            now = self.n_descriptors()
            if now != last:
                last, since = now, time.monotonic()
        return last

    def check_alive(self):
        status = self.server.process.poll()
        if status is not None:
            raise Fault(f"died with {status}: {self.server.log[-600:]}")

    def descriptors_left(self):
        """How many there are once the connection that asked for metrics is closed: behind TLS, and
        watched, the server takes a moment for that."""
        deadline = time.monotonic() + 1
        while (n := self.n_descriptors()) > self.descriptors and time.monotonic() < deadline:
            time.sleep(0.01)
        return n

    def check_baseline(self):
        """No request, no page, no descriptor is left behind, within some seconds."""
        deadline = time.monotonic() + 10 * PATIENCE
        while True:
            self.check_alive()
            m = self.server.metrics()
            busy = (m["quire_requests_running"] + m["quire_requests_waiting"] +
                    m["quire_kv_pages_total"] - m["quire_kv_pages_free"] -
                    m["quire_kv_pages_cached"])
            n = self.descriptors_left()
            if not busy and n <= self.descriptors:
                return
            if time.monotonic() > deadline:
                raise Fault(f"busy {busy}, descriptors {n} and not {self.descriptors}")
            time.sleep(0.005)

    def ask(self, kind, first, n=1):
        """One request of the kind while allocations fail; how many did."""
        request, status = KINDS[kind]
        self.control.arm(first, n)
        self.n_runs += 1
        try:
            reply = exchange(self.server.port, request, leave=status is None)
        except TimeoutError:
            self.check_alive()
            raise Fault("no answer and no end") from None
        finally:
            if status is None:
                time.sleep(0.02)
            self.control.disarm()
        failed = self.control[FAILED]
        self.n_failed += failed
        self.check_alive()
        if status is not None:
            judge(reply, status, failed)
        self.check_baseline()
        return failed


    def replace(self):
        """Another server, for one that is of no use any more."""
        self.control.disarm()
        with contextlib.suppress(ProcessLookupError):
            self.server.process.kill()
        self.server.process.wait()
        self.start()


def sweep_request(failing, kind, first=1, step=1, n=1):
    """Fails allocations of one request after another, until requests end before it comes to that.
    Yields a line for each fault."""
    k, n_quiet = first, 0
    while n_quiet < 3:
        try:
            n_quiet = 0 if failing.ask(kind, k, n) else n_quiet + 1
        except (Fault, OSError, AssertionError, ValueError) as fault:
            n_quiet = 0
            yield f"{kind}, allocation {k}: {fault}"
            failing.replace()
        k += step


def sweep_start(directory, model, first=1, step=1, n=1):
    """The same for starts.  Yields how many allocations failed in each, and a fault or None."""
    k, failed = first, 1
    while failed:
        try:
            failed, fault = start_once(directory, model, k, n), None
        except (Fault, OSError, AssertionError) as why:
            failed, fault = 1, f"start, allocation {k}: {why}"
        yield failed, fault
        k += step


def exchange(port, request, leave):
    """Everything that is sent back until the connection ends, or its beginning."""
    with socket.socket() as connection:
        connection.settimeout(20 * PATIENCE)
        data = b""
        try:
            connection.connect(("127.0.0.1", port))
            connection.sendall(request)
            while more := connection.recv(64 if leave else 65536):
                data += more
                if leave:
                    break
        except (ConnectionResetError, BrokenPipeError):
            pass
        return data


def body_of(head, data):
    if b"transfer-encoding: chunked" in head.lower():
        body = b""
        while data:
            size, _, data = data.partition(b"\r\n")
            n = int(size or b"0", 16)
            if n == 0 or len(data) < n:
                return body, n == 0 and bool(size)
            body, data = body + data[:n], data[n + 2:]
        return body, False
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return data, len(data) == int(line.split(b":")[1])
    return data, True


def judge(reply, expected, failed):
    """A connection may end without an answer, or within one; an answer must be the right one or say
    that there was no memory."""
    if not reply and failed:
        return
    head, end, data = reply.partition(b"\r\n\r\n")
    if not end:
        if failed:
            return
        raise Fault(f"no answer: {reply[:200]}")
    status = int(head.split(b" ")[1])
    body, whole = body_of(head, data)
    if status not in ((expected, 500, 503) if failed else (expected,)):
        raise Fault(f"status {status}: {reply[-400:]}")
    if not whole:
        if failed:
            return
        raise Fault(f"cut off: {reply[-400:]}")
    if b"text/event-stream" in head:
        judge_stream(body, failed)
    elif b"application/json" in head:
        answer = json.loads(body)
        if (status >= 400) != (isinstance(answer, dict) and bool(answer.get("error"))):
            raise Fault(f"status {status} with {body[:400]}")


def judge_stream(body, failed):
    events = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    last = events[-1] if events else ""
    if last == "[DONE]":
        return
    event = json.loads(last or "{}")
    if event.get("type") in ("message_stop", "response.completed", "response.incomplete"):
        return
    if failed and ("error" in event or event.get("type") == "response.failed"):
        return
    raise Fault(f"a stream ends with {last[:200]!r}")


def write_small_vocabulary(directory):
    """A tiny model with the default tokenizer's parts but few of its tokens: each of 8,000 would
    allocate at its place as the one before."""
    write_tiny_model(directory)
    first = json.loads((directory / "config.json").read_text())["bos_token_id"]
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    model = tokenizer["model"]
    model["vocab"] = {token: i for token, i in model["vocab"].items() if i < N_SMALL}
    model["merges"] = [merge for merge in model["merges"] if merged(merge) in model["vocab"]]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    # The special ones move down behind them.
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        text = (directory / name).read_text()
        for i in range(first, first + len(tokenizer["added_tokens"])):
            text = re.sub(rf"\b{i}\b", str(N_SMALL + i - first), text)
        (directory / name).write_text(text)
    return directory


def merged(merge):
    return "".join(merge.split(" ") if isinstance(merge, str) else merge)


def start_once(directory, model, first, n=1):
    """A start in which the allocation `first`, or n from there on, fails.  Returns how many did."""
    control = Control(directory)
    control.arm(first, n)
    return judge_start(control, directory, model, SETTINGS)


def has_begun(server):
    """The log says so; or it does not work, and the server answers."""
    if "listening on http" in server.log:
        return True
    try:
        return server.get("/ready", timeout=1).status == 200
    except OSError:
        return False


def complete_or_end(server):
    try:
        server.complete(WORDS, max_tokens=1)
    except OSError as why:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(1)
        raise Fault(f"ended with {server.process.poll()}, {why}: {server.log[-600:]}") from None


def judge_start(control, directory, model, settings, make_server=Server):
    """A start under an armed control ends with a sentence, or serves all the same.  Returns how much
    failed."""
    server = make_server(directory, *settings, model=model, env=control.environment,
                         prefix=control.prefix, wait=False)
    try:
        deadline = time.monotonic() + 30 * PATIENCE
        while server.process.poll() is None and not has_begun(server):
            if time.monotonic() > deadline:
                raise Fault("neither an end nor a beginning")
            time.sleep(0.002)
        control.disarm()
        failed = control[FAILED]
        if server.process.poll() is None:
            complete_or_end(server)
            status = server.stop()
            if status != 0:
                raise Fault(f"served, and ended with {status}: {server.log[-600:]}")
            return failed
        status = server.process.returncode
        last = server.log.strip().splitlines()[-1:] or [""]
        if status not in (1, 2) or not (" error " in last[0] or last[0].startswith("quire: ")):
            control.judge_silent(status, server.log)
        return failed
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.process.kill()
        server.process.wait()
