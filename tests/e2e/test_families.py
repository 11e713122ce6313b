"""Each family of models with what requests may ask for, on a real process: one tiny checkpoint of
each architecture, whose goldens are by transformers, and one whose layers see different amounts.
The table of docs/models.md names the test behind each of its rows, and is read here to hold it to
that.

Where an answer is known it must be that one: all that goes by everything (also a budget, or a
pattern, of the whole text) gives the goldens, and budgets what the oracle says.  Of the rest it is
asked that it was done, and that what cannot be is refused by a sentence; test_family_policies.py
has its numbers.
"""
import functools
import json
import math
import os

import numpy
import pytest

from bounded_oracle import Budget, Text
from composition import assert_table, text_of
from oracle_model import Model
from precision import (EXACT, KEPT, N_TOP, PRECISE, Rows, check_chosen, check_errors,
                       row_error, values_of)
from server import ROOT, Server

DATA = ROOT / "tests/model/data"
FAMILIES = {"llama": "gqa-f32-sharded", "mistral": "mistral-gqa-bf16-head128-window",
            "qwen2": "qwen2-gqa-bf16-head64-tied", "qwen3": "qwen3-gqa-bf16-head64-bias",
            "phi3": "phi3-gqa-bf16-partial-longrope", "glm": "glm-gqa-bf16-head64",
            "glm4": "glm4-gqa-bf16-head128", "some_windows": "qwen2-gqa-bf16-head64-window",
            "gemma2": "gemma2-gqa-bf16-head64", "gemma3": "gemma3-mqa-f16-head128-linear",
            "chatglm": "chatglm-gqa-bf16-head64", "neox": "neox-mha-bf16-head32",
            "opt": "opt-mha-f16-head16", "falcon": "falcon-gqa-bf16-head32-bias",
            "falcon_alibi": "falcon-mha-bf16-head16-alibi", "mpt": "mpt-mha-bf16-head16"}
# Of these the recorded answers of scripts/load/record_answers.py have none.
NEWER = {"smollm3": "smollm3-gqa-bf16-head32", "olmo3": "olmo3-gqa-f16-head16-yarn",
         "granite": "granite-gqa-bf16-head16", "ministral3": "ministral3-gqa-bf16-head32",
         "cohere2": "cohere2-gqa-f16-head32-window", "exaone4": "exaone4-gqa-bf16-head16-window",
         "gemma4": "gemma4-gqa-bf16-head64-128",
         "gemma4_moe": "gemma4-gqa-bf16-head32-experts",
         "gemma4_shared": "gemma4-gqa-bf16-head32-shared", "gpt_oss": "gptoss-gqa-bf16-head32-mxfp4", "glm4_moe": "glm4moe-gqa-bf16-head64-groups"}
# Those that add no arithmetic to the ones above.
LONG = {"olmo2": "olmo2-gqa-bf16-head16", "seed_oss": "seed_oss-gqa-bf16-head32",
        "cohere": "cohere-gqa-bf16-head16", "qwen3_moe": "qwen3moe-gqa-bf16-head64",
        "mixtral": "mixtral-gqa-bf16-head32-window", "cohere2_moe": "cohere2moe-gqa-bf16-head32-average"}
CHECKPOINTS = {**FAMILIES, **NEWER, **(LONG if os.environ.get("QUIRE_TEST_LONG") else {})}
every_family = pytest.mark.parametrize("family", CHECKPOINTS)
ALL_WINDOWS = ("mistral", "mixtral")
WINDOWS = {"mistral": 101, "some_windows": 64, "gemma2": 50, "gemma3": 50, "mixtral": 50,
           "gpt_oss": 40, "gemma4": 50, "gemma4_moe": 50, "gemma4_shared": 50}
N_VOCAB, CONTEXT = 131, 512


def write_tokenizer(path):
    """A letter for each token of the tiny checkpoints, behind the special ones."""
    special = ["<unk>", "<s>", "</s>"]
    letters = [chr(0x4E00 + i) for i in range(N_VOCAB - len(special))]
    vocab = {token: i for i, token in enumerate(special + letters)}
    added = [{"id": i, "content": token, "special": True, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False} for i, token in enumerate(special)]
    path.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": False,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "byte_fallback": False, "vocab": vocab, "merges": []}}))


def link_checkpoint(directory, checkpoint):
    """A model directory with the files of a tiny checkpoint, and a tokenizer."""
    directory.mkdir()
    for path in (DATA / checkpoint).iterdir():
        (directory / path.name).symlink_to(path)
    write_tokenizer(directory / "tokenizer.json")
    return directory


def link_for_gguf(directory, checkpoint):
    """The same with the settings that have no key in GGUF as every file of GGUF has them."""
    link_checkpoint(directory, checkpoint)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    usual = {"query_pre_attn_scalar": config.get("head_dim"), "no_rope_layer_interval": 4,
             "no_rope_layers": None, "time_step_limit": [0.0, math.inf]}
    if set(usual) & set(config):
        path.unlink()
        path.write_text(json.dumps({**config, **{key: usual[key] for key in usual if key in config}}))
    return directory


class Family:
    """A server with one of the checkpoints, and its goldens."""

    def __init__(self, directory, family):
        self.name, self.source = family, DATA / CHECKPOINTS[family]
        model = link_checkpoint(directory / family, CHECKPOINTS[family])
        goldens = json.loads((self.source / "goldens.json").read_text())
        self.golden = goldens["prompts"][-1]
        self.prompt = self.golden["tokens"]
        self.model = Model(self.source, CONTEXT)
        # Threads that share the work, however few the CPUs are.
        self.server = Server(directory, *PRECISE, "--threads", 2, "--max-num-seqs", 8,
                             "--kv-cache-memory", "64M", "--max-model-len", CONTEXT,
                             "--dense-tail", 0, model=model)

    def ask(self, prompt=None, **parameters):
        return self.server.complete(prompt or self.prompt, ignore_eos=True, return_token_ids=True,
                                    **{"max_tokens": len(self.golden["greedy"]), "logprobs": N_TOP,
                                       **parameters})

    def errors_of(self, choice, prompt=None, budget=None, greedy=True):
        """Of what was generated behind the prompt, and the oracle's text of it."""
        rows, ids = Rows(Text(self.model, budget)), choice["token_ids"]
        steps = [lambda text: text.prompt(prompt or self.prompt)[-1],
                 *(functools.partial(Text.token, token=token) for token in ids[:-1])]
        errors = [rows.error(step, lambda logits: row_error(values, logits, token, greedy))
                  for values, step, token in zip(values_of(choice), steps, ids, strict=True)]
        return errors, rows.text

    def check_goldens(self, answer):
        """All that goes by everything gives those.  In bf16 near ties give others, which must be
        nearly as likely where they are."""
        for choice in answer["choices"]:
            assert choice["token_ids"] == self.golden["greedy"] or not EXACT
            check_errors(self.errors_of(choice)[0], self.name)

    def refusal(self, **parameters):
        reply = self.server.post("/v1/completions",
                                 {"prompt": self.prompt, "max_tokens": 8, **parameters})
        assert reply.status == 400, reply.body
        return reply.error["message"]


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    started = {}

    def start(family):
        if family not in started:
            started[family] = Family(tmp_path_factory.mktemp("families"), family)
        return started[family]

    yield start
    for one in started.values():
        assert one.server.stop() == 0, one.server.log[-8000:]


@every_family
def test_full(families, family):
    """Also in company, where its steps are shared with others' prompts."""
    f = families(family)
    f.check_goldens(f.ask())
    f.check_goldens(f.ask(n=3))


@every_family
def test_several_choices(families, family):
    f = families(family)
    together = f.ask(n=3, seed=5, temperature=1.5)
    texts = [text_of(together, i) for i in range(3)]
    assert len(set(texts)) == 3
    for choice in together["choices"]:
        check_errors(f.errors_of(choice, greedy=False)[0], family)
    if EXACT:
        assert texts == [text_of(f.ask(seed=5 + i, temperature=1.5)) for i in range(3)]


@every_family
def test_echo_and_logprobs(families, family):
    f = families(family)
    (choice,) = f.ask(echo=True, max_tokens=1)["choices"]
    values, tokens = values_of(choice), f.prompt + choice["token_ids"]
    assert len(values) == len(tokens)
    check_errors([row_error(values[position + 1], numpy.array(logits), tokens[position + 1])
                  for position, logits in zip(f.golden["positions"], f.golden["logits"])], family)


def policy_of(budget):
    kind = "streaming" if budget.score == "none" else "heavy_hitter"
    heavy = {} if kind == "streaming" else {"heavy": budget.heavy, "score": budget.score}
    return {"type": kind, "sink": budget.sink, "recent": budget.recent, "chunk": budget.chunk,
            "positions": "cache" if budget.cache_positions else "text", **heavy}


def check_budget(f, budget):
    """A budget that loses most of the text, of positions in the text.  Of several prompts: in bf16
    some lose other tokens than the oracle's."""
    errors = []
    for begin in (0, 30, 60, 90):
        prompt = f.prompt[begin:] + f.prompt[:begin]
        answer = f.ask(prompt, kv_policy=policy_of(budget))
        (choice,), kv = answer["choices"], answer["usage"]["kv"]
        found, text = f.errors_of(choice, prompt, budget)
        assert kv["budget_tokens"] == text.capacity
        assert kv["resident_tokens"] == text.n_kept
        assert kv["evicted_tokens"] == text.n - text.n_kept
        assert text.n_kept == (budget.capacity if text.layers else text.n)
        assert text.closest > 1e-5 or not EXACT  # no near tie, which rounding would decide
        errors += found
    if budget.score == "none":
        check_errors(errors, f"{f.name}, {budget}")
    else:
        noise = check_errors(f.errors_of(f.ask()["choices"][0])[0], f.name)
        check_chosen(errors, f"{f.name}, {budget}", noise, KEPT)


def check_policy(f, small, whole):
    """small, whole: budgets of a part of the text, and of all of it.  Layers with a window, of which
    the second is larger, have none."""
    check_budget(f, small)
    f.check_goldens(f.ask(kv_policy=policy_of(whole)))


@every_family
def test_streaming(families, family):
    """Learned positions are part of what is cached; counting them anew is refused."""
    f = families(family)
    if f.model.learns_positions:
        assert "learned" in f.refusal(kv_policy={"type": "streaming"})
    check_policy(families(family), Budget(4, 20, chunk=24), Budget(4, 296, chunk=64))


@every_family
def test_heavy_hitters(families, family):
    check_policy(families(family), Budget(4, 12, 8, "sum", chunk=24),
                 Budget(4, 196, 100, "sum", chunk=64))


@every_family
def test_offload(families, family):
    """Two layers leave none behind a filter; without a file the filters are not known."""
    f = families(family)
    why = ("every layer of this model has a window" if family in ALL_WINDOWS
           else "no filter layers are known")
    assert why in f.refusal(kv_policy={"type": "offload"})


@every_family
def test_sparse_prompts(families, family):
    f = families(family)
    narrow = {"type": "a_shape", "sink": 16, "recent": 32}
    if family in ALL_WINDOWS:
        assert "every layer of this model has a window" in f.refusal(prefill="sparse")
        return
    if family == "gemma4_shared":
        assert "share keys" in f.refusal(prefill="sparse")
        return
    whole = {"type": "a_shape", "sink": 64, "recent": CONTEXT}
    f.check_goldens(f.ask(prefill={"mode": "sparse", "pattern": whole}))
    longer = (f.prompt * 3)[:420]
    dense, sparse = (f.ask(longer, max_tokens=8, prefill=mode)
                     for mode in ("dense", {"mode": "sparse", "pattern": narrow}))
    assert sparse["usage"]["prefill"]["mode"] == "sparse"
    assert 0 < sparse["usage"]["prefill"]["density"] < 0.9
    scores = [a["choices"][0]["logprobs"]["token_logprobs"][0] for a in (dense, sparse)]
    if EXACT:  # otherwise they would differ in any case
        assert abs(scores[0] - scores[1]) > 1e-3  # something was left out


def test_the_docs_have_all_rows():
    assert_table("models.md", "| together with | most families | others | tested by |", __name__, every_family)
