#!/usr/bin/env python3
"""Writes the tables of docs/memory.md: what weights and a token take by `quire info`, and what then fits a card;
and those of docs/scaling.md: what fits several cards.

    scripts/ci/make_memory_doc.py [--check] [build/quire]

--check writes nothing, and exits 1 when tables are not what would be written."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE, HOST_PAGE = ROOT / "docs/memory.md", ROOT / "docs/scaling.md"
GIB = 1 << 30
CARDS = (24, 48, 80)  # GiB
SHARE = 0.9  # --gpu-memory-utilization
HOST_CARDS, RANKS = (80, 141), (1, 2, 4, 8)  # GB of a card; cards of a host
CONTEXTS = (8192, 32768, 131072, 1 << 20)
LONG_SHARE = 0.1  # of a card, for the workspace of prompts that are computed layer by layer
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
                        "--context", 131072], 10),
    "30B-A3B: Qwen 3": (["--shape", "30b-a3b"], 12)}
WEIGHTS = {"bf16": "bf16", "8 bits": "fp8", "4 bits": "int4"}
PACKED = "Q4_K_M file"
# Bits of an element: in a file, and in a GPU's memory with the scales and minimums in f16 that docs/models.md lists.
Q4_K, Q6_K = (4.5, 5), (6.5625, 9)


def ask(binary, folder, *options):
    """What `quire info` says of the model."""
    done = subprocess.run([binary, "info", folder, "--json", "--device", "cpu", "--load-format", "dummy", *options],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def n_with_more_bits(n_layers):
    """How many layers have attn_v and ffn_down in Q6_K, where llama.cpp writes a file as Q4_K_M."""
    return sum(i < n_layers // 8 or i >= 7 * n_layers // 8 or (i - n_layers // 8) % 3 == 2 for i in range(n_layers))


def packed_bytes(config, told):
    """Bytes of a Q4_K_M file, and of its weights on a GPU, which has the embedding in bf16.  The file has Q4_K, but for
    the head and half of attn_v and ffn_down.  Of 70B the rest of attn_v has Q5_K, which takes as much as Q6_K."""
    shape = told["shape"]
    width, n_layers, table = shape["width"], shape["layers"], shape["width"] * shape["vocabulary"]
    value = width * shape["kv_heads"] * shape["head_dim"]
    down = width * (shape["experts"] * config["moe_intermediate_size"] if shape["experts"] else config["intermediate_size"])
    n_more = n_with_more_bits(n_layers)
    more = n_more * down + (n_layers if n_layers == 80 else n_more) * value
    less = told["weights"]["parameters"] - 2 * table - more
    return [(less * four + more * six + table * six + table * embedding) / 8
            for four, six, embedding in zip(Q4_K, Q6_K, (Q4_K[0], 16))]


def measure(binary, folder, arguments):
    """Bytes of the weights in each format, and of a token in the KV cache."""
    subprocess.run([sys.executable, ROOT / "scripts/fixtures/make_bench_model.py", folder, "--shape", "8b",
                    "--config-only", *map(str, arguments)], check=True, capture_output=True)
    weights = {}
    for bits, name in WEIGHTS.items():
        told = ask(binary, folder, "--random-format", name, "--kv-cache-dtype", "bfloat16")
        # A GPU has each matrix in its format, whatever this CPU makes of it.
        weights[bits] = sum(each["bytes"] for each in told["weights"]["formats"])
    file_bytes, weights[PACKED] = packed_bytes(json.loads((folder / "config.json").read_text(encoding="utf-8")), told)
    fp8 = ask(binary, folder, "--kv-cache-dtype", "fp8")["kv_cache"]["token_bytes"]
    return {"shape": told["shape"], "weights": weights, "token": told["kv_cache"]["token_bytes"], "fp8": fp8,
            "file": file_bytes}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def thousands(n):
    """Three digits that count, rounded down: what a plan promises must fit."""
    digits = max(0, len(str(int(n))) - 3)
    return f"{int(n) // 10 ** digits * 10 ** digits:,}"


def write_weights(models):
    return table(["shape", *WEIGHTS, PACKED, "the file itself", "a token of KV cache, 16 bits", "fp8"],
                 [[name, *(f"{each / GIB:.1f} GiB" for each in [*model["weights"].values(), model["file"]]),
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


def tokens_of_ranks(model, bits, card, n):
    """Tokens of the KV cache of n ranks with a card each.  Each has the whole embedding, and its KV heads: with more
    ranks than these some are there twice."""
    shape = model["shape"]
    embedding = 2 * shape["width"] * shape["vocabulary"]
    weights = model["weights"][bits] + (n - 1) * embedding
    room = n * card * 10 ** 9 * (SHARE - LONG_SHARE) - weights
    return room / (model["token"] * max(1, n / shape["kv_heads"]))


def of_hosts(models, bits_of, cell):
    return [[f"{name}, {bits}", f"{model['weights'][bits] / 10 ** 9:.0f} GB", *cell(model, bits)]
            for name, model in models.items() for bits in bits_of]


def write_hosts(models):
    """Thousands of tokens, by the card and how many there are."""
    def cells(model, bits):
        tokens = [tokens_of_ranks(model, bits, card, n) / 1000 for card in HOST_CARDS for n in RANKS]
        return [f"{int(each):,}" if each >= 8 else "–" for each in tokens]

    return table(["model", "weights", *(f"{n} x {card} GB" for card in HOST_CARDS for n in RANKS)],
                 of_hosts(models, ("bf16", "8 bits"), cells))


def write_fewest(models):
    """The fewest cards that hold a text, by the card and the text."""
    def cells(model, bits):
        return [next((str(n) for n in RANKS if tokens_of_ranks(model, bits, card, n) >= context), "–")
                for card in HOST_CARDS for context in CONTEXTS]

    return table(["model", "weights", *(f"{context:,} tokens, {card} GB" for card in HOST_CARDS
                                        for context in CONTEXTS)],
                 of_hosts(models, ("bf16", "8 bits", "4 bits"), cells))


def filled(page, tables):
    """The page with its tables."""
    text = page.read_text(encoding="utf-8")
    for name, rows in tables.items():
        mark = f"<!-- {name}: by scripts/ci/make_memory_doc.py -->\n\n"
        assert text.count(mark) == 1, mark
        text = re.sub(rf"({re.escape(mark)})(?:\|.*\n)*", lambda found, rows=rows: found[1] + rows, text)
    return text


def make(binary):
    with tempfile.TemporaryDirectory() as folder:
        models = {name: measure(binary, pathlib.Path(folder, str(i)), arguments)
                  for i, (name, (arguments, _)) in enumerate(SHAPES.items())}
    return {PAGE: filled(PAGE, {"weights": write_weights(models),
                                **{f"{card} GB": write_card(models, card) for card in CARDS}}),
            HOST_PAGE: filled(HOST_PAGE, {"tokens": write_hosts(models), "cards": write_fewest(models)})}


def main():
    arguments = [each for each in sys.argv[1:] if each != "--check"]
    for page, text in make(pathlib.Path(arguments[0] if arguments else ROOT / "build/quire").resolve()).items():
        if "--check" not in sys.argv:
            page.write_text(text, encoding="utf-8")
        elif text != page.read_text(encoding="utf-8"):
            sys.exit(f"docs/{page.name} has old tables: run scripts/ci/make_memory_doc.py build/quire")


if __name__ == "__main__":
    main()
