"""`quire health`, by which the images' health check tells a server that works from any other."""
import os
import socket
import subprocess
import threading

import pytest

from server import BINARY, PATIENCE, WRAPPER, free_port
from test_tls import TlsServer


def health(*arguments, env=None):
    """The exit status, and what is said of it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    done = subprocess.run([*WRAPPER, BINARY, "health", *map(str, arguments)], check=False,
                          env={**clean, **(env or {})}, capture_output=True, text=True,
                          timeout=30 * PATIENCE)
    assert done.stdout == "" and done.stderr.count("\n") == (done.returncode != 0)
    return done.returncode, done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_server_that_works(server, host):
    assert health("--port", server.port, "--host", host) == (0, "")
    assert health(env={"QUIRE_PORT": str(server.port), "QUIRE_HOST": host}) == (0, "")


def test_a_server_with_tls_and_a_key(tmp_path, tiny_model):
    with TlsServer(tmp_path, "--host", "0.0.0.0", model=tiny_model,
                   env={"QUIRE_API_KEY": "sesame"}) as server:
        settings = {"QUIRE_PORT": str(server.port), "QUIRE_SSL_CERTFILE": str(server.certificate),
                    "QUIRE_SSL_KEYFILE": str(server.key)}
        assert health(env=settings) == (0, "")
        del settings["QUIRE_SSL_CERTFILE"], settings["QUIRE_SSL_KEYFILE"]
        status, said = health(env=settings)
        assert status == 1 and "no answer" in said


def test_tls_where_there_is_none(server, tmp_path):
    status, said = health("--port", server.port, "--ssl-certfile", "c", "--ssl-keyfile", "k")
    assert status == 1 and f"port {server.port}" in said


def test_no_server():
    status, said = health("--port", free_port())
    assert status == 1 and "Connection refused" in said
    status, said = health("--host", "no.such.host.invalid")
    assert status == 1 and "no.such.host.invalid" in said


@pytest.mark.parametrize("answer,why", [
    (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "answers /health with 503"),
    (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
    (b"HTTP/1.1 " + 300 * b" ", "does not speak HTTP"),
    (b"", "no answer"),
    (None, "no answer"),  # and the connection stays open
])
def test_other_servers(answer, why):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            client, _ = listener.accept()
            client.recv(1000)
            if answer is None:
                client.recv(1)
            else:
                client.sendall(answer)
            client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        status, said = health("--port", listener.getsockname()[1])
        thread.join()
    assert status == 1 and why in said, said


def test_settings_are_those_of_serve():
    status, said = health("--no-such-flag")
    assert status == 2 and "--no-such-flag" in said
