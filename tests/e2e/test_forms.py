"""The form of an answer under the names of other servers, and values that ask for nothing: each is
enforced, or a 400 that names it, on every route, and never left out."""
import json
import re

import pytest

from server import LONG, Server

PERSON = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["age"], "additionalProperties": False}
USER = [{"role": "user", "content": "x"}]
BODIES = {"/v1/completions": {"prompt": "x", "max_tokens": 60},
          "/v1/chat/completions": {"messages": USER, "max_tokens": 60},
          "/v1/responses": {"input": "x", "max_output_tokens": 60},
          "/v1/messages": {"messages": USER, "max_tokens": 60}}


def ask(server, path, status=200, **fields):
    reply = server.post(path, {**BODIES[path], "temperature": 0, **fields})
    assert reply.status == status, (path, fields, reply.body)
    return reply.json()


def text_of(path, answer):
    if path == "/v1/completions":
        return answer["choices"][0]["text"]
    if path == "/v1/chat/completions":
        return answer["choices"][0]["message"]["content"]
    blocks = answer["content"] if path == "/v1/messages" else answer["output"][-1]["content"]
    return "".join(block.get("text", "") for block in blocks)


@pytest.fixture(scope="module")
def grammars(server):
    reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_regex": "a"})
    if reply.status != 200:
        pytest.skip("built without xgrammar")
    return server


def is_person(text):
    value = json.loads(text)
    return list(value) == ["age"] and 0 <= value["age"] <= 120


def is_object(text):
    return isinstance(json.loads(text), dict)


def is_digits(text):
    return re.fullmatch("[0-9]{3}", text)


REGEX, GRAMMAR = "[0-9]{3}", "root ::= [0-9] [0-9] [0-9]"
NAMES = [
    ({"response_format": {"type": "json_object", "schema": PERSON}}, is_person),
    ({"response_format": {"type": "json", "value": PERSON}}, is_person),
    ({"response_format": {"type": "json_schema", "schema": PERSON}}, is_person),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}}, is_person),
    ({"response_format": {"type": "regex", "value": REGEX}}, is_digits),
    ({"response_format": {"type": "grammar", "grammar": GRAMMAR}}, is_digits),
    ({"response_format": {"type": "choice", "choice": ["123"]}}, is_digits),
    ({"structured_outputs": {"json": PERSON}}, is_person),
    ({"guided_json": json.dumps(PERSON)}, is_person),
    ({"guided_grammar": GRAMMAR}, is_digits),
    ({"json_schema": PERSON}, is_person),
    ({"json_schema": json.dumps(PERSON)}, is_person),
    ({"json_schema": {"name": "p", "schema": PERSON, "strict": True}}, is_person),
    ({"grammar": GRAMMAR}, is_digits),
    ({"grammar": {"type": "json", "value": PERSON}}, is_person),
    ({"grammar": {"type": "regex", "value": REGEX}}, is_digits),
    ({"regex": REGEX}, is_digits),
    ({"ebnf": GRAMMAR}, is_digits),
    ({"format": PERSON}, is_person),
    ({"format": {"type": "json_schema", "schema": PERSON}}, is_person),
    ({"output_format": {"type": "json_schema", "schema": PERSON}}, is_person),
    ({"output_config": {"format": {"type": "json_schema", "schema": PERSON}}}, is_person),
    ({"text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}}, is_person),
    ({"text": {"format": {"type": "json_object", "schema": PERSON}}}, is_person),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fields,holds", NAMES, ids=[json.dumps(row[0])[:48] for row in NAMES])
def test_other_names_are_enforced(grammars, path, fields, holds):
    assert holds(text_of(path, ask(grammars, path, **fields)))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fields", [{"response_format": {"type": "json_object"}}, {"format": "json"},
                                    {"guided_json_object": True}, {"text": {"format": {"type": "json_object"}}}],
                         ids=json.dumps)
def test_any_object(grammars, path, fields):
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    for seed in range(2 if LONG else 1):
        answer = ask(grammars, path, **fields, **{limit: 200}, temperature=1, seed=seed)
        text = text_of(path, answer)
        assert text.startswith("{")
        if '"length"' not in json.dumps(answer) and "max_" not in json.dumps(answer.get("stop_reason")):
            assert answer.get("status") == "incomplete" or is_object(text)


REFUSED = [
    ({"response_format": {"type": "lark_grammar", "grammar": GRAMMAR}}, "response_format"),
    ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format"),
    ({"response_format": {"type": "text", "schema": PERSON}}, "response_format"),
    ({"response_format": {"type": "json_object", "regex": REGEX}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "p"}}}, "response_format"),
    ({"response_format": {"type": "json_object", "schema": PERSON, "value": PERSON}}, "response_format"),
    ({"response_format": {"type": "json_object"}, "regex": REGEX}, "only one member"),
    ({"json_schema": PERSON, "grammar": GRAMMAR}, "only one member"),
    ({"format": "yaml"}, "format"),
    ({"format": {"type": "json_schema"}}, "format"),
    ({"json_schema": 3}, "json_schema"),
    ({"grammar": ["x"]}, "grammar"),
    ({"ebnf": {"a": 1}}, "ebnf"),
    ({"regex": 3}, "regex"),
    ({"structural_tag": {"type": "x"}}, "structural_tag"),
    ({"guided_whitespace_pattern": "[ ]*"}, "guided_whitespace_pattern"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs"),
    ({"grammar": GRAMMAR, "grammar_lazy": True}, "grammar_lazy"),
    ({"output_format": {"type": "xml"}}, "output_format"),
    ({"text": {"format": "json"}}, "text"),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fields,named", REFUSED, ids=[json.dumps(row[0])[:48] for row in REFUSED])
def test_what_is_not_enforced_is_refused(server, path, fields, named):
    assert named in ask(server, path, 400, **fields)["error"]["message"]


# ---- nothing ----

NOTHING = [
    {"best_of": 1}, {"length_penalty": 1.0}, {"length_penalty": 1}, {"use_beam_search": False},
    {"early_stopping": False}, {"suffix": ""}, {"suffix": None}, {"logprobs": False}, {"logprobs": None},
    {"prompt_logprobs": None}, {"prompt_logprobs": 0}, {"prompt_logprobs": False}, {"model": ""},
    {"echo": False}, {"bad_words": []}, {"allowed_token_ids": []}, {"logits_processors": []},
    {"logit_bias": {}}, {"stop_token_ids": []}, {"vllm_xargs": {}}, {"kv_transfer_params": {}},
    {"prompt_embeds": ""}, {"functions": []}, {"function_call": "none"}, {"function_call": "auto"},
    {"chat_template": ""}, {"response_format": {"type": "text"}}, {"response_format": None},
    {"structured_outputs": {}}, {"format": ""}, {"grammar": ""}, {"regex": ""}, {"ebnf": ""},
    {"json_schema": ""}, {"grammar_triggers": []}, {"grammar_lazy": False}, {"text": {}},
    {"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"output_config": {}},
    {"guided_json_object": False}, {"chat_template_kwargs": {}}, {"mcp_servers": []}, {"container": ""},
    {"previous_response_id": ""}, {"context_management": []}, {"tools": [], "tool_choice": None},
    {"web_search_options": None},
]


@pytest.mark.parametrize("fields", NOTHING, ids=json.dumps)
def test_values_that_ask_for_nothing(server, fields):
    few = {"max_tokens": 3}
    for path in BODIES:
        if "context_management" in fields and path == "/v1/messages":
            continue  # an object there
        if path == "/v1/responses":
            few = {"max_output_tokens": 3}
        assert text_of(path, ask(server, path, **few, **fields)) == text_of(path, ask(server, path, **few))


@pytest.mark.parametrize("fields", [
    {"best_of": 2}, {"length_penalty": 1.1}, {"use_beam_search": True}, {"suffix": "x"}, {"bad_words": ["x"]},
    {"prompt_logprobs": 1}, {"web_search_options": {}}, {"functions": [{"name": "f"}]},
    {"function_call": {"name": "f"}}, {"model": "other"}], ids=json.dumps)
def test_values_that_ask_for_something(server, fields):
    reply = server.post("/v1/chat/completions", {**BODIES["/v1/chat/completions"], **fields})
    name = next(iter(fields))
    assert reply.status in (400, 404) and reply.error["param"] == name and name in reply.error["message"]


# ---- the template's variables ----

SHOW = ("{{ messages[-1].content }} {% if enable_thinking is defined %}thinks:{{ enable_thinking }}{% endif %} "
        "{% if reasoning_effort is defined %}effort:{{ reasoning_effort }}{% endif %} {{ shout }}")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    (folder / "template.jinja").write_text(SHOW)
    with Server(folder, "--chat-template", folder / "template.jinja") as one:
        yield one


CHATS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


def prompt_tokens(server, path, **fields):
    usage = ask(server, path, **fields)["usage"]
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"]
    return usage["input_tokens"] + (usage["cache_read_input_tokens"] if path == "/v1/messages" else 0)


def expected_tokens(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["count"]


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("fields,text", [
    ({"chat_template_kwargs": {"shout": "hey hey"}}, "x   hey hey"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "x thinks:False  "),
    ({"reasoning_effort": "high"}, "x  effort:high "),
    ({"reasoning_effort": "none"}, "x thinks:False effort:none "),
    ({"reasoning": {"effort": "low"}}, "x  effort:low "),
    ({"output_config": {"effort": "low"}}, "x  effort:low "),
    ({"enable_thinking": False}, "x thinks:False  "),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "x thinks:True  "),
    ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"shout": "a b c d"}},
     "x thinks:False  a b c d"),
    ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
     "x thinks:True effort:none "),
], ids=json.dumps)
def test_every_dialect_gives_the_template_its_variables(shown, path, fields, text):
    assert prompt_tokens(shown, path, **fields) == expected_tokens(shown, text)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """A server that says what requests do not."""
    folder = tmp_path_factory.mktemp("quiet")
    (folder / "template.jinja").write_text(SHOW)
    with Server(folder, "--chat-template", folder / "template.jinja", "--default-chat-template-kwargs",
                '{"enable_thinking": false, "reasoning_effort": "low", "shout": "hey"}') as one:
        yield one


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("fields,text", [
    ({}, "x thinks:False effort:low hey"),
    ({"chat_template_kwargs": {"shout": "a b"}}, "x thinks:False effort:low a b"),
    ({"reasoning_effort": "high"}, "x thinks:False effort:high hey"),
    ({"enable_thinking": True}, "x thinks:True effort:low hey"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "x thinks:True effort:low hey"),
    ({"chat_template_kwargs": {"thinking": True}}, "x thinks:True effort:low hey"),
    ({"chat_template_kwargs": {"enable_thinking": True}}, "x thinks:True effort:low hey"),
], ids=json.dumps)
def test_the_server_says_what_a_request_does_not(quiet, path, fields, text):
    for _ in range(2):  # nothing of a request stays in the server's own
        assert prompt_tokens(quiet, path, **fields) == expected_tokens(quiet, text)
