"""Writes a random Llama checkpoint with the default model's tokenizer and number of layers and
heads, but of small layers, without any library.  For tests that compare answers with one another
and do not ask what they say: a step takes a tenth of the default model's time.

    small_model.py DIRECTORY"""
import pathlib
import sys

from server import MODEL
from tiny_model import CONFIG, write_checkpoint

SMALL = {**CONFIG, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 12,
         "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
         "max_position_embeddings": 32768, "rope_theta": 1000000.0}


def deviation(name, shape):
    """Heads attend to some tokens much more than to others, so that one which is lost shows."""
    return 0.5 if "embed_tokens" in name else 1.5 / shape[1] ** 0.5


def write_small_model(directory, **shape):
    """shape: in place of SMALL's sizes."""
    return write_checkpoint(directory, {**SMALL, **shape}, deviation)


if __name__ == "__main__":
    write_small_model(pathlib.Path(sys.argv[1]))
