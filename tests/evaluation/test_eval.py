"""scripts/quality/eval.py as a user runs it: against an independent server, against quire, killed and
resumed, and the exit status that CI looks at."""
import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from asking import outcomes, read_results
from server import BINARY, MODEL, N_THREADS, ROOT, Server
from tiny_server import TinyServer

SMALL = ("--tasks", "passkey", "--lengths", "400", "--samples", "8")


def command(out, *arguments):
    return [sys.executable, str(ROOT / "scripts/quality/eval.py"), "--out", str(out), *map(str, arguments)]


def run_eval(out, *arguments, expect=0):
    done = subprocess.run(command(out, *arguments), capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == expect, done.stderr
    return done


@pytest.fixture(scope="module")
def quire(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("quire")) as server:
        yield server


def test_an_independent_server_is_measured_without_change(tmp_path):
    with TinyServer() as server:
        done = run_eval(tmp_path, "--url", server.url, *SMALL, "--config", "full={}", "--config",
                        'window={"kv_policy": {"type": "streaming", "sink": 4, "recent": 60}}')
    assert "window: ignored" in done.stderr
    assert all(r["score"] == 1.0 for r in read_results(tmp_path, "sample"))
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "passkey" in table and "ignored" in table and "window" in table


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    arguments = ("--tasks", "passkey,streameval", "--lengths", "700", "--samples", "20")
    with TinyServer() as server:
        run_eval(tmp_path / "whole", "--url", server.url, *arguments)
    results = tmp_path / "cut/results.jsonl"
    with TinyServer() as server:
        for n_lines in (5, 30):
            with subprocess.Popen(command(tmp_path / "cut", "--url", server.url, *arguments,
                                          "--concurrency", 2)) as process:
                deadline = time.monotonic() + 300
                while not results.exists() or results.read_bytes().count(b"\n") < n_lines:
                    assert process.poll() is None and time.monotonic() < deadline
                    time.sleep(0.001)
                process.send_signal(signal.SIGKILL)
        assert len(outcomes(tmp_path / "cut")) < len(outcomes(tmp_path / "whole"))
        run_eval(tmp_path / "cut", "--url", server.url, *arguments)
    assert outcomes(tmp_path / "cut") == outcomes(tmp_path / "whole")


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    with TinyServer() as server:
        process = subprocess.Popen(command(tmp_path, "--url", server.url, "--tasks", "passkey",
                                           "--lengths", 400, "--samples", 100000),
                                   stderr=subprocess.PIPE, text=True)
        while not (tmp_path / "results.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130 and "same command" in said


def test_a_server_that_is_not_there_is_an_error_that_says_so(tmp_path):
    done = run_eval(tmp_path, "--url", "http://127.0.0.1:9", *SMALL, expect=1)
    assert "127.0.0.1:9" in done.stderr and "Traceback" not in done.stderr


def test_requests_that_fail_fail_the_run(tmp_path):
    with TinyServer(breaks_at="What is the pass key?") as server:
        done = run_eval(tmp_path, "--url", server.url, *SMALL, "--tokenizer", MODEL, expect=1)
    assert "8 requests failed" in done.stderr
    assert "8 requests, of which 8 failed" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_a_broken_floor_is_red_with_and_without_a_server(tmp_path):
    floors = tmp_path / "floors.json"
    floors.write_text(json.dumps({"passkey/400": {"min": 90}}))
    with TinyServer() as server:
        run_eval(tmp_path / "good", "--url", server.url, *SMALL, "--floors", floors)
    with TinyServer(streams=False) as server:
        run_eval(tmp_path / "again", "--url", server.url, *SMALL, "--baseline", tmp_path / "good")
    floors.write_text(json.dumps({"passkey/400": {"min": 101}}))
    run_eval(tmp_path / "good", "--report-only", "--floors", floors, expect=3)
    assert "**RED**" in (tmp_path / "good/table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments, said", [
    (("--url", "http://127.0.0.1:9", "--tasks", "nonsense"), "no task nonsense"),
    (("--url", "http://127.0.0.1:9", "--config", "broken"), "NAME={JSON object}"),
    (("--url", "http://127.0.0.1:9", "--config", "a={}", "--config", "a={}"), "same name"),
    (("--url", "http://127.0.0.1:9", "--template", "no place"), "{prompt}"),
    (("--url", "http://127.0.0.1:9", "--quick", "--samples", "3"), "--quick"),
    (("--tasks", "passkey"), "--url"),
])
def test_a_wrong_question_is_a_sentence_and_status_2(tmp_path, arguments, said):
    done = run_eval(tmp_path, *arguments, expect=2)
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_python_without_the_libraries_is_told_where_they_are(tmp_path):
    bare = [sys.executable, "-S", *command(tmp_path, *SMALL)[1:]]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install" in done.stderr and "Traceback" not in done.stderr


def test_a_length_too_short_for_a_task_is_said(tmp_path):
    with TinyServer() as server:
        done = run_eval(tmp_path, "--url", server.url, "--tasks", "passkey", "--lengths", "20",
                        expect=2)
    assert "passkey needs" in done.stderr


def test_quire_answers_as_its_model_can(tmp_path, quire):
    run_eval(tmp_path, "--url", quire.url, "--tasks", "passkey,lines,streameval,card/people",
             "--lengths", "1024", "--samples", "1")
    run, = read_results(tmp_path, "run")
    assert (run["template"], run["tokens_by"]) == ("chatml", "the server's /tokenize")
    records = read_results(tmp_path, "sample", "stream")
    assert {r["task"] for r in records} == {"passkey", "lines", "streameval", "card/people"}
    assert sum(r["score"] for r in records) >= 0.9 * len(records)
    for record in records:
        assert record["prompt_tokens"] + record["completion_tokens"] <= 1024
        assert abs(record["prompt_tokens"] - record["length"]) <= 16 or record["kind"] == "sample"
    fresh = [r["cached"] for r in records if r["task"] == "lines" and r["question"] == 0]
    later = [r["cached"] for r in records if r["task"] == "lines" and r["question"] > 0]
    assert not any(fresh) and all(later)


def test_the_perplexity_of_a_window_is_that_of_its_log_probabilities(tmp_path, quire, tokenizer):
    run_eval(tmp_path, "--url", quire.url, "--tasks", "perplexity", "--lengths", "2048",
             "--windows", "1")
    text = (ROOT / "models/quire-31m/eval/held_out.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    for record in read_results(tmp_path, "perplexity"):
        first = record["first_token"]
        window = [8183, *ids[first:first + 2047]]
        choice = quire.complete(window, max_tokens=0, echo=True, logprobs=0)["choices"][0]
        values = choice["logprobs"]["token_logprobs"][1:]
        assert record["tokens"] == [1023, 1024]
        assert math.isclose(sum(record["nll"]), -sum(values), rel_tol=1e-6)
        # What the model is worth here; the card's number is that of all 128 windows.
        assert 25 < math.exp(sum(record["nll"]) / 2047) < 45


def test_a_server_is_started_and_stopped_for_the_run(tmp_path):
    serve = f"{shlex.quote(BINARY)} serve --device cpu --threads {N_THREADS}"
    run_eval(tmp_path, "--serve", serve, "--tasks", "passkey", "--lengths", "512", "--samples", "1")
    run, = read_results(tmp_path, "run")
    with pytest.raises(ConnectionRefusedError), \
            socket.create_connection(run["server"]["url"].removeprefix("http://").split(":")):
        pass
    done = run_eval(tmp_path / "none", "--serve", f"{shlex.quote(BINARY)} serve --nonsense", *SMALL, expect=1)
    assert "nonsense" in done.stderr


def test_a_key_is_sent_to_every_route(tmp_path):
    environment = {**os.environ, "OPENAI_API_KEY": "sesame"}
    with Server(tmp_path, "--threads", "1", "--api-key", "sesame") as server:
        arguments = command(tmp_path / "out", "--url", server.url, "--tasks", "passkey",
                            "--lengths", "512", "--samples", "1")
        good = subprocess.run(arguments, env=environment, check=False, timeout=300)
        environment.pop("OPENAI_API_KEY")
        bad = subprocess.run(arguments, env=environment, check=False, timeout=300)
    assert (good.returncode, bad.returncode) == (0, 2)
