"""`quire quantize`: what it writes is worth what the layout of compressed-tensors says, near to what
the model was, and is served."""
import json
import os
import re
import subprocess
import sys

import numpy
import pytest

import gguf_file
from server import BINARY, DEVICE_SETTINGS, MODEL, PATIENCE, ROOT, WRAPPER
from test_families import DATA, link_checkpoint, link_for_gguf
from test_info import info

sys.path.insert(0, str(ROOT / "scripts/fixtures"))
import checkpoint  # noqa: E402
import quantised  # noqa: E402  what codes are worth

# Relative errors of rounding what is normally distributed; FP8's is that of 3 bits of mantissa.
FORMATS = {"fp8": (0.02, 0.03), "int8": (0.004, 0.01), "int4": (0.08, 0.13)}
ELEMENTS = {"F32": "<f4", "I32": "<i4", "I64": "<i8", "F8_E4M3": "u1", "BF16": "<u2", "F16": "<f2"}


def run(*arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    return subprocess.run([*WRAPPER, BINARY, "quantize", *map(str, arguments)], text=True,
                          capture_output=True, env={**clean, **DEVICE_SETTINGS}, check=False,
                          timeout=120 * PATIENCE)


def tensors_of(directory):
    raw = (directory / "model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    out = {}
    for name, each in header.items():
        begin, end = (8 + n + at for at in each["data_offsets"])
        values = numpy.frombuffer(raw[begin:end], ELEMENTS[each["dtype"]]).reshape(each["shape"])
        if each["dtype"] == "BF16":
            values = (values.astype(numpy.uint32) << 16).view(numpy.float32)
        out[name] = values
    return out


def worth(tensors, module, kind):
    """The matrix that a module's tensors stand for, by the definition of the layout."""
    scales = tensors[module + ".weight_scale"]
    if kind == "fp8":
        return quantised.e4m3_values()[tensors[module + ".weight"]] * scales
    bits = int(kind[3:])
    words = tensors[module + ".weight_packed"].view(numpy.uint32)
    codes = (words[..., None] >> (numpy.arange(32 // bits, dtype=numpy.uint32) * bits)) & (2 ** bits - 1)
    rows, cols = tensors[module + ".weight_shape"]
    values = codes.reshape(rows, cols).astype(numpy.float32) - 2 ** (bits - 1)
    return values * numpy.repeat(scales, cols // scales.shape[1], axis=1)


@pytest.mark.parametrize("kind, arguments, group", [
    ("fp8", (), None), ("int8", (), None), ("int4", (), 128), ("int4", ("--group-size", 32), 32)])
def test_what_is_written_is_near_the_model_and_served(serve, tiny_model, tmp_path, kind, arguments,
                                                      group):
    out = tmp_path / "out"
    done = run(tiny_model, "--to", kind, "--out", out, *arguments)
    assert done.returncode == 0 and not done.stderr, done.stderr
    plain, written = tensors_of(tiny_model), tensors_of(out)
    error = values = 0
    for name, matrix in plain.items():
        if not re.search(r"layers\..*_proj\.weight", name):
            assert numpy.array_equal(written[name], matrix), name
            continue
        module = name.removesuffix(".weight")
        scales = written[module + ".weight_scale"]
        assert scales.shape == (matrix.shape[0], matrix.shape[1] // group if group else 1)
        error += ((worth(written, module, kind) - matrix).astype(float) ** 2).sum()
        values += (matrix.astype(float) ** 2).sum()
    said = float(re.search(r"all  ([\d.]+)", done.stdout)[1])
    least, most = FORMATS[kind]
    assert said == pytest.approx((error / values) ** 0.5, abs=1e-5) and least < said < most
    assert len(re.findall(r"model\.layers\.\d+\.\S+_proj\.weight", done.stdout)) == 1

    config = json.loads((out / "config.json").read_text())
    how = config.pop("quantization_config")
    assert config == json.loads((tiny_model / "config.json").read_text())
    assert how["quant_method"] == "compressed-tensors" and how["ignore"] == ["lm_head"]
    assert info(out)["weights"]["quant_method"] == "compressed-tensors"
    for path in tiny_model.glob("*.json"):
        assert path.name == "config.json" or (out / path.name).read_bytes() == path.read_bytes()

    prompt = list(range(100, 180))
    answers = [serve(model=model).complete(prompt, max_tokens=0, echo=True, logprobs=0)["choices"][0]
               ["logprobs"]["token_logprobs"][1:] for model in (tiny_model, out)]
    assert numpy.abs(numpy.subtract(*answers)).mean() < 3 * most


def test_a_nan_is_refused_by_name(tmp_path, tiny_model):
    model = tmp_path / "model"
    model.mkdir()
    for path in tiny_model.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    raw = bytearray((model / "model.safetensors").read_bytes())
    n = int.from_bytes(raw[:8], "little")
    name = "model.layers.0.self_attn.o_proj.weight"
    at = 8 + n + json.loads(raw[8:8 + n])[name]["data_offsets"][0]
    raw[at:at + 2] = b"\xc0\x7f"
    (model / "model.safetensors").write_bytes(raw)
    done = run(model, "--to", "fp8", "--out", tmp_path / "out")
    assert done.returncode == 1 and name in done.stderr and "NaN" in done.stderr, done.stderr
    assert not (tmp_path / "out/config.json").exists()


def test_what_cannot_be_written_is_refused(tmp_path, tiny_model):
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").write_text("a")
    done = run(tiny_model, "--to", "fp8", "--out", full)
    assert done.returncode == 1 and "is not empty" in done.stderr, done.stderr
    quantised_one = quantised.write_both(tmp_path, "ct-fp8-channel")[0]
    done = run(quantised_one, "--to", "int4", "--out", tmp_path / "twice")
    assert done.returncode == 1 and "quantised already" in done.stderr, done.stderr
    assert not (tmp_path / "twice").exists()


@pytest.mark.parametrize("arguments, why", [
    (("--to", "int3", "--out", "x"), "'int3'"), (("--to", "fp8"), "--out"), (("--out", "x"), "--to"),
    (("--to", "int4", "--out", "x", "--group-size", "48"), "--group-size")])
def test_flags_are_checked(arguments, why):
    done = run(*arguments)
    assert done.returncode == 2 and why in done.stderr, done.stderr


def test_the_help_names_the_formats():
    done = run("--help")
    assert done.returncode == 0 and "fp8, int8 or int4: a folder" in done.stdout and "a GGUF file" in done.stdout


# Relative errors of rounding what is normally distributed to types of GGUF, and the tensors that have them.
PACKED = {"q8_0": (0.004, 0.008), "q5_0": (0.03, 0.05), "q4_0": (0.06, 0.1), "q4_k": (0.02, 0.09)}
CLOSE = 0.02  # nats, in the mean: codes that are rounded the other way, and what kernels make of that
# Families, heads and rotary scalings, of the tiny models that have goldens.
CHECKPOINTS = ["mha-f32", "gqa-bf16-llama3-tied", "mqa-f16-linear-bias", "qwen2-gqa-bf16-head128-yarn",
               "mistral-mha-bf16-window", "qwen2-gqa-bf16-head64-tied", "qwen3-gqa-bf16-head64-bias",
               "gemma2-gqa-bf16-head64", "gemma3-gqa-bf16-head64", "phi3-mha-bf16-head96",
               "phi3-mqa-f16-longrope-short", "glm-gqa-bf16-head64", "glm4-gqa-bf16-head128",
               "granite-gqa-bf16-head16", "olmo3-gqa-f16-head16-yarn", "cohere2-gqa-f16-head32-window"]


def log_probabilities(server, prompt):
    choice = server.complete(prompt, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    return choice["logprobs"]["token_logprobs"][1:]


@pytest.mark.parametrize("kind", PACKED)
def test_a_gguf_file_is_near_the_model_and_has_its_tokens(serve, tiny_model, tmp_path, kind):
    out = tmp_path / "out.gguf"
    done = run(tiny_model, "--to", kind, "--out", out)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    least, most = PACKED[kind]
    assert least < float(re.search(r"all  ([\d.]+)", done.stdout)[1]) < most
    formats = info(out)["weights"]["formats"]
    assert any(one["format"] == kind.upper() for one in formats) or kind == "q4_k", formats
    plain, packed = (serve(model=model) for model in (tiny_model, out))
    for text in ("", " two  spaces", "It's 1234567, isn't it?", "caf\u00e9 \U0001f600\n\n\tx",
                 "<|begin_of_text|>a<|end_of_text|>", (MODEL / "MODEL_CARD.md").read_text()[:2000]):
        body = {"prompt": text}
        assert packed.post("/tokenize", body).json() == plain.post("/tokenize", body).json(), text
    prompt = list(range(100, 180))
    apart = numpy.subtract(log_probabilities(plain, prompt), log_probabilities(packed, prompt))
    assert numpy.abs(apart).mean() < 3 * most


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_gguf_file_of_each_architecture_is_that_of_a_plain_writer(serve, tmp_path, name):
    """The tests' own writer of GGUF rounds to Q8_0, too."""
    model = link_for_gguf(tmp_path / "model", name)
    done = run(model, "--to", "q8_0", "--out", tmp_path / "m.gguf")
    assert done.returncode == 0, done.stderr
    goldens = json.loads((DATA / name / "goldens.json").read_text())["prompts"]
    plain = gguf_file.write_gguf(model, tmp_path / "plain.gguf", kind="Q8_0")
    plain, packed = (serve("--kv-cache-memory", "64M", model=one) for one in (plain, tmp_path / "m.gguf"))
    for golden in goldens:
        apart = numpy.abs(numpy.subtract(log_probabilities(plain, golden["tokens"]),
                                         log_probabilities(packed, golden["tokens"])))
        assert apart.mean() < CLOSE, apart


def test_gguf_py_reads_what_is_written(tmp_path, tiny_model):
    """Where gguf-py is installed: its dequantised tensors are near the model's."""
    gguf = pytest.importorskip("gguf")
    out = tmp_path / "out.gguf"
    assert run(tiny_model, "--to", "q4_k", "--out", out).returncode == 0
    read = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in gguf.GGUFReader(out).tensors}
    plain = checkpoint.read_tensors(tiny_model)
    for name, leaf in (("blk.0.ffn_down", "layers.0.mlp.down_proj"), ("token_embd", "embed_tokens"),
                       ("blk.1.attn_v", "layers.1.self_attn.v_proj")):
        matrix = plain[f"model.{leaf}.weight"]
        apart = read[name + ".weight"].reshape(matrix.shape) - matrix
        assert (apart ** 2).sum() < 0.01 * (matrix ** 2).sum(), name


def test_what_gguf_cannot_say_is_refused(tmp_path, tiny_model):
    model = tmp_path / "model"
    model.mkdir()
    for path in tiny_model.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "rope_scaling": {
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "truncate": False}}))
    done = run(model, "--to", "q8_0", "--out", tmp_path / "a.gguf")
    assert done.returncode == 1 and "rotary frequencies of this model" in done.stderr, done.stderr
    done = run(link_checkpoint(tmp_path / "neox", "neox-mha-bf16-head32"), "--to", "q8_0", "--out",
               tmp_path / "b.gguf")
    assert done.returncode == 1 and "GPTNeoXForCausalLM has no architecture in GGUF" in done.stderr, done.stderr
    (tmp_path / "c.gguf").touch()
    done = run(tiny_model, "--to", "q8_0", "--out", tmp_path / "c.gguf")
    assert done.returncode == 1 and "c.gguf exists" in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.gguf*")) == ["c.gguf"]  # nothing is left
