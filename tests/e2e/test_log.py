"""The log: what is not read stops no request, what is lost is counted, and what clients send cannot
forge it."""
import fcntl
import json
import os
import re
import threading
import time
import zlib

import pytest

from raw import RawConnection
from server import PATIENCE, Server

# More than the log's ring and the pipe hold.
N_REQUESTS = 4000
LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z (error|warn |info |debug) .*")


class Pipe:
    """A standard error that is read only when a test wants it."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)
        self.text = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.reader)

    def forget_writer(self):
        """The server has its own descriptor: when it closes that, a reader finds the end."""
        os.close(self.writer)

    def read_to_end(self):
        while data := os.read(self.reader, 65536):
            self.text += data


def ask_version(server, n_requests):
    """So many /version on one connection, each a line of the log; returns the longest wait in seconds."""
    longest = 0
    with RawConnection(server) as connection:
        for _ in range(n_requests):
            begun = time.monotonic()
            connection.send(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status, _, _ = connection.read_reply()
            assert status == 200
            longest = max(longest, time.monotonic() - begun)
    return longest


@pytest.fixture
def stalled(tmp_path, tiny_model):
    """A server that has logged more than has been read, and its pipe."""
    with Pipe() as pipe:
        server = Server(tmp_path, model=tiny_model, stderr=pipe.writer)
        pipe.forget_writer()
        try:
            ask_version(server, N_REQUESTS)
            yield server, pipe
        finally:
            server.process.kill()
            server.process.wait()


def test_a_log_that_is_not_read_stops_no_request(stalled):
    server, _ = stalled
    assert server.metrics()["quire_log_dropped_lines_total"] > 0
    assert server.complete("a", max_tokens=3)["usage"]["completion_tokens"] == 3
    begun = time.monotonic()
    assert server.stop(seconds=20) == 0
    assert time.monotonic() - begun < 10 * PATIENCE


def test_lost_lines_are_said_once_the_reader_is_back(stalled):
    server, pipe = stalled
    lost = int(server.metrics()["quire_log_dropped_lines_total"])
    reader = threading.Thread(target=pipe.read_to_end)
    reader.start()
    deadline = time.monotonic() + 10 * PATIENCE
    while b"lines dropped" not in pipe.text:
        assert time.monotonic() < deadline, pipe.text[-2000:]
        time.sleep(0.01)
    server.get("/version", headers={"x-request-id": "after-the-gap"})
    assert server.stop() == 0
    reader.join()
    lines = pipe.text.decode().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    said = [int(line.split()[3]) for line in lines if line.endswith("dropped: stderr was blocked")]
    assert said == [lost]
    assert sum("path=/version" in line for line in lines) + lost == N_REQUESTS + 1
    assert any("id=after-the-gap" in line for line in lines)


def test_a_log_that_cannot_be_written_stops_no_request(tmp_path, tiny_model):
    """stderr is a pipe without a reader."""
    with Pipe() as pipe:
        server = Server(tmp_path, model=tiny_model, stderr=pipe.writer)
        pipe.forget_writer()
    ask_version(server, 100)
    # A line is counted when its write failed, which happens on the log's own thread.
    deadline = time.monotonic() + 10 * PATIENCE
    while server.metrics()["quire_log_dropped_lines_total"] < 100:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.stop() == 0


POLLED = ["/health", "/live", "/ready", "/metrics", "/state"]


@pytest.mark.parametrize("level", ["info", "debug"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probes_and_scrapes_do_not_fill_the_log(serve, tiny_model, method, level):
    server = serve("--log-level", level, model=tiny_model)
    for path in POLLED:
        for number in range(3):
            assert server.request(method, f"{path}?n={number}").status == 200
    server.get("/version", headers={"x-request-id": "afterwards"})
    server.wait_logged("id=afterwards ")
    for path in POLLED:
        n_lines = sum(f"method={method} path={path} status=200" in line
                      for line in server.log.splitlines())
        assert n_lines >= 3 if level == "debug" else n_lines == 0
    counted = [n for name, n in server.metrics().items() if name.startswith("quire_http_answers_total")]
    assert sum(counted) >= 3 * len(POLLED)


def test_probes_and_scrapes_that_fail_are_logged(serve, tiny_model):
    server = serve("--api-key", "sesame", "--metrics-key", "required", model=tiny_model)
    assert server.get("/metrics").status == 401
    assert server.post("/ready", {}).status == 405
    assert server.get("/readyz").status == 401
    for line in ("path=/metrics status=401", "path=/ready status=405", "path=/readyz status=401"):
        server.wait_logged(line)


def logged(server, request_id):
    server.wait_logged(f"id={request_id} ")
    found = [line for line in server.log.splitlines() if f"id={request_id} " in line]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("target,path", [
    ("/plain/path-1.x~(1)", "/plain/path-1.x~(1)"),
    ("/x%0astatus=200%20%22", r'"/x\x0astatus=200 \""'),
    ("/x%20status=200", '"/x status=200"'),
    ("/%1b[31mred%0d", r'"/\x1b[31mred\x0d"'),
    ("/%7f%c2%9b%ff\\", r'"/\x7f\xc2\x9b\xff\\"'),
    ("/" + "%09" * 300, '"/' + r"\x09" * 62 + '"...'),
    ("/" + "a" * 400, '"/' + "a" * 249 + '"...'),
])
def test_a_path_cannot_forge_the_log(server, target, path):
    request_id = f"forge-{zlib.crc32(target.encode())}"
    with RawConnection(server) as connection:
        connection.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {request_id}\r\n"
                        "\r\n".encode())
        status, _, _ = connection.read_reply()
        assert status == 404
    line = logged(server, request_id)
    assert line.endswith(f"id={request_id} method=GET path={path} status=404"), line


@pytest.mark.parametrize("head", [
    b"G\"ET=1 /version HTTP/1.1\r\n",
    b"G\x1b[2J /version HTTP/1.1\r\n",
    b"GET /x\x01\x1b]0;y\x07 HTTP/1.1\r\n",
    b"GET /x\xc2\x9b HTTP/1.1\r\n",
    b"GET /\tx HTTP/1.1\r\n",
    b"GET /x y status=200 HTTP/1.1\r\n",
])
def test_raw_bytes_do_not_reach_the_log(server, head):
    """Whatever the transport makes of them."""
    request_id = f"raw-{zlib.crc32(head)}"
    with RawConnection(server) as connection:
        connection.send(head + f"Host: localhost\r\nX-Request-Id: {request_id}\r\n"
                        "Connection: close\r\n\r\n".encode())
        connection.read_to_close()
    server.get("/version", headers={"x-request-id": f"behind-{request_id}"})
    server.wait_logged(f"id=behind-{request_id} ")
    raw = server.log_path.read_bytes()
    assert re.fullmatch(rb"[\n\x20-\x7e]*", raw)
    for line in raw.decode().splitlines():
        if f"id={request_id} " in line:
            assert len(re.findall(r'(?:^| )status=', re.sub(r'"(\\.|[^"\\])*"', "", line))) == 1


def test_json_lines(tmp_path, tiny_model):
    """Each line is an object, and what a client sends is a value in it."""
    with Server(tmp_path, "--log-format", "json", model=tiny_model) as server:
        server.get("/no%20where%22", headers={"X-Request-Id": "42"})
        server.wait_logged('"id":"42"')
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert len(lines) > 5
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["level"] in ("error", "warn", "info", "debug")
        assert "message" in line or "event" in line
    (asked,) = [line for line in lines if line.get("id") == "42"]
    assert {k: v for k, v in asked.items() if k not in ("time", "level")} == {
        "event": "request", "id": "42", "method": "GET", "path": '/no where"', "status": 404}


def test_a_line_says_what_an_answer_took_and_why_its_prompt_was_dense(tmp_path, tiny_model):
    """As usage does, whole and streamed; a refused request has no such fields."""
    names = ("prompt_tokens", "cached_tokens", "generated_tokens", "prefill", "why_dense")
    with Server(tmp_path, "--log-format", "json", model=tiny_model) as server:
        ids = [300 + i for i in range(130)]

        def logged(request_id, prefill, **fields):
            reply = server.post("/v1/completions", {"prompt": ids, "max_tokens": 2, "ignore_eos": True, "prefill": prefill,
                                                    **fields}, headers={"X-Request-Id": request_id})
            server.wait_logged(f'"id":"{request_id}"')
            (line,) = [one for one in map(json.loads, server.log.splitlines()) if one.get("id") == request_id]
            return reply, {name: line[name] for name in names if name in line}

        took = {"prompt_tokens": 130, "cached_tokens": 0, "generated_tokens": 2}
        reply, line = logged("first", "dense")
        assert line == {**took, "prefill": "dense", "why_dense": "asked"}
        usage = reply.json()["usage"]
        assert usage["prefill"]["why_dense"] == "asked" and usage["prompt_tokens"] == 130
        assert logged("again", "dense", stream=True)[1] == {**took, "cached_tokens": 128, "prefill": "dense", "why_dense": "asked"}
        assert logged("short", "auto", cache_salt="other")[1]["why_dense"] in ("short", "no_pattern_file")
        assert logged("sparse", "sparse", cache_salt="third")[1] == {**took, "prefill": "sparse"}
        assert logged("wrong", "nothing")[1] == {}
