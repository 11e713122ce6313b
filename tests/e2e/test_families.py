"""Each family of models with what requests may ask for, on a real process: one tiny checkpoint of
each architecture, whose goldens are by transformers, and one whose layers see different amounts.
The README's table names the test behind each of its rows, and is read here to hold it to that.

Where an answer is known it must be that one: all that goes by everything (also a budget, or a
pattern, of the whole text) gives the goldens, and budgets what the oracle says.  Of the rest it is
asked that it was done, and that what cannot be is refused by a sentence; test_family_policies.py
has its numbers.
"""
import json

import numpy
import pytest

from bounded_oracle import Budget, Text
from composition import assert_table, text_of
from oracle_model import Model, log_softmax
from server import DEVICE, ROOT, Server

DATA = ROOT / "tests/model/data"
FAMILIES = {"llama": "gqa-f32-sharded", "mistral": "mistral-gqa-bf16-head128-window",
            "qwen2": "qwen2-gqa-bf16-head64-tied", "qwen3": "qwen3-gqa-bf16-head64-bias",
            "phi3": "phi3-gqa-bf16-partial-longrope", "glm": "glm-gqa-bf16-head64",
            "glm4": "glm4-gqa-bf16-head128", "some_windows": "qwen2-gqa-bf16-head64-window",
            "gemma2": "gemma2-gqa-bf16-head64", "gemma3": "gemma3-mqa-f16-head128-linear"}
every_family = pytest.mark.parametrize("family", FAMILIES)
WINDOWS = {"mistral": 101, "some_windows": 64, "gemma2": 50, "gemma3": 50}
N_VOCAB, CONTEXT = 131, 512
TOLERANCE = 1e-3  # of log-probabilities: sums in f32 and float64 differ by 1e-5

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="other devices compute in bf16")


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


class Family:
    """A server with one of the checkpoints, and its goldens."""

    def __init__(self, directory, family):
        self.name, self.source = family, DATA / FAMILIES[family]
        self.window = WINDOWS.get(family)
        model = directory / family
        model.mkdir()
        for path in self.source.iterdir():
            (model / path.name).symlink_to(path)
        write_tokenizer(model / "tokenizer.json")
        goldens = json.loads((self.source / "goldens.json").read_text())
        self.golden = goldens["prompts"][-1]
        self.prompt = self.golden["tokens"]
        self.server = Server(directory, "--dtype", "float32", "--kv-cache-dtype", "float32",
                             "--threads", 2, "--max-num-seqs", 8, "--kv-cache-memory", "64M",
                             "--max-model-len", CONTEXT, "--dense-tail", 0, model=model)

    def ask(self, prompt=None, **parameters):
        return self.server.complete(prompt or self.prompt, ignore_eos=True, return_token_ids=True,
                                    **{"max_tokens": len(self.golden["greedy"]), **parameters})

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


def ids_of(answer, index=0):
    return answer["choices"][index]["token_ids"]


@every_family
def test_full(families, family):
    """Also in company, where its steps are shared with others' prompts."""
    f = families(family)
    assert ids_of(f.ask()) == f.golden["greedy"]
    several = f.ask(n=3)
    assert [ids_of(several, i) for i in range(3)] == [f.golden["greedy"]] * 3


@every_family
def test_several_choices(families, family):
    f = families(family)
    together = f.ask(n=3, seed=5, temperature=1.5)
    texts = [text_of(together, i) for i in range(3)]
    assert len(set(texts)) == 3
    assert texts == [text_of(f.ask(seed=5 + i, temperature=1.5)) for i in range(3)]


@every_family
def test_echo_and_logprobs(families, family):
    f = families(family)
    (choice,) = f.ask(echo=True, logprobs=1, max_tokens=1)["choices"]
    scores, tokens = choice["logprobs"]["token_logprobs"], f.prompt + f.golden["greedy"][:1]
    assert len(scores) == len(tokens)
    for position, logits in zip(f.golden["positions"], f.golden["logits"]):
        expected = log_softmax(numpy.array(logits))[tokens[position + 1]]
        assert scores[position + 1] == pytest.approx(expected, abs=TOLERANCE)


def policy_of(budget):
    kind = "streaming" if budget.score == "none" else "heavy_hitter"
    heavy = {} if kind == "streaming" else {"heavy": budget.heavy, "score": budget.score}
    return {"type": kind, "sink": budget.sink, "recent": budget.recent, "chunk": budget.chunk,
            **heavy}


def check_budget(f, budget):
    """A budget that loses most of the text, of positions in the text."""
    answer = f.ask(kv_policy=policy_of(budget), logprobs=1)
    (choice,), kv = answer["choices"], answer["usage"]["kv"]
    assert kv["resident_tokens"] == kv["budget_tokens"] == budget.capacity
    assert kv["evicted_tokens"] == len(f.prompt) + len(f.golden["greedy"]) - 1 - budget.capacity
    text, ids = Text(Model(f.source, CONTEXT), budget), choice["token_ids"]
    rows = [text.prompt(f.prompt)[-1], *(text.token(token) for token in ids[:-1])]
    expected = log_softmax(numpy.array(rows))[numpy.arange(len(ids)), ids]
    assert text.closest > 1e-5  # no near tie, which rounding would decide
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.tolist(), abs=TOLERANCE)


def check_policy(f, small, whole):
    """small, whole: budgets of a part of the text, and of all of it."""
    check_budget(f, small)
    if f.window:
        assert f"see {f.window} tokens at most" in f.refusal(kv_policy=policy_of(whole))
    else:
        assert ids_of(f.ask(kv_policy=policy_of(whole))) == f.golden["greedy"]


@every_family
def test_streaming(families, family):
    check_policy(families(family), Budget(4, 20, chunk=24), Budget(4, 296, chunk=64))


@every_family
def test_heavy_hitters(families, family):
    check_policy(families(family), Budget(4, 12, 8, "sum", chunk=24),
                 Budget(4, 196, 100, "sum", chunk=64))


@every_family
def test_offload(families, family):
    """Two layers leave none behind a filter; without a file nobody knows the filters."""
    f = families(family)
    why = "see the newest tokens only" if f.window else "no filter layers are known"
    assert why in f.refusal(kv_policy={"type": "offload"})


@every_family
def test_sparse_prompts(families, family):
    f = families(family)
    narrow = {"type": "a_shape", "sink": 16, "recent": 32}
    if family == "mistral":
        assert "every layer of this model has a window" in f.refusal(prefill="sparse")
        return
    whole = {"type": "a_shape", "sink": 64, "recent": CONTEXT}
    answer = f.ask(prefill={"mode": "sparse", "pattern": whole})
    assert ids_of(answer) == f.golden["greedy"]
    longer = (f.prompt * 3)[:420]
    dense, sparse = (f.ask(longer, max_tokens=8, logprobs=1, prefill=mode)
                     for mode in ("dense", {"mode": "sparse", "pattern": narrow}))
    assert sparse["usage"]["prefill"]["mode"] == "sparse"
    assert 0 < sparse["usage"]["prefill"]["density"] < 0.9
    scores = [a["choices"][0]["logprobs"]["token_logprobs"][0] for a in (dense, sparse)]
    assert abs(scores[0] - scores[1]) > TOLERANCE  # something was left out


def test_the_readme_has_all_rows():
    assert_table("| together with | Llama | Mistral | Qwen2 | Qwen3 | Phi-3 | GLM | GLM-4 "
                 "| windows in some layers | Gemma 2 | Gemma 3 | tested by |", __name__,
                 every_family)
