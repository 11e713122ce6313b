"""Bad input gets a 4xx with a reason that names the parameter, and nothing else changes."""
import json

import pytest

GOOD = {"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0}
VOCABULARY = 8192

# (id, what replaces or joins the good request, the parameter that the error must name)
BAD_FIELDS = [
    ("prompt-number", {"prompt": 5}, "prompt"),
    ("prompt-object", {"prompt": {}}, "prompt"),
    ("prompt-null", {"prompt": None}, "prompt"),
    ("prompt-empty-list", {"prompt": []}, "prompt"),
    ("prompt-empty-tokens", {"prompt": [[]]}, "prompt"),
    ("prompt-mixed", {"prompt": ["a", 1]}, "prompt"),
    ("prompt-mixed-depth", {"prompt": [[1], 1]}, "prompt"),
    ("prompt-bools", {"prompt": [True, False]}, "prompt"),
    ("prompt-floats", {"prompt": [1.5, 2]}, "prompt"),
    ("prompt-negative-token", {"prompt": [1, -1]}, "prompt"),
    ("prompt-token-too-large", {"prompt": [1, VOCABULARY]}, "prompt"),
    ("prompt-token-enormous", {"prompt": [2**32 + 1]}, "prompt"),
    ("prompt-token-beyond-64-bits", {"prompt": [10**30]}, "prompt"),
    ("prompt-token-out-of-range-in-second", {"prompt": [[1, 2], [3, 99999]]}, "prompt"),
    ("prompts-beyond-the-queue", {"prompt": ["a"] * 1500}, "prompt"),  # 429 would say: try again
    ("suffix", {"suffix": "the end"}, "suffix"),
    ("max-tokens-string", {"max_tokens": "5"}, "max_tokens"),
    ("max-tokens-negative", {"max_tokens": -2}, "max_tokens"),
    ("max-tokens-float", {"max_tokens": 1.5}, "max_tokens"),
    ("max-tokens-bool", {"max_tokens": True}, "max_tokens"),
    ("max-tokens-enormous", {"max_tokens": 10**12}, "max_tokens"),
    ("temperature-negative", {"temperature": -0.1}, "temperature"),
    ("temperature-large", {"temperature": 2.1}, "temperature"),
    ("temperature-string", {"temperature": "hot"}, "temperature"),
    ("top-p-large", {"top_p": 1.01}, "top_p"),
    ("top-p-negative", {"top_p": -0.5}, "top_p"),
    ("top-k-negative", {"top_k": -5}, "top_k"),
    ("min-p-large", {"min_p": 1.5}, "min_p"),
    ("n-zero", {"n": 0}, "n"),
    ("n-absurd", {"n": 100000}, "n"),
    ("n-string", {"n": "2"}, "n"),
    ("best-of-below-n", {"n": 3, "best_of": 2}, "best_of"),
    ("best-of-absurd", {"best_of": 10**6}, "best_of"),
    ("best-of-stream", {"n": 1, "best_of": 2, "stream": True}, "best_of"),
    ("stream-string", {"stream": "yes"}, "stream"),
    ("stream-number", {"stream": 1}, "stream"),
    ("stream-options-without-stream", {"stream_options": {"include_usage": True}},
     "stream_options"),
    ("stream-options-list", {"stream": True, "stream_options": [1]}, "stream_options"),
    ("logprobs-bool", {"logprobs": True}, "logprobs"),
    ("logprobs-large", {"logprobs": 1000}, "logprobs"),
    ("logprobs-negative", {"logprobs": -2}, "logprobs"),
    ("echo-string", {"echo": "true"}, "echo"),
    ("stop-number", {"stop": 3}, "stop"),
    ("stop-empty-string", {"stop": ""}, "stop"),
    ("stop-of-numbers", {"stop": ["a", 3]}, "stop"),
    ("stop-absurd-list", {"stop": ["x"] * 5000}, "stop"),
    ("stop-absurd-length", {"stop": "x" * 100000}, "stop"),
    ("presence-penalty", {"presence_penalty": 2.5}, "presence_penalty"),
    ("frequency-penalty", {"frequency_penalty": -2.5}, "frequency_penalty"),
    ("repetition-penalty-zero", {"repetition_penalty": 0}, "repetition_penalty"),
    ("repetition-penalty-negative", {"repetition_penalty": -1}, "repetition_penalty"),
    ("logit-bias-list", {"logit_bias": [1]}, "logit_bias"),
    ("logit-bias-key", {"logit_bias": {"sea": 1}}, "logit_bias"),
    ("logit-bias-token", {"logit_bias": {str(VOCABULARY): 1}}, "logit_bias"),
    ("logit-bias-negative-token", {"logit_bias": {"-1": 1}}, "logit_bias"),
    ("logit-bias-value", {"logit_bias": {"5": 101}}, "logit_bias"),
    ("logit-bias-value-type", {"logit_bias": {"5": "1"}}, "logit_bias"),
    ("logit-bias-absurd", {"logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
    ("user-number", {"user": 3}, "user"),
    ("seed-string", {"seed": "lucky"}, "seed"),
    ("seed-float", {"seed": 1.5}, "seed"),
    ("min-tokens-above-max", {"min_tokens": 3}, "min_tokens"),
    ("min-tokens-negative", {"min_tokens": -3}, "min_tokens"),
    ("min-tokens-absurd", {"min_tokens": 10**10}, "min_tokens"),
    ("stop-token-ids-type", {"stop_token_ids": "5"}, "stop_token_ids"),
    ("stop-token-ids-range", {"stop_token_ids": [VOCABULARY]}, "stop_token_ids"),
    ("stop-token-ids-absurd", {"stop_token_ids": [1] * 100000}, "stop_token_ids"),
    ("ignore-eos-number", {"ignore_eos": 1}, "ignore_eos"),
    ("model-number", {"model": 4}, "model"),
]

# (id, the body as sent)
BAD_BODIES = [
    ("empty", b""),
    ("not-json", b"prompt=hello"),
    ("cut-off", b'{"prompt": "a'),
    ("trailing", b'{"prompt": "a"} {"prompt": "b"}'),
    ("list", b"[1, 2]"),
    ("string", b'"prompt"'),
    ("null", b"null"),
    ("nan", b'{"prompt": "a", "temperature": NaN}'),
    ("infinity", b'{"prompt": "a", "temperature": Infinity}'),
    ("overflowing-number", b'{"prompt": "a", "temperature": 1e999}'),
    ("overflowing-negative", b'{"prompt": "a", "top_p": -1e999}'),
    ("invalid-utf8", b'{"prompt": "\xff\xfe"}'),
    ("overlong-utf8", b'{"prompt": "\xc0\xaf"}'),
    ("surrogate-utf8", b'{"prompt": "\xed\xa0\x80"}'),
    ("lone-surrogate-escape", b'{"prompt": "\\ud800"}'),
    ("unescaped-control", b'{"prompt": "a\x01b"}'),
    ("deep-lists", b'{"prompt": ' + b"[" * 100000 + b"]" * 100000 + b"}"),
    ("deep-objects", b'{"x":' * 50000 + b"1" + b"}" * 50000),
    ("wide-objects", b'{"x": [' + b",".join([b"{}"] * 1300000) + b"]}"),
    ("wide-lists", b'{"prompt": [' + b",".join([b"[]"] * 1300000) + b"]}"),
]


def assert_still_answers(server):
    answer = server.complete(**GOOD)
    assert answer["usage"]["completion_tokens"] == 2


def assert_error(reply, status=400):
    assert reply.status == status, (reply.status, reply.body[:500])
    assert reply.headers["Content-Type"].startswith("application/json")
    error = reply.error
    assert set(error) >= {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and len(error["message"]) > 8
    assert isinstance(error["type"], str)
    return error


@pytest.mark.parametrize(
    "fields,parameter", [case[1:] for case in BAD_FIELDS], ids=[case[0] for case in BAD_FIELDS]
)
def test_bad_field(server, fields, parameter):
    error = assert_error(server.post("/v1/completions", {**GOOD, **fields}))
    assert error["param"] == parameter
    assert error["type"] == "invalid_request_error"
    assert parameter in error["message"]
    assert_still_answers(server)


@pytest.mark.parametrize(
    "body", [case[1] for case in BAD_BODIES], ids=[case[0] for case in BAD_BODIES]
)
def test_bad_body(server, body):
    before = server.resident_bytes()
    error = assert_error(server.post("/v1/completions", body))
    assert error["type"] == "invalid_request_error"
    # jansson alone would take 300 MB for the wide ones.
    assert server.resident_bytes() - before < 64 << 20
    assert_still_answers(server)


def test_missing_prompt(server):
    assert assert_error(server.post("/v1/completions", {"max_tokens": 2}))["param"] == "prompt"


def test_unknown_model(server):
    error = assert_error(server.post("/v1/completions", {**GOOD, "model": "gpt-9"}), 404)
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert "gpt-9" in error["message"]


def test_prompt_beyond_the_context(server):
    error = assert_error(server.post("/v1/completions", {**GOOD, "prompt": [65] * 40000}))
    assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert "32768" in error["message"] and "40000" in error["message"]
    assert_still_answers(server)


def test_prompt_and_answer_beyond_the_context(server):
    error = assert_error(
        server.post("/v1/completions", {**GOOD, "prompt": [65] * 100, "max_tokens": 32700})
    )
    assert error["code"] == "context_length_exceeded"
    assert "32768" in error["message"]
    assert_still_answers(server)


def test_the_longest_text_is_measured_not_truncated(server):
    error = assert_error(server.post("/v1/completions", {**GOOD, "prompt": "word " * 200000}))
    assert error["code"] == "context_length_exceeded"


def test_one_bad_prompt_refuses_all(server):
    before = server.metrics()["quire_prompt_tokens_total"]
    assert_error(server.post("/v1/completions", {**GOOD, "prompt": [[1, 2, 3], [65] * 40000]}))
    assert server.metrics()["quire_prompt_tokens_total"] == before


def test_errors_carry_the_request_id(server):
    reply = server.post("/v1/completions", {"prompt": 3}, headers={"x-request-id": "mine-17"})
    assert reply.headers["x-request-id"] == "mine-17"


@pytest.mark.parametrize("path,body,parameter", [
    ("/tokenize", {"prompt": 3}, "prompt"),
    ("/tokenize", {}, "prompt"),
    ("/detokenize", {"tokens": "abc"}, "tokens"),
    ("/detokenize", {"tokens": [VOCABULARY]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [1.5]}, "tokens"),
    ("/detokenize", {}, "tokens"),
])
def test_bad_input_of_the_tokenizer_routes(server, path, body, parameter):
    assert assert_error(server.post(path, body))["param"] == parameter


def test_unknown_path(server):
    error = assert_error(server.get("/v1/nothing"), 404)
    assert "/v1/nothing" in error["message"]


def test_wrong_method(server):
    reply = server.get("/v1/completions")
    assert_error(reply, 405)
    assert reply.headers["Allow"] == "POST"
    reply = server.post("/v1/models", {})
    assert_error(reply, 405)
    assert "GET" in reply.headers["Allow"]


def test_a_large_token_prompt_is_cheap_to_refuse(server):
    """A token prompt of 4 MB is legal JSON; only its length is wrong."""
    before = server.resident_bytes()
    body = json.dumps({"prompt": [8000] * 700000}).encode()
    assert assert_error(server.post("/v1/completions", body))["code"] == "context_length_exceeded"
    assert server.resident_bytes() - before < 128 << 20
    assert_still_answers(server)
