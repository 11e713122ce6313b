"""POST /v1/completions: every parameter, by what it must do to the answer."""
import math
import re

import pytest

from server import DEVICE

# How far the log-probability of a token may move when it is computed in another way: the order of
# f32 sums on the CPU; on CUDA the activations are bf16, which moves logits by 1 %
# (test_goldens.py), and the largest are about 10 here.
SAME_TOKEN = {"cpu": 1e-3, "cuda": 0.2}[DEVICE]
TALE = "Once upon a time there was"


def text_of(answer, index=0):
    return answer["choices"][index]["text"]


@pytest.mark.quick("POST /v1/completions")
def test_shape_of_an_answer(server):
    answer = server.complete(TALE, max_tokens=5)
    assert re.fullmatch(r"cmpl-[A-Za-z0-9._-]+", answer["id"])
    assert answer["object"] == "text_completion"
    assert isinstance(answer["created"], int)
    assert answer["model"]
    (choice,) = answer["choices"]
    assert choice["index"] == 0 and choice["logprobs"] is None
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5


def test_defaults_are_those_of_openai(server):
    reply = server.post("/v1/completions", {"prompt": TALE, "ignore_eos": True})
    assert reply.json()["usage"]["completion_tokens"] == 16


def test_null_means_default(server):
    names = ("suffix", "max_tokens", "top_p", "n", "best_of", "stream", "stream_options",
             "logprobs", "echo", "stop", "presence_penalty", "frequency_penalty",
             "logit_bias", "user", "seed", "model")
    answer = server.complete(TALE, **dict.fromkeys(names), ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 16


def test_unknown_fields_are_ignored(server):
    assert text_of(server.complete(TALE, max_tokens=4, no_such_field={"a": [1]})) == text_of(
        server.complete(TALE, max_tokens=4))


def test_prompt_forms_agree(server, tokenizer):
    ids = tokenizer.encode(TALE).ids
    alone = text_of(server.complete(TALE, max_tokens=8))
    for prompt in ([TALE], ids, [ids]):
        answer = server.complete(prompt, max_tokens=8)
        assert text_of(answer) == alone
        assert answer["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("as_tokens", [False, True])
def test_several_prompts_answer_in_order(server, tokenizer, as_tokens):
    prompts = ["The sea was", "In the year 1812", "My dear Sir,"]
    sent = [tokenizer.encode(p).ids for p in prompts] if as_tokens else prompts
    answer = server.complete(sent, max_tokens=6, n=2)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for i, prompt in enumerate(prompts):
        alone = text_of(server.complete(prompt, max_tokens=6))
        assert [text_of(answer, 2 * i), text_of(answer, 2 * i + 1)] == [alone, alone]
    assert answer["usage"]["completion_tokens"] == 36


def test_an_empty_prompt_is_the_beginning_token(server, tokenizer):
    answer = server.complete("", max_tokens=4, ignore_eos=True)
    assert answer["usage"]["prompt_tokens"] == len(tokenizer.encode("").ids) == 1


def test_max_tokens_is_obeyed(server):
    for n in (1, 2, 33):
        answer = server.complete(TALE, max_tokens=n, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == n
        assert answer["choices"][0]["finish_reason"] == "length"


def test_seed_repeats_and_another_seed_differs(server):
    def sample(seed):
        return text_of(
            server.complete(TALE, temperature=1.0, seed=seed, max_tokens=24, ignore_eos=True)
        )

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_unseeded_choices_differ(server):
    answer = server.complete(TALE, temperature=1.5, n=4, max_tokens=24, ignore_eos=True)
    assert len({choice["text"] for choice in answer["choices"]}) > 1


def test_seeded_choices_differ_and_repeat(server):
    def sample():
        answer = server.complete(
            TALE, temperature=1.2, n=3, seed=11, max_tokens=24, ignore_eos=True
        )
        return [choice["text"] for choice in answer["choices"]]

    first = sample()
    assert first == sample()
    assert len(set(first)) > 1


def test_best_of_returns_the_likeliest(server):
    parameters = {"temperature": 1.0, "seed": 3, "max_tokens": 12, "logprobs": 0,
                  "ignore_eos": True}

    def mean(choice):
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    every = server.complete(TALE, n=5, **parameters)["choices"]
    answer = server.complete(TALE, n=2, best_of=5, **parameters)
    ranked = sorted(every, key=mean, reverse=True)
    assert [c["text"] for c in answer["choices"]] == [c["text"] for c in ranked[:2]]
    assert answer["usage"]["completion_tokens"] == 5 * 12  # work done, not only work shown


@pytest.mark.parametrize(
    "restrict", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=lambda p: next(iter(p))
)
def test_a_single_candidate_is_greedy(server, restrict):
    greedy = text_of(server.complete(TALE, max_tokens=12))
    sampled = server.complete(TALE, max_tokens=12, temperature=1.0, seed=5, **restrict)
    assert text_of(sampled) == greedy


def test_logit_bias_forces_and_forbids(server, tokenizer):
    token = tokenizer.encode(" sea", add_special_tokens=False).ids[0]
    forced = server.complete(TALE, max_tokens=3, logit_bias={str(token): 100})
    assert text_of(forced) == tokenizer.decode([token] * 3)
    first = server.complete(TALE, max_tokens=1, logprobs=0)["choices"][0]["logprobs"]["tokens"][0]
    banned = tokenizer.encode(first, add_special_tokens=False).ids
    assert len(banned) == 1
    other = server.complete(TALE, max_tokens=1, logit_bias={str(banned[0]): -100})
    assert text_of(other) != first


@pytest.mark.parametrize("penalty", [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0},
                                     {"repetition_penalty": 1.5}], ids=lambda p: next(iter(p)))
def test_penalties_break_a_loop(server, penalty):
    prompt = "the sun was shining, and the sun was shining, and the sun was shining, and"
    parameters = {"max_tokens": 40, "ignore_eos": True, "logprobs": 0}

    def n_distinct(**more):
        choice = server.complete(prompt, **parameters, **more)["choices"][0]
        return len(set(choice["logprobs"]["tokens"]))

    assert n_distinct(**penalty) > n_distinct()


def test_stop_string_across_tokens(server):
    whole = text_of(server.complete(TALE, max_tokens=32, ignore_eos=True))
    middle = len(whole) // 2
    for length in (1, 5, 9):
        stop = whole[middle:middle + length]
        choice = server.complete(TALE, max_tokens=32, ignore_eos=True, stop=stop)["choices"][0]
        assert choice["text"] == whole[:whole.index(stop)]
        assert choice["finish_reason"] == "stop"
        kept = server.complete(
            TALE, max_tokens=32, ignore_eos=True, stop=[stop], include_stop_str_in_output=True
        )
        assert text_of(kept) == whole[:whole.index(stop) + length]


def test_the_earliest_of_several_stop_strings_wins(server):
    whole = text_of(server.complete(TALE, max_tokens=32, ignore_eos=True))
    stops = [whole[20:26], "no such text", whole[8:13]]
    cut = min(whole.index(stop) for stop in stops if stop in whole)
    assert text_of(server.complete(TALE, max_tokens=32, ignore_eos=True, stop=stops)) == whole[:cut]


def test_a_stop_string_never_shows_in_a_stream(server):
    whole = text_of(server.complete(TALE, max_tokens=32, ignore_eos=True))
    stop = whole[10:22]
    pieces = [chunk["choices"][0]["text"] for chunk in
              server.stream(TALE, max_tokens=32, ignore_eos=True, stop=stop)]
    assert "".join(pieces) == whole[:whole.index(stop)]


def test_stop_token_ids(server, goldens, tokenizer):
    golden = next(g for g in goldens if g["name"] == "text-5")
    stop = golden["greedy32"][6]
    at = golden["greedy32"].index(stop)
    choice = server.complete(golden["tokens"], max_tokens=32, stop_token_ids=[stop])["choices"][0]
    assert choice["text"] == tokenizer.decode(golden["greedy32"][:at])
    assert choice["finish_reason"] == "stop"


def test_min_tokens_holds_back_the_end(server, goldens):
    golden = next(g for g in goldens if g["name"] == "chat-hello")
    answer = server.complete(golden["tokens"], max_tokens=32, min_tokens=20)
    assert answer["usage"]["completion_tokens"] >= 20


def test_ignore_eos_runs_to_max_tokens(server, goldens):
    golden = next(g for g in goldens if g["name"] == "chat-hello")
    answer = server.complete(golden["tokens"], max_tokens=32, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 32


def test_special_tokens_are_skipped_unless_asked_for(server, goldens):
    golden = next(g for g in goldens if g["name"] == "chat-hello")
    assert "<|im_end|>" not in text_of(
        server.complete(golden["tokens"], max_tokens=32, ignore_eos=True)
    )
    assert "<|im_end|>" in text_of(
        server.complete(golden["tokens"], max_tokens=32, ignore_eos=True,
                        skip_special_tokens=False))


def test_logprobs_shape(server):
    choice = server.complete(TALE, max_tokens=6, logprobs=3, ignore_eos=True)["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert len(logprobs[name]) == 6
    offset = logprobs["text_offset"][0]
    for i, token in enumerate(logprobs["tokens"]):
        assert logprobs["text_offset"][i] == offset
        offset += len(token)
        top = logprobs["top_logprobs"][i]
        # The chosen token comes on top of the three when it is not among them.
        assert len(top) in (3, 4)
        assert top[token] == logprobs["token_logprobs"][i] == max(top.values())
        assert sum(math.exp(value) for value in top.values()) <= 1 + 1e-5


def test_logprobs_zero_names_the_chosen_alone(server):
    (choice,) = server.complete(TALE, max_tokens=3, logprobs=0, ignore_eos=True)["choices"]
    logprobs = choice["logprobs"]
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    assert len(logprobs["tokens"]) == 3


def test_echo_with_logprobs_scores_the_prompt(server, tokenizer):
    ids = tokenizer.encode(TALE).ids
    (choice,) = server.complete(TALE, max_tokens=4, echo=True, logprobs=2,
                                ignore_eos=True)["choices"]
    plain = server.complete(TALE, max_tokens=4, logprobs=2, ignore_eos=True)["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(ids) + 4
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert choice["text"].endswith(TALE + plain["text"])
    assert logprobs["tokens"][-4:] == plain["logprobs"]["tokens"]
    assert logprobs["token_logprobs"][-4:] == pytest.approx(
        plain["logprobs"]["token_logprobs"], abs=SAME_TOKEN
    )


def test_max_tokens_zero_with_echo_only_scores(server, tokenizer):
    ids = tokenizer.encode(TALE).ids
    answer = server.complete(TALE, max_tokens=0, echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"].endswith(TALE)
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["token_logprobs"]) == len(ids)


def test_prompt_scores_equal_generation_scores(server, goldens):
    """A token has the same log-probability as the last of a prompt and as the first generated."""
    golden = next(g for g in goldens if g["name"] == "book-200")
    scored = server.complete(
        golden["tokens"] + golden["greedy32"][:1], max_tokens=0, echo=True, logprobs=0
    )
    generated = server.complete(golden["tokens"], max_tokens=1, logprobs=0)
    assert scored["choices"][0]["logprobs"]["token_logprobs"][-1] == pytest.approx(
        generated["choices"][0]["logprobs"]["token_logprobs"][0], abs=SAME_TOKEN)


def test_echo_without_logprobs(server):
    plain = text_of(server.complete(TALE, max_tokens=4))
    assert text_of(server.complete(TALE, max_tokens=4, echo=True)).endswith(TALE + plain)


def test_a_cached_prefix_changes_nothing(server, goldens):
    golden = next(g for g in goldens if g["name"] == "book-2000")
    first = server.complete(golden["tokens"], max_tokens=16, cache_salt="a salt of its own")
    second = server.complete(golden["tokens"], max_tokens=16, cache_salt="a salt of its own")
    assert text_of(first) == text_of(second)


@pytest.mark.parametrize("text", ["é", "ÿ", "日", "😀"])
def test_broken_characters_are_replaced_as_the_library_does(server, tokenizer, text):
    """The bias repeats the first token of a character for ever: unless that is whole, no valid text
    comes out."""
    first = tokenizer.encode(text, add_special_tokens=False).ids[0]
    parameters = {"max_tokens": 4, "ignore_eos": True, "logit_bias": {str(first): 100}}
    expected = tokenizer.decode([first] * 4)
    assert text_of(server.complete("x", **parameters)) == expected
    chunks = server.stream("x", **parameters)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
