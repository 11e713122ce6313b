"""The arithmetic of every family's layers but attention itself, by the definition: slow and
obvious, in numpy and float64, for models small enough.  The oracles of the policies read it.

  Model(directory, context)    weights, what a layer does with them, rotary frequencies

A layer's tensors have the names of Llama's here, whatever the family calls them."""
import math
import pathlib
import re
import sys

import numpy

from oracle_experts import experts_of, moved_input, stacked
from oracle_names import usual_config, usual_nemotron, usual_tensors
from oracle_recurrent import divide, recurrent_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/fixtures"))
import checkpoint  # noqa: E402  reads safetensors


def softmax(x, sink=-numpy.inf):
    """sink: one more logit of each row, which is left out of what is returned."""
    most = numpy.maximum(x.max(axis=-1, keepdims=True), sink)
    e = x - most
    numpy.exp(e, out=e)
    e /= e.sum(axis=-1, keepdims=True) + numpy.exp(sink - most)
    return e


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    x -= numpy.log(numpy.exp(x).sum(axis=-1, keepdims=True))
    return x


def rms_norm(x, weight, eps):
    return x / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight + bias


def relu(x):
    return numpy.maximum(x, 0)


def gelu(x):
    return x / 2 * (1 + numpy.vectorize(math.erf)(x / math.sqrt(2)))


def silu(x):
    return x / (1 + numpy.exp(-x))


def gelu_tanh(x):
    return x / 2 * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


ACTIVATIONS = {"silu": silu, "relu": relu, "relu2": lambda x: relu(x) ** 2, "gelu": gelu, "gelu_fast": gelu_tanh,
               "gelu_pytorch_tanh": gelu_tanh}


def alibi_slopes(n_heads, most=8):
    """As the paper's authors have them: with no power of two of heads, the others take every other
    slope of twice as many."""
    def of_power(n):
        return [2 ** (-most * (i + 1) / n) for i in range(n)]

    power = 2 ** int(math.log2(n_heads))
    return numpy.array(of_power(power) + of_power(2 * power)[::2][:n_heads - power])


def soft_cap(x, cap):
    return cap * numpy.tanh(x / cap) if cap else x


def default_rope(_rope, freq, *_):
    return freq, 1


def linear_rope(rope, freq, *_):
    return freq / rope["factor"], 1


def llama3_rope(rope, freq, *_):
    turns = rope["original_max_position_embeddings"] * freq / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    keep = numpy.clip((turns - low) / (high - low), 0, 1)
    return freq * (keep + (1 - keep) / rope["factor"]), 1


def dynamic_rope(rope, freq, dim, trained, context):
    grown = rope["factor"] * max(context, trained) / trained - (rope["factor"] - 1)
    return freq * grown ** (-2 * numpy.arange(dim // 2) / (dim - 2)), 1


def yarn_rope(rope, freq, dim, *_):
    factor, original = rope["factor"], rope["original_max_position_embeddings"]

    def pair_that_turns(times):
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    def scale(weight):
        return 0.1 * weight * math.log(factor) + 1

    low, high = (pair_that_turns(rope.get(name) or other)
                 for name, other in (("beta_fast", 32), ("beta_slow", 1)))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    stretched = numpy.clip((numpy.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    both = rope.get("mscale") and rope.get("mscale_all_dim")
    length = scale(rope["mscale"]) / scale(rope["mscale_all_dim"]) if both else scale(1)
    return freq * (1 - stretched) + freq / factor * stretched, length


def longrope_rope(rope, freq, _dim, trained, context):
    original = rope["original_max_position_embeddings"]
    factors = rope["long_factor" if context > original else "short_factor"]
    grown = trained / original
    length = math.sqrt(1 + math.log(grown) / math.log(original)) if grown > 1 else 1
    return freq / numpy.array(factors), length


def proportional_rope(rope, freq, *_):
    return numpy.where(numpy.arange(len(freq)) < rope["n_turned"], freq, 0), 1


ROPES = {"proportional": proportional_rope, "default": default_rope, "linear": linear_rope, "llama3": llama3_rope,
         "dynamic": dynamic_rope, "yarn": yarn_rope, "longrope": longrope_rope}


class Rope:
    """How queries and keys are turned: frequencies, and what their length is multiplied by."""

    def __init__(self, config, rope, head_dim, context):
        share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
        whole = rope.get("rope_type") == "proportional"  # the others turn by nothing
        self.dim = head_dim if whole else int(head_dim * share)
        # Pairs of these are neighbours, the others' are half of what turns apart.
        self.neighbours = re.search("GLM(?!4MOE)|COHERE", config["architectures"][0].upper())
        theta = rope.get("rope_theta") or config.get("rope_theta")
        if config["architectures"] == ["ChatGLMModel"]:
            theta, self.dim = 10000 * config["rope_ratio"], head_dim // 2
        freq = theta ** -(numpy.arange(0, self.dim, 2) / self.dim)
        if rope.get("rope_type") == "none":
            rope, freq = {}, 0 * freq
        kind = rope.get("rope_type") or rope.get("type") or "default"
        original = config.get("original_max_position_embeddings")
        rope = {"rope_theta": theta, "original_max_position_embeddings": original,
                "n_turned": int(head_dim * share) // 2, **rope}
        self.freq, self.length = ROPES[kind](rope, freq, self.dim,
                                             config["max_position_embeddings"], context)
        self.turns = numpy.empty((2, 0, len(self.freq)))  # cosines and sines of the first positions

    def turn(self, x, positions):
        """x [..., rows, dim] at positions [rows]."""
        positions = numpy.asarray(positions)
        if (n := positions.max(initial=0) + 1) > self.turns.shape[1]:
            angle = numpy.arange(2 * n)[:, None] * self.freq
            self.turns = numpy.stack([numpy.cos(angle), numpy.sin(angle)]) * self.length
        cos, sin = self.turns[:, positions]
        half, out = self.dim // 2, x.copy()
        first, second = ((slice(0, self.dim, 2), slice(1, self.dim, 2)) if self.neighbours
                         else (slice(0, half), slice(half, self.dim)))
        a, b = x[..., first], x[..., second]
        out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
        return out


def ropes_of(config, head_dims, context):
    """One for each layer, of both spellings of config.json."""
    head_dim = head_dims[0]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    by_kind = {kind: rope[kind] if kind in rope else rope for kind in set(kinds)}
    if "rope_local_base_freq" in config:
        by_kind["sliding_attention"] = {"rope_theta": config["rope_local_base_freq"]}
    none = {**rope, "rope_type": "none"}
    if (config["architectures"][0].startswith(("Cohere2", "Exaone4"))
            or config.get("position_embedding_type") == "nope"):
        by_kind["full_attention"] = none
    ropes = {kind: Rope(config, by_kind[kind], head_dims[kinds.index(kind)], context)
             for kind in by_kind}
    rotates = config.get("no_rope_layers") or [1] * len(kinds)  # SmolLM3's
    if config.get("prefix_dense_sliding_window_pattern") == 1:  # Cohere's dense layers rotate
        dense = Rope(config, rope, head_dim, context)
        return [dense if mlp == "dense" else ropes[kind]
                for mlp, kind in zip(config["mlp_layer_types"], kinds)]
    return [ropes[kind] if turns else Rope(config, none, head_dim, context)
            for kind, turns in zip(kinds, rotates)]


def windows_of(config):
    """Of what a row of each layer would see only so many tokens, the newest."""
    n, kinds = config["num_hidden_layers"], config.get("layer_types")
    if kinds:
        return [config["sliding_window"] if kind == "sliding_attention" else math.inf
                for kind in kinds]
    # Llama has none, whatever is said.
    has = config["architectures"][0] in ("MistralForCausalLM", "MixtralForCausalLM",
                                         "Phi3ForCausalLM")
    return [has and config.get("sliding_window") or math.inf] * n


class Model:
    def __init__(self, directory, context=None):
        """context: what it is loaded for, where rotary frequencies depend on it."""
        c = checkpoint.read_config(directory)
        self.family = c["architectures"][0].removesuffix("ForCausalLM")
        c = usual_config(self.family, c)
        tensors = checkpoint.read_tensors(directory)
        tensors = usual_nemotron(tensors, c) if self.family == "NemotronH" else tensors
        c, tensors, self.recurrent = divide(c, tensors)
        self.mixer = self.recurrent and recurrent_of(c)
        # Beside each head's query lies its gate.
        self.gates_heads = bool(self.recurrent) and self.family.startswith("Qwen3")
        self.is_gemma = self.family.startswith("Gemma")
        self.is_gemma4 = self.family == "Gemma4"
        self.n_layers = c["num_hidden_layers"]
        self.n_heads = c["num_attention_heads"]
        self.n_kv_heads = c.get("num_key_value_heads") or self.n_heads
        if self.family == "Falcon":
            self.n_kv_heads = (c["num_kv_heads"] if c["new_decoder_architecture"] else
                               1 if c["multi_query"] else self.n_heads)
        self.group = self.n_heads // self.n_kv_heads
        self.head_dim = c.get("head_dim") or c["hidden_size"] // self.n_heads
        self.kv_heads, self.head_dims = self._heads(c)
        self.eps = c.get("rms_norm_eps") or c.get("layer_norm_eps", 1e-5)  # OPT does not say it
        attention = c.get("attn_config") or {}  # MPT's
        self.scale = (attention.get("softmax_scale")
                      or (c.get("query_pre_attn_scalar") or self.head_dim) ** -0.5)
        # Granite's multipliers, and Cohere's scale of logits
        self.scale = c.get("attention_multiplier", 1 if self.is_gemma4 else self.scale)
        self.branch_scale = c.get("residual_multiplier", 1)
        self.logit_scale = (c.get("logit_scale") or 1) / c.get("logits_scaling", 1)
        rope = c.get("rope_parameters") or {}
        self.query_beta = rope.get("llama_4_scaling_beta", 0)
        self.query_period = rope.get("original_max_position_embeddings")
        self.score_cap = c.get("attn_logit_softcapping")
        self.logit_cap = c.get("final_logit_softcapping")
        self.activate = gelu_tanh if self.is_gemma else ACTIVATIONS[self._activation(c)]
        self.norms_from_one = self.is_gemma and not self.is_gemma4 or self.gates_heads
        self.has_layer_norm = self.family in ("GPTNeoX", "OPT", "Falcon", "Mpt", "Cohere",
                                              "Cohere2") or (
            self.family == "Cohere2Moe" and c["rms_norm_eps"] is None)
        self.norms_behind = self.family in ("Olmo2", "Olmo3", "Exaone4")  # and none before
        self.norms_whole = self.family in ("Olmo2", "Olmo3")  # all heads at once
        self.is_parallel = c.get("use_parallel_residual") or (
            c.get("parallel_attn") or c.get("new_decoder_architecture")) or (
            self.family.startswith("Cohere"))
        self.slopes = self._slopes(c, attention)
        rotates = self.family != "OPT" and self.slopes is None
        self.ropes = rotates and ropes_of(c, self.head_dims,
                                          context or c["max_position_embeddings"])
        self.windows = windows_of(c)
        self.owners = self._owners(c)
        self.readers = [[i for i, owner in enumerate(self.owners) if owner == layer]
                        for layer in range(self.n_layers)]
        self.inputs = None  # of the rows whose embeddings were asked for last, by layer
        self.softmax_type = ("learnable" if self.family == "GptOss"
                             else c.get("softmax_type", "vanilla"))
        self.experts = experts_of(c, self.family)
        self.n_experts_used = c.get("top_k_experts")  # Gemma's
        self.router_noise = None  # a random generator: what routers read is moved (moved_input())
        self.weights = stacked(usual_tensors(self.family, {
            name: values.astype(numpy.float64)
            for name, values in tensors.items()}))
        self._cut_fused()
        self.fed = {name.partition(".mlp.")[0] for name in self.weights if ".mlp." in name}
        table = self.weights["model.embed_tokens.weight"]
        self.head = self.weights.get("lm_head.weight", table)
        self.table = table * (c["hidden_size"] ** 0.5 if self.is_gemma
                              else c.get("embedding_multiplier", 1))

    def _heads(self, config):
        """The KV heads of each layer, and the elements of its heads."""
        own = [config.get("per_layer_config", {}).get(str(i), {}) for i in range(self.n_layers)]
        return ([layer.get("num_key_value_heads", self.n_kv_heads) for layer in own],
                [layer.get("head_dim", self.head_dim) for layer in own])

    def _owners(self, config):
        """The layer whose keys each layer reads: its own, or the last one of its kind before those
        that have none."""
        n_own = self.n_layers - (config.get("num_kv_shared_layers") or 0)
        return [i if i < n_own else max(j for j in range(n_own) if self.windows[j] == window)
                for i, window in enumerate(self.windows)]

    def _activation(self, config):
        return config.get("hidden_act") or ("gelu" if self.family == "Mpt" else "silu")

    def _slopes(self, config, attention):
        """What a head's scores lose by a token of distance; None: nothing."""
        if self.family == "Mpt":
            return alibi_slopes(self.n_heads, attention.get("alibi_bias_max", 8))
        if config.get("alibi"):  # Falcon's scores are scaled with the bias
            return alibi_slopes(self.n_heads) * self.scale
        return None

    def _cut_fused(self):
        sizes = [part * self.head_dim for part in (self.n_heads, self.n_kv_heads)]
        for name, values in list(self.weights.items()):
            if ".qkv_proj." in name:
                if self.family in ("GPTNeoX", "Falcon"):  # by KV head
                    heads = values.reshape(self.n_kv_heads, self.group + 2, self.head_dim, -1)
                    cuts = [heads[:, :self.group], heads[:, self.group], heads[:, self.group + 1]]
                    cuts = [cut.reshape(-1, *values.shape[1:]) for cut in cuts]
                else:
                    cuts = numpy.split(values, [sizes[0], sum(sizes)])
                self.weights |= {name.replace("qkv", part): cut for part, cut in zip("qkv", cuts)}
            if ".gate_up_proj." in name:
                parts = zip(("gate", "up"), numpy.split(values, 2))
                self.weights |= {name.replace("gate_up", part): cut for part, cut in parts}

    @property
    def learns_positions(self):
        return "model.embed_positions.weight" in self.weights

    def embed(self, tokens, at):
        """The tokens at these positions."""
        learned = self.weights.get("model.embed_positions.weight")
        x = self.table[numpy.asarray(tokens)]
        self.inputs = self._inputs_of(tokens, x)
        return x if learned is None else x + learned[numpy.asarray(at) + 2]

    def _inputs_of(self, tokens, x):
        """What each layer gets of the tokens beside the residual stream, [rows, layers, width]."""
        table = self.weights.get("model.embed_tokens_per_layer.weight")
        if table is None:
            return None
        projected = x @ self.weights["model.per_layer_model_projection.weight"].T
        projected = projected.reshape(len(x), self.n_layers, -1) * x.shape[-1] ** -0.5
        looked_up = table[numpy.asarray(tokens)].reshape(projected.shape)
        return (self.norm("model.per_layer_projection_norm", projected)
                + looked_up * projected.shape[-1] ** 0.5) * 2 ** -0.5

    def add_inputs(self, i, x):
        """x with what the layer makes of its own inputs."""
        if self.inputs is None:
            return x
        y = self.activate(self.linear(i, "per_layer_input_gate", x)) * self.inputs[:, i]
        return x + self.norm(f"model.layers.{i}.post_per_layer_input_norm",
                             self.linear(i, "per_layer_projection", y))

    def norm(self, name, x):
        """x, if there is no such norm."""
        weight = self.weights.get(name + ".weight")
        if weight is not None and self.has_layer_norm:
            return layer_norm(x, weight, self.weights.get(name + ".bias", 0), self.eps)
        return x if weight is None else rms_norm(x, weight + self.norms_from_one, self.eps)

    def linear(self, i, name, x):
        y = x @ self.weights[f"model.layers.{i}.{name}.weight"].T
        return y + self.weights.get(f"model.layers.{i}.{name}.bias", 0)

    def approach(self, i, x, states):
        """x in front of layer i, behind the layers before it that do not attend.  states: of the
        text, by recurrent layer; replaced, but not changed, by those behind the rows."""
        for layer in self.recurrent[i] if self.recurrent else []:
            prefix = f"model.layers.{layer}."
            at = f"{prefix}{self.mixer.mixer}."
            if at + "A_log" not in self.weights:
                x = self.add_feed_forward(layer, x)
                continue
            added, states[layer] = self.mixer.run(
                lambda name, end=".weight", at=at: self.weights[f"{at}{name}{end}"],
                self.norm(prefix + "input_layernorm", x), states.get(layer) or self.mixer.begin())
            x = self.add_feed_forward(layer, x + self.branch_scale * added)
        return x

    def qkv(self, i, x):
        """Queries [rows, heads, dim], keys before RoPE and values [rows, KV heads, dim]; of a layer
        that reads another one's keys these are None."""
        layer = f"model.layers.{i}."
        x = self.norm(layer + "input_layernorm", x)
        if self.owners[i] != i:
            q = self.linear(i, "self_attn.q_proj", x).reshape(len(x), -1, self.head_dims[i])
            return self.norm(layer + "self_attn.q_norm", q), None, None
        has_v = f"{layer}self_attn.v_proj.weight" in self.weights
        parts = [self.linear(i, f"self_attn.{name}_proj", x) for name in ("qkv" if has_v else "qkk")]
        if self.norms_whole:
            parts[:2] = (self.norm(f"{layer}self_attn.{name}_norm", part)
                         for name, part in zip("qk", parts))
        if self.gates_heads:
            parts[0] = self._cut_gate(parts[0], i)[:, :, 0].reshape(len(x), -1)
        q, k, v = (part.reshape(len(x), -1, self.head_dims[i]) for part in parts)
        if self.is_gemma4:
            v = rms_norm(v, 1, self.eps)
        if self.norms_whole:
            return q, k, v
        return (self.norm(layer + "self_attn.q_norm", q),
                self.norm(layer + "self_attn.k_norm", k), v)

    def _cut_gate(self, q, i):
        return q.reshape(len(q), -1, 2, self.head_dims[i])

    def _gated(self, i, x, read):
        """What the heads have read, by the gate that the layer's rows give."""
        if not self.gates_heads:
            return read
        q = self.linear(i, "self_attn.q_proj", self.norm(f"model.layers.{i}.input_layernorm", x))
        return read / (1 + numpy.exp(-self._cut_gate(q, i)[:, :, 1].reshape(read.shape)))

    def sinks(self, i):
        """The logits of the layer's sinks, [KV heads, group, 1, 1]."""
        logits = {"vanilla": -math.inf, "off-by-one": 0,
                  "learnable": self.weights.get(f"model.layers.{i}.self_attn.sinks")}
        logits = numpy.broadcast_to(logits[self.softmax_type], self.n_heads)
        return logits.reshape(self.kv_heads[i], -1, 1, 1)

    def rotate(self, i, x, positions):
        return self.ropes[i].turn(x, positions) if self.ropes else x

    def rotate_queries(self, i, x, positions):
        """Also scaled by their position, where the family does that."""
        turned = self.rotate(i, x, positions)
        if not self.query_beta:
            return turned
        far = numpy.floor(numpy.asarray(positions) / self.query_period)
        return turned * (1 + self.query_beta * numpy.log(1 + far))[:, None]

    def scores(self, q, k):
        """Of queries [..., rows, dim] and keys [..., slots, dim], before softmax and without a
        bias."""
        return soft_cap(q @ k.swapaxes(-1, -2) * self.scale, self.score_cap)

    def bias(self, heads, rows, slots):
        """What is added to the scores of these heads, [heads, rows, slots]."""
        if self.slopes is None:
            return 0
        distance = numpy.asarray(rows)[:, None] - numpy.asarray(slots)
        return -self.slopes[heads][:, None, None] * distance

    def is_hidden(self, i, rows, slots):
        """Whether rows at these positions do not see slots of those: [rows, slots]."""
        rows = numpy.asarray(rows)[:, None]
        return (slots > rows) | (slots <= rows - self.windows[i])

    def finish_layer(self, i, x, read):
        """x after the layer, whose heads have read [rows, heads * dim]."""
        if self.is_parallel:
            return self.add_attention(i, x, read) + self.feed_forward(i, x)
        x = self.add_inputs(i, self.add_feed_forward(i, self.add_attention(i, x, read)))
        return x * self.weights.get(f"model.layers.{i}.layer_scalar", 1)

    def add_attention(self, i, x, read):
        after = {"Glm4": "post_self_attn_layernorm"}.get(self.family)
        after = "post_attention_layernorm" if self.is_gemma or self.norms_behind else after
        read = self._gated(i, x, read)
        branch = self.norm(f"model.layers.{i}.{after}", self.linear(i, "self_attn.o_proj", read))
        return x + self.branch_scale * branch

    def add_feed_forward(self, i, x):
        return x + self.feed_forward(i, x)

    def feed_forward(self, i, x):
        layer = f"model.layers.{i}."
        if f"model.layers.{i}" not in self.fed:
            return 0
        if layer + "router.proj.weight" in self.weights:
            return self.norm(layer + "post_feedforward_layernorm", self.through_both(i, x))
        before = "pre_feedforward_layernorm" if self.is_gemma else "post_attention_layernorm"
        after = ("post_feedforward_layernorm" if self.is_gemma or self.norms_behind
                 else "post_mlp_layernorm")
        if layer + before + ".weight" not in self.weights:  # one norm for both halves
            before = "input_layernorm"
        y = x if self.norms_behind else self.norm(layer + before, x)
        if layer + "mlp.gate.weight" in self.weights:
            return self.through_experts(i, y)
        up = self.linear(i, "mlp.up_proj", y)
        if layer + "mlp.gate_proj.weight" in self.weights:
            up *= self.activate(self.linear(i, "mlp.gate_proj", y))
        else:
            up = self.activate(up)
        return self.branch_scale * self.norm(layer + after, self.linear(i, "mlp.down_proj", up))

    def through_both(self, i, x):
        """The sum of what Gemma's dense part and its experts give, each with norms of its own."""
        layer, w = f"model.layers.{i}.", self.weights
        y = self.norm(layer + "pre_feedforward_layernorm", x)
        up = self.linear(i, "mlp.up_proj", y) * self.activate(self.linear(i, "mlp.gate_proj", y))
        dense = self.linear(i, "mlp.down_proj", up)
        routed = rms_norm(x, w[layer + "router.scale"], self.eps) * x.shape[-1] ** -0.5
        inputs, out = self.norm(layer + "pre_feedforward_layernorm_2", x), []
        for row, logits in zip(inputs, self.linear(i, "router.proj", routed)):
            shares = softmax(logits)
            chosen = numpy.argsort(-shares)[:self.n_experts_used]
            total, y = shares[chosen].sum(), 0
            for expert in chosen:
                gate, up = numpy.split(w[layer + "experts.gate_up_proj"][expert] @ row, 2)
                share = shares[expert] / total * w[layer + "router.per_expert_scale"][expert]
                y = y + share * (w[layer + "experts.down_proj"][expert] @ (self.activate(gate) * up))
            out.append(y)
        return (self.norm(layer + "post_feedforward_layernorm_1", dense)
                + self.norm(layer + "post_feedforward_layernorm_2", numpy.array(out)))

    def through_experts(self, i, x):
        """What a layer's experts make of each row, the shared one among them."""
        layer, e = f"model.layers.{i}.mlp.", self.experts
        bias = self.weights.get(layer + "gate.e_score_correction_bias", 0)
        out = []
        read = x if self.router_noise is None else moved_input(x, self.router_noise)
        for row, logits in zip(x, self.linear(i, "mlp.gate", read)):
            y = 0
            for expert, share in zip(*e.route(logits, bias)):
                hidden = self._hidden(lambda part: self.expert(layer + f"experts.{part}_proj", expert,
                                                               row), layer)
                y = y + share * self.expert(layer + "experts.down_proj", expert, hidden)
            out.append(y)
        if layer + "shared_experts.up_proj.weight" not in self.weights:
            return numpy.array(out)
        shared = self.linear(i, "mlp.shared_experts.down_proj", self._hidden(
            lambda part: self.linear(i, f"mlp.shared_experts.{part}_proj", x), layer))
        if layer + "shared_expert_gate.weight" in self.weights:
            shared /= 1 + numpy.exp(-self.linear(i, "mlp.shared_expert_gate", x))
        return numpy.array(out) + e.shared * shared

    def _hidden(self, product, layer):
        """Of products with gate and up, or with up alone."""
        if layer + "experts.gate_proj.weight" not in self.weights:
            return self.activate(product("up"))
        return self.experts.through_gate(product("gate"), product("up"))

    def expert(self, name, expert, x):
        y = self.weights[name + ".weight"][expert] @ x
        biases = self.weights.get(name + ".bias")
        return y if biases is None else y + biases[expert]

    def logits(self, x):
        logits = self.norm("model.norm", x) @ self.head.T * self.logit_scale
        return soft_cap(logits, self.logit_cap)
