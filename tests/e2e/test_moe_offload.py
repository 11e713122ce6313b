"""--moe-offload-size: experts in the machine's memory change no bit of an answer, and are refused by
name where they cannot lie there.  The weights are random, in the shapes of published families."""
import json
import re
import shutil
import subprocess

import pytest

from server import BINARY, DEVICE, DEVICE_SETTINGS, MODEL, PATIENCE, ROOT

DATA = ROOT / "tests/model/data"
# Sizes that the kernels for packed weights take, of all three families.
LARGER = {"hidden_size": 256, "moe_intermediate_size": 128, "intermediate_size": 128, "head_dim": 64,
          "vocab_size": 8192, "num_hidden_layers": 5, "bos_token_id": 0, "eos_token_id": 1,
          "max_position_embeddings": 4096}
N_EXPERTS = {"num_experts": 32, "num_local_experts": 32}
FAMILIES = {
    "qwen3": ("qwen3moe-gqa-bf16-head64", {"mlp_only_layers": [], "num_experts_per_tok": 4}),
    "gptoss": ("gptoss-gqa-bf16-head32-mxfp4",
               {"intermediate_size": 256, "layer_types": ["sliding_attention", "full_attention"] * 2 +
                ["full_attention"], "quantization_config": None}),
    "gemma4": ("gemma4-gqa-bf16-head32-experts",
               {"layer_types": ["sliding_attention"] * 4 + ["full_attention"], "top_k_experts": 4,
                "per_layer_config": {"4": {"head_dim": 128, "num_key_value_heads": 1}}}),
}
CASES = [("qwen3", "bf16"), ("qwen3", "int4"), ("qwen3", "fp8-block"), ("qwen3", "q4_0"),
         ("gptoss", "mxfp4"), ("gemma4", "bf16"), ("gemma4", "int8")]
SHORT, LONG = list(range(10, 14)), [7 + 13 * i % 8000 for i in range(700)]

on_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="only a GPU has memory of its own")


@pytest.fixture
def write(tmp_path):
    def write(family):
        source, changes = FAMILIES[family]
        config = json.loads((DATA / source / "config.json").read_text())
        config |= LARGER | {name: n for name, n in N_EXPERTS.items() if name in config} | changes
        directory = tmp_path / family
        directory.mkdir()
        text = {name: value for name, value in config.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(text))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(MODEL / name, directory)
        return directory

    return write


def answers(serve, model, form, *settings):
    """What is answered to a few rows, and to many, with the log-probabilities; and the metrics."""
    server = serve("--load-format", "dummy", "--random-format", form, "--max-model-len", 1024,
                   "--kv-cache-memory", "64M", "--max-num-seqs", 4, "--no-enable-prefix-caching",
                   *settings, model=model)
    texts = [server.complete(prompt, max_tokens=24, logprobs=2, ignore_eos=True,
                             return_token_ids=True)["choices"][0] for prompt in (SHORT, LONG, SHORT)]
    return [(text["token_ids"], text["logprobs"]) for text in texts], server.metrics(), server.log


@on_gpu
@pytest.mark.parametrize("family, form", CASES)
def test_experts_in_the_machines_memory_change_no_bit(serve, write, family, form):
    model = write(family)
    on_device, metrics, said = answers(serve, model, form)
    assert metrics["quire_weights_offloaded_bytes"] == metrics["quire_experts_fetched_bytes_total"] == 0
    assert "lie in the machine's memory" not in said
    for size, n_layers in (("1", 1), ("1000G", 5)):
        offloaded, metrics, said = answers(serve, model, form, "--moe-offload-size", size)
        assert offloaded == on_device
        assert f"the experts of {n_layers} layers" in said, said
        of_layer = metrics["quire_weights_offloaded_bytes"] / n_layers
        n_used = 2 if family == "gptoss" else 4
        # Each of 3 texts has a row in the last layer for each of its 24 tokens, and in others the
        # whole prompt, too: a long one needs all of their experts.
        fetched = metrics["quire_experts_fetched_bytes_total"]
        in_last = 3 * 24 * n_used / 32 * of_layer
        if n_layers == 1:
            assert fetched == in_last
        else:
            least = 5 * in_last + 4 * (1 - n_used / 32) * of_layer
            assert least <= fetched < least + 4 * of_layer


@on_gpu
def test_in_company_answers_are_those_given_alone(serve, write):
    model, invariant = write("qwen3"), ("--batch-invariant", "true")
    alone, _, _ = answers(serve, model, "int4", *invariant)
    server = serve("--load-format", "dummy", "--random-format", "int4", "--max-model-len", 1024,
                   "--kv-cache-memory", "64M", *invariant, "--moe-offload-size", "1000G", model=model)
    together = server.complete([SHORT, LONG, SHORT] * 8, max_tokens=24, logprobs=2, ignore_eos=True,
                               return_token_ids=True)["choices"]
    assert [(text["token_ids"], text["logprobs"]) for text in together] == alone * 8


@on_gpu
def test_ranks_offload_their_parts(serve, write):
    model, ranks = write("qwen3"), ("--tensor-parallel-size", 2, "--tensor-parallel-devices", "0,0")
    on_device, _, _ = answers(serve, model, "int4", *ranks)
    offloaded, metrics, _ = answers(serve, model, "int4", *ranks, "--moe-offload-size", "1000G")
    assert offloaded == on_device
    assert metrics["quire_experts_fetched_bytes_total"] > metrics["quire_weights_offloaded_bytes"]


@on_gpu
def test_auto_offloads_nothing_that_fits(serve, write):
    _, metrics, _ = answers(serve, write("qwen3"), "int4", "--moe-offload-size", "auto")
    assert metrics["quire_weights_offloaded_bytes"] == 0


def ended(model, *settings):
    """Runs a command to its end; returns what it said."""
    return subprocess.run([BINARY, *settings[:1], str(model), "--load-format", "dummy", *settings[1:]],
                          capture_output=True, text=True, timeout=60 * PATIENCE,
                          env=DEVICE_SETTINGS | {"PATH": "/usr/bin:/bin"})


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU they can")
def test_a_cpu_has_no_other_memory(write):
    done = ended(write("qwen3"), "serve", "--port", "0", "--moe-offload-size", "1G")
    assert done.returncode != 0
    assert "--moe-offload-size: on the device cpu all weights lie in the machine's memory" in done.stderr


@pytest.mark.skipif(DEVICE != "cpu", reason="one device is enough")
def test_sizes_are_refused_by_name(write):
    model = write("qwen3")
    for value in ("much", "-1", "1.5G"):
        done = ended(model, "serve", "--port", "0", "--moe-offload-size", value)
        assert done.returncode != 0 and re.search(r"moe-offload-size.*(bytes|range)", done.stderr), done.stderr
    done = subprocess.run([BINARY, "serve", str(MODEL), "--port", "0", "--moe-offload-size", "1"],
                          capture_output=True, text=True, timeout=60 * PATIENCE,
                          env=DEVICE_SETTINGS | {"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0 and "--moe-offload-size: the model has no experts" in done.stderr


def test_auto_is_a_word(serve, write, tmp_path):
    """On a CPU, and where all fits, it changes nothing; a settings file may have it."""
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"moe-offload-size": "auto"}))
    server = serve("--config", settings, "--load-format", "dummy", "--kv-cache-memory", "16M",
                   "--max-model-len", 512, model=write("qwen3"))
    assert server.metrics()["quire_weights_offloaded_bytes"] == 0
