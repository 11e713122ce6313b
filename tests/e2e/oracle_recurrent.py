"""Layers with a recurrent state (Gated DeltaNet) by the definition, row by row, in numpy and
float64, for oracle_model.py.

  divide(config, tensors)    the layers that attend, numbered without the others; and the others
  Recurrent(config)          what the others make of their rows

Oracles number the layers that attend alone, as quire does in what it is asked."""
import re

import numpy

LAYER = re.compile(r"model\.layers\.(\d+)\.")


def divide(config, tensors):
    """config and tensors with only the layers that attend, in which the tensors of recurrent layer
    n have the layer "r<n>"; and the recurrent layers in front of each of those, and behind the
    last."""
    names, before = {}, [[]]
    for i, kind in enumerate(config.get("layer_types") or []):
        if kind == "linear_attention":
            before[-1].append(f"r{i}")
            names[str(i)] = f"r{i}"
        else:
            names[str(i)] = str(len(before) - 1)
            before.append([])
    if not any(before):
        return config, tensors, None
    kinds = [kind for kind in config["layer_types"] if kind != "linear_attention"]
    config = {**config, "layer_types": kinds, "num_hidden_layers": len(kinds)}
    return config, {LAYER.sub(lambda found: f"model.layers.{names[found[1]]}.", name): values
                    for name, values in tensors.items()}, before


def sigmoid(x):
    return 1 / (1 + numpy.exp(-x))


def unit(x):
    return x / numpy.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


class Recurrent:
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
        mixed = sum(inputs[j:j + len(x)] * taps[:, j] for j in range(self.width))
        mixed *= sigmoid(mixed)
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
        out = (read * tensor("norm")).reshape(len(x), -1) * z * sigmoid(z)
        return out @ tensor("out_proj").T, (inputs[len(x):], s)
