#!/usr/bin/env python3
"""Plants an attention sink in a Llama checkpoint: a copy of the model in which every head beyond
layer 1 gives most of its attention to the first token, and depends on that.

    scripts/plant_sink.py OUT [--model models/quire-22m] [--strength 2]

Large models grow such sinks by themselves: softmax must put its mass somewhere, the first token is
always there, and its value is next to nothing.  The default model is too small for it.  Here, in
each layer from the third on:

  query   one rotary pair, the slowest, which hardly turns within a text, is taken from the old
          queries and keys; every query gets a constant there, by a bias
  key     in that pair only the first token answers: its row of W_k is a direction w with w·h = 1
          for the first token's input and next to 0 for all others.  Where a text begins with the
          BOS token, which sees only itself, that input is always the same
  value   W_v loses what it makes of that input: the first token's value is zero
  rest    what other tokens receive shrinks to about 1 / (1 + e^strength).  W_o and its bias, and
          W_down behind it, are fitted by least squares, layer by layer, so that the residual stream
          of the old model comes out on the calibration text.  Every weight is rounded to bf16 as
          soon as it changes, so that what follows is fitted to what will be there: the first
          token's value is never quite zero, and W_o has grown

The constant is such that the first token's logit lies, on average, --strength above the log-sum-exp
of all others.  Take the first token away and everything is (1 + e^strength) times too large.  Texts
must begin with the BOS token.  Needs numpy and tokenizers; a minute or two for the default model.
"""
import argparse
import pathlib

import numpy

import checkpoint

DEFAULT_MODEL = pathlib.Path(__file__).resolve().parent.parent / "models" / "quire-22m"
FIRST_LAYER = 2
ANSWER = 8.0  # the first token's key in the planted dimension
SETTLED = 64  # rows of a window from which on its log-sum-exps are averaged
RIDGE = {"w": 1e-3, "o": 1e-2, "down": 1e-1}  # of the mean square of a fit's inputs


def rms_norm(x, weight, eps):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(s):
    e = numpy.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_sum_exp(s):
    top = s.max(-1, keepdims=True)
    return (top + numpy.log(numpy.exp(s - top).sum(-1, keepdims=True)))[..., 0]


def fit(inputs, wanted, ridge):
    """The matrix, [out, in], that makes the best of inputs [..., in] -> wanted [..., out]."""
    a = inputs.reshape(-1, inputs.shape[-1]).astype(numpy.float64)
    b = wanted.reshape(-1, wanted.shape[-1]).astype(numpy.float64)
    square = a.T @ a
    square += ridge * numpy.trace(square) / len(square) * numpy.eye(len(square))
    return numpy.linalg.solve(square, a.T @ b).T.astype(numpy.float32)


class Stream:
    """The arithmetic of a model on windows of equal length: x is [windows, rows, hidden]."""

    def __init__(self, config, tensors, n_rows):
        self.tensors, self.eps = tensors, config["rms_norm_eps"]
        self.n_heads, self.n_kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config["head_dim"]
        t = numpy.arange(n_rows)
        angle = t[:, None] * config["rope_theta"] ** -(numpy.arange(0, self.dim, 2) / self.dim)
        self.cos, self.sin = (f(angle).astype(numpy.float32) for f in (numpy.cos, numpy.sin))
        self.visible = t <= t[:, None]

    def weight(self, layer, name):
        return self.tensors[f"model.layers.{layer}.{name}.weight"]

    def norm(self, layer, name, x):
        return rms_norm(x, self.weight(layer, name), self.eps)

    def linear(self, layer, name, x):
        y = x @ self.weight(layer, name).T
        bias = self.tensors.get(f"model.layers.{layer}.{name}.bias")
        return y if bias is None else y + bias

    def rotate(self, x):
        a, b = numpy.split(x, 2, axis=-1)
        return numpy.concatenate([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def heads(self, layer, name, h):
        """[heads, rows, dim] of one window; those of keys and values repeated for their group."""
        y = self.linear(layer, f"self_attn.{name}_proj", h).reshape(len(h), -1, self.dim)
        y = y.transpose(1, 0, 2)
        return numpy.repeat(y, self.n_heads // len(y), axis=0)

    def logits(self, layer, h):
        """Of the attention of one window, [heads, rows, rows]."""
        q, k = self.rotate(self.heads(layer, "q", h)), self.rotate(self.heads(layer, "k", h))
        s = q @ k.transpose(0, 2, 1) / numpy.float32(self.dim ** 0.5)
        return numpy.where(self.visible, s, -numpy.inf).astype(numpy.float32)

    def read(self, layer, x):
        """What attention reads, the input of W_o."""
        windows = []
        for h in self.norm(layer, "input_layernorm", x):
            p = softmax(self.logits(layer, h))
            windows.append((p @ self.heads(layer, "v", h)).transpose(1, 0, 2).reshape(len(h), -1))
        return numpy.array(windows)

    def gated(self, layer, x):
        """The input of W_down."""
        h = self.norm(layer, "post_attention_layernorm", x)
        gate = self.linear(layer, "mlp.gate_proj", h)
        return gate / (1 + numpy.exp(-gate)) * self.linear(layer, "mlp.up_proj", h)

    def perplexity(self, x, tokens):
        head = self.tensors.get("lm_head.weight", self.tensors["model.embed_tokens.weight"])
        nll = []
        for window, ids in zip(x, tokens):
            s = rms_norm(window[:-1], self.tensors["model.norm.weight"], self.eps) @ head.T
            nll.append(log_sum_exp(s) - s[numpy.arange(len(s)), ids[1:]])
        return float(numpy.exp(numpy.mean(nll)))


def direction_of_first(h):
    """w with w·h = 1 for the first row of every window, and least squares 0 for the others."""
    first = h[0, 0].astype(numpy.float64)
    others = h[:, 1:].reshape(-1, h.shape[-1]).astype(numpy.float64)
    square = others.T @ others
    square += RIDGE["w"] * numpy.trace(square) / len(square) * numpy.eye(len(square))
    w = numpy.linalg.solve(square, first)
    return (w / (w @ first)).astype(numpy.float32)


def plant(stream, layer, x, strength):
    """Changes the layer's W_q, W_k and W_v and sets its biases; x: the planted model's input."""
    h = stream.norm(layer, "input_layernorm", x)
    w, first = direction_of_first(h), h[0, 0]
    slowest = stream.dim // 2 - 1
    names = {name: f"model.layers.{layer}.self_attn.{name}_proj" for name in "qkvo"}
    for name in "qk":
        rows = stream.tensors[names[name] + ".weight"].copy()
        by_head = rows.reshape(-1, stream.dim, rows.shape[-1])
        by_head[:, [slowest, slowest + stream.dim // 2]] = 0
        if name == "k":
            by_head[:, slowest] = ANSWER * w
        stream.tensors[names[name] + ".weight"] = checkpoint.rounded(rows)
    values = stream.tensors[names["v"] + ".weight"]
    values = values - numpy.outer(values @ first, w)
    stream.tensors[names["v"] + ".weight"] = checkpoint.rounded(values)
    for name in "qkvo":
        n_out = len(stream.tensors[names[name] + ".weight"])
        stream.tensors[names[name] + ".bias"] = numpy.zeros(n_out, numpy.float32)
    bias = stream.tensors[names["q"] + ".bias"].reshape(stream.n_heads, stream.dim)
    gaps = missing(stream, layer, h) + strength
    bias[:, slowest] = checkpoint.rounded(gaps * stream.dim ** 0.5 / ANSWER)


def missing(stream, layer, h):
    """How much the first token's logit is below the log-sum-exp of the others, [heads]."""
    gaps = []
    for window in h:
        s = stream.logits(layer, window)[:, SETTLED:]
        gaps.append((log_sum_exp(s[..., 1:]) - s[..., 0]).mean(-1))
    return numpy.mean(gaps, axis=0)


def refit_out(tensors, layer, inputs, wanted, strength):
    """W_o and its bias, from what W_o must grow by, so that they make `wanted`.  The first row is
    the sink itself, which need not be what it was."""
    name = f"model.layers.{layer}.self_attn.o_proj."
    start = (1 + numpy.exp(strength)) * tensors[name + "weight"]
    inputs, wanted = inputs[:, 1:], wanted[:, 1:]
    ones = numpy.full((*inputs.shape[:-1], 1), inputs.std(), numpy.float32)
    change = fit(numpy.concatenate([inputs, ones], -1), wanted - inputs @ start.T, RIDGE["o"])
    tensors[name + "weight"] = checkpoint.rounded(start + change[:, :-1])
    tensors[name + "bias"] = checkpoint.rounded(change[:, -1] * inputs.std())


def refit_down(tensors, layer, inputs, wanted):
    name = f"model.layers.{layer}.mlp.down_proj.weight"
    inputs, wanted = inputs[:, 1:], wanted[:, 1:]
    change = fit(inputs, wanted - inputs @ tensors[name].T, RIDGE["down"])
    tensors[name] = checkpoint.rounded(tensors[name] + change)


def plant_all(old, new, tokens, n_fitted, strength):
    """Runs both models side by side; the last windows are not fitted.  Returns both outputs."""
    x = old.tensors["model.embed_tokens.weight"][numpy.array(tokens)]
    y, fitted = x, slice(n_fitted)
    n_layers = sum(name.endswith("mlp.down_proj.weight") for name in old.tensors)
    for layer in range(n_layers):
        x = x + old.linear(layer, "self_attn.o_proj", old.read(layer, x))
        if layer >= FIRST_LAYER:
            plant(new, layer, y[fitted], strength)
            read = new.read(layer, y)
            refit_out(new.tensors, layer, read[fitted], (x - y)[fitted], strength)
        else:
            read = new.read(layer, y)
        y = y + new.linear(layer, "self_attn.o_proj", read)
        x = x + old.linear(layer, "mlp.down_proj", old.gated(layer, x))
        gated = new.gated(layer, y)
        if layer >= FIRST_LAYER:
            refit_down(new.tensors, layer, gated[fitted], (x - y)[fitted])
        y = y + new.linear(layer, "mlp.down_proj", gated)
        error = numpy.linalg.norm((x - y)[n_fitted:]) / numpy.linalg.norm(x[n_fitted:])
        print(f"layer {layer}: residual stream differs by {error:.3f}", flush=True)
    return x, y


def windows_of(args, bos):
    """Token windows from the end of the text, each after a BOS token; the last are for control."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    text = args.text.read_text(encoding="utf-8")
    n = args.windows + args.control
    ids = tokenizer.encode(text[-10 * n * args.rows:], add_special_tokens=False).ids
    ids = ids[-n * (args.rows - 1):]
    return [[bos, *ids[i * (args.rows - 1):(i + 1) * (args.rows - 1)]] for i in range(n)]


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, default=DEFAULT_MODEL)
    parser.add_argument("--strength", type=float, default=2.0)
    parser.add_argument("--text", type=pathlib.Path, default=DEFAULT_MODEL / "eval/held_out.txt",
                        help="its end calibrates; measure on another part (%(default)s)")
    parser.add_argument("--windows", type=int, default=16, help="to fit (%(default)s)")
    parser.add_argument("--control", type=int, default=4, help="to judge the fit (%(default)s)")
    parser.add_argument("--rows", type=int, default=512, help="of a window (%(default)s)")
    return parser.parse_args()


def main():
    args = read_arguments()
    config = checkpoint.read_config(args.model)
    tensors = checkpoint.read_tensors(args.model)
    tokens = windows_of(args, config["bos_token_id"])
    old, new = Stream(config, tensors, args.rows), Stream(config, dict(tensors), args.rows)
    x, y = plant_all(old, new, tokens, args.windows, args.strength)
    control = slice(args.windows, None)
    before, after = (stream.perplexity(out[control], tokens[control])
                     for stream, out in ((old, x), (new, y)))
    add_missing_biases(new.tensors)
    checkpoint.write_model(args.out, {**config, "attention_bias": True}, new.tensors, args.model)
    print(f"{args.out}: perplexity on text that was not fitted {before:.2f} -> {after:.2f}")


def add_missing_biases(tensors):
    """A checkpoint has the biases of all layers or of none."""
    for name, weight in list(tensors.items()):
        if ".self_attn." in name and name.endswith(".weight"):
            zeros = numpy.zeros(len(weight), numpy.float32)
            tensors.setdefault(name.removesuffix("weight") + "bias", zeros)


if __name__ == "__main__":
    main()
