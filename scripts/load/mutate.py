#!/usr/bin/env python3
"""Loads models of every format again and again with bytes of their files changed, under the address
and undefined sanitizers: each load gives a model, or refuses it in words.

    scripts/load/mutate.py [--loads 20000] [--seed 1] [--jobs 1] [--build build-mutate] [NAME ...]

The models are tiny: those of scripts/fixtures/quantised.py, of which config.json and the weights are
changed, and GGUF files.  "gguf-types" has a matrix of each type that is read, "gguf-pieces" a
SentencePiece tokenizer, "gguf-v2" the older version.  tests/model/mutate.c makes the changes; it is
built in a folder of its own.

Prints a line for each kind: how many loads gave a model, how many were refused, and the seconds.
A load that crashes or reads outside of its memory makes the exit status 1."""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts/fixtures"), str(ROOT / "tests/e2e")]
import gguf_file  # noqa: E402  (the path comes first)
import quantised  # noqa: E402

SETUP = ("-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dcuda=disabled",
         "-Dbuildtype=debugoptimized", "-Dwerror=false")
TARGET = "tests/model/mutate"
WATCHED = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1",
           "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
SMALL = {"vocab_size": 64, "num_hidden_layers": 1, "intermediate_size": 128, "bos_token_id": 1,
         "eos_token_id": 2}
# GGUF's number of a type, elements of its blocks, and bytes of one.
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18),
         "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
         "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
         "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18),
         "IQ4_XS": (23, 256, 136), "MXFP4": (39, 32, 17)}
LAYER = {"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256),
         "attn_output": (256, 256), "ffn_gate": (256, 256), "ffn_up": (256, 256),
         "ffn_down": (256, 256)}
WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", "a", "b", "ab",
         "\u2581a"]


def tensor(out, rng, name, shape, kind):
    """Codes without high bits, so that scales are no NaN."""
    number, elements, size = TYPES[kind]
    gguf_file.TYPES[kind] = number
    n_bytes = numpy.prod(shape) // elements * size
    raw = rng.integers(0, 48, n_bytes, numpy.uint8).tobytes()
    out.tensors.append((name, shape, kind, raw))


def tokenizer(out, pieces):
    out.key("tokenizer.ggml.model", gguf_file.STRING, "llama" if pieces else "gpt2")
    texts = WORDS if pieces else [chr(0x100 + i) for i in range(120)] + ["a", "b", "ab", "<s>"]
    out.array("tokenizer.ggml.tokens", gguf_file.STRING, texts)
    if pieces:
        out.array("tokenizer.ggml.scores", gguf_file.F32, [-float(i) for i in range(len(texts))])
        kinds = [2, 3, 3] + [6] * 256 + [1] * 5
    else:
        out.key("tokenizer.ggml.pre", gguf_file.STRING, "llama-bpe")
        out.array("tokenizer.ggml.merges", gguf_file.STRING, ["a b"])
        kinds = [1] * (len(texts) - 1) + [3]
    out.array("tokenizer.ggml.token_type", gguf_file.I32, kinds)
    for name in ("bos", "eos"):
        out.key(f"tokenizer.ggml.{name}_token_id", gguf_file.U32, 1)
    out.key("tokenizer.chat_template", gguf_file.STRING, "{{ messages[0].content }}")


def write_gguf(path, kinds, pieces=False, version=3):
    """A Llama whose matrices are of the kinds in turn."""
    out, rng = gguf_file.Writer(), numpy.random.default_rng(67)
    n_layers = -(-len(kinds) // len(LAYER))
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
              "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": n_layers,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    out.key("general.architecture", gguf_file.STRING, "llama")
    gguf_file.add_settings(out, config, "llama")
    tokenizer(out, pieces)
    tensor(out, rng, "token_embd.weight", (64, 256), "Q8_0")
    tensor(out, rng, "output_norm.weight", (256,), "F32")
    for i in range(n_layers):
        for name in ("attn_norm", "ffn_norm"):
            tensor(out, rng, f"blk.{i}.{name}.weight", (256,), "F32")
        for j, (name, shape) in enumerate(LAYER.items()):
            kind = kinds[(i * len(LAYER) + j) % len(kinds)]
            tensor(out, rng, f"blk.{i}.{name}.weight", shape, kind)
    out.write(path, version)


def write(folder, name):
    """Returns the path of a kind's model."""
    path = folder / f"{name}.gguf"
    if name == "gguf-types":
        write_gguf(path, list(TYPES))
    elif name == "gguf-pieces":
        write_gguf(path, ["Q8_0"], pieces=True)
    elif name == "gguf-v2":
        write_gguf(path, ["Q4_0", "Q4_K"], version=2)
    else:
        return quantised.write_both(folder, name)[0]
    return path


def mutate(binary, folder, name, options):
    path, begin = write(folder, name), time.monotonic()
    done = subprocess.run([binary, path, str(options.loads), str(options.seed)],
                          env=WATCHED, capture_output=True, check=False)
    print(f"{name:24} {done.stdout.decode().strip()}, {time.monotonic() - begin:.0f} s", flush=True)
    if done.returncode:
        print(f"{name}: exit status {done.returncode}\n{done.stderr.decode()[-6000:]}",
              file=sys.stderr)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-mutate")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    build = options.build.resolve()
    if not (build / "build.ninja").exists():
        subprocess.run(["meson", "setup", build, *SETUP], cwd=ROOT, check=True, stdout=sys.stderr)
    subprocess.run(["ninja", "-C", build, TARGET], check=True, stdout=sys.stderr)
    quantised.CONFIG |= SMALL
    names = options.names or ["gguf-types", "gguf-pieces", "gguf-v2", *quantised.FORMATS]
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
        results = list(threads.map(
            lambda name: mutate(build / TARGET, pathlib.Path(folder), name, options), names))
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
