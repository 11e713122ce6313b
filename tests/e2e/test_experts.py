"""Mixtures of experts on a real process: files of each layout answer alike, whatever the experts'
numbers are; `quire quantize` rounds experts and keeps routers; what cannot be read or written is
refused by name.  That the answers are right test_families.py and tests/model/test_decoder.c say."""
import json
import re

import numpy
import pytest

import gguf_file
from server import DEVICE
from test_families import DATA, link_checkpoint
from test_gguf import answers, check_equal, prompts_of
from test_quantize import checkpoint, quantised, run, tensors_of, worth

NAME = "qwen3moe-mqa-f16-head32-shares"


def rewritten(directory, tensors, **changes):
    """The checkpoint with other tensors, as F32, and changes of config.json."""
    link_checkpoint(directory, NAME)
    config = json.loads((directory / "config.json").read_text())
    for name in ("config.json", "model.safetensors"):
        (directory / name).unlink()
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    quantised.write_tensors(directory / "model.safetensors",
                            {name: ("F32", values) for name, values in tensors.items()})
    return directory


def fused(tensors):
    """One tensor for all gates and ups of a layer, one for all downs."""
    out = {name: values for name, values in tensors.items() if ".experts." not in name}
    for name, values in gguf_file.stack_experts(tensors).items():
        if name.endswith("gate_exps.weight"):
            layer = name.removesuffix("gate_exps.weight") + "experts."
            up, down = (gguf_file.stack_experts(tensors)[name.replace("gate_", part)]
                        for part in ("up_", "down_"))
            out |= {layer + "gate_up_proj": numpy.concatenate([values, up], 1),
                    layer + "down_proj": down}
    return out


def renumbered(tensors, order):
    """Expert i becomes number order[i]."""
    def name_of(name):
        return re.sub(r"(?<=experts\.)[0-9]+", lambda found: str(order[int(found[0])]), name)

    return {name_of(name): values[numpy.argsort(order)] if name.endswith("mlp.gate.weight")
            else values for name, values in tensors.items()}


def test_files_of_each_layout_answer_alike(serve, tmp_path):
    """GGUF has no key for shares that are not divided by their sum."""
    tensors, prompts = checkpoint.read_tensors(DATA / NAME), prompts_of(NAME)[:2]
    plain = rewritten(tmp_path / "plain", tensors, norm_topk_prob=True)
    expected = answers(serve, plain, prompts)
    others = {"fused": rewritten(tmp_path / "fused", fused(tensors), norm_topk_prob=True),
              "gguf": gguf_file.write_gguf(plain, tmp_path / "m.gguf", kind="F32"),
              "renumbered": rewritten(tmp_path / "other", renumbered(tensors, [3, 0, 4, 1, 2]),
                                      norm_topk_prob=True)}
    for name, model in others.items():
        check_equal(answers(serve, model, prompts), expected, 1e-4 if name == "renumbered" else 0)


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_experts_are_rounded_and_routers_are_not(serve, tmp_path, kind):
    """What is served is what the written codes are worth, in float16."""
    model, out = link_checkpoint(tmp_path / "model", NAME), tmp_path / "out"
    done = run(model, "--to", kind, "--out", out)
    assert done.returncode == 0, done.stderr
    written, exact = tensors_of(out), checkpoint.read_tensors(model)
    plain = {}
    for name, values in exact.items():
        module = name.removesuffix(".weight")
        is_rounded = module + ".weight_scale" in written
        assert is_rounded == (values.ndim == 2 and ".layers." in name
                              and not name.endswith("mlp.gate.weight")), name
        plain[name] = worth(written, module, kind) if is_rounded else values
    assert sum(".experts." in name and name.endswith("_scale") for name in written) == 2 * 5 * 3
    twin = rewritten(tmp_path / "twin", plain)
    prompts = prompts_of(NAME)[:1]
    found, expected = (
        [serve("--kv-cache-memory", "64M", "--dtype", "float32", model=each)
         .complete(prompts[0], max_tokens=1, logprobs=4, echo=True, temperature=0)["choices"][0]
         ["logprobs"]["token_logprobs"][1:]] for each in (out, twin))
    near = 0.02 if DEVICE == "cpu" else 0.1  # a GPU has the twin's weights in bf16
    assert numpy.abs(numpy.array(found) - numpy.array(expected)).max() < near


def test_what_cannot_be_written_is_refused(tmp_path):
    model = link_checkpoint(tmp_path / "model", NAME)
    done = run(model, "--to", "q8_0", "--out", tmp_path / "m.gguf")
    assert done.returncode != 0 and "mixture of experts" in done.stderr
    whole = rewritten(tmp_path / "fused", fused(checkpoint.read_tensors(DATA / NAME)))
    done = run(whole, "--to", "int8", "--out", tmp_path / "out")
    assert done.returncode != 0 and "not a matrix of its own" in done.stderr
