"""Where the key comes from, and what is said of it: files of every kind, the list of processes,
open addresses."""
import json
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import BINARY, PATIENCE, WRAPPER

SHOWS = "API keys among the arguments show in the list of processes"
OPEN = "no API key is required on "


def run_serve(*arguments, env=None):
    """The end of a server that must not start, within a bound: nothing may hang it."""
    done = subprocess.run([*WRAPPER, BINARY, "serve", *map(str, arguments)],
                          env={**os.environ, **(env or {})}, capture_output=True, text=True,
                          timeout=20 * PATIENCE, check=False)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("content", ["open sesame", "open sesame\n", "open sesame\r\n"])
def test_the_key_is_read_from_a_file(serve, tmp_path, tiny_model, content):
    path = tmp_path / "key"
    path.write_text(content)
    server = serve("--api-key-file", path, model=tiny_model)
    assert server.get("/version").status == 401
    assert server.get("/version", headers={"Authorization": "Bearer open sesame"}).status == 200
    assert "sesame" not in server.log and SHOWS not in server.log


@pytest.mark.parametrize("content,why", [
    (b"", "empty"),
    (b"\n", "empty"),
    (b"a" * 1025, "longer than 1024"),
    (b"a" * 5_000_000, "longer than 1024"),
    (b"two\nlines\n", "control character"),
    (b"a\x00b", "control character"),
    (b"a\x7f", "control character"),
    (b"a\tb\n", "control character"),
    (b" a\n", "a space"),
    (b"a \n", "a space"),
])
def test_what_is_no_key_is_refused(tmp_path, tiny_model, content, why):
    path = tmp_path / "key"
    path.write_bytes(content)
    said = run_serve(tiny_model, "--api-key-file", path)
    assert "--api-key-file" in said and str(path) in said and why in said


def test_a_key_from_elsewhere_is_checked_too(tiny_model):
    assert "control character" in run_serve(tiny_model, env={"QUIRE_API_KEY": "a\nb"})
    assert "exclude each other" in run_serve(tiny_model, "--api-key-file", "/dev/null",
                                             env={"QUIRE_API_KEY": "a"})


def test_what_is_no_file_does_not_hang(tmp_path, tiny_model):
    fifo, listener = tmp_path / "fifo", tmp_path / "socket"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(listener))
        for path, why in ((fifo, "not a regular file"), (tmp_path, "not a regular file"),
                          ("/dev/zero", "not a regular file"), (listener, "No such device"),
                          (tmp_path / "none", "No such file")):
            said = run_serve(tiny_model, "--api-key-file", path)
            assert str(path) in said and why in said, said


def test_a_key_among_the_arguments_is_warned_of(serve, tiny_model):
    server = serve("--api-key", "sesame", model=tiny_model)
    server.wait_logged(SHOWS)
    assert "sesame" not in server.log
    server = serve(model=tiny_model, env={"QUIRE_API_KEY": "sesame"})
    assert server.get("/version").status == 401
    server.wait_logged("listening")
    assert SHOWS not in server.log


@pytest.mark.parametrize("host,is_open", [
    ("127.0.0.1", False), ("127.1.2.3", False), ("localhost", False), ("0.0.0.0", True),
])
def test_an_open_address_without_a_key_is_warned_of(serve, tiny_model, host, is_open):
    wait = host != "127.1.2.3"  # no server listens where the test asks
    server = serve("--host", host, model=tiny_model, wait=wait)
    server.wait_logged("listening", seconds=30)
    assert server.log.count(OPEN + host) == is_open
    if is_open:
        line = next(line for line in server.log.splitlines() if OPEN in line)
        assert " warn " in line
        guarded = serve("--host", host, model=tiny_model, env={"QUIRE_API_KEY": "sesame"})
        guarded.wait_logged("listening")
        assert OPEN not in guarded.log


def test_a_server_that_must_have_a_key_does_not_start_without(serve, tiny_model):
    said = run_serve(tiny_model, "--require-api-key")
    assert "--require-api-key" in said and "--api-key-file" in said
    server = serve("--require-api-key", model=tiny_model, env={"QUIRE_API_KEY": "sesame"})
    assert server.get("/version").status == 401


LIST = {"keys": [{"name": "a-team", "key": "sesame", "weight": 2},
                 {"name": "b", "key": "poppy", "tokens-per-minute": 30}]}


@pytest.mark.parametrize("source", ["file", "environment"])
def test_there_may_be_several_keys(serve, tmp_path, tiny_model, source):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(LIST))
    server = (serve("--api-keys-file", path, model=tiny_model, env={"QUIRE_API_KEY": "onion"})
              if source == "file" else
              serve(model=tiny_model, env={"QUIRE_API_KEYS": json.dumps(LIST),
                                           "QUIRE_API_KEY": "onion"}))
    for key in ("sesame", "poppy", "onion"):
        assert server.get("/version", headers={"Authorization": f"Bearer {key}"}).status == 200
        assert server.get("/version", headers={"x-api-key": key}).status == 200
        assert key not in server.log
    for key in ("sesam", "sesamepoppy", "a-team", ""):
        assert server.get("/version", headers={"Authorization": f"Bearer {key}"}).status == 401


def test_a_key_has_its_tokens_of_a_minute(serve, tmp_path, tiny_model):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(LIST))
    server = serve("--api-keys-file", path, model=tiny_model)

    def ask(key):
        return server.post("/v1/completions", {"prompt": "a", "max_tokens": 40, "ignore_eos": True},
                           headers={"Authorization": f"Bearer {key}"})
    assert ask("poppy").status == 200
    refused = ask("poppy")
    assert refused.status == 429 and b"30 tokens a minute" in refused.body
    assert 20 <= int(refused.headers["Retry-After"]) <= 60
    assert [ask("sesame").status for _ in range(2)] == [200, 200]


def test_keys_can_be_replaced_while_the_server_runs(serve, tmp_path, tiny_model):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(LIST))
    server = serve("--api-keys-file", path, model=tiny_model)

    def ask(key, n=40):
        return server.post("/v1/completions", {"prompt": "a", "max_tokens": n, "ignore_eos": True},
                           headers={"Authorization": f"Bearer {key}"}).status

    def replace(text, said):
        path.write_text(text)
        server.terminate(signal.SIGHUP)
        server.wait_logged(said)

    assert [ask("poppy"), ask("poppy"), ask("sesame")] == [200, 429, 200]
    for n, text in enumerate(("{", '{"keys": []}', '{"keys": [{"name": "x", "key": "onion"}, 1]}')):
        replace(text, "the former API keys stay in use: --api-keys-file")
        deadline = time.monotonic() + 5 * PATIENCE
        while server.log.count("stay in use") <= n:
            assert time.monotonic() < deadline
        assert [ask("sesame"), ask("onion")] == [200, 401]
    with ThreadPoolExecutor(1) as thread:
        with server.taking(1):
            running = thread.submit(ask, "sesame", 3000)
        new = [{"name": "x", "key": "onion", "tokens-per-minute": 30},
               {"name": "y", "key": "lily", "tokens-per-minute": 30},
               {"name": "b", "key": "poppies", "tokens-per-minute": 30}]
        replace(json.dumps({"keys": new}), "read the API keys again: there are 3")
        assert [ask("sesame"), ask("poppy")] == [401, 401]
        assert running.result() == 200
    # A name keeps what its key has used; others begin with what a minute allows.
    assert [ask("poppies"), ask("onion"), ask("lily"), ask("lily")] == [429, 200, 200, 429]
    for key in ("sesame", "poppy", "onion", "lily"):
        assert key not in server.log


def test_a_single_key_can_be_replaced(serve, tmp_path, tiny_model):
    path = tmp_path / "key"
    path.write_text("sesame")
    server = serve("--api-key-file", path, model=tiny_model, env={"QUIRE_API_KEYS": json.dumps(
        {"keys": [{"name": "fixed", "key": "poppy"}]})})

    def statuses(*keys):
        return [server.get("/version", headers={"x-api-key": key}).status for key in keys]

    path.write_text("two\nlines")
    server.terminate(signal.SIGHUP)
    server.wait_logged("the former API keys stay in use: --api-key-file")
    assert statuses("sesame", "poppy", "onion") == [200, 200, 401]
    for key in ("onion", "lily"):
        path.write_text(key)
        server.terminate(signal.SIGHUP)
        deadline = time.monotonic() + 5 * PATIENCE
        while statuses(key) != [200]:
            assert time.monotonic() < deadline
        assert statuses("sesame", "poppy") == [401, 200]


def test_without_files_there_is_nothing_to_read_again(serve, tiny_model):
    server = serve(model=tiny_model, env={"QUIRE_API_KEY": "sesame"})
    server.terminate(signal.SIGHUP)
    server.wait_logged("there is nothing to read again")
    assert server.get("/version").status == 401


@pytest.mark.parametrize("content,why", [
    ("", "no JSON"),
    ("sesame", "no JSON"),
    ("[]", "must be"),
    ('{"keys": []}', "must be"),
    ('{"keys": [{"key": "sesame"}]}', "name"),
    ('{"keys": [{"name": "a b", "key": "sesame"}]}', "a name has"),
    ('{"keys": [{"name": "a", "key": ""}]}', "empty"),
    ('{"keys": [{"name": "a", "key": "se\\nsame"}]}', "control character"),
    ('{"keys": [{"name": "a", "key": "sesame", "wait": 1}]}', "wait"),
    ('{"keys": [{"name": "a", "key": "sesame", "weight": 0}]}', "weight is"),
    ('{"keys": [{"name": "a", "key": "sesame"}, {"name": "b", "key": "sesame"}]}', "the same"),
    ('{"keys": [{"name": "a", "key": "sesame"}, {"name": "a", "key": "b"}]}', "the same"),
    (json.dumps({"keys": [{"name": f"k{i}", "key": f"sesame{i}"} for i in range(65)]}), "more than"),
    ("x" * 300_000, "longer than"),
])
def test_what_is_no_list_of_keys_is_refused(tmp_path, tiny_model, content, why):
    path = tmp_path / "keys.json"
    path.write_text(content)
    said = run_serve(tiny_model, "--api-keys-file", path)
    assert why in said and "sesame" not in said, said
