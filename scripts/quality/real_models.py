#!/usr/bin/env python3
"""Compares quire on three real pretrained models (scripts/fixtures/real_models.py) with transformers, with
their own files, and with figures that were taken before.

    scripts/quality/real_models.py MODELS [--quire build/quire] [--models smollm2,gemma3,qwen2.5-coder]
        [--formats q6_k,iq4_nl,iq4_xs,mxfp4,fp8] [--quick | --tokens | --only-formats]

Each model is served twice: as a directory of bf16 weights, and as the GGUF file that it was made of.

1. Tokens: of 200 texts that hurt (hard_texts.py) and 100 of books, those of the tokenizers library; of
   Gemma also those of a plain implementation of the definition, read from the GGUF file.
2. Log-probabilities of a prompt, and 64 greedy tokens behind its first 100: transformers' in float32, on
   the same bf16 weights; of tokens that it finds equally probable either.  Of the directory also
   log-probabilities behind thousands of tokens.  The GGUF file is served with --dtype float32 for that, and
   compared with transformers in float64 on the values that gguf-py makes of the file.
3. The GGUF file as it is served by default, with activations of 8 bits: how far these log-probabilities
   are from transformers' in the mean.
4. The same of llama.cpp on the GGUF file, by the package xllamacpp, which has it built.  It quantises
   activations, too, so numbers are close and not equal; its tokens must be quire's best, or nearly so.
   Without the package this is not compared, and a line says so.
5. Tool calls, of a model that makes them: what is asked for is called, with its arguments.
6. Perplexity of held-out text under the KV policies, of the directory: the table below.
7. Other formats as whole files, 2 to 4 again: types of GGUF, in which llama.cpp's library has written the
   layers (scripts/fixtures/requantise.py), and fp8 as `quire quantize` writes it, which llama.cpp cannot read.

Prints a line for each comparison, CSV for the table, and `N passed, M failed`.  --quick leaves the table
to its first rows and the formats out; --tokens leaves all but the first comparison out, and needs no torch;
--only-formats leaves all but the last out."""
import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unicodedata
import urllib.request

from hard_texts import HARD_TEXTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "scripts/load"), str(ROOT / "scripts/fixtures")]

from ports import free_port  # noqa: E402  (the path comes first)

try:
    from requantise import requantise
except ImportError:  # without gguf, or a library of llama.cpp for this machine
    requantise = None

BOOKS = ROOT / "models/quire-31m/eval/held_out.txt"
START = 300_000  # the character that the perplexity's text begins at
GREEDY = 64
LONG, LAST = 8000, 256  # tokens of a long prompt, and how many of them are compared
# Of log-probabilities, in nats: sums of float32 are rounded, or rounded in another order.  bf16 weights where
# others are meant were 7e-3 in the mean, and up to 0.2.
CLOSE, CLOSE_MEAN = 1e-3, 1e-4
WITHIN = 0.02    # of the table's perplexities
ROUNDED_MEAN = 0.1  # nats by which activations of 8 bits move a token's log-probability
LLAMA_MEAN, LLAMA_MOST = 0.05, 0.5  # nats by which log-probabilities of llama.cpp differ


def streaming(sink, budget, chunk):
    return {"kv_policy": {"type": "streaming", "sink": sink, "recent": budget - sink,
                          "chunk": chunk}}


def heavy(score, budget, chunk):
    half = budget // 2
    return {"kv_policy": {"type": "heavy_hitter", "sink": 4, "recent": half - 4, "heavy": half,
                          "chunk": chunk, "score": score}}


# model: how many tokens, and the rows: name, members of the request, expected perplexity (None: it is
# only printed)
TABLES = {
    "smollm2": (3500, [
        ("full", {}, 40.57),
        ("256, no sinks", streaming(0, 256, 32), 84.5),
        ("256, 4 sinks", streaming(4, 256, 32), 46.0),
        ("256, H2O sum", heavy("sum", 256, 32), 45.1),
        ("256, H2O mean", heavy("mean", 256, 32), 43.7),
        ("256, 1 sink", streaming(1, 256, 32), 45.9),
        ("256, 2 sinks", streaming(2, 256, 32), 46.0),
        ("512, no sinks", streaming(0, 512, 32), 73.9),
        ("512, 4 sinks", streaming(4, 512, 32), 43.5),
        ("1024, no sinks", streaming(0, 1024, 64), 61.1),
        ("1024, 4 sinks", streaming(4, 1024, 64), 41.7),
        ("1024, H2O sum", heavy("sum", 1024, 64), 41.2),
    ]),
    "gemma3": (3000, [
        ("full", {}, 38.93),
        ("256, 4 sinks", {"kv_policy": {"type": "streaming", "sink": 4, "recent": 252}}, 40.95),
        ("256, H2O sum", {"kv_policy": {"type": "heavy_hitter", "sink": 4, "recent": 124,
                                        "heavy": 128}}, 40.21),
        ("512, 4 sinks", {"kv_policy": {"type": "streaming", "sink": 4, "recent": 508}}, None),
    ]),
    "qwen2.5-coder": (2000, [
        ("full", {}, 66.66),
        ("256, no sinks", streaming(0, 256, 32), 148.5),
        ("256, 4 sinks", streaming(4, 256, 32), 70.5),
        ("256, H2O sum", heavy("sum", 256, 32), 69.3),
        ("256, H2O mean", heavy("mean", 256, 32), 68.8),
        ("512, 4 sinks", streaming(4, 512, 32), 68.0),
    ]),
}
QUICK_ROWS = 3


class Quire:
    """A server of one model."""

    def __init__(self, binary, model, *arguments):
        self.port = free_port()
        self.log = tempfile.NamedTemporaryFile("w+b", suffix=".log")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        self.process = subprocess.Popen([binary, "serve", str(model), "--port", str(self.port),
                                         *arguments],
                                        env=clean, stdout=self.log, stderr=self.log)

    def __enter__(self):
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=10)
                return self
            except OSError:
                time.sleep(0.2)
        text = pathlib.Path(self.log.name).read_text(errors="replace")
        self.__exit__()
        sys.exit(f"quire did not start:\n{text[-2000:]}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def post(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as reply:
            return json.load(reply)

    def tokens(self, text, special=False):
        return self.post("/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"]

    def score(self, ids, **members):
        """(log-probabilities of all tokens but the first, usage)."""
        answer = self.post("/v1/completions", {"prompt": ids, "echo": True, "logprobs": 0,
                                               "max_tokens": 0, **members})
        return answer["choices"][0]["logprobs"]["token_logprobs"][1:], answer["usage"]


class Pieces:
    """SentencePiece's merges by score, as a GGUF file has them: plain and slow."""

    def __init__(self, file):
        from gguf import GGUFReader
        found = GGUFReader(file).fields
        self.texts, kinds, self.scores = (found["tokenizer.ggml." + name].contents()
                                          for name in ("tokens", "token_type", "scores"))
        self.ids = {text: i for i, text in enumerate(self.texts)}
        whole = [t for t, kind in zip(self.texts, kinds) if kind in (3, 4)]
        self.whole = set(whole)
        self.pattern = re.compile(
            "(" + "|".join(map(re.escape, sorted(whole, key=len, reverse=True))) + ")")

    def merge(self, text):
        parts = list(text.replace(" ", "\u2581"))
        while True:
            pairs = [(self.scores[self.ids[a + b]], -i)
                     for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in self.ids]
            if not pairs:
                break
            at = -max(pairs)[1]
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        for part in parts:
            yield from ([self.ids[part]] if part in self.ids
                        else [self.ids["<0x%02X>" % byte] for byte in part.encode()])

    def encode(self, text):
        ids = []
        # Tokens that are matched whole have spaces in the file, and the others this sign for one.
        for part in filter(None, self.pattern.split(text.replace("\u2581", " "))):
            ids += [self.ids[part]] if part in self.whole else self.merge(part)
        return ids


class Judge:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, ok, what):
        self.passed, self.failed = self.passed + ok, self.failed + (not ok)
        print(("ok    " if ok else "FAIL  ") + what, flush=True)


def check_tokens(quire, judge, name, directory, file, texts):
    from tokenizers import Tokenizer
    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    different = [t for t in texts
                 if quire.tokens(t) != library.encode(t, add_special_tokens=False).ids]
    judge.check(not different, f"{name}: tokens of {len(texts)} texts are the library's "
                               f"{different[:3]}")
    form = unicodedata.normalize if name.startswith("qwen") else lambda _, text: text
    back = {t: form("NFC", t) for t in texts}
    if name.startswith("gemma3"):
        back = {t: t.replace("\u2581", " ") for t in texts}  # its sign for a space
        pieces = Pieces(file)
        different = [t for t in texts if quire.tokens(t) != pieces.encode(t)]
        judge.check(not different, f"{name}: and those of the GGUF file {different[:3]}")
    else:
        digits = [library.id_to_token(i) for i in quire.tokens("1234567")]
        judge.check(digits == list("1234567"), f"{name}: digits stay apart: {digits}")
    lossy = [t for t in texts
             if quire.post("/detokenize", {"tokens": quire.tokens(t)})["prompt"] != back[t]]
    judge.check(not lossy, f"{name}: the texts come back {lossy[:3]}")


def apart(quire, model, ids):
    """How far log-probabilities of the tokens are from transformers': mean and most."""
    import torch
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    found, _ = quire.score(ids)
    distances = [abs(x - expected[i, ids[i + 1]].item()) for i, x in enumerate(found)]
    return sum(distances) / len(distances), max(distances)


def check_rounded(quire, judge, name, model, text):
    mean, most = apart(quire, model, quire.tokens(text, True)[:600])
    judge.check(mean < ROUNDED_MEAN,
                f"{name}: with activations of 8 bits log-probabilities differ from transformers' by "
                f"{mean:.1e} in the mean, {most:.1e} at most")


def check_numbers(quire, judge, name, model, text):
    import torch
    ids = quire.tokens(text, True)[:600]
    mean, most = apart(quire, model, ids)
    judge.check(mean < CLOSE_MEAN and most < CLOSE,
                f"{name}: log-probabilities of {len(ids)} tokens differ from transformers' by {mean:.1e} in the "
                f"mean and {most:.1e} at most")
    answer = quire.post("/v1/completions", {"prompt": ids[:100], "max_tokens": GREEDY, "temperature": 0,
                                            "ignore_eos": True, "return_token_ids": True})
    greedy = answer["choices"][0]["token_ids"]
    # Each token must be transformers' best behind those before it, or its equal but for the rounding of sums.
    with torch.no_grad():
        logits = model(torch.tensor([ids[:100] + greedy])).logits[0, 99:-1].double()
    behind = logits.max(-1).values - logits[range(len(greedy)), greedy]
    judge.check(len(greedy) == GREEDY and behind.max() < CLOSE,
                f"{name}: of {GREEDY} greedy tokens {sum(behind == 0)} are transformers', the others at most "
                f"{behind.max():.1e} less")


def check_long(quire, judge, name, model, text):
    """Behind thousands of tokens, where a wrong angle or window shows."""
    import torch
    ids = quire.tokens(text, True)[:LONG]
    with torch.no_grad():
        logits = model(torch.tensor([ids]), logits_to_keep=LAST).logits[0, :-1]
    expected = torch.log_softmax(logits.double(), -1)
    found = quire.score(ids)[0][-len(expected):]
    most = max(abs(x - row[token].item()) for x, row, token in zip(found, expected, ids[-len(expected):]))
    judge.check(len(ids) == LONG and most < CLOSE,
                f"{name}: log-probabilities of the last {len(found)} of {len(ids)} tokens differ from "
                f"transformers' by {most:.1e} at most")


def llama_tokens(file, ids):
    """llama.cpp's greedy tokens behind the prompt, and their log-probabilities; None: it is absent."""
    try:
        import xllamacpp
    except ImportError:
        return None
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(file), 2048, 1
    params.cpuparams.n_threads = os.cpu_count()
    params.verbosity, params.warmup = 0, False
    answer = xllamacpp.Server(params).handle_completions(
        {"prompt": ids, "max_tokens": GREEDY, "temperature": 0, "logprobs": 1, "ignore_eos": True,
         "cache_prompt": False})
    content = answer["choices"][0]["logprobs"]["content"]
    return [one["id"] for one in content], [one["logprob"] for one in content]


def check_llama(quire, judge, name, file, text):
    ids = quire.tokens(text, True)[:100]
    theirs = llama_tokens(file, ids)
    if not theirs:
        print(f"NOT COMPARED  {name} with llama.cpp: pip install xllamacpp", flush=True)
        return
    answer = quire.post("/v1/completions", {"prompt": ids + theirs[0], "echo": True, "logprobs": 1,
                                            "max_tokens": 0})["choices"][0]["logprobs"]
    found, best = (answer[key][len(ids):] for key in ("token_logprobs", "top_logprobs"))
    distances = [abs(x - y) for x, y in zip(found, theirs[1])]
    mean, most = sum(distances) / len(distances), max(distances)
    judge.check(len(distances) == GREEDY and mean < LLAMA_MEAN and most < LLAMA_MOST,
                f"{name}: log-probabilities of {len(distances)} tokens differ from llama.cpp's by "
                f"{mean:.1e} in the mean and {most:.1e} at most")
    behind = [max(top.values()) - x for x, top in zip(found, best)]
    judge.check(max(behind) < LLAMA_MOST,
                f"{name}: of llama.cpp's {GREEDY} greedy tokens {sum(x == 0 for x in behind)} are the "
                f"most probable here, the others at most {max(behind):.1e} less")


def tool(name, **types):
    return {"type": "function", "function": {
        "name": name, "description": name.replace("_", " "),
        "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()},
                       "required": list(types)}}}


TOOLS = [tool("get_weather", city="string"), tool("read_file", path="string"),
         tool("run_command", command="string"), tool("add", a="number", b="number")]
# of a model that calls tools: what is asked, and the call
CALLS = {"qwen2.5-coder": [
    ("What is the weather in Oslo?", "get_weather", {"city": "Oslo"}),
    ("What is 17 + 25? Use the tool.", "add", {"a": 17, "b": 25}),
    ("Read src/main.c and tell me what it does.", "read_file", {"path": "src/main.c"})]}


AGENT = {"role": "system", "content": "You are a coding agent. Use the tools."}


def check_calls(quire, judge, name):
    for question, function, arguments in CALLS.get(name, []):
        choice = quire.post("/v1/chat/completions", {
            "messages": [AGENT, {"role": "user", "content": question}], "tools": TOOLS, "temperature": 0,
            "max_tokens": 200})["choices"][0]
        made = [(call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in choice["message"].get("tool_calls") or []]
        judge.check(made == [(function, arguments)] and choice["finish_reason"] == "tool_calls",
                    f"{name}: \"{question}\" is answered by {function} {arguments} {made or choice['message']}")


def check_table(quire, judge, name, text, quick):
    n, rows = TABLES[name]
    ids = quire.tokens(text, True)[:n]
    print("model,tokens,policy,perplexity,expected,seconds", flush=True)
    for what, members, expected in rows[:QUICK_ROWS] if quick else rows:
        start = time.monotonic()
        found, _ = quire.score(ids, **members)
        perplexity = math.exp(-sum(found) / len(found))
        print(f'{name},{n},"{what}",{perplexity:.2f},{expected or ""},'
              f"{time.monotonic() - start:.0f}", flush=True)
        if expected:
            judge.check(abs(perplexity / expected - 1) <= WITHIN,
                        f"{name}, {what}: {perplexity:.2f}, and was {expected}")


def load(directory):
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def load_gguf(file):
    """The file's model in float64, with the values that gguf-py makes of its blocks."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig
    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32).eval().double()


def load_fp8(directory, written):
    """The directory's model, with what the codes and scales of another directory are worth."""
    import torch
    from safetensors.torch import load_file
    model = load(directory)
    tensors = {name: x for file in written.glob("*.safetensors") for name, x in load_file(file).items()}
    scaled = [name for name in tensors if name + "_scale" in tensors]
    with torch.no_grad():
        for name in scaled:
            model.get_parameter(name).copy_(tensors[name].float() * tensors[name + "_scale"].float())
    if not scaled:
        sys.exit(f"{written} has no quantised weight")
    return model


def check_format(args, judge, name, kind, work, text):
    """Comparisons 2 to 4 of one format."""
    directory, file = args.folder / name, args.folder / f"{name}.gguf"
    if kind == "fp8":
        written = work / kind
        subprocess.run([args.quire, "quantize", directory, "--to", kind, "--out", written], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # The CPU does not round the inputs of FP8.
        with Quire(args.quire, written) as quire:
            check_numbers(quire, judge, f"{name}, {kind}", load_fp8(directory, written), text)
        return
    written = work / f"{kind}.gguf"
    requantise(file, kind, written)
    model = load_gguf(written)
    with Quire(args.quire, written, "--dtype", "float32") as quire:
        check_numbers(quire, judge, f"{name}, {kind}", model, text)
    with Quire(args.quire, written) as quire:
        check_rounded(quire, judge, f"{name}, {kind}", model, text)
        check_llama(quire, judge, f"{name}, {kind}", written, text)


def check_formats(args, judge, name, text):
    for kind in filter(None, args.formats.split(",")):
        if kind != "fp8" and not requantise:
            print(f"NOT COMPARED  {name}, {kind}: pip install xllamacpp", flush=True)
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as work:
            check_format(args, judge, name, kind, pathlib.Path(work), text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="what real_models.py has made")
    parser.add_argument("--quire", default=str(ROOT / "build/quire"))
    parser.add_argument("--models", default=",".join(TABLES))
    parser.add_argument("--formats", default="q6_k,iq4_nl,iq4_xs,mxfp4,fp8")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--only-formats", action="store_true")
    args = parser.parse_args()
    judge = Judge()
    books = BOOKS.read_text(encoding="utf-8")
    texts = HARD_TEXTS + [books[i:i + 150] for i in range(0, 150 * 100, 150)]
    for name in args.models.split(","):
        directory, file = args.folder / name, args.folder / f"{name}.gguf"
        if args.tokens:
            for served in (directory, file):
                with Quire(args.quire, served) as quire:
                    check_tokens(quire, judge, served.name, directory, file, texts)
            continue
        prompt = books[START:START + 3000]
        if args.only_formats:
            check_formats(args, judge, name, prompt)
            continue
        for served, loaded, arguments in ((directory, load, ()), (file, load_gguf, ("--dtype", "float32"))):
            model = None  # one at a time
            model = loaded(served)
            with Quire(args.quire, served, *arguments) as quire:
                check_tokens(quire, judge, served.name, directory, file, texts)
                check_numbers(quire, judge, served.name, model, prompt)
                if served is directory:
                    if not args.quick:
                        check_long(quire, judge, name, model, books[START:START + 60_000])
                    check_table(quire, judge, name, books[START:START + 60_000], args.quick)
        with Quire(args.quire, file) as quire:
            check_rounded(quire, judge, file.name, model, prompt)
            check_calls(quire, judge, name)
            check_llama(quire, judge, file.name, file, prompt)
        if not args.quick:
            check_formats(args, judge, name, prompt)
    print(f"{judge.passed} passed, {judge.failed} failed")
    return 1 if judge.failed else 0


if __name__ == "__main__":
    sys.exit(main())
