"""Files of a model directory, and files that settings name, that are not what they should be."""
import json
import os
import re
import shutil
import socket
import struct
import subprocess

import pytest

from raw import RawConnection
from server import BINARY, DEVICE, DEVICE_SETTINGS, MODEL, PATIENCE, ROOT, WRAPPER, Server

# A GPU has its own copy of the weights.
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="weights lie in their files")

NAMES = ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors",
         "model.safetensors.index.json"]
# What may be read beside them: the setting that names it.
SETTINGS = ["--config", "--pattern-file", "--filters-file"]


def make_fifo(path):
    os.mkfifo(path)


def make_directory(path):
    path.mkdir()


def make_socket(path):
    here = os.open(path.parent, os.O_RDONLY)  # a socket's own path may be no longer than 107 bytes
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def make_device_link(path):
    path.symlink_to("/dev/zero")


KINDS = [make_fifo, make_directory, make_socket, make_device_link]


def start(*arguments):
    """Runs a server that is to refuse at once."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.run([*WRAPPER, BINARY, "serve", "--port", "0", *map(str, arguments)],
                          env={**clean, **DEVICE_SETTINGS}, capture_output=True, text=True,
                          timeout=20 * PATIENCE, check=False)


def copy_model(model, directory):
    for path in model.iterdir():
        if path.is_file():
            shutil.copy(path, directory / path.name)
    return directory


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_file_that_is_not_regular_is_refused_by_name(tmp_path, tiny_model, name, kind):
    copy_model(tiny_model, tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if name == "model.safetensors.index.json":
        (tmp_path / "model.safetensors").unlink()
    kind(tmp_path / name)
    result = start(tmp_path)
    assert result.returncode == 1, result.stderr
    assert f"{name}: not a regular file" in result.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_settings_file_that_is_not_regular_is_refused_by_name(tmp_path, setting, kind):
    kind(tmp_path / "named")
    result = start(MODEL, setting, tmp_path / "named")
    assert result.returncode in (1, 2), result.stderr
    assert "named: not a regular file" in result.stderr


# ---- what people name as a model ----

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"


def change_config(directory, **members):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def make_other(directory, model, kind):
    """A folder with something else than a model, or a file; returns what is named."""
    files = {"empty": {}, "gguf": {"m.Q4_K_M.gguf": "GGUF"}, "a gguf file": {"m.gguf": "GGUF\3"},
             "adapter": {"adapter_config.json": "{}"}, "pipeline": {"model_index.json": "{}"},
             "meta": {"params.json": "{}", "consolidated.00.pth": "x"},
             "mistral": {"params.json": "{}", "consolidated.safetensors": "x"},
             "weights alone": {"model.safetensors": "x"}, "onnx": {"model.ONNX": "x"},
             "a pointer file": {"x.safetensors": LFS}, "a text": {"notes.txt": "x"}}
    if kind in files:
        for name, text in files[kind].items():
            (directory / name).write_text(text)
        return directory / name if kind.startswith("a ") else directory
    copy_model(model, directory)
    if kind == "weights file":
        return directory / "model.safetensors"
    if kind == "config file":
        return directory / "config.json"
    if kind in ("config.json", "tokenizer.json", "model.safetensors"):
        (directory / kind).write_text(LFS)
    if kind in ("pickles", "both"):
        (directory / "model.safetensors").unlink()
        (directory / ("pytorch_model.bin" if kind == "pickles" else "m.gguf")).write_text("x")
    if kind == "hf_quant_config.json":
        (directory / kind).write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    for method in ("bitsandbytes", "hqq", "exl3", "torchao"):
        if kind == method:
            change_config(directory, quantization_config={"quant_method": method, "bits": 4})
    if kind == "old bitsandbytes":
        change_config(directory, quantization_config={"load_in_4bit": True})
    if kind == "mlx":
        change_config(directory, quantization={"group_size": 64, "bits": 4})
    if kind == "architecture":
        change_config(directory, architectures=["RwkvForCausalLM"], model_type="rwkv")
    return directory


@pytest.mark.parametrize("kind, words", [
    ("empty", "has no config.json: a model is a folder with config.json, tokenizer.json"),
    ("gguf", "m.Q4_K_M.gguf: the file ends inside its header: it is cut short"),
    ("a gguf file", "m.gguf: the file ends inside its header: it is cut short"),
    ("both", "m.gguf does not begin as a GGUF file does"), ("adapter", "an adapter, and not a model"),
    ("pipeline", "a pipeline of several models"), ("meta", "weights in Meta's own layout"),
    ("mistral", "weights in Mistral's own layout"), ("onnx", "a graph in ONNX"),
    ("weights alone", "weights without their config.json"),
    ("a pointer file", "x.safetensors is a Git LFS pointer"),
    ("config.json", "config.json is a Git LFS pointer"),
    ("tokenizer.json", "tokenizer.json is a Git LFS pointer"),
    ("model.safetensors", "model.safetensors is a Git LFS pointer"),
    ("pickles", "has pytorch_model.bin, pickled weights"), ("a text", "notes.txt is a file: a model is"),
    ("weights file", "model.safetensors is a file: name its folder"),
    ("config file", "config.json is a file: name its folder"),
    ("bitsandbytes", "quantised (bitsandbytes)"), ("old bitsandbytes", "quantised (bitsandbytes)"),
    ("mlx", "quantised (mlx)"), ("hqq", "quantised (hqq)"), ("exl3", "quantised (exl3)"),
    ("torchao", "quantised (torchao), which is not supported: read are FP8"),
    ("hf_quant_config.json", "weights quantised as 'NVFP4' are not supported"),
    ("architecture", "architecture 'RwkvForCausalLM' is not supported; the nearest is Qwen2ForCausalLM; ")])
def test_what_is_no_model_is_named(tmp_path, tiny_model, kind, words):
    result = start(make_other(tmp_path, tiny_model, kind))
    assert result.returncode == 1 and words in result.stderr, result.stderr
    assert "Traceback" not in result.stderr and result.stderr.count(" error ") == 1


def test_the_architectures_that_are_served_are_all_named(tmp_path, tiny_model):
    known = re.findall(r'\.architecture = "(\w+)"', (ROOT / "engine/model/family.c").read_text())
    said = start(make_other(tmp_path, tiny_model, "architecture")).stderr
    stems = [re.sub("(ForCausalLM|Model)$", "", name) for name in known]
    assert len(stems) > 10 and all(re.search(rf"\b{stem}\b", said) for stem in stems), said


@pytest.mark.parametrize("name, words", [
    ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B is not in the hub's cache"),
    ("https://huggingface.co/owner/name", "owner/name is not in the hub's cache"),
    ("hf.co/owner/name/tree/v1/", "owner/name is not in the hub's cache"),
    ("hf:owner/name:Q4_K_M@v1", "owner/name is not in the hub's cache"),
    ("hf:owner", "does not name a model of the hub: hf:OWNER/NAME does"),
    ("hf.co/owner/name/blob/main/x", "is not the page of a model"),
    ("owner/name@../x", "cannot be a revision"), ("owner/name:..", "cannot be the format"),
    ("https://example.com/m.gguf", "is an address of no model"),
    ("gpt2", "there is no such folder"), ("./owner/name", "there is no such folder"),
    ("/none/name", "there is no such folder"), ("owner/name/more", "there is no such folder"),
    ("../name", "there is no such folder"), ("name:7b", "there is no such folder")])
def test_a_name_that_is_no_folder_says_what_it_could_be(name, words, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    result = start(name, "--offline")
    assert result.returncode == 1 and words in result.stderr, result.stderr


def test_a_port_in_use_and_a_host_of_another_machine_are_said(serve, tiny_model):
    server = serve(model=tiny_model)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}

    def said(*arguments):
        return subprocess.run([*WRAPPER, BINARY, "serve", tiny_model, *arguments], check=False,
                              env={**clean, **DEVICE_SETTINGS}, capture_output=True, text=True,
                              timeout=20 * PATIENCE).stderr
    assert f"port {server.port} of 127.0.0.1 is in use by another program" in said(
        "--port", str(server.port))
    assert "is no address of this machine" in said("--port", "0", "--host", "192.0.2.7")
    assert "without a port" in said("--port", "0", "--host", "localhost:8000")
    assert "without a port" in said("--port", "0", "--host", "http://localhost")


def test_an_address_in_brackets_is_that_address(tmp_path, tiny_model):
    with socket.socket(socket.AF_INET6) as one:
        try:
            one.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    with Server(tmp_path, "--host", "[::1]", model=tiny_model, wait=False) as server:
        server.wait_logged("ready: listening on http://[::1]:")


def change_tokenizer(directory, **parts):
    path = directory / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))


def test_a_text_that_the_tokenizer_lengthens_without_end_is_refused(serve, tmp_path, tiny_model):
    """32 doublings make four billion letters of one; other texts are served as ever."""
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    copy_model(tiny_model, tmp_path)
    change_tokenizer(tmp_path, normalizer={"type": "Sequence", "normalizers": [double] * 32})
    server = serve(model=tmp_path)
    for route in ("/tokenize", "/v1/completions"):
        reply = server.post(route, {"prompt": "a"}, timeout=20)
        assert reply.status == 400, reply.body
        assert "make this text too long" in reply.error["message"]
        assert server.post(route, {"prompt": "b"}).status == 200


def test_a_pattern_that_repeats_too_much_is_refused_by_name(tmp_path, tiny_model):
    copy_model(tiny_model, tmp_path)
    change_tokenizer(tmp_path, pre_tokenizer={
        "type": "Split", "pattern": {"Regex": "(a{1000}){1000}"}, "behavior": "Isolated",
        "invert": False})
    result = start(tmp_path)
    assert result.returncode == 1, result.stderr
    assert "pattern '(a{1000}){1000}'" in result.stderr


def truncate(path, keep):
    os.truncate(path, int(path.stat().st_size * keep))


def wait_failed(server, why):
    """The server says why it ends, and ends as one that failed."""
    assert server.process.wait(30 * PATIENCE) == 1, server.log
    assert why in server.log


CUT_SHORT = "the model's file 'model.safetensors' was cut short"


@cpu_only
def test_weights_cut_short_under_a_server_end_it_with_a_sentence(tmp_path, tiny_model):
    """Its clients get an error each; streaming ones an event behind what was generated."""
    copy_model(tiny_model, tmp_path)
    server = Server(tmp_path, model=tmp_path)
    with RawConnection(server) as connection:
        connection.send_completion(prompt="a", stream=True, max_tokens=100000, temperature=0,
                                   ignore_eos=True, kv_policy={"type": "streaming", "recent": 64})
        connection.read_head()
        body = connection.read_chunk()
        truncate(tmp_path / "model.safetensors", 0.5)
        while chunk := connection.read_chunk():
            body += chunk
    error = json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]
    assert CUT_SHORT in error["message"]
    wait_failed(server, CUT_SHORT)


@cpu_only
def test_weights_cut_short_under_an_idle_server_fail_the_next_request(tmp_path, tiny_model):
    copy_model(tiny_model, tmp_path)
    server = Server(tmp_path, model=tmp_path)
    server.complete("a", max_tokens=2)
    truncate(tmp_path / "model.safetensors", 0)
    reply = server.post("/v1/completions", {"prompt": "b", "max_tokens": 2})
    assert reply.status == 503, reply.body
    assert CUT_SHORT in reply.error["message"] and str(tmp_path) not in reply.error["message"]
    wait_failed(server, CUT_SHORT)


def change_config(directory, **members):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def add_head(directory, change):
    """Adds lm_head.weight: the embedding's bytes, changed."""
    path = directory / "model.safetensors"
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    embedding = header["model.embed_tokens.weight"]
    head = change(body[slice(*embedding["data_offsets"])])
    header["lm_head.weight"] = {**embedding, "data_offsets": [len(body), len(body) + len(head)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body + head)


def scores(serve, model):
    """The log-probabilities of a text, and what the log says of where they come from."""
    server = serve(model=model)
    answer = server.complete([65, 66, 67, 68], max_tokens=4, logprobs=5, ignore_eos=True)
    line = next(line for line in server.log.splitlines() if "logits come from" in line)
    return answer["choices"][0]["logprobs"]["top_logprobs"], line


def test_a_head_in_the_file_is_used_though_the_config_ties_it(serve, tmp_path, tiny_model):
    """As transformers 5 does: both are there, with different values, so they are not tied."""
    copy_model(tiny_model, tmp_path)
    add_head(tmp_path, lambda embedding: embedding[256:] + embedding[:256])  # other rows
    said_tied, tied_line = scores(serve, tmp_path)
    change_config(tmp_path, tie_word_embeddings=False)
    said_own, own_line = scores(serve, tmp_path)
    assert said_tied == said_own != scores(serve, tiny_model)[0]
    assert tied_line.endswith("although 'tie_word_embeddings' is true")
    assert own_line.endswith("logits come from lm_head.weight")


def test_a_head_that_repeats_the_embedding_is_tied(serve, tmp_path, tiny_model):
    copy_model(tiny_model, tmp_path)
    add_head(tmp_path, lambda embedding: embedding)
    repeated, line = scores(serve, tmp_path)
    tied, tied_line = scores(serve, tiny_model)
    assert repeated == tied
    assert line.endswith("tied: the file's lm_head.weight is the same")
    assert tied_line.endswith("logits come from the embedding, tied")


@pytest.mark.parametrize("members,named", [
    ({"is_causal": False}, "'is_causal' is false"),
    ({"model_type": "qwen2"}, "'model_type' 'qwen2' is Qwen2ForCausalLM's"),
])
def test_a_config_that_asks_for_other_arithmetic_is_refused_by_name(tmp_path, tiny_model, members,
                                                                    named):
    copy_model(tiny_model, tmp_path)
    change_config(tmp_path, **members)
    result = start(tmp_path)
    assert result.returncode == 1, result.stderr
    assert named in result.stderr
