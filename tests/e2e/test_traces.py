"""--otlp-endpoint: each completion becomes a span that a collector takes, with sizes, settings and times
and without any text."""
import http.server
import json
import socket
import ssl
import threading
import time

import pytest

from raw import RawConnection
from server import PATIENCE, SLOW, Server, free_port
from tls_server import make_certificate

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes posts as an OpenTelemetry collector does; `status` is what it answers, and `files` are its
    certificate and key."""

    def __init__(self, status=200, files=None, host="127.0.0.1"):
        self.spans, self.resources, self.requests, self.bodies = [], [], [], []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.bodies.append(body)
                collector.requests.append((self.path, self.headers["Content-Type"]))
                for resource in json.loads(body)["resourceSpans"]:
                    collector.resources.append(resource["resource"])
                    for scope in resource["scopeSpans"]:
                        collector.spans += scope["spans"]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((host, 0), Handler)
        self.server.handle_error = lambda *_: None  # clients that do not trust it end the handshake
        if files:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True,
                                                     do_handshake_on_connect=False)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, n):
        deadline = time.monotonic() + 10 * PATIENCE
        while len(self.spans) < n:
            assert time.monotonic() < deadline, self.spans
            time.sleep(0.01)
        assert len(self.spans) == n
        return self.spans


def attributes(span):
    def value(v):
        ((kind, inner),) = v.items()
        if kind == "arrayValue":
            return [value(item) for item in inner["values"]]
        return int(inner) if kind == "intValue" else inner
    return {a["key"]: value(a["value"]) for a in span["attributes"]}


@pytest.fixture
def collector():
    return Collector()


def test_a_span_of_each_completion(collector, tmp_path):
    with Server(tmp_path, "--otlp-endpoint", f"http://127.0.0.1:{collector.port}") as server:
        began = time.time_ns()
        prompt = [300 + i for i in range(150)]
        for _ in range(2):
            server.post("/v1/completions", {
                "prompt": prompt, "max_tokens": 5, "ignore_eos": True, "temperature": 0.5,
                "top_p": 0.25, "seed": 7, "n": 2}, headers={
                    "traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "r1"})
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "tell-tale"}],
                                             "max_tokens": 3})
        server.post("/v1/completions", {"prompt": "tell-tale", "max_tokens": -2})
        server.complete("tell-tale", max_tokens=1)
        server.post("/v1/completions", {"prompt": "not this", "max_tokens": 1},
                    headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
        spans = collector.wait(5)
        ended = time.time_ns()
        assert server.metrics()["quire_spans_lost_total"] == 0
    assert {r for r in collector.requests} == {("/v1/traces", "application/json")}
    assert collector.resources[0] == {"attributes": [
        {"key": "service.name", "value": {"stringValue": "quire"}}]}
    assert b"tell-tale" not in b"".join(collector.bodies)
    first, second, chat, wrong, last = spans
    assert (first["traceId"], first["parentSpanId"]) == (TRACE, PARENT)
    assert first["name"] == "text_completion quire-31m" and first["kind"] == 2
    for span in spans:
        start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        assert began <= start <= end <= ended
        assert len(span["spanId"]) == 16 and len(span["traceId"]) == 32
    assert len({span["spanId"] for span in spans}) == 5
    told = attributes(first)
    assert told == {
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "quire",
        "gen_ai.request.model": "quire-31m", "gen_ai.response.model": "quire-31m",
        "gen_ai.response.id": "cmpl-r1", "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.25, "gen_ai.request.seed": 7,
        "gen_ai.usage.input_tokens": 150, "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ["length", "length"], "http.route": "/v1/completions"}
    assert attributes(second)["gen_ai.usage.cache_read.input_tokens"] == 128
    assert attributes(chat)["gen_ai.operation.name"] == "chat"
    assert "parentSpanId" not in chat and chat["traceId"] != TRACE
    assert wrong["status"] == {"code": 2} and attributes(wrong)["error.type"] == "400"
    assert last["status"] == {}


def test_a_client_that_leaves(collector, tmp_path):
    with Server(tmp_path, "--otlp-endpoint", f"http://localhost:{collector.port}/x/y") as server:
        with RawConnection(server) as client:
            client.send_completion(prompt="go on", max_tokens=4000, ignore_eos=True, stream=True)
            client.read_until(b"data: ")
        (span,) = collector.wait(1)
    assert attributes(span)["error.type"] == "client_gone" and span["status"] == {"code": 2}
    assert attributes(span)["gen_ai.response.finish_reasons"] == ["abort"]
    assert collector.requests[0][0] == "/x/y"


def test_what_is_queued_at_the_end_is_posted(collector, tmp_path, tiny_model):
    with Server(tmp_path, "--otlp-endpoint", f"http://127.0.0.1:{collector.port}",
                model=tiny_model) as server:
        for _ in range(20):
            server.complete([5, 6], max_tokens=1)
    assert len(collector.spans) == 20


@pytest.mark.parametrize("status", [None, 500])
def test_a_collector_that_does_not_take_spans_costs_only_these(tmp_path, tiny_model, status):
    port = Collector(status).port if status else free_port()
    with Server(tmp_path, "--otlp-endpoint", f"http://127.0.0.1:{port}", model=tiny_model) as server:
        for _ in range(10):
            server.complete([5, 6], max_tokens=1)
        server.wait_for("quire_spans_lost_total", 10)


def test_why_spans_are_lost_is_logged_once(tmp_path, tiny_model):
    collector = Collector(503)
    with Server(tmp_path, "--otlp-endpoint", f"http://127.0.0.1:{collector.port}",
                model=tiny_model) as server:
        for n in (1, 2):
            server.complete([5, 6], max_tokens=1)
            server.wait_for("quire_spans_lost_total", n)
    assert server.log.count("spans lost") == 1
    assert f"127.0.0.1:{collector.port} answers with 503 (1 spans lost so far)" in server.log


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate for localhost and 127.0.0.1, and its key."""
    return make_certificate(tmp_path_factory.mktemp("collector"), "collector")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_collector_with_tls(tmp_path, tiny_model, files, host):
    collector = Collector(files=files)
    with Server(tmp_path, "--otlp-endpoint", f"https://{host}:{collector.port}",
                "--otlp-ca-file", files[0], model=tiny_model) as server:
        deadline = time.monotonic() + 10 * PATIENCE
        while not collector.spans:
            assert time.monotonic() < deadline, server.log
            server.complete([5, 6], max_tokens=1)
            time.sleep(0.1)
        # Valgrind may take longer for a handshake than the server waits.
        assert SLOW or server.metrics()["quire_spans_lost_total"] == 0
    assert {r for r in collector.requests} == {("/v1/traces", "application/json")}


def lost_one(directory, model, endpoint, *arguments):
    """The log of a server whose collector gets no span."""
    with Server(directory, "--otlp-endpoint", endpoint, *arguments, model=model) as server:
        server.complete([5, 6], max_tokens=1)
        server.wait_for("quire_spans_lost_total", 1)
    return server.log


@pytest.mark.parametrize("case, why", [
    ("another authority", "The certificate issuer is unknown"),
    ("the system's authorities", "The certificate issuer is unknown"),
    ("another address", "The name in the certificate does not match the expected")])
def test_a_certificate_that_is_not_trusted(tmp_path, tiny_model, files, case, why):
    host = "127.0.0.2" if case == "another address" else "127.0.0.1"
    collector = Collector(files=files, host=host)
    known = make_certificate(tmp_path, "other")[0] if case == "another authority" else files[0]
    trust = () if case == "the system's authorities" else ("--otlp-ca-file", known)
    log = lost_one(tmp_path, tiny_model, f"https://{host}:{collector.port}", *trust)
    assert f"--otlp-endpoint: {host} port {collector.port}: The certificate is NOT trusted. {why}" in log
    assert not collector.bodies


def test_a_collector_without_tls_where_it_is_expected(tmp_path, tiny_model, files):
    collector = Collector()
    log = lost_one(tmp_path, tiny_model, f"https://127.0.0.1:{collector.port}", "--otlp-ca-file", files[0])
    assert f"127.0.0.1 port {collector.port}: " in log and not collector.bodies


def test_a_collector_that_says_nothing_does_not_delay_the_end(tmp_path, tiny_model, files):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.monotonic()
        log = lost_one(tmp_path, tiny_model, f"https://127.0.0.1:{listener.getsockname()[1]}",
                       "--otlp-ca-file", files[0])
    assert time.monotonic() - began < 30 * PATIENCE and "spans lost" in log


@pytest.mark.parametrize("endpoint", ["ftp://host:1", "localhost:4318", "http://", "http://:1", "https://",
                                      "http://host:x", "http://host:70000", "https://a b:1", "http://[::1"])
def test_an_endpoint_that_is_none_ends_the_server(tmp_path, endpoint):
    server = Server(tmp_path, "--otlp-endpoint", endpoint, wait=False)
    assert server.process.wait(60 * PATIENCE) == 1
    assert f"--otlp-endpoint: '{endpoint}' is neither http://HOST:PORT nor https://" in server.log


@pytest.mark.parametrize("arguments, why", [
    (("--otlp-endpoint", "https://host", "--otlp-ca-file", "/no/such/file"),
     "--otlp-ca-file: /no/such/file: Error while reading file."),
    (("--otlp-endpoint", "https://host", "--otlp-ca-file", "/dev/null"), "--otlp-ca-file: /dev/null: "),
    (("--otlp-endpoint", "http://host", "--otlp-ca-file", "/dev/null"),
     "--otlp-ca-file needs an --otlp-endpoint of https://")])
def test_authorities_that_cannot_be_used_end_the_server(tmp_path, arguments, why):
    server = Server(tmp_path, *arguments, wait=False)
    assert server.process.wait(60 * PATIENCE) == 1
    assert why in server.log


def test_authorities_without_an_endpoint_are_a_wrong_command(tmp_path):
    server = Server(tmp_path, "--otlp-ca-file", "/dev/null", wait=False)
    assert server.process.wait(60 * PATIENCE) == 2
    assert "--otlp-ca-file needs --otlp-endpoint" in server.log
