"""`quire info`: what it says of a model is what the server says that loads it."""
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import gguf_file
from server import BINARY, DEVICE_SETTINGS, MODEL, PATIENCE, ROOT, WRAPPER

sys.path.insert(0, str(ROOT / "scripts/fixtures"))
import quantised  # noqa: E402  writes checkpoints

MIB = 1 << 20


def run(model, *arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    return subprocess.run([*WRAPPER, BINARY, "info", str(model), *arguments], text=True,
                          capture_output=True, env={**clean, **DEVICE_SETTINGS}, check=False,
                          timeout=60 * PATIENCE)


def info(model, *arguments):
    done = run(*arguments, "--json", model)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines_of(model, *arguments):
    done = run(model, *arguments)
    assert done.returncode == 0, done.stderr
    return {line[:15].strip(): line[15:] for line in done.stdout.splitlines()}


def model_of(kind, tmp_path, tiny_model):
    if kind == "default":
        return MODEL
    if kind == "gguf":
        folder = tmp_path / "with-template"
        shutil.copytree(tiny_model, folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
        return gguf_file.write_gguf(folder, tmp_path / "m.gguf", kind="Q8_0")
    return quantised.write_both(tmp_path, kind)[0]


@pytest.mark.parametrize("kind", ["default", "gguf", "ct-fp8-channel"])
def test_it_says_what_the_server_does(serve, tmp_path, tiny_model, kind):
    model = model_of(kind, tmp_path, tiny_model)
    server, said, lines = serve(model=model), info(model), lines_of(model)
    logged, weights, kv = server.log, said["weights"], said["kv_cache"]
    assert float(re.search(r"weights ([\d.]+) MiB, KV pool", logged)[1]) == \
        pytest.approx(weights["memory_bytes"] / MIB, abs=0.06)
    pool, n_tokens = re.search(r"KV pool ([\d.]+) MiB \((\d+) tokens", logged).groups()
    assert float(pool) * MIB / int(n_tokens) == pytest.approx(kv["token_bytes"], rel=0.01)
    ends = re.search(r"end tokens? (.*?); begin token (.*?); sampling.*; chat template: (.*)", logged)
    assert ends.groups() == (lines["end tokens"], lines["begin token"], lines["chat template"])
    if kind == "gguf":
        assert ends[3] == str(model)
    assert [int(n) for n in re.findall(r"(\d+) \"", ends[1])] == said["end_tokens"]
    if quantised_line := re.search(r"quantised weights: (.*)", logged):
        packed = [part for part in lines["weights"].split("; ") if not re.match(r"(BF16|F32|F16) in", part)]
        assert quantised_line[1].split(" in ")[0] == packed[0].split(" in ")[0]
        assert quantised_line[1].split(" of ")[-1] == lines["weights"].split(" of ")[-1]
    else:
        assert kind == "default"
    packed = sum(each["bytes"] for each in weights["packed_in_memory"])
    assert (weights["unpacked_bytes"] + weights["repacked_bytes"] + packed > 0) == (kind != "default")


def test_the_parameters_and_sizes_are_those_of_the_files(tmp_path):
    said = info(MODEL)
    with open(MODEL / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    sizes = [each["data_offsets"][1] - each["data_offsets"][0] for each in header.values()]
    assert said["weights"]["file_bytes"] == sum(sizes) == sum(
        each["bytes"] for each in said["weights"]["formats"])
    assert said["weights"]["parameters"] == sum(
        size // (4 if each["dtype"] == "F32" else 2)
        for size, each in zip(sizes, header.values(), strict=True))
    assert said["weights"]["quant_method"] is None
    config = json.loads((MODEL / "config.json").read_text())
    assert said["context"] == said["trained_context"] == config["max_position_embeddings"]
    assert said["chat_template"].endswith("chat_template.jinja")


def test_settings_of_the_server_count():
    whole, short = info(MODEL), info(MODEL, "--max-model-len", "4096", "--kv-cache-dtype", "fp8")
    assert short["context"] == 4096 and short["kv_cache"]["dtype"] == "fp8"
    assert short["kv_cache"]["token_bytes"] < whole["kv_cache"]["token_bytes"] / 2
    assert short["kv_cache"]["context_bytes"] == 4096 * short["kv_cache"]["token_bytes"]


@pytest.mark.parametrize("arguments, why", [
    (("--max-model-len", "900000000"), "--max-model-len"), (("--jsn",), "--jsn")])
def test_what_is_wrong_is_named(arguments, why):
    done = run(MODEL, *arguments)
    assert done.returncode != 0 and why in done.stderr and not done.stdout, done.stderr


def test_a_file_that_is_no_model_is_refused_as_by_the_server(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1 and "config.json" in done.stderr, done.stderr


def test_the_help_names_the_flag():
    done = run("--help")
    assert done.returncode == 0 and "--json" in done.stdout
