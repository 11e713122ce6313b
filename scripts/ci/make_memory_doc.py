#!/usr/bin/env python3
"""Writes the tables of docs/memory.md: what weights and a token take by `quire info`, and what then fits a card.

    scripts/ci/make_memory_doc.py [--check] [build/quire]

--check writes nothing, and exits 1 when the tables are not what would be written."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/memory.md"
GIB = 1 << 30
CARDS = (24, 48, 80)  # GiB
SHARE = 0.9  # --gpu-memory-utilization
BESIDE = 4 * GIB  # what the page says is left for the workspace and the runtime
STREAMING_PAGES = 40  # of the default budget: 2,048 tokens and a chunk of 512, in pages of 64
# The shape, what make_bench_model.py is told of it, and how many of its layers see everything under offload: by the
# filters of config/filters, else a quarter.
SHAPES = {
    "8B: Llama 3": ([], 8),
    "14B: Qwen 3": (["--dim", 5120, "--layers", 40, "--heads", 40, "--ffn", 17408, "--vocab", 151936,
                     "--context", 40960], 10),
    "32B: Qwen 2.5": (["--dim", 5120, "--layers", 64, "--heads", 40, "--ffn", 27648, "--vocab", 152064,
                       "--context", 131072], 16),
    "70B: Llama 3.1": (["--dim", 8192, "--layers", 80, "--heads", 64, "--ffn", 28672, "--vocab", 128256,
                        "--context", 131072], 10)}
WEIGHTS = {"bf16": "bf16", "8 bits": "fp8", "4 bits": "int4"}


def ask(binary, folder, *options):
    """What `quire info` says of the model."""
    done = subprocess.run([binary, "info", folder, "--json", "--device", "cpu", "--load-format", "dummy", *options],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(binary, folder, arguments):
    """Bytes of the weights in each format, and of a token in the KV cache."""
    subprocess.run([sys.executable, ROOT / "scripts/fixtures/make_bench_model.py", folder, "--shape", "8b",
                    "--config-only", *map(str, arguments)], check=True, capture_output=True)
    weights = {}
    for bits, name in WEIGHTS.items():
        told = ask(binary, folder, "--random-format", name, "--kv-cache-dtype", "bfloat16")
        # A GPU has each matrix in its format, whatever this CPU makes of it.
        weights[bits] = sum(each["bytes"] for each in told["weights"]["formats"])
    fp8 = ask(binary, folder, "--kv-cache-dtype", "fp8")["kv_cache"]["token_bytes"]
    return {"shape": told["shape"], "weights": weights, "token": told["kv_cache"]["token_bytes"], "fp8": fp8}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def thousands(n):
    """Three digits that count, rounded down: what a plan promises must fit."""
    digits = max(0, len(str(int(n))) - 3)
    return f"{int(n) // 10 ** digits * 10 ** digits:,}"


def write_weights(models):
    return table(["shape", *WEIGHTS, "a token of KV cache, 16 bits", "fp8"],
                 [[name, *(f"{each / GIB:.1f} GiB" for each in model["weights"].values()),
                   f"{model['token']:,} bytes", f"{model['fp8']:,} bytes"] for name, model in models.items()])


def longest_offloaded(model, room, n_dense):
    """Tokens of the longest text under offload with a host pool: it is kept in the layers that see everything, the
    prompt in two more, and in the workspace for prompts that are computed layer by layer."""
    shape = model["shape"]
    row = 2 * (shape["width"] + (shape["heads"] + 2 * shape["kv_heads"]) * shape["head_dim"])
    return room / (model["token"] * (n_dense + 2) / shape["layers"] + row)


def write_card(models, card):
    rows = []
    for name, model in models.items():
        for bits, weights in model["weights"].items():
            room = SHARE * card * GIB - BESIDE - weights
            tokens = room / model["token"]
            if tokens < 8192:
                continue
            rows.append([f"{name}, {bits}", f"{room / GIB:.1f} GiB", thousands(tokens), thousands(room / model["fp8"]),
                         thousands(tokens / 8192), thousands(tokens / (64 * STREAMING_PAGES)),
                         thousands(longest_offloaded(model, room, SHAPES[name][1]))])
    return table(["weights", "room for the KV cache", "`full`: tokens in all", "with fp8", "`full`: requests of 8,192",
                  "`streaming`, `heavy_hitter`: requests of any length", "`offload`, moved: tokens of one text"], rows)


def make(binary):
    with tempfile.TemporaryDirectory() as folder:
        models = {name: measure(binary, pathlib.Path(folder, str(i)), arguments)
                  for i, (name, (arguments, _)) in enumerate(SHAPES.items())}
    tables = {"weights": write_weights(models), **{f"{card} GB": write_card(models, card) for card in CARDS}}
    text = PAGE.read_text(encoding="utf-8")
    for name, rows in tables.items():
        mark = f"<!-- {name}: by scripts/ci/make_memory_doc.py -->\n\n"
        assert text.count(mark) == 1, mark
        text = re.sub(rf"({re.escape(mark)})(?:\|.*\n)*", lambda found, rows=rows: found[1] + rows, text)
    return text


def main():
    arguments = [each for each in sys.argv[1:] if each != "--check"]
    text = make(pathlib.Path(arguments[0] if arguments else ROOT / "build/quire").resolve())
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif text != PAGE.read_text(encoding="utf-8"):
        sys.exit("docs/memory.md has old tables: run scripts/ci/make_memory_doc.py build/quire")


if __name__ == "__main__":
    main()
