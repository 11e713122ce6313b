"""Mixtures of experts by the definition, for oracle_model.py: a loop over rows and their experts.

  experts_of(config, family)      what the router does, from config.json; None: there are none
  stacked(weights, config)        the experts' tensors of every layout, in Llama's names
  moved_input(x, rng)             what routers read, as far off as rounding to bf16 moves it"""
import math
import re

import numpy

MXFP4 = numpy.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
ROUTERS = {"Qwen2Moe": "softmax", "Qwen3Moe": "softmax", "Mixtral": "softmax",
           "GptOss": "softmax of the chosen", "Glm4Moe": "sigmoid", "NemotronH": "sigmoid",
           "Cohere2Moe": "as said"}

# Of what a router reads, the root mean square of what rounding to bf16 moves.  With every result of
# the oracle rounded so, it is 0.2 to 1.6 % at the median row of a layer of the tiny checkpoints.
ROUNDING = 0.015


class Experts:
    def __init__(self, family, config):
        self.kind = ROUTERS[family]
        if self.kind == "as said":
            self.kind = "sigmoid" if config["expert_selection_fn"] == "sigmoid" else "softmax of the chosen"
        self.n_used = config["num_experts_per_tok"]
        self.normalises = family == "Mixtral" or config.get("norm_topk_prob", family == "Glm4Moe")
        halves = config.get("num_shared_experts") and config["shared_expert_combination_strategy"] == "average"
        self.shared = 0.5 if halves else 1
        self.factor = config.get("routed_scaling_factor", self.shared)
        self.n_groups, self.n_used_groups = config.get("n_group", 1), config.get("topk_group", 1)
        self.most, self.slope = config.get("swiglu_limit"), config.get("swiglu_alpha", 1.702)

    def route(self, logits, choice_bias):
        """The experts of one row, and their shares."""
        if self.kind == "softmax of the chosen":
            chosen = numpy.argsort(-logits)[:self.n_used]
            shares = numpy.exp(logits[chosen] - logits.max())
            return chosen, shares / shares.sum()
        shares = (numpy.exp(logits - logits.max()) if self.kind == "softmax"
                  else 1 / (1 + numpy.exp(-logits)))
        if self.kind == "softmax":
            shares /= shares.sum()
        compared = shares + choice_bias
        if self.n_groups > 1:
            groups = compared.reshape(self.n_groups, -1)
            best = numpy.argsort(-numpy.sort(groups)[:, -2:].sum(axis=1))[self.n_used_groups:]
            groups[best] = -math.inf
        chosen = numpy.argsort(-compared)[:self.n_used]
        shares = shares[chosen]
        return chosen, (shares / shares.sum() if self.normalises else shares) * self.factor

    def through_gate(self, gate, up):
        if self.most is None:
            return gate / (1 + numpy.exp(-gate)) * up
        gate, up = numpy.minimum(gate, self.most), numpy.clip(up, -self.most, self.most)
        return gate / (1 + numpy.exp(-self.slope * gate)) * (up + 1)


def moved_input(x, rng):
    size = ROUNDING * numpy.sqrt((x ** 2).mean(axis=1, keepdims=True))
    return x + size * rng.normal(size=x.shape)


def experts_of(config, family):
    return Experts(family, config) if family in ROUTERS else None


def mxfp4_worth(blocks, scales):
    """Of U8 [..., rows, blocks, 16] and U8 [..., rows, blocks]: [..., rows, columns]."""
    codes = numpy.stack([blocks % 16, blocks // 16], axis=-1).astype(int)
    worth = MXFP4[codes] * 2.0 ** (scales.astype(int) - 127)[..., None, None]
    return worth.reshape(*scales.shape[:-1], -1)


def stacked(weights):
    """gate_proj, up_proj and down_proj of all experts as one array each: [experts, rows, columns];
    biases are [experts, rows]."""
    weights = dict(weights)
    for name in [name for name in weights if name.endswith("_blocks")]:
        whole = name.removesuffix("_blocks")
        weights[whole] = mxfp4_worth(weights.pop(name), weights.pop(whole + "_scales"))
    for name in [name for name in weights if re.search(r"mlp\.experts\.gate_up_proj(_bias)?$", name)]:
        cut_gpt_oss(weights, name.removesuffix("_bias").removesuffix("gate_up_proj"))
    for name in [name for name in weights if ".mlp.experts.0." in name]:
        parts = []
        while (part := name.replace(".experts.0.", f".experts.{len(parts)}.")) in weights:
            parts.append(weights.pop(part))
        weights[name.replace(".experts.0.", ".experts.")] = numpy.stack(parts)
    return weights


def cut_gpt_oss(weights, layer):
    """Rows of gate and up take turns; what is not quantised is transposed, too."""
    if layer + "gate_up_proj" not in weights:
        return
    both, down = weights.pop(layer + "gate_up_proj"), weights.pop(layer + "down_proj")
    biases = weights.pop(layer + "gate_up_proj_bias")
    if both.shape[1] != biases.shape[1]:
        both, down = both.swapaxes(1, 2), down.swapaxes(1, 2)
    weights |= {layer + "gate_proj.weight": both[:, ::2], layer + "up_proj.weight": both[:, 1::2],
                layer + "gate_proj.bias": biases[:, ::2], layer + "up_proj.bias": biases[:, 1::2],
                layer + "down_proj.weight": down,
                layer + "down_proj.bias": weights.pop(layer + "down_proj_bias")}
