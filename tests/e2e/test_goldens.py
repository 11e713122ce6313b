"""Greedy tokens of the default model, through HTTP, equal those of an independent float64
implementation."""
import json

import pytest

from server import DEVICE, MODEL

GOLDENS = json.loads((MODEL / "goldens.json").read_text())["prompts"]
END_OF_TURN = {8186, 8184}
# CUDA's activations are bf16, 8 bits each: a logit moves by about 1 % of the largest and by 2 % at
# most (tests/cuda/test_goldens.c), the difference of two by twice that.
BF16_DIFFERENCE = 0.04
VERBATIM = {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 32}


def by_name(goldens):
    return pytest.mark.parametrize("golden", goldens, ids=[golden["name"] for golden in goldens])


@by_name(GOLDENS)
def test_tokens_of_a_token_prompt(server, tokenizer, golden):
    answer = server.complete(golden["tokens"], logprobs=1, **VERBATIM)
    choice = answer["choices"][0]
    assert choice["text"] == golden["greedy_text"]
    expected = [
        tokenizer.decode([token], skip_special_tokens=False) for token in golden["greedy32"]
    ]
    assert choice["logprobs"]["tokens"] == expected
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 32
    assert answer["usage"]["prompt_tokens"] == len(golden["tokens"])


# The token prompts of the two left out were joined from pieces; their text has a shorter
# tokenisation.
@by_name([g for g in GOLDENS if g["name"] not in ("passkey-500", "kv-1000")])
def test_text_prompt_is_tokenised_alike(server, golden):
    answer = server.complete(golden["prompt_text"], add_special_tokens=False, **VERBATIM)
    assert answer["usage"]["prompt_tokens"] == len(golden["tokens"])
    assert answer["choices"][0]["text"] == golden["greedy_text"]


@by_name(GOLDENS)
def test_streamed_pieces_join_to_the_same_text(server, golden):
    chunks = server.stream(golden["tokens"], **VERBATIM)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == golden["greedy_text"]


@by_name([g for g in GOLDENS if END_OF_TURN & set(g["greedy32"])])
def test_generation_ends_at_the_end_token(server, tokenizer, golden):
    choice = server.complete(golden["tokens"], max_tokens=32)["choices"][0]
    end = next(i for i, token in enumerate(golden["greedy32"]) if token in END_OF_TURN)
    assert choice["text"] == tokenizer.decode(golden["greedy32"][:end])
    assert choice["finish_reason"] == "stop"


@by_name(GOLDENS)
def test_log_probability_order_of_the_first_token(server, tokenizer, golden):
    (choice,) = server.complete(golden["tokens"], max_tokens=1, logprobs=5,
                                ignore_eos=True)["choices"]
    top = choice["logprobs"]["top_logprobs"][0]
    tokens = [
        tokenizer.decode([token], skip_special_tokens=False) for token in golden["top10_ids"]
    ]
    logits = golden["top10_logits"]
    # The CPU's activations are f32: what is left is the order of sums, and that is less than lies
    # between any two of the first six.
    tolerance = 5e-3 if DEVICE == "cpu" else BF16_DIFFERENCE * logits[0]
    # Who is among the first five for certain must be there, and nobody who cannot be.
    assert {t for t, logit in zip(tokens, logits) if logit > logits[5] + tolerance} <= top.keys()
    assert top.keys() <= {t for t, logit in zip(tokens, logits) if logit > logits[4] - tolerance}
    # Differences of log-probabilities are differences of logits.
    for token, logit in zip(tokens, logits):
        if token in top:
            assert top[tokens[0]] - top[token] == pytest.approx(logits[0] - logit, abs=tolerance)
