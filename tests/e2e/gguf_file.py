"""Writes a model directory as a GGUF file, or a split of several, as converters do: names of its
own, rows of q and k in pairs for Llama, norms of Gemma with their one, and no library.

    gguf_file.py DIRECTORY OUT.gguf

Matrices keep their elements, or are packed as Q8_0; vectors are F32."""
import json
import math
import pathlib
import re
import struct
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/fixtures"))
import checkpoint  # noqa: E402
from oracle_names import nemotron_parts, usual_nemotron  # noqa: E402

U16, U32, I32, F32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
TYPES = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30, "MXFP4": 39}
ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2",
                 "Ministral3ForCausalLM": "mistral3",
                 "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3moe",
                 "Qwen2MoeForCausalLM": "qwen2moe", "Glm4MoeForCausalLM": "glm4moe",
                 "MixtralForCausalLM": "llama", "Phi3ForCausalLM": "phi3", "Gemma2ForCausalLM": "gemma2",
                 "Gemma3ForCausalLM": "gemma3", "Gemma4ForCausalLM": "gemma4", "SmolLM3ForCausalLM": "smollm3",
                 "Olmo2ForCausalLM": "olmo2", "Olmo3ForCausalLM": "olmo2", "GraniteForCausalLM": "granite",
                 "SeedOssForCausalLM": "seed_oss", "CohereForCausalLM": "command-r",
                 "Cohere2ForCausalLM": "cohere2", "Exaone4ForCausalLM": "exaone4",
                 "GlmForCausalLM": "chatglm", "Glm4ForCausalLM": "glm4",
                 "Cohere2MoeForCausalLM": "cohere2moe", "GptOssForCausalLM": "gpt-oss",
                 "Qwen3_5ForCausalLM": "qwen35",
                 "Lfm2ForCausalLM": "lfm2", "Lfm2MoeForCausalLM": "lfm2moe",
                 "GraniteMoeHybridForCausalLM": "granitehybrid",
                 "NemotronHForCausalLM": "nemotron_h",
                 "Qwen3_5MoeForCausalLM": "qwen35moe", "Qwen3NextForCausalLM": "qwen3next"}
CONVOLUTIONS = ("lfm2", "lfm2moe")
ONE_PART = ("nemotron_h", "nemotron_h_moe")
HYBRIDS = ("qwen35", "qwen35moe", "qwen3next")
V_HEADS_APART = ("qwen35", "qwen35moe")
IN_PAIRS = ("llama", "mistral3", "smollm3", "granite", "granitehybrid", "nemotron_h",
            "nemotron_h_moe")  # rows of q and k are reordered
NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
         "input_layernorm": "attn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
         "qkv_proj": "attn_qkv", "o_proj": "attn_output", "q_norm": "attn_q_norm",
         "k_norm": "attn_k_norm", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
         "gate_up_proj": "ffn_up", "down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm",
         "gate": "ffn_gate_inp", "gate_exps": "ffn_gate_exps", "up_exps": "ffn_up_exps",
         "down_exps": "ffn_down_exps", "router": "ffn_gate_inp", "self_attn": "attn_sinks",
         "gate_shexp": "ffn_gate_shexp", "up_shexp": "ffn_up_shexp", "down_shexp": "ffn_down_shexp",
         "shared_expert_gate": "ffn_gate_inp_shexp", "gate_up_exps": "ffn_gate_up_exps",
         "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}
LATE_NORM = {**NAMES, "post_attention_layernorm": "post_attention_norm"}
LFM2 = {**NAMES, "embedding_norm": "token_embd_norm", "operator_norm": "attn_norm",
        "ffn_norm": "ffn_norm", "q_layernorm": "attn_q_norm", "k_layernorm": "attn_k_norm",
        "out_proj": "attn_output", "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"}
LFM2_ENDS = {"conv.in_proj.weight": "shortconv.in_proj.weight",
             "conv.conv.weight": "shortconv.conv.weight",
             "conv.out_proj.weight": "shortconv.out_proj.weight",
             "feed_forward.expert_bias": "exp_probs_b.bias"}
RECURRENT = {"in_proj_qkv.weight": "attn_qkv.weight", "in_proj_z.weight": "attn_gate.weight",
             "in_proj_b.weight": "ssm_beta.weight", "in_proj_a.weight": "ssm_alpha.weight",
             "in_proj_ba.weight": "ssm_ba.weight", "in_proj_qkvz.weight": "ssm_in.weight",
             "conv1d.weight": "ssm_conv1d.weight", "A_log": "ssm_a", "dt_bias": "ssm_dt.bias",
             "norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight"}
MAMBA = {"in_proj.weight": "ssm_in.weight", "conv1d.weight": "ssm_conv1d.weight",
         "conv1d.bias": "ssm_conv1d.bias", "A_log": "ssm_a", "dt_bias": "ssm_dt.bias", "D": "ssm_d",
         "norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight"}
OWN_NORMS = {**NAMES, "post_attention_layernorm": "post_attention_norm",
         "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}

GEMMA4 = {**OWN_NORMS, "embed_tokens_per_layer": "per_layer_token_embd",
          "per_layer_model_projection": "per_layer_model_proj",
          "per_layer_projection_norm": "per_layer_proj_norm", "per_layer_input_gate": "inp_gate",
          "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
          "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
          "post_feedforward_layernorm_1": "post_ffw_norm_1",
          "post_feedforward_layernorm_2": "post_ffw_norm_2"}
GEMMA4_ENDS = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
               "router.proj.weight": "ffn_gate_inp.weight",
               "router.per_expert_scale": "ffn_down_exps.scale",
               "experts.gate_up_proj": "ffn_gate_up_exps.weight",
               "experts.down_proj": "ffn_down_exps.weight"}


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, content):
    if kind == STRING:
        return string(content)
    return struct.pack({U16: "<H", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], content)


class Blocks:
    """Rows of MXFP4: of gpt-oss's blocks, in which neighbours share a byte, and their exponents."""

    ndim = 3

    def __init__(self, blocks, scales):
        blocks = blocks.astype(numpy.uint8)
        codes = numpy.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
        halves = codes[..., :16] | codes[..., 16:] << 4
        self.shape = (*scales.shape[:-1], scales.shape[-1] * 32)
        self.raw = numpy.concatenate([scales[..., None], halves], -1).astype(numpy.uint8).tobytes()


class Writer:
    """Keys and tensors of one file."""

    def __init__(self):
        self.keys, self.tensors = [], []

    def key(self, name, kind, content):
        self.keys.append(string(name) + struct.pack("<I", kind) + value(kind, content))

    def array(self, name, kind, contents):
        self.keys.append(string(name) + struct.pack("<IIQ", ARRAY, kind, len(contents)) +
                         b"".join(value(kind, content) for content in contents))

    def tensor(self, name, values, kind):
        if isinstance(values, Blocks):
            self.tensors.append((name, values.shape, "MXFP4", values.raw))
        else:
            self.tensors.append((name, values.shape, kind, packed(values, kind)))

    def write(self, path, version=3):
        head = b"GGUF" + struct.pack("<IQQ", version, len(self.tensors), len(self.keys))
        head += b"".join(self.keys)
        data = b""
        for name, shape, kind, raw in self.tensors:
            head += string(name) + struct.pack("<I", len(shape))
            head += b"".join(struct.pack("<Q", n) for n in reversed(shape))
            head += struct.pack("<IQ", TYPES[kind], len(data))
            data += raw + b"\0" * (-len(raw) % 32)
        pathlib.Path(path).write_bytes(head + b"\0" * (-len(head) % 32) + data)


def packed(values, kind):
    if kind == "BF16":
        return checkpoint.to_bf16(values).tobytes()
    if kind == "Q8_0":
        blocks = values.astype(numpy.float32).reshape(-1, 32)
        scale = (numpy.abs(blocks).max(1, keepdims=True) / 127).astype(numpy.float16)
        whole = scale.astype(numpy.float32)
        codes = numpy.rint(blocks / numpy.where(whole == 0, 1, whole)).clip(-127, 127).astype(numpy.int8)
        return numpy.concatenate([scale.view(numpy.int8), codes], 1).tobytes()
    return values.astype({"F32": numpy.float32, "F16": numpy.float16}[kind]).tobytes()


def of_blocks(raw, shape):
    """The values of Q8_0's blocks."""
    blocks = numpy.frombuffer(raw, numpy.int8).reshape(-1, 34)
    scale = blocks[:, :2].copy().view(numpy.float16).astype(numpy.float32)
    return (scale * blocks[:, 2:].astype(numpy.float32)).reshape(shape)


def unpacked(values, kind):
    """What a reader makes of the packed values."""
    return of_blocks(packed(values, kind), values.shape) if kind == "Q8_0" else values


def unpack_blocks(tensor):
    """A tensor of a Writer, as F32 if it is Q8_0."""
    name, shape, kind, raw = tensor
    return (name, shape, "F32", of_blocks(raw, shape).tobytes()) if kind == "Q8_0" else tensor


def in_pairs(values, n_heads):
    """Rows of heads, whose halves rotate with one another, so that neighbours do."""
    shape = values.shape
    return values.reshape(n_heads, 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)


def apart(values, axis, n_k_heads, n_v_heads):
    """Parts of v heads, those of a k head following one another, so that they take turns."""
    shape = values.shape
    heads = (n_k_heads, n_v_heads // n_k_heads, shape[axis] // n_v_heads)
    return values.reshape(*shape[:axis], *heads, *shape[axis + 1:]).swapaxes(
        axis, axis + 1).reshape(shape)


def without_groups(values, n_k_heads, sizes):
    """Rows by k head, of parts of these sizes in each: those of all k heads for each part."""
    grouped = values.reshape(n_k_heads, sum(sizes), -1)
    parts = numpy.split(grouped, numpy.cumsum(sizes)[:-1], 1)
    return [part.reshape(-1, values.shape[-1]) for part in parts]


def recurrent_tensors(tensors, config, name, legacy):
    """The tensors of recurrent layers as converters write them, by their names in GGUF.  legacy: as
    those of Qwen3-Next wrote them at first."""
    n_k, n_v = config["linear_num_key_heads"], config["linear_num_value_heads"]
    k_dim, v_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
    n_keys, each = 2 * n_k * k_dim, n_v // n_k
    out = {}
    for full, values in tensors.items():
        layer, _, leaf = full.partition(".linear_attn.")
        if not leaf:
            continue
        own = f"blk.{layer.split('.')[-1]}."
        if leaf == "conv1d.weight":
            values = values.squeeze(1)
        if leaf == "A_log":
            values = -numpy.exp(values.astype(numpy.float32))
        if name in V_HEADS_APART and leaf != "norm.weight":
            first = n_keys if leaf in ("in_proj_qkv.weight", "conv1d.weight") else 0
            axis = 1 if leaf == "out_proj.weight" else 0
            values = values if axis == 0 else values.swapaxes(0, 1)
            values = numpy.concatenate([values[:first], apart(values[first:], 0, n_k, n_v)])
            values = values if axis == 0 else numpy.ascontiguousarray(values.swapaxes(0, 1))
        if leaf == "in_proj_qkvz.weight" and not legacy:
            *qkv, z = without_groups(values, n_k, [k_dim, k_dim, each * v_dim, each * v_dim])
            out[own + "attn_qkv.weight"] = numpy.concatenate(qkv)
            out[own + "attn_gate.weight"] = z
            continue
        out[own + RECURRENT[leaf]] = values
    return out


def mamba_tensors(tensors, n_groups):
    """The tensors of Mamba-2 layers as converters write them, by their names in GGUF."""
    out = {}
    for full, values in tensors.items():
        layer, _, leaf = full.partition(".mamba.")
        if not leaf:
            continue
        if leaf == "conv1d.weight":
            values = values.squeeze(1)
        if leaf == "A_log":
            values = -numpy.exp(values.astype(numpy.float32))
        if leaf in ("A_log", "D"):
            values = values.reshape(-1, 1)
        if leaf == "norm.weight":
            values = values.reshape(n_groups, -1)
        out[f"blk.{layer.split('.')[-1]}.{MAMBA[leaf]}"] = values
    return out


def nemotron_counts(config):
    parts = nemotron_parts(config)
    widths = {"-": config["intermediate_size"], "E": config["moe_intermediate_size"]}
    counts = {"block_count": len(parts), "ssm.conv_kernel": config["conv_kernel"],
              "ssm.state_size": config["ssm_state_size"], "ssm.group_count": config["n_groups"],
              "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
              "ssm.time_step_rank": config["mamba_num_heads"],
              "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"],
              "attention.head_count_kv": [config["num_key_value_heads"] * (part == "*")
                                          for part in parts],
              "feed_forward_length": [widths.get(part, 0) for part in parts]}
    if "E" in parts:
        counts |= {"expert_count": config["n_routed_experts"],
                   "expert_used_count": config["num_experts_per_tok"],
                   "expert_feed_forward_length": config["moe_intermediate_size"],
                   "expert_shared_feed_forward_length":
                       config["moe_shared_expert_intermediate_size"],
                   "expert_shared_count": config["n_shared_experts"],
                   "expert_group_count": config["n_group"]}
    return counts


def part_granite(tensors, has_experts):
    """Granite 4's tensors with gates and ups apart.  Without experts the shared part is the only
    one."""
    out = {}
    for full, values in tensors.items():
        layer, _, leaf = full.partition(".block_sparse_moe.")
        parts = ("gate_exps", "up_exps", "down_exps")
        if ".shared_mlp." in full:
            layer, _, leaf = full.partition(".shared_mlp.")
            parts = [f"{part}_{'shexp' if has_experts else 'proj'}" for part in ("gate", "up", "down")]
        if leaf == "router.layer.weight":
            out[f"{layer}.mlp.router.weight"] = values
        elif leaf == "output_linear.weight":
            out[f"{layer}.mlp.{parts[2]}.weight"] = values
        elif leaf == "input_linear.weight":
            halves = numpy.split(values, 2, -2)
            out |= {f"{layer}.mlp.{part}.weight": half for part, half in zip(parts, halves)}
        else:
            out[full] = values
    return out


def stack_experts(tensors):
    """One tensor for all gates of a layer, one for all ups and one for all downs."""
    parts = {"w1": "gate", "gate_proj": "gate", "w3": "up", "up_proj": "up", "w2": "down",
             "down_proj": "down"}
    out, stacks = {}, {}
    for name, values in tensors.items():
        if ".experts." not in name:
            shared = re.sub(r"shared_experts?\.(gate|up|down)_proj", r"\1_shexp", name)
            out[shared] = values
            continue
        layer, rest = re.split(r"\.(?:mlp|block_sparse_moe|feed_forward)\.", name)
        _, expert, part, _ = rest.split(".")
        stacks.setdefault(f"{layer}.mlp.{parts[part]}_exps.weight", {})[int(expert)] = values
    return {**out, **{name: numpy.stack([each[i] for i in range(len(each))])
                      for name, each in stacks.items()}}


def part_experts(tensors):
    """gpt-oss's experts, whose rows of gate and up take turns, as a tensor for each of them."""
    out = {}
    for name, values in tensors.items():
        layer, _, leaf = name.partition(".mlp.experts.")
        part, _, kind = leaf.partition("_proj")
        if not leaf or kind == "_scales":
            out[name.replace(".sinks", ".weight")] = values
            continue
        if kind == "":
            values = values.swapaxes(1, 2)
        scales = tensors.get(name.replace("_blocks", "_scales")) if kind == "_blocks" else None
        end = "bias" if kind == "_bias" else "weight"
        for i, one in enumerate(part.split("_")):
            step = slice(i, None, 2) if part == "gate_up" else slice(None)
            out[f"{layer}.mlp.{one}_exps.{end}"] = (
                values[:, step] if scales is None else Blocks(values[:, step], scales[:, step]))
    return {name: values for name, values in out.items() if not name.endswith("_scales")}


def name_of(name, names):
    if name.endswith("e_score_correction_bias"):
        return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
    for end, own in {id(GEMMA4): GEMMA4_ENDS, id(LFM2): LFM2_ENDS}.get(id(names), {}).items():
        if name.endswith("." + end):
            return f"blk.{name.split('.')[2]}.{own}"
    *_, leaf, end = name.split(".")
    layer = name.split(".")[2] if ".layers." in name else None
    return (f"blk.{layer}." if layer else "") + f"{names[leaf]}.{end}"


def rope_of(config):
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope.get("full_attention", rope)


def llama3_factors(config, rope):
    """What divides the frequencies, as converters write it."""
    size = config["head_dim"]
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    lengths = 2 * math.pi * base ** (numpy.arange(0, size, 2, dtype=numpy.float64) / size)
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    smooth = (rope["original_max_position_embeddings"] / lengths - rope["low_freq_factor"]) / (
        rope["high_freq_factor"] - rope["low_freq_factor"])
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    return numpy.where(lengths < high, 1, numpy.where(lengths > low, rope["factor"], between))


def two_heads(out, config):
    """Gemma 4's counts, some of which are lists of one for each layer."""
    n, own = config["num_hidden_layers"], config["per_layer_config"]
    full = next(iter(own.values()))
    n_own = n - config["num_kv_shared_layers"]
    widths = [config["intermediate_size"] * (1 + (i >= n_own and config["use_double_wide_mlp"]))
              for i in range(n)]
    return {"feed_forward_length": widths if config["use_double_wide_mlp"] else widths[0],
            "attention.head_count_kv": [own.get(str(i), {}).get("num_key_value_heads",
                                                                config["num_key_value_heads"])
                                        for i in range(n)],
            "attention.key_length": full["head_dim"], "attention.value_length": full["head_dim"],
            "attention.key_length_swa": config["head_dim"],
            "attention.value_length_swa": config["head_dim"],
            "attention.shared_kv_layers": config["num_kv_shared_layers"],
            "embedding_length_per_layer_input": config["hidden_size_per_layer_input"] or 0,
            "rope.dimension_count": full["head_dim"],
            "rope.dimension_count_swa": config["head_dim"]}


def recurrent_counts(out, config, name, rotated, n_guess, says_layers):
    """The counts of recurrent layers.  says_layers: a list says which ones they are."""
    types = config["layer_types"]
    counts = {"ssm.conv_kernel": config["linear_conv_kernel_dim"],
              "ssm.state_size": config["linear_key_head_dim"],
              "ssm.group_count": config["linear_num_key_heads"],
              "ssm.time_step_rank": config["linear_num_value_heads"],
              "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"]}
    if name in V_HEADS_APART:
        counts["rope.dimension_sections"] = [rotated // 2, 0, 0, 0]
    if n_guess:
        counts |= {"nextn_predict_layers": n_guess, "block_count": len(types) + n_guess}
    if says_layers:
        out.array(f"{name}.attention.recurrent_layers", BOOL,
                  [kind == "linear_attention" for kind in types] + [False] * n_guess)
    else:
        counts["full_attention_interval"] = types.index("full_attention") + 1
    return counts


def lfm2_width(config):
    width = config["intermediate_size"]
    if not config.get("block_auto_adjust_ff_dim"):
        return width
    width, unit = int(config["block_ffn_dim_multiplier"] * int(2 * width / 3)), config["block_multiple_of"]
    return unit * ((width + unit - 1) // unit)


def lfm2_counts(config):
    counts = {"shortconv.l_cache": config["conv_L_cache"], "feed_forward_length": lfm2_width(config),
              "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "full_attention")
                                          for kind in config["layer_types"]]}
    if "num_experts" in config:
        counts |= {"leading_dense_block_count": config["num_dense_layers"], "expert_gating_func": 2}
    return counts


def granite_hybrid_counts(config):
    inner = config["mamba_expand"] * config["hidden_size"]
    return {"ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
            "ssm.group_count": config["mamba_n_groups"], "ssm.inner_size": inner,
            "ssm.time_step_rank": config["mamba_n_heads"],
            "expert_shared_feed_forward_length": config["shared_intermediate_size"],
            "expert_count": config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "full_attention")
                                        for kind in config["layer_types"]]}


def add_settings(out, config, name, n_guess, says_layers):
    heads, rope = config["num_attention_heads"], rope_of(config)
    size = config.get("head_dim") or config["hidden_size"] // heads
    counts = {"context_length": config["max_position_embeddings"],
              "embedding_length": config["hidden_size"], "block_count": config.get("num_hidden_layers"),
              "feed_forward_length": config["intermediate_size"], "attention.head_count": heads,
              "attention.head_count_kv": config.get("num_key_value_heads", heads),
              "attention.key_length": size, "attention.value_length": size,
              "rope.dimension_count": int(size * rope.get("partial_rotary_factor", 1))}
    counts |= two_heads(out, config) if name == "gemma4" else {}
    experts = (config.get("num_local_experts") or config.get("num_experts")
               or config.get("n_routed_experts"))
    if name in ONE_PART:
        experts = None
        counts |= nemotron_counts(config)
        out.key(f"{name}.rope.scaling.finetuned", BOOL, False)
        if name == "nemotron_h_moe":
            out.key(f"{name}.expert_weights_norm", BOOL, config["norm_topk_prob"])
    if experts:
        counts |= {"expert_count": experts,
                   "expert_used_count": config.get("top_k_experts") or config["num_experts_per_tok"],
                   "expert_feed_forward_length": config.get("moe_intermediate_size",
                                                            config["intermediate_size"])}
    if name in CONVOLUTIONS:
        counts |= lfm2_counts(config)
    if name == "granite" and says_layers:
        counts |= {"attention.head_count_kv": [counts["attention.head_count_kv"]] * counts["block_count"],
                   "ssm.conv_kernel": 4, "ssm.state_size": 256, "ssm.group_count": 1,
                   "ssm.inner_size": 2 * config["hidden_size"], "ssm.time_step_rank": 128,
                   "expert_shared_feed_forward_length": config["intermediate_size"],
                   "expert_count": 0, "expert_used_count": 0}
        out.key(f"{name}.rope.scaling.finetuned", BOOL, True)
    if name == "granitehybrid":
        counts |= granite_hybrid_counts(config)
        out.key(f"{name}.rope.scaling.finetuned", BOOL, config["position_embedding_type"] == "rope")
    if name in HYBRIDS:
        counts |= recurrent_counts(out, config, name, counts["rope.dimension_count"], n_guess,
                                   says_layers)
    if name in ("qwen2moe", "qwen35moe", "qwen3next"):
        counts["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    if name == "cohere2moe":
        counts |= {"feed_forward_length": config["prefix_dense_intermediate_size"],
                   "expert_feed_forward_length": config["intermediate_size"],
                   "expert_shared_count": config["num_shared_experts"],
                   "expert_shared_feed_forward_length":
                       config["num_shared_experts"] * config["intermediate_size"],
                   "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
                   "expert_gating_func": 2}
        out.key(f"{name}.expert_weights_norm", BOOL, config["norm_topk_prob"])
    if name == "glm4moe":
        n_guess = config["num_nextn_predict_layers"]
        counts |= {"expert_shared_count": config["n_shared_experts"],
                   "leading_dense_block_count": config["first_k_dense_replace"],
                   "expert_group_count": config["n_group"],
                   "expert_group_used_count": config["topk_group"], "expert_gating_func": 2,
                   "nextn_predict_layers": n_guess,
                   "block_count": config["num_hidden_layers"] + n_guess}
        out.key(f"{name}.expert_weights_norm", BOOL, config["norm_topk_prob"])
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        counts["attention.sliding_window"] = config["sliding_window"]
    for key, count in counts.items():
        if isinstance(count, list):
            out.array(f"{name}.{key}", U32, count)
        else:
            out.key(f"{name}.{key}", U32, count)
    is_layer_norm = "layer_norm_eps" in config and not config.get("rms_norm_eps")
    numbers = {"attention.layer_norm_epsilon" if is_layer_norm else "attention.layer_norm_rms_epsilon":
               config["layer_norm_eps" if is_layer_norm else
                      "norm_eps" if name in CONVOLUTIONS else
                      "layer_norm_epsilon" if name in ONE_PART else "rms_norm_eps"],
               "rope.freq_base": rope.get("rope_theta", config.get("rope_theta", 10000.0))}
    local = (config.get("rope_parameters") or {}).get("sliding_attention", {})
    if name in ("gemma3", "gemma4") or name in ("olmo2", "cohere2", "cohere2moe", "exaone4") and "layer_types" in config:
        out.array(f"{name}.attention.sliding_window_pattern", BOOL,
                  [kind == "sliding_attention" for kind in config["layer_types"]])
    for key, number in (("rope.freq_base_swa", local.get("rope_theta") or config.get("rope_local_base_freq")),
                        ("attn_logit_softcapping", config.get("attn_logit_softcapping")),
                        ("final_logit_softcapping", config.get("final_logit_softcapping")),
                        ("embedding_scale", config.get("embedding_multiplier")),
                        ("attention.scale", config.get("attention_multiplier")),
                        ("residual_scale", config.get("residual_multiplier")),
                        ("expert_weights_scale", config.get("routed_scaling_factor")
                         if name != "nemotron_h" else None),
                        ("logit_scale", config.get("logits_scaling") or config.get("logit_scale"))):
        if number:
            numbers[key] = number
    if rope.get("rope_type") in ("linear", "yarn"):
        out.key(f"{name}.rope.scaling.type", STRING, rope["rope_type"])
        numbers["rope.scaling.factor"] = rope["factor"]
        if "llama_4_scaling_beta" in rope:
            numbers |= {"rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
                        "attention.temperature_scale": rope["llama_4_scaling_beta"]}
    if "original_max_position_embeddings" in rope and rope["rope_type"] != "llama3":
        out.key(f"{name}.rope.scaling.original_context_length", U32,
                rope["original_max_position_embeddings"])
    for key, number in numbers.items():
        out.key(f"{name}.{key}", F32, number)


def add_tensors(out, directory, config, kind, n_guess, legacy, fuses):
    architecture, rope = config["architectures"][0], rope_of(config)
    gemma, in_pairs_of = architecture.startswith("Gemma"), ARCHITECTURES[architecture] in IN_PAIRS
    gemma4 = architecture == "Gemma4ForCausalLM"
    name, hybrid = ARCHITECTURES[architecture], ARCHITECTURES[architecture] in HYBRIDS
    from_one = gemma and not gemma4 or hybrid
    names = (GEMMA4 if gemma4 else OWN_NORMS if gemma or architecture.startswith(("Olmo", "Exaone"))
             else LFM2 if name in CONVOLUTIONS else LATE_NORM if hybrid or architecture.startswith(("SeedOss", "GptOss", "Glm4Moe"))
             else NAMES)
    split = part_experts if architecture.startswith("GptOss") else stack_experts
    tensors = checkpoint.read_tensors(directory)
    tensors = {full.replace("model.language_model.", "model."): values
               for full, values in tensors.items() if "visual." not in full}
    for own, values in recurrent_tensors(tensors, config, name, legacy).items() if hybrid else ():
        is_small = values.ndim == 1 or "conv1d" in own
        fits = kind != "Q8_0" or values.shape[-1] % 32 == 0
        out.tensor(own, values, "F32" if is_small or not fits else kind)
    if name.startswith("nemotron"):
        tensors = usual_nemotron(tensors, config)
    n_groups = config.get("n_groups") or config.get("mamba_n_groups", 1)
    for own, values in mamba_tensors(tensors, n_groups).items():
        is_matrix = own.endswith(("ssm_in.weight", "ssm_out.weight"))
        fits = kind != "Q8_0" or values.shape[-1] % 32 == 0
        out.tensor(own, values, kind if is_matrix and fits else "F32")
    tensors = {full: values for full, values in tensors.items()
               if ".linear_attn." not in full and ".mamba." not in full}
    if name == "granitehybrid":
        tensors = part_granite(tensors, bool(config["num_local_experts"]))
    else:
        tensors = tensors if gemma4 else split(tensors)
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    for full in [full for full in tensors if fuses and "gate_exps" in full]:
        up = tensors.pop(full.replace("gate_exps", "up_exps"))
        tensors[full.replace("gate_exps", "gate_up_exps")] = numpy.concatenate(
            [tensors.pop(full), up], 1)
    for full, values in tensors.items():
        leaf = full.split(".")[-2]
        heads = {"q_proj": config["num_attention_heads"],
                 "k_proj": config.get("num_key_value_heads", config["num_attention_heads"])}.get(leaf)
        if in_pairs_of and heads:
            values = in_pairs(values, heads)
        if from_one and leaf.endswith("norm"):
            values = values + numpy.float32(1)
        if full.endswith(".conv.conv.weight"):
            values = values.squeeze(1)
        if leaf == "shared_expert_gate" and ".0." in full:
            values = values[0]  # some converters leave out the first of its dimensions
        is_matrix = values.ndim > 1 or leaf == "shared_expert_gate"
        is_matrix = is_matrix and ".conv.conv." not in full
        fits = is_matrix and (kind != "Q8_0" or values.shape[-1] % 32 == 0)
        out.tensor(name_of(full, names), values, kind if fits else "F32")
    for i in range(config.get("num_nextn_predict_layers", n_guess)):  # they answer nothing
        out.tensor(f"blk.{config['num_hidden_layers'] + i}.nextn.enorm.weight",
                   numpy.ones(config["hidden_size"], numpy.float32), "F32")
    if gemma4:
        n_pairs = next(iter(config["per_layer_config"].values()))["head_dim"] // 2
        n_turned = int(n_pairs * rope["partial_rotary_factor"])
        out.tensor("rope_freqs.weight", numpy.array(
            [1] * n_turned + [1e30] * (n_pairs - n_turned), numpy.float32), "F32")
    if rope.get("rope_type") == "llama3":
        out.tensor("rope_freqs.weight", llama3_factors(config, rope).astype(numpy.float32), "F32")
    for length in ("long", "short") if "long_factor" in rope else ():
        out.tensor(f"rope_factors_{length}.weight",
                   numpy.array(rope[f"{length}_factor"], numpy.float32), "F32")


def add_tokenizer(out, directory, pre):
    """pre: None puts the whole tokenizer.json into a key."""
    text = (directory / "tokenizer.json").read_text()
    config = directory / "tokenizer_config.json"
    named = json.loads(config.read_text()) if config.exists() else {}
    if "chat_template" in named:
        out.key("tokenizer.chat_template", STRING, named["chat_template"])
    if pre is None:
        out.key("tokenizer.huggingface.json", STRING, text)
        return
    content = json.loads(text)
    texts = {i: (token, 1) for token, i in content["model"]["vocab"].items()}
    texts |= {entry["id"]: (entry["content"], 3) for entry in content["added_tokens"]}
    ids = {entry["content"]: entry["id"] for entry in content["added_tokens"]}
    out.key("tokenizer.ggml.model", STRING, "gpt2")
    out.key("tokenizer.ggml.pre", STRING, pre)
    out.array("tokenizer.ggml.tokens", STRING,
              [texts.get(i, (f"[PAD{i}]", 5))[0] for i in range(max(texts) + 1)])
    out.array("tokenizer.ggml.token_type", I32,
              [texts.get(i, ("", 5))[1] for i in range(max(texts) + 1)])
    out.array("tokenizer.ggml.merges", STRING, [merge if isinstance(merge, str) else " ".join(merge)
                                                for merge in content["model"]["merges"]])
    out.key("tokenizer.ggml.add_bos_token", BOOL, True)
    for name in ("bos", "eos"):
        out.key(f"tokenizer.ggml.{name}_token_id", U32, ids[named[f"{name}_token"]])


def kind_of(config):
    named = config.get("dtype") or config.get("torch_dtype")
    return {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[named]


def write_gguf(directory, path, kind=None, pre=None, n_files=1, version=3, n_guess=0,
               says_layers=False, legacy=False, fuses=False, unpacks=False):
    """Returns the path of the file, the first of a split.  Of a hybrid: as recurrent_counts() and
    recurrent_tensors() say, with n_guess layers that guess tokens.  says_layers, of Granite: as
    Granite 4 without recurrent layers is written.  fuses: gates and ups of all
    experts are one tensor.  unpacks: what would be Q8_0 has the same values as F32."""
    directory, path = pathlib.Path(directory), pathlib.Path(path)
    config = json.loads((directory / "config.json").read_text())
    outer = config["architectures"][0]
    config = {**config, **config.get("text_config", {}),
              "architectures": [outer.replace("ForConditionalGeneration", "ForCausalLM")]}
    name = ARCHITECTURES[config["architectures"][0]]
    if name == "nemotron_h" and "E" in nemotron_parts(config):
        name = "nemotron_h_moe"
    out = Writer()
    out.key("general.architecture", STRING, name)
    add_settings(out, config, name, n_guess, says_layers)
    add_tokenizer(out, directory, pre)
    add_tensors(out, directory, config, kind or kind_of(config), n_guess, legacy, fuses)
    if unpacks:
        out.tensors = [unpack_blocks(tensor) for tensor in out.tensors]
    if n_files == 1:
        out.write(path, version)
        return path
    tensors, paths = out.tensors, []
    for i in range(n_files):
        one = Writer()
        one.keys = list(out.keys) if i == 0 else []
        one.key("split.no", U16, i)
        one.key("split.count", U16, n_files)
        one.tensors = tensors[i::n_files]
        paths.append(path.with_name(f"{path.stem}-{i + 1:05}-of-{n_files:05}.gguf"))
        one.write(paths[-1], version)
    return paths[0]


if __name__ == "__main__":
    write_gguf(sys.argv[1], sys.argv[2])
