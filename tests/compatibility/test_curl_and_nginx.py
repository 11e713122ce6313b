"""curl, and nginx in front: streams are not held back, bodies are passed, and clients that leave end
their requests."""
import http.client
import json
import shutil
import socket
import subprocess
import time

import pytest

from conftest import MODEL
from server import PATIENCE, free_port

CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    client_max_body_size 64m;
    upstream quire {{ server 127.0.0.1:{upstream}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://quire; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""
BODY = {"model": MODEL, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
KEY = {"Authorization": "Bearer secret", "Content-Type": "application/json"}


def curl(*arguments, given=None):
    done = subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], capture_output=True,
                          input=given, text=True, check=True)
    return done.stdout


def curl_post(url, path, body, *arguments):
    return curl(f"{url}{path}", "-H", "Authorization: Bearer secret", "-H",
                "Content-Type: application/json", "-d", "@-", *arguments, given=json.dumps(body))


def test_curl(server):
    whole = json.loads(curl_post(server.url, "/v1/completions", BODY))["choices"][0]["text"]
    stream = curl_post(server.url, "/v1/completions", {**BODY, "stream": True}, "-N")
    events = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == whole
    assert curl(server.url + "/v1/models", "-o", "/dev/null", "-w", "%{http_code}") == "401"
    assert "quire" in curl(server.url + "/openapi.json", "-H", "x-api-key: secret")


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory):
    if not shutil.which("nginx"):
        pytest.skip("nginx is not installed")
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, port=port, upstream=server.port))
    process = subprocess.Popen(["nginx", "-c", folder / "nginx.conf", "-p", folder,
                                "-e", folder / "error.log"])
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    yield port
    process.terminate()
    assert process.wait(10) == 0


def test_nginx_passes_whole_answers(server, proxy):
    direct = json.loads(curl_post(server.url, "/v1/completions", BODY))["choices"]
    for _ in range(20):  # some of them on kept connections
        assert json.loads(curl_post(f"http://127.0.0.1:{proxy}", "/v1/completions",
                                    BODY))["choices"] == direct
    long = {**BODY, "prompt": [100] * 20000, "max_tokens": 1}
    assert json.loads(curl_post(f"http://127.0.0.1:{proxy}", "/tokenize", {"prompt": "x " * 200000})
                      )["count"] > 100000
    assert json.loads(curl_post(f"http://127.0.0.1:{proxy}", "/v1/completions/render", long)
                      )[0]["token_ids"] == [100] * 20000


def open_stream(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60 * PATIENCE)
    connection.request("POST", "/v1/completions", json.dumps(body), KEY)
    return connection, connection.getresponse()


def test_nginx_holds_no_event_back(server, proxy):
    """Events come one by one, while the rest is still generated."""
    body = {**BODY, "stream": True, "max_tokens": 20000, "ignore_eos": True}
    connection, answer = open_stream(proxy, body)
    answer.readline()
    assert server.metrics()["quire_requests_running"] == 1
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    server.wait_idle()


def test_a_client_that_leaves_nginx_ends_its_request(server, proxy):
    body = {**BODY, "stream": True, "max_tokens": 20000, "ignore_eos": True}
    connection, answer = open_stream(proxy, body)
    answer.readline()
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    server.wait_idle()
