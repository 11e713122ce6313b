"""TLS in front of the server: what clients see, certificates that change, and nothing left behind."""
import json
import signal
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import PATIENCE, Server
from tls_server import TlsServer, make_certificate


@pytest.fixture(scope="module")
def tls(tmp_path_factory, tiny_model):
    with TlsServer(tmp_path_factory.mktemp("tls"), model=tiny_model) as server:
        server.wait_logged("https://")
        yield server


def ask(server, prompt="a", **parameters):
    answer = server.request("POST", "/v1/completions",
                            {"prompt": prompt, "max_tokens": 5, "temperature": 0, **parameters})
    assert answer.status == 200, answer.body
    return answer.body


def test_answers_are_those_of_plain_http(tls, serve, tiny_model):
    plain = serve(model=tiny_model)
    for parameters in ({}, {"stream": True}, {"max_tokens": 300, "ignore_eos": True}):
        over_tls = ask(tls, **parameters)
        over_http = plain.post("/v1/completions", {"prompt": "a", "max_tokens": 5,
                                                   "temperature": 0, **parameters}).body
        if parameters.get("stream"):
            assert over_tls.count(b"data: ") == over_http.count(b"data: ") > 2
            assert over_tls.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(over_tls)["choices"] == json.loads(over_http)["choices"]


def test_connections_are_kept_and_carry_large_texts(tls):
    connection = tls.connect()
    text = "word " * 400_000
    for _ in range(3):
        connection.request("POST", "/tokenize", json.dumps({"prompt": text}))
        answer = connection.getresponse()
        body = json.loads(answer.read())
        assert answer.status == 200 and body["count"] == len(body["tokens"]) > 100_000
    connection.close()


def test_many_streams_at_once(tls):
    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(lambda i: ask(tls, f"{i}", stream=True, max_tokens=20),
                                   range(128)))
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions(tls, version):
    context = ssl.create_default_context(cafile=tls.certificate)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", tls.port)) as raw, \
            context.wrap_socket(raw, server_hostname="localhost") as client:
        assert client.selected_alpn_protocol() == "http/1.1"
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = b""
        while part := client.recv(4096):
            text += part
        assert text.startswith(b"HTTP/1.1 200 ")


def test_old_versions_are_refused(tls):
    done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{tls.port}", "-tls1_1",
                           "-cipher", "ALL:@SECLEVEL=0"], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=20 * PATIENCE, check=False)
    assert done.returncode != 0 and b"Cipher is (NONE)" in done.stdout, done


def test_what_is_no_tls_is_closed(tls):
    with socket.create_connection(("127.0.0.1", tls.port), timeout=20 * PATIENCE) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        text = b""
        try:
            while part := client.recv(4096):
                text += part
        except ConnectionResetError:
            pass
        assert b"HTTP/1.1" not in text
    ask(tls)


def test_clients_that_leave_leave_nothing_behind(tls):
    ask(tls)
    before = tls.n_files()
    for how in ("alert", "silent", "handshake", "idle"):
        clients = []
        for _ in range(8):
            if how == "handshake":
                clients.append(socket.create_connection(("127.0.0.1", tls.port)))
                clients[-1].sendall(b"\x16\x03\x01")
                continue
            client = tls.open()
            clients.append(client)
            if how == "idle":
                continue
            body = b'{"prompt":"a","max_tokens":100000,"ignore_eos":true,"stream":true,' \
                   b'"kv_policy":{"type":"streaming","recent":64}}'
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        for client in clients:
            if how == "alert":
                client.settimeout(0.2)
                try:
                    client.unwrap()
                except OSError:
                    pass
            client.close()
    deadline = time.monotonic() + 20 * PATIENCE
    while tls.n_files() > before or tls.pages_in_use() > 0:
        assert time.monotonic() < deadline, (
            before, tls.files(), tls.pages_in_use())
        time.sleep(0.05)


def test_a_certificate_can_be_replaced(tmp_path, tiny_model):
    with TlsServer(tmp_path, model=tiny_model) as server:
        kept = server.open()  # goes on with the certificate it began with
        server.key.write_text("no key")
        server.process.send_signal(signal.SIGHUP)
        server.wait_logged("the former certificate stays in use")
        ask(server)
        make_certificate(tmp_path, "second")
        server.process.send_signal(signal.SIGHUP)
        server.wait_logged("certificate.pem again")
        with pytest.raises(ssl.SSLCertVerificationError):
            server.open()
        server.trust()
        with server.open() as client:
            subject = dict(pair for part in client.getpeercert()["subject"] for pair in part)
            assert subject["commonName"] == "second"
        ask(server)
        kept.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(100).startswith(b"HTTP/1.1 200")
        assert server.stop() == 0
        kept.close()


def test_a_silent_handshake_has_an_end(tmp_path, tiny_model):
    with TlsServer(tmp_path, "--request-timeout", 1, model=tiny_model) as server, \
            socket.create_connection(("127.0.0.1", server.port), timeout=20 * PATIENCE) as client:
        assert client.recv(100) == b""


def test_a_reader_that_takes_nothing_is_dropped(tmp_path, tiny_model):
    with TlsServer(tmp_path, "--stall-timeout", 1, model=tiny_model) as server:
        client = server.open()
        body = b'{"prompt":"a","max_tokens":100000,"ignore_eos":true,"stream":true,"logprobs":5,' \
               b'"kv_policy":{"type":"streaming","recent":64}}'
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
        server.wait_running(1)
        deadline = time.monotonic() + 60 * PATIENCE
        while server.pages_in_use() > 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        client.close()


@pytest.mark.parametrize("arguments,why", [
    (["--ssl-certfile", "none.pem", "--ssl-keyfile", "none.pem"], "TLS certificate none.pem"),
    (["--ssl-certfile", "none.pem"], "--ssl-certfile needs --ssl-keyfile")])
def test_a_start_without_a_certificate_ends(tmp_path, tiny_model, arguments, why):
    server = Server(tmp_path, *arguments, model=tiny_model, wait=False)
    assert server.process.wait(30 * PATIENCE) in (1, 2)
    assert why in server.log
