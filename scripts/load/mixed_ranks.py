#!/usr/bin/env python3
"""Asks one rank and several the same mixed requests, of every family, and names what differs.

    scripts/load/mixed_ranks.py --tensor-parallel-size 2 --requests 1000
    scripts/load/mixed_ranks.py --context-parallel-size 4 --places default

Starts `quire serve` on the CPU twice for each place: the default model with pages of several
dtypes, with few pages and a host pool, and with a folder on disk (both servers are started again in
the middle); and each tiny checkpoint of tests/model/data whose heads the ranks can share.  Of a
family whose checkpoints have too few heads one is cut into more, and the experts of gpt-oss are
made wider, because no block of its weights could be cut else.  Requests are drawn from a seed:
lengths spread over orders of magnitude, beginnings that came before, prompts of several chunks,
every KV policy and prefill mode, kinds of sampling, several choices, speculation, grammars, echoed
log-probabilities, streams.  Two clients send them at the same time, each with a cache_salt of its
own, so that what one of them finds in the cache does not depend on the others.

Ranks that share rows (--context-parallel-size) must give the same bits.  Sums of ranks that share
weights are rounded in another place: there log-probabilities may differ by BOUNDS, up to a token
that differs.  Greedily that must be a near tie, two tokens whose log-probabilities differ by no
more than twice the bound; each is named.  A sampled token may differ where the probabilities do not.
In models with experts the router has near ties, too, and so has what is chosen by keys of 8 bits:
there a share of FLIPS of the answers may be further apart.  Exits 1 if anything else differs, or if
only one of the two refuses a request.
Needs numpy (build/venv).
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import sys
import tempfile

import numpy

from client import Answer
from record_answers import WORDS

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "scripts" / "fixtures")]

N_CLIENTS = 2
N_TOP = 5
# Of log-probabilities, the furthest of an answer's and their mean, by how keys and values are rounded.
BOUNDS = {"fp8": (0.5, 0.25), "rounded": (0.05, 0.01)}
FLIPS = 0.1
COMMON = ("--max-num-seqs", 8, "--kv-offload-size", "16M")
DEFAULT = {"default": ("--kv-cache-memory", "96M"),
           "default-fp8": ("--kv-cache-memory", "96M", "--kv-cache-dtype", "fp8"),
           "default-f32": ("--kv-cache-memory", "192M", "--kv-cache-dtype", "float32",
                           "--max-num-batched-tokens", 320),
           "default-swaps": ("--kv-cache-memory", "40M", "--max-num-batched-tokens", 256),
           "default-disk": ("--kv-cache-memory", "48M", "--kv-disk-size", "512M")}
# Families none of whose checkpoints four ranks can share, and into how many heads each head is cut.
CUT = {"cohere-gqa-bf16-head16": 4, "cohere2-gqa-f16-head32-window": 2,
       "cohere2moe-gqa-bf16-head32-average": 2, "exaone4-gqa-bf16-head16-window": 2,
       "glm4-gqa-bf16-head128": 2, "granite-gqa-bf16-head16": 4, "lfm2moe-gqa-bf16-head32": 2,
       "ministral3-gqa-bf16-head32": 2, "mpt-mha-f16-head32-scaled": 2, "neox-mha-bf16-head32": 2,
       "olmo2-gqa-bf16-head16": 4, "olmo3-gqa-f16-head16-yarn": 2, "opt-mha-f16-head16": 2,
       "seed_oss-gqa-bf16-head32": 2, "smollm3-gqa-bf16-head32": 2, "qwen3moe-mqa-f16-head32-shares": 2}
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_key_value_heads")
WIDER = 4  # times the width of gpt-oss's experts
# Each layer may be told to keep something else; budgets are in tokens.
BUDGET = {"sink": 4, "recent": 60, "chunk": 64}
POLICIES = ({"type": "streaming", **BUDGET}, {"type": "streaming", **BUDGET, "positions": "text"},
            {"type": "streaming", "sink": 4, "recent": 90, "prompt": "whole"},
            {"type": "heavy_hitter", "heavy": 50, **BUDGET},
            {"type": "heavy_hitter", "heavy": 50, **BUDGET, "score": "decay"},
            {"type": "heavy_hitter", "heavy": 40, "recent": 64, "prompt": "whole", "score": "window", "pooling": "max"},
            *({"type": "offload", "selected": 64, "tail": 64, "selector": selector, "offload": moves}
              for selector in ("last", "uniform", "exponential", "accumulated") for moves in (True, False)))
N_BOUNDED = 6  # of these, in front: all others need a filter layer, as the last of PREFILLS does
PREFILLS = ({"mode": "sparse"}, {"mode": "sparse", "reuse": False}, {"mode": "auto"},
            *({"mode": "sparse", "pattern": pattern} for pattern in (
                {"type": "a_shape", "sink": 32, "recent": 90},
                {"type": "vertical_slash", "columns": 40, "diagonals": 100},
                {"type": "block_sparse", "pages": 2}, {"type": "filters", "selected": 64, "chunk": 128})))
LETTER = 0x4E00  # test_families.write_tokenizer()'s first one
GRAMMARS = ({"guided_regex": "[a-f]{3,9}-[0-9]{1,6}x"}, {"guided_choice": ["north", "south", "northwest"]},
            {"guided_json": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
                             "required": ["a", "b"]}})
SAMPLING = ({}, {}, {}, {"temperature": 1, "top_p": 0.9}, {"temperature": 0.7, "top_k": 40},
            {"temperature": 1.3, "min_p": 0.05}, {"temperature": 1, "n": 2, "best_of": 3}, {"n": 3, "temperature": 0.8},
            {"frequency_penalty": 0.5}, {"repetition_penalty": 1.2, "presence_penalty": -0.3},
            {"logit_bias": {"7": 3}, "min_tokens": 4, "ignore_eos": True})


# ---- models ----

def read_raw(path):
    """Name -> (dtype, array of the file's bytes as they are)."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    kinds = {"BF16": "<u2", "F16": "<u2", "F32": "<u4", "U8": "u1"}
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    return {name: (about["dtype"], numpy.frombuffer(
        content[start + about["data_offsets"][0]:start + about["data_offsets"][1]],
        kinds[about["dtype"]]).reshape(about["shape"])) for name, about in header.items()}


def write_raw(path, tensors):
    header, offset = {}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape),
                        "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    path.write_bytes(len(text).to_bytes(8, "little") + text +
                     b"".join(numpy.ascontiguousarray(values).tobytes() for _, values in tensors.values()))


def rewrite(model, change_config, change_tensor):
    """Puts other files in the place of a linked checkpoint's."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(change_config(config)))
    for path in model.glob("*.safetensors"):
        tensors = read_raw(path)
        path.unlink()
        write_raw(path, {name: (dtype, change_tensor(name, values))
                         for name, (dtype, values) in tensors.items()})


def cut_heads(model, times):
    """Each head becomes several narrower ones, which have its rows."""
    def config_of(config):
        inner = config.get("text_config", config)
        for key in HEADS:
            if key in inner:
                inner[key] *= times
        if "head_dim" in inner:
            inner["head_dim"] //= times
        return config

    def tensor_of(name, values):
        is_of_a_head = name.endswith(("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight"))
        if is_of_a_head and "olmo" not in model.name:
            return values[:len(values) // times]
        return numpy.repeat(values, times) if name.endswith("sinks") else values

    rewrite(model, config_of, tensor_of)


def widen_experts(model):
    def tensor_of(name, values):
        if "experts.gate_up_proj" in name:
            return numpy.concatenate([values] * WIDER, axis=1)
        if "experts.down_proj" in name and not name.endswith("bias"):
            return numpy.concatenate([values] * WIDER, axis=2)
        return values

    rewrite(model, lambda config: {**config, "intermediate_size": WIDER * config["intermediate_size"]}, tensor_of)


class Place:
    """A model and settings, for two servers.  context: of the longest request."""

    def __init__(self, name, context, n_vocab, settings=(), model=None, letters=None, selects=True):
        self.name, self.context, self.n_vocab = name, context, n_vocab
        self.settings, self.model, self.letters, self.selects = settings, model, letters, selects
        self.takes_sparse = "shared" not in name  # layers that share keys
        self.has_ties = any(word in name for word in ("fp8", "moe", "experts", "gptoss", "mixtral", "next"))

    @property
    def bounds(self):
        return BOUNDS["fp8" if "fp8" in self.name else "rounded"]


def tiny_place(directory, name):
    from test_families import DATA, N_VOCAB, link_checkpoint
    from test_offload_oracle import write_filters
    model = link_checkpoint(directory / name, name)
    if name in CUT:
        cut_heads(model, CUT[name])
    if name.startswith("gptoss-gqa"):
        widen_experts(model)
    config = json.loads((DATA / name / "config.json").read_text())
    config = config.get("text_config", config)
    context = min(512, config.get("max_position_embeddings") or config.get("seq_length") or 512)
    kinds = [kind for kind in config.get("layer_types", ["full_attention"])
             if "attention" in kind and "linear" not in kind]
    has_window = config.get("sliding_window") and "layer_types" not in config
    settings = ["--kv-cache-memory", "64M", "--max-num-batched-tokens", 160, "--max-model-len", context]
    selects = not has_window and (kinds.count("full_attention") > 1 or "layer_types" not in config)
    if selects:
        settings += ["--filters-file", write_filters(directory / f"{name}.filters", [kinds.index("full_attention")], 0)]
    return Place(name, context, N_VOCAB, settings, model, letters=True, selects=selects)


def places(directory, wanted):
    from test_families import DATA
    for name, settings in DEFAULT.items():
        if name.startswith(wanted):
            yield Place(name, 1024, 8000, (*settings, "--max-model-len", 1024,
                                           "--filters-file", ROOT / "config/filters/quire-31m.json"))
    for path in sorted(DATA.iterdir()):
        if (path / "config.json").exists() and path.name.startswith(wanted):
            yield tiny_place(directory, path.name)


# ---- requests ----

def make_grammar(rng, place):
    if not place.letters:
        return rng.choice(GRAMMARS)
    letters = f"{chr(LETTER)}-{chr(LETTER + 60)}"
    return rng.choice(({"guided_regex": f"[{letters}]{{3,9}}"},
                       {"guided_choice": [chr(LETTER + i) * (2 + i) for i in range(4)]}))


def make_prompt(rng, place, earlier):
    """Token ids, or text: new ones, an earlier prompt, or one that begins as such a one."""
    longest = place.context - 40
    length = max(1, int(longest ** (0.5 + 0.5 * rng.random())))
    new = [rng.randrange(3, place.n_vocab) for _ in range(length)]
    way = rng.random()
    if not place.letters and way < 0.1:
        return WORDS[length % 2] * max(1, length // 20)
    if earlier and way < 0.5:
        old = rng.choice(earlier)
        new = (old if way < 0.2 else old[:rng.randrange(1, len(old) + 1)] + new)[:longest]
    elif way < 0.7:  # an end that came before, which guesses find
        new = (new + new[:14])[:longest]
    earlier.append(new)
    return new


def make_requests(place, n, seed):
    """n bodies for each of the clients, by turns."""
    rng = random.Random(f"{seed} {place.name}")
    earlier = [[] for _ in range(N_CLIENTS)]
    for i in range(n):
        client = i % N_CLIENTS
        body = {"prompt": make_prompt(rng, place, earlier[client]), "max_tokens": rng.randrange(1, 33),
                "temperature": 0, "seed": rng.randrange(1 << 30), "return_token_ids": True, "logprobs": N_TOP,
                "cache_salt": f"client {client}", "ignore_eos": rng.random() < 0.7, **rng.choice(SAMPLING)}
        way = rng.random()
        if way < 0.45:
            body["kv_policy"] = rng.choice(POLICIES if place.selects else POLICIES[:N_BOUNDED])
        if way < 0.6 and place.takes_sparse and body.get("kv_policy", {}).get("type") in (None, "offload"):
            body["prefill"] = rng.choice(PREFILLS if place.selects else PREFILLS[:-1])
        elif way > 0.85:
            body |= {**make_grammar(rng, place), "ignore_eos": False}
        elif way > 0.6 and not any("penalty" in key for key in body):
            body["speculation"] = rng.choice(("suffix", "suffix", "off"))
        if len(body["prompt"]) < 300 and rng.random() < 0.1 and "guided" not in str(body.keys()):
            body["echo"] = True
        if rng.random() < 0.3 and "best_of" not in body:
            body["stream"] = True
        yield body


def ask(server, body):
    """The answer, and its usage; or why it was refused."""
    reply = server.post("/v1/completions", body, timeout=900)
    if reply.status != 200:
        return None, reply.error["message"]
    answer, usage = Answer(), None
    events = ([json.loads(line[6:]) for line in reply.body.decode().split("\n") if line.startswith("data: {")]
              if body.get("stream") else [reply.json()])
    for event in events:
        answer.add(event["choices"])
        usage = event.get("usage") or usage
    return answer, usage


def ask_all(server, bodies):
    """Each client's requests one after the other, the clients beside one another."""
    def of_client(client):
        return [ask(server, body) for body in bodies[client::N_CLIENTS]]

    with concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as pool:
        columns = list(pool.map(of_client, range(N_CLIENTS)))
    return [columns[i % N_CLIENTS][i // N_CLIENTS] for i in range(len(bodies))]


# ---- comparison ----

def compare_choice(body, place, one, ranks):
    """("same" | "near tie" | "sampled" | "far", a sentence about it)."""
    worst, total, n_compared = 0.0, 0.0, 0
    most, most_mean = place.bounds
    for i, (a, b) in enumerate(zip(one["tokens"], ranks["tokens"])):
        p, q = one["top_logprobs"][i] or {}, ranks["top_logprobs"][i] or {}
        shared = [abs(p[token] - q[token]) for token in p.keys() & q.keys()
                  if min(p[token], q[token]) > -20]
        worst, total, n_compared = max([worst, *shared]), total + sum(shared), n_compared + len(shared)
        if worst > most or total > most_mean * max(n_compared, N_TOP):
            return "far", f"token {i}: log-probabilities by {worst:.4f}, by {total / n_compared:.4f} on average"
        if a == b:
            continue
        if body["temperature"] > 0:
            return "sampled", f"token {i}: {a!r} and {b!r}"
        gap = max(abs(top.get(a, -99) - top.get(b, -99)) for top in (p, q))
        penalised = any(key in body for key in ("frequency_penalty", "repetition_penalty", "logit_bias"))
        if gap <= 2 * most or penalised or any(key.startswith("guided") for key in body):
            return "near tie", f"token {i}: {a!r} {p.get(a)} and {b!r} {p.get(b)}"
        return "far", f"token {i}: {a!r} {p.get(a)} and {b!r} {p.get(b)}"
    if len(one["tokens"]) != len(ranks["tokens"]):
        return "far", f"{len(one['tokens'])} and {len(ranks['tokens'])} tokens"
    return "same", ""


def compare(body, place, one, ranks, is_exact):
    """As compare_choice(), of a whole answer."""
    if (one[0] is None) != (ranks[0] is None):
        return "far", f"refused: {one[1] if one[0] is None else ranks[1]}"
    if one[0] is None:
        return "refused", ""
    if is_exact:
        what = one[0].difference(ranks[0])
        return ("far", what) if what else ("same", "")
    if "best_of" in body:  # which of them is the best may be a near tie
        return "same", ""
    if one[0].choices.keys() != ranks[0].choices.keys():
        return "far", "other choices"
    found = [compare_choice(body, place, one[0].choices[i], ranks[0].choices[i]) for i in one[0].choices]
    return max(found, key=lambda pair: ("same", "sampled", "near tie", "far").index(pair[0]))


class Trial:
    def __init__(self, options):
        self.options = options
        self.way, self.n = (("tensor", options.tensor_parallel_size) if options.tensor_parallel_size > 1 else
                            ("context", options.context_parallel_size))
        self.counts, self.n_far, self.n_cached = collections.Counter(), 0, 0
        self.n_answers = self.n_accepted = self.n_disk = 0

    def start(self, directory, place, n_ranks):
        from server import Server
        folder = directory / f"{place.name}-{n_ranks}"
        folder.mkdir(exist_ok=True)
        more = ("--kv-disk-path", folder / "cache") if "disk" in place.name else ()
        ranks = (f"--{self.way}-parallel-size", n_ranks) if n_ranks > 1 else ()
        return Server(folder, *COMMON, *place.settings, *more, "--threads", n_ranks, *ranks,
                      "--load-format", "auto", model=place.model, binary=self.options.binary)

    def takes(self, directory, place):
        """Tells whether the ranks can share the model; prints why not."""
        try:
            with self.start(directory, place, self.n):
                return True
        except AssertionError as why:
            text = next((line for line in str(why).splitlines() if "-parallel-size" in line), None)
            if not text:
                raise
            print(f"refused: {place.name}: {text.split(' error ')[-1].strip()}", flush=True)
            return False

    def ask_both(self, directory, place, bodies):
        """The answers of one rank and of several."""
        with self.start(directory, place, 1) as one, self.start(directory, place, self.n) as ranks, \
                concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda server: ask_all(server, bodies), (one, ranks)))
            self.n_disk += ranks.metrics().get("quire_kv_disk_hits_total", 0)
        return answers

    def run(self, directory, place, n):
        bodies = list(make_requests(place, n, self.options.seed))
        parts = [bodies]
        if "disk" in place.name:
            parts = [bodies[:n // 2], bodies[:n // 4] + bodies[n // 2:]]
        counts = collections.Counter()
        for part in parts:
            both = self.ask_both(directory, place, part)
            for i, (body, one, ranks) in enumerate(zip(part, *both)):
                kind, why = compare(body, place, one, ranks, self.way == "context")
                counts[kind] += 1
                if isinstance(ranks[1], dict):
                    self.n_cached += (ranks[1].get("prompt_tokens_details") or {}).get("cached_tokens", 0) > 0
                    self.n_accepted += (ranks[1].get("speculation") or {}).get("accepted", 0)
                if kind == "refused":
                    print(f"refused: {place.name} {i}: {one[1]}")
                if kind in ("near tie", "far"):
                    shape = {k: v for k, v in body.items()
                             if k not in ("prompt", "seed", "logprobs", "return_token_ids", "cache_salt")}
                    print(f"{kind}: {place.name} {i}: {len(body['prompt'])} prompt tokens, {shape}: {why}", flush=True)
        n_answered = sum(counts.values()) - counts["refused"]
        allowed = FLIPS * n_answered if place.has_ties and self.way == "tensor" else 0
        self.n_far += counts["far"] if counts["far"] > allowed else 0
        self.counts += counts
        self.n_answers += sum(counts.values())
        print(f"{place.name}: {dict(counts)}", flush=True)

    def summary(self):
        return (f"{self.n_answers} answers of {self.n} ranks ({self.way}): {self.counts['same']} the same, "
                f"{self.counts['near tie']} with a near tie, {self.counts['sampled']} sampled others, "
                f"{self.counts['refused']} refused by both, {self.counts['far']} further apart, of which "
                f"{self.n_far} must not be; {self.n_cached} found a beginning, {self.n_disk:.0f} blocks were read "
                f"from disk, {self.n_accepted} guesses were right")


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "quire"))
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--context-parallel-size", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1000, help="of all places; an eighth of the default model")
    parser.add_argument("--places", default="", help="only those whose names begin so, such as default")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if max(options.tensor_parallel_size, options.context_parallel_size) < 2:
        parser.error("give --tensor-parallel-size or --context-parallel-size")
    return options


def main():
    options = read_options()
    os.environ["QUIRE_TEST_BINARY"], os.environ["QUIRE_TEST_DEVICE"] = options.binary, "cpu"
    trial = Trial(options)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        shared = [place for place in places(directory, options.places) if trial.takes(directory, place)]
        n_default = sum(place.letters is None for place in shared)
        n_tiny = len(shared) - n_default
        for_default = options.requests // 8 if n_tiny else options.requests
        for i, place in enumerate(shared):
            trial.run(directory, place, for_default // n_default if place.letters is None else
                      (options.requests - for_default + i) // n_tiny)
    print(trial.summary())
    return 1 if trial.n_far or not trial.n_answers else 0


if __name__ == "__main__":
    sys.exit(main())
