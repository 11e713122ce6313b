"""Layers with a recurrent state (Gated DeltaNet, Mamba-2) by the definition, row by row, in numpy
and float64, for oracle_model.py.

  divide(config, tensors)    the layers that attend, numbered without the others; and the others
  recurrent_of(config)       what the others make of their rows

Oracles number the layers that attend alone, as quire does in what it is asked."""
import re

import numpy

LAYER = re.compile(r"model\.layers\.(\d+)\.")
RECURRENT = ("linear_attention", "mamba", "mlp")  # or without anything that mixes rows


def divide(config, tensors):
    """config and tensors with only the layers that attend, in which the tensors of another layer n
    have the layer "r<n>"; and the others in front of each of those, and behind the last."""
    names, before = {}, [[]]
    for i, kind in enumerate(config.get("layer_types") or []):
        if kind in RECURRENT:
            before[-1].append(f"r{i}")
            names[str(i)] = f"r{i}"
        else:
            names[str(i)] = str(len(before) - 1)
            before.append([])
    if not any(before):
        return config, tensors, None
    kinds = [kind for kind in config["layer_types"] if kind not in RECURRENT]
    config = {**config, "layer_types": kinds, "num_hidden_layers": len(kinds)}
    return config, {LAYER.sub(lambda found: f"model.layers.{names[found[1]]}.", name): values
                    for name, values in tensors.items()}, before


def sigmoid(x):
    return 1 / (1 + numpy.exp(-x))


def unit(x):
    return x / numpy.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


def silu(x):
    return x * sigmoid(x)


class Delta:
    mixer = "linear_attn"

    def __init__(self, config):
        self.n_keys, self.n_values = (config[f"linear_num_{part}_heads"] for part in ("key", "value"))
        self.key_dim, self.value_dim = (config[f"linear_{part}_head_dim"] for part in ("key", "value"))
        self.width, self.eps = config["linear_conv_kernel_dim"], config["rms_norm_eps"]

    def begin(self):
        """The state before a text: the convolution's last inputs, and a matrix for each value
        head."""
        n_channels = 2 * self.n_keys * self.key_dim + self.n_values * self.value_dim
        return (numpy.zeros((self.width - 1, n_channels)),
                numpy.zeros((self.n_values, self.key_dim, self.value_dim)))

    def run(self, tensor, x, state):
        """x: rows behind the layer's norm.  What is added to the residual stream, and the state
        behind the rows; `state` stays as it was."""
        inputs = numpy.concatenate([state[0], x @ tensor("in_proj_qkv").T])
        taps = tensor("conv1d")[:, 0]
        mixed = silu(sum(inputs[j:j + len(x)] * taps[:, j] for j in range(self.width)))
        size = self.n_keys * self.key_dim
        q, k, v = numpy.split(mixed, [size, 2 * size], axis=1)
        shared = self.n_values // self.n_keys
        q, k = (numpy.repeat(unit(part.reshape(len(x), -1, self.key_dim)), shared, axis=1)
                for part in (q, k))
        v = v.reshape(len(x), -1, self.value_dim)
        rate = numpy.logaddexp(0, x @ tensor("in_proj_a").T + tensor("dt_bias", ""))
        kept = numpy.exp(-numpy.exp(tensor("A_log", "")) * rate)
        beta = sigmoid(x @ tensor("in_proj_b").T)
        s, read = state[1], []
        for t in range(len(x)):
            s = s * kept[t][:, None, None]
            new = beta[t][:, None] * (v[t] - numpy.einsum("hkv,hk->hv", s, k[t]))
            s = s + k[t][:, :, None] * new[:, None, :]
            read.append(numpy.einsum("hkv,hk->hv", s, q[t]) * self.key_dim ** -0.5)
        read = numpy.array(read)
        read /= numpy.sqrt((read * read).mean(axis=-1, keepdims=True) + self.eps)
        z = x @ tensor("in_proj_z").T
        out = (read * tensor("norm")).reshape(len(x), -1) * silu(z)
        return out @ tensor("out_proj").T, (inputs[len(x):], s)


class Mamba:
    mixer = "mamba"

    def __init__(self, config):
        self.n_heads, self.head_dim, self.state_dim, self.n_groups, self.width = (
            config[f"mamba_{part}"] for part in ("n_heads", "d_head", "d_state", "n_groups", "d_conv"))
        self.eps, self.has_bias = config["rms_norm_eps"], config["mamba_conv_bias"]
        self.limits = [float(limit["__float__"] if isinstance(limit, dict) else limit)
                       for limit in config["time_step_limit"]]
        self.n_values, self.n_keys = self.n_heads * self.head_dim, self.n_groups * self.state_dim

    def begin(self):
        """As Delta's; a head has a column of the matrix for each of its elements."""
        return (numpy.zeros((self.width - 1, self.n_values + 2 * self.n_keys)),
                numpy.zeros((self.n_heads, self.state_dim, self.head_dim)))

    def run(self, tensor, x, state):
        """As Delta's."""
        z, channels, steps = numpy.split(
            x @ tensor("in_proj").T, [self.n_values, 2 * self.n_values + 2 * self.n_keys], axis=1)
        inputs, taps = numpy.concatenate([state[0], channels]), tensor("conv1d")[:, 0]
        mixed = sum(inputs[j:j + len(x)] * taps[:, j] for j in range(self.width))
        mixed = silu(mixed + tensor("conv1d", ".bias") if self.has_bias else mixed)
        values, b, c = numpy.split(mixed, [self.n_values, self.n_values + self.n_keys], axis=1)
        b, c = (numpy.repeat(part.reshape(len(x), -1, self.state_dim),
                             self.n_heads // self.n_groups, axis=1) for part in (b, c))
        values = values.reshape(len(x), -1, self.head_dim)
        steps = numpy.clip(numpy.logaddexp(0, steps + tensor("dt_bias", "")), *self.limits)
        kept = numpy.exp(-numpy.exp(tensor("A_log", "")) * steps)
        s, read = state[1], []
        for t in range(len(x)):
            s = (s * kept[t][:, None, None]
                 + b[t][:, :, None] * (steps[t][:, None] * values[t])[:, None, :])
            read.append(numpy.einsum("hkv,hk->hv", s, c[t]))
        read = numpy.array(read) + tensor("D", "")[:, None] * values
        out = (read.reshape(len(x), -1) * silu(z)).reshape(len(x), self.n_groups, -1)
        out /= numpy.sqrt((out * out).mean(axis=-1, keepdims=True) + self.eps)
        return (out.reshape(len(x), -1) * tensor("norm")) @ tensor("out_proj").T, (inputs[len(x):], s)


def recurrent_of(config):
    return Mamba(config) if "mamba_n_heads" in config else Delta(config)
