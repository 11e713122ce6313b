"""A tiny checkpoint of tests/model/data with more layers, of both kinds: some with a window."""
import json
import re

import numpy

from oracle_model import checkpoint
from test_families import DATA, write_tokenizer

FULL, WINDOWED = "full_attention", "sliding_attention"


def changed(values, rng):
    """Alike in size and shape, and other values."""
    return values * rng.normal(1, 0.5, values.shape)


def write_deep_model(directory, source, layers, context, **config):
    """layers: a letter for each, "w" for a window.  Each is the source's first with other weights,
    so that no two look at the same."""
    rng = numpy.random.default_rng(len(layers))
    given = checkpoint.read_config(DATA / source)
    tensors, deep = checkpoint.read_tensors(DATA / source), {}
    for name, values in tensors.items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if layer is None:
            deep[name] = values
        elif layer.group(1) == "0":
            deep |= {name.replace(".0.", f".{i}.", 1): changed(values, rng)
                     for i in range(len(layers))}
    kinds = [WINDOWED if kind == "w" else FULL for kind in layers]
    given |= {"num_hidden_layers": len(layers), "layer_types": kinds,
              "max_position_embeddings": context, "torch_dtype": "float32", **config}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(given))
    checkpoint.write_tensors(directory / "model.safetensors", deep, "F32")
    write_tokenizer(directory / "tokenizer.json")
    return directory
