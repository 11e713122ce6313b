"""A Hugging Face Llama directory as numpy arrays, and back: config.json and *.safetensors, one file
or shards, in f32, f16 or bf16.

Every array is float32, which holds all three exactly; writing rounds to the nearest bf16, or keeps
float32.  Everything is read into memory: this is for small models.
"""
import json
import math
import pathlib
import shutil

import numpy

TOKENIZER_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json",
                   "special_tokens_map.json")


def read_config(directory):
    return json.loads((pathlib.Path(directory) / "config.json").read_text())


def read_tensors(directory):
    """Name -> float32 array, of all safetensors files of the directory."""
    tensors = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        tensors |= read_file(path)
    if not tensors:
        raise FileNotFoundError(f"no safetensors in {directory}")
    return tensors


def read_file(path):
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    return {name: decode(content[start + about["data_offsets"][0]:start + about["data_offsets"][1]],
                         about["dtype"]).reshape(about["shape"]) for name, about in header.items()}


def decode(raw, dtype):
    if dtype == "BF16":
        return (numpy.frombuffer(raw, "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
    return numpy.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(numpy.float32)


def to_bf16(values):
    """The bits of the nearest bf16, ties to even, as uint16."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def rounded(values):
    """What is left of float32 values in bf16."""
    return decode(to_bf16(values).tobytes(), "BF16").reshape(values.shape)


def write_tensors(path, tensors, dtype="BF16"):
    """One safetensors file."""
    encode, size = {"BF16": (to_bf16, 2), "F32": (numpy.float32, 4)}[dtype]
    header, offset = {}, 0
    for name, values in tensors.items():
        end = offset + size * math.prod(values.shape)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(encode(values).tobytes())


def write_model(directory, config, tensors, tokenizer_of, dtype="BF16"):
    """A directory that a server can serve, with the tokenizer of the directory tokenizer_of."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names = {"BF16": "bfloat16", "F32": "float32"}
    text = json.dumps({**config, "torch_dtype": names[dtype]}, indent=2)
    (directory / "config.json").write_text(text + "\n")
    write_tensors(directory / "model.safetensors", tensors, dtype)
    for name in TOKENIZER_FILES:
        shutil.copyfile(pathlib.Path(tokenizer_of) / name, directory / name)
    return directory
