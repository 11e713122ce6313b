"""Models with recurrent layers whose weights are quantised as published: answers are those of a plain
checkpoint with what the weights are worth, which scripts/fixtures/quantised.py writes from the
definitions.  The products of recurrent layers are quantised like any others; convolutions, gates and
norms stay as they are."""
import random
import sys

import numpy
import pytest

from precision import EXACT, PRECISE
from server import DEVICE, ROOT, Server

sys.path.insert(0, str(ROOT / "scripts/fixtures"))
import checkpoint  # noqa: E402
import quantised  # noqa: E402  writes the checkpoints

# Heads of 128, as they are published: blocks of 128 rows are whole heads.
COMMON = {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 3,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128, "hidden_act": "silu",
          "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "tie_word_embeddings": True,
          "layer_types": ["linear_attention", "linear_attention", "full_attention"],
          "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 128,
          "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "bos_token_id": 8183,
          "eos_token_id": 8186, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                    "partial_rotary_factor": 0.25}}
FAMILIES = {"qwen3_5": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"},
            "qwen3_next": {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
                           "mlp_only_layers": [0, 1, 2], "num_experts": 4,
                           "num_experts_per_tok": 2, "moe_intermediate_size": 128,
                           "shared_expert_intermediate_size": 128}}
if DEVICE == "cpu":  # a GPU has no kernel for the square of a ReLU
    FAMILIES["nemotron_h"] = {
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
        "layer_types": ["linear_attention", "mlp", "full_attention"], "rope_parameters": None,
        "mlp_hidden_act": "relu2", "layer_norm_epsilon": 1e-6,
        "mamba_num_heads": 8, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 64,
        "conv_kernel": 4}
FORMATS = ("fp8-block", "ct-fp8-channel", "ct-int4-g32", "ct-int4-zeros", "gptq", "awq", "ct-int8")
# Both have the same weights on a CPU.  A GPU multiplies some formats by other kernels, and rounds
# their products to bf16.  With FP8 by block it rounds what these read, too: an H200 was off by 0.5,
# and so is transformers with inputs of Linear rounded by blocks of 128 columns (0.55 at the median).
MOST = 1e-4 if EXACT else 0.3
MOST_ROUNDED = MOST if EXACT else 0.8


def nemotron_shapes(config):
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    heads, n_heads = config["num_attention_heads"] * 128, config["mamba_num_heads"]
    values, keys = n_heads * config["mamba_head_dim"], config["n_groups"] * config["ssm_state_size"]
    matrices = {"0": {"in_proj": (2 * values + 2 * keys + n_heads, hidden),
                      "out_proj": (hidden, values)},
                "1": {"up_proj": (inter, hidden), "down_proj": (hidden, inter)},
                "2": {"q_proj": (heads, hidden), "k_proj": (128, hidden), "v_proj": (128, hidden),
                      "o_proj": (hidden, heads)}}
    mamba = {"conv1d.weight": (values + 2 * keys, 1, 4), "conv1d.bias": (values + 2 * keys,),
             "A_log": (n_heads,), "D": (n_heads,), "dt_bias": (n_heads,), "norm.weight": (values,)}
    others = {"backbone.embeddings.weight": (config["vocab_size"], hidden),
              "backbone.norm_f.weight": (hidden,),
              **{f"backbone.layers.{i}.norm.weight": (hidden,) for i in matrices},
              **{"backbone.layers.0.mixer." + name: shape for name, shape in mamba.items()}}
    return {f"backbone.layers.{i}.mixer.{name}": shape for i, some in matrices.items()
            for name, shape in some.items()}, others


def shapes_of(config):
    """Matrices that are quantised, and all other tensors."""
    if config["model_type"] == "nemotron_h":
        return nemotron_shapes(config)
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    heads, n_kv, dim = (config[name] for name in
                        ("num_attention_heads", "num_key_value_heads", "head_dim"))
    n_keys, n_values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys, values = n_keys * 128, n_values * 128
    by_group = config["model_type"] == "qwen3_next"
    matrices, others = {}, {"model.embed_tokens.weight": (config["vocab_size"], hidden),
                            "model.norm.weight": (hidden,)}
    for i, kind in enumerate(config["layer_types"]):
        layer = f"model.layers.{i}."
        others |= {layer + name + ".weight": (hidden,)
                   for name in ("input_layernorm", "post_attention_layernorm")}
        if kind == "full_attention":
            part, others = layer + "self_attn.", others | {
                layer + f"self_attn.{name}_norm.weight": (dim,) for name in "qk"}
            some = {"q_proj": (2 * heads * dim, hidden), "k_proj": (n_kv * dim, hidden),
                    "v_proj": (n_kv * dim, hidden), "o_proj": (hidden, heads * dim)}
        else:
            part = layer + "linear_attn."
            some = {"out_proj": (hidden, values)}
            others |= {part + "conv1d.weight": (2 * keys + values, 1, 4), part + "A_log": (n_values,),
                       part + "dt_bias": (n_values,), part + "norm.weight": (128,)}
            if by_group:
                some["in_proj_qkvz"] = (2 * keys + 2 * values, hidden)
                others[part + "in_proj_ba.weight"] = (2 * n_values, hidden)
            else:
                some |= {"in_proj_qkv": (2 * keys + values, hidden), "in_proj_z": (values, hidden)}
                others |= {part + f"in_proj_{name}.weight": (n_values, hidden) for name in "ab"}
        matrices |= {part + name: shape for name, shape in some.items()}
        matrices |= {layer + "mlp." + name: shape for name, shape in
                     {"gate_proj": (inter, hidden), "up_proj": (inter, hidden),
                      "down_proj": (hidden, inter)}.items()}
    return matrices, others


def write_both(directory, family, name):
    """The directories of the quantised checkpoint, and of the plain one."""
    write, quantisation, _ = quantised.FORMATS[name]
    config = {**COMMON, **FAMILIES[family], "torch_dtype": "bfloat16"}
    matrices, others = shapes_of(config)
    rng = numpy.random.default_rng(7)
    tensors, values = {}, {}
    dtype = "F32" if EXACT else "BF16"  # on the CPU nothing is rounded to bf16
    for tensor, shape in others.items():
        plain = rng.standard_normal(shape, numpy.float32) * (0.1 if len(shape) < 3 else 0.5)
        if "embed" in tensor:
            plain *= 10
        is_from_0 = "linear_attn.norm" in tensor or "norm" in tensor and family == "nemotron_h"
        values[tensor] = checkpoint.rounded(plain + is_from_0)
        tensors[tensor] = ("BF16", values[tensor])
    for module, shape in matrices.items():
        parts, value = write(rng, shape)
        tensors |= {f"{module}.{suffix}": tensor for suffix, tensor in parts.items()}
        values[module + ".weight"] = value if dtype == "F32" else checkpoint.rounded(value)
    tokenizer_of = ROOT / "models/quire-31m"
    plain = checkpoint.write_model(directory / "plain", config, values, tokenizer_of, dtype)
    out = checkpoint.write_model(directory / "quantised", {
        **config, "quantization_config": quantisation}, {}, tokenizer_of)
    quantised.write_tensors(out / "model.safetensors", tensors)
    return out, plain


def answers_of(directory, model):
    """Log-probabilities of a prompt of several chunks, and greedy ones behind it."""
    generator = random.Random(5)
    prompt = [generator.randrange(10, 8000) for _ in range(150)]
    with Server(directory, *PRECISE, "--max-num-seqs", 2, "--kv-cache-memory", "64M",
                "--max-model-len", 512, model=model) as server:
        choice = server.complete(prompt, echo=True, logprobs=1, max_tokens=8, ignore_eos=True,
                                 return_token_ids=True)["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"][1:], server.log


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_what_the_weights_are_worth(tmp_path, family, name):
    both = write_both(tmp_path, family, name)
    tokens, logprobs, said = answers_of(tmp_path, both[0])
    wanted_tokens, wanted, _ = answers_of(tmp_path, both[1])
    assert f"({quantised.FORMATS[name][1]['quant_method']})" in said, said
    errors = abs(numpy.array(logprobs[:149]) - wanted[:149])
    assert numpy.std(wanted[:149]) > 1  # the prompt's tokens are not all alike
    most = MOST_ROUNDED if name == "fp8-block" else MOST
    assert numpy.median(errors) < most, (numpy.median(errors), max(errors))
    assert not EXACT or (tokens == wanted_tokens and max(errors) < 10 * MOST)
