"""Start and stop: time to ready, memory, draining, settings and where they come from."""
import json
import re
import signal
import socket
import subprocess
import time

import pytest

from raw import RawConnection
from server import BINARY, DEVICE, MODEL, PATIENCE, SLOW, WRAPPER, Server

LONG = {"prompt": "a", "ignore_eos": True, "temperature": 0}


def run_quire(*arguments, env=None):
    return subprocess.run([*WRAPPER, BINARY, *arguments], env=env, capture_output=True, text=True,
                          timeout=30 * PATIENCE, check=False)


# A process with a GPU starts its driver first and holds that driver's memory.
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="bounds what the CPU backend takes")


@cpu_only
def test_first_token_within_half_a_second_of_start(tmp_path):
    def first_token():
        with Server(tmp_path) as server:
            server.complete("Once upon a time", max_tokens=1)
            return time.monotonic() - server.started

    # The machine may be busy with something else.
    assert any(first_token() < 0.5 * PATIENCE for _ in range(20))


@cpu_only
def test_resident_memory_is_model_plus_pool_plus_64_mb(serve):
    pool = 400 << 20
    bound = MODEL.joinpath("model.safetensors").stat().st_size + pool + (64 << 20)
    if SLOW:
        bound *= PATIENCE  # shadow memory and quarantine of a sanitizer
    server = serve("--kv-cache-memory", "400M")
    assert server.resident_bytes() <= bound
    for length in (1, 100, 2100):  # steps have 2,048 rows at most
        server.complete(
            [65 + i % 50 for i in range(length)], max_tokens=20, n=4, temperature=1, ignore_eos=True
        )
    assert server.resident_bytes() <= bound


def test_the_memory_plan_is_printed(server):
    log = server.log.lower()
    assert "weights" in log and "kv" in log and "tokens" in log and "sequences" in log


def test_sigterm_finishes_what_runs(serve):
    server = serve("--shutdown-timeout", "60")
    n = 50 if SLOW else 300
    with RawConnection(server) as connection:
        connection.send_completion(
            stream=True, max_tokens=n, stream_options={"include_usage": True}, **LONG
        )
        connection.read_head()
        first = connection.read_chunk()
        server.terminate()
        body = first
        while chunk := connection.read_chunk():
            body += chunk
    assert body.endswith(b"data: [DONE]\n\n")
    assert json.loads(body.split(b"\n\n")[-3][6:])["usage"]["completion_tokens"] == n
    assert server.process.wait(30 * PATIENCE) == 0


def wait_refused(server):
    """Waits until the server listens no longer."""
    deadline = time.monotonic() + 10 * PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", server.port), 2).close()
        except OSError:
            return
        assert time.monotonic() < deadline, "still listening"
        time.sleep(0.02)


def test_while_draining_new_work_is_refused(serve):
    server = serve("--shutdown-timeout", "60")
    with RawConnection(server) as running, RawConnection(server) as waiting:
        # An open connection may still ask.
        waiting.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        waiting.read_reply()
        running.send_completion(stream=True, max_tokens=20000, **LONG)
        running.read_head()
        running.read_chunk()
        server.terminate()
        wait_refused(server)
        try:
            waiting.send_completion(prompt="b", max_tokens=1)
            status, _, _ = waiting.read_reply()
            assert status == 503
        except (AssertionError, ConnectionError) as closed:
            assert "503" not in str(closed)  # closing idle connections is a refusal, too
        server.terminate()
    assert server.process.wait(30 * PATIENCE) is not None


def test_shutdown_timeout_cuts_off_what_is_not_done(serve):
    server = serve("--shutdown-timeout", "1")
    with RawConnection(server) as connection:
        connection.send_completion(stream=True, max_tokens=30000, **LONG)
        connection.read_head()
        connection.read_chunk()
        begun = time.monotonic()
        server.terminate()
        server.process.wait(30 * PATIENCE)
        assert time.monotonic() - begun > 0.4
        assert b'data: {"error":' in connection.buffer + connection.read_to_close()


def test_a_second_signal_stops_at_once(tmp_path):
    server = Server(tmp_path, "--shutdown-timeout", "600")
    with RawConnection(server) as connection:
        connection.send_completion(stream=True, max_tokens=30000, **LONG)
        connection.read_head()
        connection.read_chunk()
        server.terminate()
        time.sleep(0.3)
        assert server.process.poll() is None
        server.terminate()
        server.process.wait(30 * PATIENCE)
        assert b'data: {"error":' in connection.buffer + connection.read_to_close()  # no silent end


def test_sigint_stops_like_sigterm(tmp_path, tiny_model):
    server = Server(tmp_path, model=tiny_model)
    server.terminate(signal.SIGINT)
    assert server.process.wait(10 * PATIENCE) == 0


def test_a_taken_port_is_an_error_that_names_it(server):
    result = run_quire("serve", "--port", str(server.port))
    assert result.returncode != 0
    assert str(server.port) in result.stderr


@pytest.mark.parametrize("arguments,named", [
    (["--port", "70000"], "--port"),
    (["--port", "eighty"], "--port"),
    (["--max-num-seqs", "0"], "--max-num-seqs"),
    (["--max-num-seqs", "-4"], "--max-num-seqs"),
    (["--kv-cache-memory", "12Q"], "--kv-cache-memory"),
    (["--device", "tpu"], "--device"),
    (["--no-such-flag"], "--no-such-flag"),
    (["--port"], "--port"),
    (["/no/such/model"], "/no/such/model"),
    (["--config", "/no/such/file.json"], "/no/such/file.json"),
])
def test_bad_arguments_are_named(arguments, named):
    result = run_quire("serve", *arguments)
    assert result.returncode not in (0, -signal.SIGSEGV, -signal.SIGABRT)
    assert named in result.stderr


@cpu_only
@pytest.mark.parametrize("n_files", [*range(4, 24), 40])
def test_with_few_descriptors_it_serves_or_says_that_it_cannot(tmp_path, tiny_model, n_files):
    """However few files the process may open: connections are served, refused, or there is a
    sentence."""
    server = Server(tmp_path, model=tiny_model, wait=False,
                    prefix=("prlimit", f"--nofile={n_files}"))
    try:
        while server.process.poll() is None and "listening on" not in server.log:
            assert time.monotonic() < server.started + 30 * PATIENCE
            time.sleep(0.005)
        if server.process.poll() is None:
            assert f"may open {n_files} files: " in server.log
            for _ in range(3):
                # Of one connection at a time, the last one's end must have been noticed.
                while (status := server.get("/live", timeout=5).status) != 200:
                    assert status == 503 and time.monotonic() < server.started + 30 * PATIENCE
            assert server.stop() == 0
        else:
            assert n_files < 20 and server.process.returncode == 1, server.log
            assert f"the process may open {n_files} files" in server.log
            assert "to serve one connection" in server.log and "ulimit -n" in server.log
    finally:
        server.process.kill()
        server.process.wait()


def test_a_broken_model_is_refused(tmp_path, tiny_model):
    weights = (tiny_model / "model.safetensors").read_bytes()
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(weights[:len(weights) // 2])
    result = run_quire("serve", str(tmp_path))
    assert result.returncode > 0
    assert "model.safetensors" in result.stderr or "model." in result.stderr


def test_a_cache_too_small_for_the_context_names_what_it_takes(serve, tiny_model):
    result = run_quire("serve", str(tiny_model), "--device", DEVICE, "--kv-cache-memory", "64K")
    assert result.returncode == 1
    needed = re.search(r"--max-model-len is 4096.*--kv-cache-memory to at least (\d+)", result.stderr)
    assert needed, result.stderr
    serve("--kv-cache-memory", needed[1], model=tiny_model)  # and so much is enough


def test_a_length_beyond_the_models_context_names_what_makes_that_longer(tmp_path, serve, tiny_model):
    for command in ("serve", "info"):
        result = run_quire(command, str(tiny_model), "--device", DEVICE, "--max-model-len", "8192")
        assert result.returncode == 1 and "the model's context" in result.stderr and "rope_scaling" in result.stderr
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_scaling"] = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert served_length(serve("--max-model-len", "8192", model=tmp_path)) == 8192


def served_length(server):
    return server.get("/v1/models").json()["data"][0]["max_model_len"]


def test_settings_precedence(serve, tiny_model, tmp_path):
    """A flag wins over the environment, which wins over the file, which wins over the default."""
    config = tmp_path / "settings.json"
    config.write_text(json.dumps({"max-model-len": 512}))
    env = {"QUIRE_MAX_MODEL_LEN": "768"}
    assert served_length(serve(model=tiny_model)) == 4096
    assert served_length(serve("--config", config, model=tiny_model)) == 512
    assert served_length(serve("--config", config, model=tiny_model, env=env)) == 768
    flagged = serve("--config", config, "--max-model-len", "1024", model=tiny_model, env=env)
    assert served_length(flagged) == 1024


def test_served_model_name(serve, tiny_model):
    server = serve("--served-model-name", "my-model,other/name", "--model-alias", "claude-*=other/name",
                   "--served-model-name", "third", "--model-alias", "gpt-[45]=third", model=tiny_model)
    listed = server.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["my-model", "other/name", "third"]
    for asked, answered in (("my-model", "my-model"), ("other/name", "other/name"), ("", "my-model"),
                            ("claude-x-1", "other/name"), ("gpt-5", "third")):
        assert server.complete("a", model=asked, max_tokens=1)["model"] == answered
    assert server.post("/v1/completions", {"prompt": "a", "model": "gpt-6"}).status == 404
    theirs = {"anthropic-version": "2023-06-01"}
    page = server.request("GET", "/v1/models", headers=theirs).json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("my-model", "third", False)
    assert [model["display_name"] for model in page["data"]] == ["my-model", "other/name", "third"]
    assert server.request("GET", "/v1/models/claude-x", headers=theirs).json() == page["data"][1]


def test_a_wrong_setting_in_a_file_names_file_and_setting(tmp_path):
    config = tmp_path / "settings.json"
    config.write_text(json.dumps({"port": "many"}))
    result = run_quire("serve", "--config", str(config))
    assert result.returncode > 0 and "port" in result.stderr
    config.write_text(json.dumps({"no-such-setting": 1}))
    result = run_quire("serve", "--config", str(config))
    assert result.returncode > 0 and "no-such-setting" in result.stderr


def test_version_and_help():
    assert re.search(r"\d+\.\d+\.\d+", run_quire("version").stdout)
    text = run_quire("serve", "--help-all")
    assert text.returncode == 0
    for flag in ("--host", "--port", "--max-model-len", "--kv-cache-memory", "--api-key"):
        assert flag in text.stdout
