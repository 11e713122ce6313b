"""Scripts as a user calls them: what goes where, and from where they can be called."""
import csv
import json
import shutil
import subprocess
import sys

import pytest

from server import BINARY, DEVICE, PATIENCE, ROOT, Server


def run(directory, *command):
    return subprocess.run(list(map(str, command)), cwd=directory, capture_output=True, text=True,
                          timeout=120 * PATIENCE, check=False)


def loadtest(server, directory, *arguments):
    done = run(directory, sys.executable, ROOT / "scripts/load/loadtest.py", "--url", server.url,
               "--clients", 2, "--requests", 4, "--prompt-tokens", 8, "--max-tokens", 4, *arguments)
    assert done.returncode == 0, done.stderr
    return done


def test_the_load_test_writes_its_table_to_stdout(server, tmp_path):
    done = loadtest(server, tmp_path)
    assert "4 requests, 0 failed" in done.stdout and "whole request" in done.stdout
    assert done.stderr == ""


def test_the_load_test_writes_one_object_to_stdout_if_asked(server, tmp_path):
    done = loadtest(server, tmp_path, "--json")
    assert json.loads(done.stdout)["requests"] == 4
    assert "whole request" in done.stderr


def load_object(server, directory, *arguments):
    done = run(directory, sys.executable, ROOT / "scripts/load/loadtest.py", "--url", server.url,
               "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_open_loop_sends_at_its_rate_whatever_the_server_does(server, tmp_path):
    """Eight requests at four a second: about two seconds, with all eight counted from when they were due."""
    result = load_object(server, tmp_path, "--rate", 4, "--requests", 8, "--prompt-tokens", 4,
                         "--max-tokens", 2, "--seed", 3)
    assert result["loop"] == "open" and result["offered_requests_per_s"] == 4
    assert result["requests"] == 8 and result["seconds"] > 0.8
    assert result["first_token_ms"]["max"] <= result["whole_request_ms"]["max"]


def test_goodput_counts_what_is_within_its_limits(server, tmp_path):
    few = ("--clients", 2, "--requests", 4, "--prompt-tokens", 8, "--max-tokens", 4)
    none = load_object(server, tmp_path, *few, "--goodput-ttft", 0.001)["goodput"]
    every = load_object(server, tmp_path, *few, "--goodput-ttft", 1e9, "--goodput-itl", 1e9)["goodput"]
    slow = load_object(server, tmp_path, *few, "--goodput-itl", 0.0001)["goodput"]
    assert (none["share"], every["share"], slow["share"]) == (0, 1, 0)


def test_refusals_are_counted_and_timed(serve, tmp_path):
    """One runs and one waits; the others of eight clients, six unless some come late, are refused at once, and
    not counted as good."""
    server = serve("--max-num-seqs", 1, "--max-num-queued-reqs", 1)
    done = run(tmp_path, sys.executable, ROOT / "scripts/load/loadtest.py", "--url", server.url, "--json",
               "--clients", 8, "--requests", 8, "--prompt-tokens", 8, "--max-tokens", 200,
               "--goodput-ttft", 1e9)
    assert done.returncode == 1 and "HTTP 429" in done.stderr
    result = json.loads(done.stdout)
    assert 0 < result["refused"]["requests"] == result["failed"] <= 6
    assert 0 < result["refused"]["ms"]["p50"] <= result["refused"]["ms"]["max"]
    assert result["goodput"]["share"] == (8 - result["failed"]) / 8


def test_an_overload_says_what_is_left(serve, tmp_path):
    server = serve("--max-num-seqs", 2, "--max-num-queued-reqs", 2)
    arguments = ("--url", server.url, "--clients", 4, "--runs", 1, "--seconds", 2,
                 "--capacity-requests", 8, "--prompt-tokens", 8, "--max-tokens", 32)
    done = run(tmp_path, ROOT / "scripts/load/overload.py", *arguments, "--least", 0, "--within", 1e9)
    head, line, median = (text.split(",") for text in done.stdout.splitlines())
    values = dict(zip(head[1:], map(float, line[1:]), strict=True))
    assert done.returncode == 0 and median[1:] == line[1:], done.stdout + done.stderr
    assert values["refused"] > 0 == values["failed"]
    # Ten times what it did before: what it does meanwhile is more on a machine that is less busy then.
    assert values["offered_per_s"] > values["goodput_per_s"] > 0
    done = run(tmp_path, ROOT / "scripts/load/overload.py", *arguments, "--within", 0)
    assert done.returncode == 1
    done = run(tmp_path, ROOT / "scripts/load/overload.py", *arguments, "--ttft", 1e-3)
    assert done.returncode == 1 and "--ttft" in done.stderr


def test_a_conversation_finds_its_earlier_turns_cached(server, tmp_path):
    arguments = ("--mix", "conversation", "--turns", 3, "--clients", 1, "--requests", 3, "--api")
    for api in ("chat", "completions"):
        result = load_object(server, tmp_path, *arguments, api, "--seed", 11)
        assert result["requests"] == 3 and 0.1 < result["cached_share"] < 1


def test_the_mixes_have_the_lengths_that_they_say(server, tmp_path):
    result = load_object(server, tmp_path, "--mix", "sharegpt", "--clients", 4, "--requests", 8)
    per_request = result["prompt_tokens_per_s"] / result["requests_per_s"]
    assert 20 < per_request < 1000 and result["prompt_tokens"] is None
    result = load_object(server, tmp_path, "--mix", "long", "--prompt-tokens", 800, "--requests", 4,
                         "--max-tokens", 2, "--clients", 2)
    assert 100 <= result["prompt_tokens_per_s"] / result["requests_per_s"] <= 810
    done = run(tmp_path, ROOT / "scripts/load/loadtest.py", "--mix", "sharegpt", "--max-tokens", 4)
    assert done.returncode == 2 and "lengths of its own" in done.stderr


def test_the_load_test_draws(server, tmp_path):
    load_object(server, tmp_path, "--clients", 2, "--requests", 4, "--max-tokens", 4, "--prompt-tokens",
                8, "--png", tmp_path / "load.png")
    assert (tmp_path / "load.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_evaluation_finds_its_python_from_anywhere(tmp_path):
    """Paths among the arguments are the caller's."""
    done = run(tmp_path, ROOT / "scripts/quality/eval", "--report-only", "--out", "nothing-here")
    assert done.returncode in (1, 2), done.stderr
    assert "no Python module" not in done.stderr and "Traceback" not in done.stderr
    assert run(tmp_path, ROOT / "scripts/quality/eval", "--help").stdout.startswith("usage: eval.py")


def constrained(directory, *arguments):
    return run(directory, sys.executable, ROOT / "scripts/load/constrained.py", "--binary", BINARY,
               "--streams", 3, "--max-tokens", 12, "--rounds", 1, *arguments)


def test_constrained_streams_are_compared_with_free_ones(tmp_path):
    done = constrained(tmp_path)
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split(",") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["expression", "strings", "records", "new-states"]
    for row in rows:
        figures = dict(zip(head, row, strict=True))
        assert (figures["streams"], figures["tokens"], figures["rounds"]) == ("3", "12", "1")
        free, held = float(figures["free_tokens_per_s"]), float(figures["constrained_tokens_per_s"])
        assert abs(held / free - float(figures["ratio"])) < 0.01


def test_constrained_streams_below_their_floor_are_a_failure(server, tmp_path):
    done = constrained(tmp_path, "--url", server.url, "--form", "records", "--floor", 1000)
    assert done.returncode == 1 and "below 1000.0: records" in done.stderr
    done = constrained(tmp_path, "--url", server.url, "--form", "new-states", "--floor", 1000)
    assert done.returncode == 0, done.stderr


def streams(directory, *arguments):
    """Measures four streams, and returns the rows of the table as dictionaries."""
    done = run(directory, sys.executable, ROOT / "scripts/load/streams.py", "--quire", BINARY, "--no-bench",
               "--streams", 4, "--processes", 2, "--prompt-tokens", 8,
               "--max-tokens", 4000, "--seconds", 0.5, *arguments, "--", "--device", DEVICE)
    head, *rows = done.stdout.splitlines()
    return done, [dict(zip(head.split(","), row.split(","))) for row in rows]


def test_streams_are_measured_while_all_of_them_run(tmp_path):
    done, rows = streams(tmp_path, "--request", json.dumps({"return_token_ids": True}))
    assert done.returncode == 0, done.stderr
    assert [row["api"] for row in rows] == ["completions", "chat"]
    assert all(float(row["tokens_per_s"]) > 0 < float(row["loop_us_per_token"]) for row in rows)


def test_a_measurement_of_refused_streams_is_none(tmp_path):
    done, rows = streams(tmp_path, "--request", json.dumps({"top_p": 7}))
    assert done.returncode == 1 and rows == []
    assert "a request was refused" in done.stderr and "top_p" in done.stderr


def test_a_model_to_measure_has_as_many_tokens_as_it_is_asked(tmp_path):
    """The grown vocabulary has no holes and no merge of what it lacks, and answers are of its tokens."""
    folder = tmp_path / "grown"
    done = run(tmp_path, sys.executable, ROOT / "scripts/fixtures/make_bench_model.py", folder, "--dim",
               64, "--layers", 1, "--heads", 2, "--kv-heads", 1, "--ffn", 64, "--vocab", 20000,
               "--config-only", "--large-tokenizer")
    assert done.returncode == 0, done.stderr
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    assert sorted([*vocab.values(), *(token["id"] for token in tokenizer["added_tokens"])]) == \
        list(range(20000))
    assert all(left + right in vocab for left, right in tokenizer["model"]["merges"])
    with Server(tmp_path, "--load-format", "dummy", model=folder) as grown:
        answer = grown.post("/v1/completions", {
            "prompt": "a", "max_tokens": 64, "seed": 1, "return_token_ids": True}).json()["choices"][0]
    assert len({id for id in answer["token_ids"] if 8192 <= id < 20000}) > 10


@pytest.mark.parametrize("shape", ["30b-a3b", "20b-a4b", "27b-hybrid"])
def test_a_model_to_measure_has_as_many_layers_as_it_is_asked(tmp_path, shape):
    folder = tmp_path / shape
    done = run(tmp_path, sys.executable, ROOT / "scripts/fixtures/make_bench_model.py", folder, "--shape",
               shape, "--layers", 4, "--vocab", 8192, "--config-only")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, BINARY, "info", folder, "--load-format", "dummy")
    assert done.returncode == 0 and ", 4 layers of width " in done.stdout, done.stderr


def test_what_weights_of_fewer_bits_cost_is_measured(tmp_path, tiny_model):
    """More bits are nearer to the model, and the model itself is where it is."""
    done = run(tmp_path, sys.executable, ROOT / "scripts/quality/weights.py", tiny_model, "--quire", BINARY,
               "--to", "int8,q4_0", "--quick", "--out", tmp_path / "out", "--serve",
               f"--device {DEVICE} --kv-cache-memory 64M")
    assert done.returncode == 0, done.stderr
    rows = {row["weights"]: row for row in csv.DictReader(done.stdout.splitlines())}
    assert float(rows["bf16"]["divergence_999"]) == 0 and float(rows["bf16"]["same"]) == 1
    nats = [float(rows[name]["divergence"]) for name in ("bf16", "int8", "q4_0")]
    assert nats == sorted(nats) and nats[2] > 4 * nats[1], rows
    assert 0.003 < float(rows["int8"]["error"]) < 0.01 and all(row["tokens"] == "384" for row in rows.values())


def test_a_fleet_is_simulated(tmp_path):
    """One replica is the same under every rule; of eight, quire's rule brings most requests in time."""
    done = run(tmp_path, sys.executable, ROOT / "scripts/load/fleet.py", "--replicas", 1, 8, "--seconds", 200)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    rules = {n: {row["rule"]: row for row in rows if row.get("rule") and row["replicas"] == n} for n in (1, 8)}
    assert len(rules[1]) == 6
    assert len({(row["hit_rate"], row["goodput_per_s_each"]) for row in rules[1].values()}) == 1
    goodput = {rule: row["goodput_per_s_each"] for rule, row in rules[8].items()}
    assert max(goodput, key=goodput.get) == "wait" and goodput["prefix"] < goodput["random"]
    assert rules[8]["hash"]["hit_rate"] > 2 * rules[8]["random"]["hit_rate"]


def test_a_fleet_replays_a_trace(tmp_path):
    """The second request finds the two whole blocks that it shares, in whatever replica they are."""
    lines = [{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
             {"timestamp": 9000, "input_length": 1536, "output_length": 5, "hash_ids": [1, 2, 4]}]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    done = run(tmp_path, sys.executable, ROOT / "scripts/load/fleet.py", "--replicas", 3, "--trace", path,
               "--rules", "wait", "--warm", 0)
    assert done.returncode == 0, done.stderr
    total, row = map(json.loads, done.stdout.splitlines())
    assert row["hit_rate"] == total["unbounded_hit_rate"] == round(1024 / 2636, 4)


def build_with(tmp_path, tools, **stubs):
    """Runs scripts/build in a tree of its own, on a system that has these tools and no others.  A stub is the text
    of a tool's script."""
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "cat", "dirname", "env", "grep", "id", "sed", *tools):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    for tool, text in stubs.items():
        path = tmp_path / "bin" / tool.replace("_", "-")
        path.unlink(missing_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)
    for file in ("scripts/build", "scripts/ci/common.sh"):
        (tmp_path / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / "tree" / file)
    done = subprocess.run([tmp_path / "tree/scripts/build", "--program"], env={"PATH": str(tmp_path / "bin")},
                          capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_build_names_the_tool_that_is_not_there(tmp_path):
    last = build_with(tmp_path, [], cc="true", pkg_config="true", ninja="true")
    assert last.startswith("build: python3 is not there: a build needs")


def test_a_build_by_an_old_meson_says_how_to_get_a_newer_one(tmp_path):
    last = build_with(tmp_path, [], cc="true", pkg_config="true", python3="true", ninja="true", meson="echo 0.56.2")
    assert last.startswith("build: meson 0.56.2 is too old") and "pip install meson" in last


def test_packages_that_only_root_can_install_are_named_to_others(tmp_path):
    last = build_with(tmp_path, [], id="echo 1000", dpkg_query="exit 1")
    assert "Let root run this" in last and "apt-get install --no-install-recommends build-essential" in last


def test_packages_that_do_not_come_are_an_error_in_words(tmp_path):
    last = build_with(tmp_path, [], id="echo 0", dpkg_query="exit 1", apt_get="exit 100")
    assert last.startswith("build: apt-get could not install what is missing")
