"""Constrained answers of a real process: response_format, structured_outputs, tools that must be called.
Models are the default one and a random one, which has no wish to comply."""
import contextlib
import importlib.util
import json
import pathlib
import random
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

from raw import RawConnection
from server import BINARY, LONG, MODEL, PATIENCE, ROOT, SLOW, sse_events

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
    "required": ["name", "age", "tags"]}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
HERMES = TEMPLATE + "{% if tools %}<tool_call>{% endif %}"
LLAMA = TEMPLATE + "{% if tools %}{\"name\": \"\", \"parameters\": dictionary}{% endif %}"
GLM4 = TEMPLATE + "{% if tools %}请使用 Json 格式表示调用的参数{% endif %}"
CODER = TEMPLATE + "{% if tools %}<function=f>{% endif %}"
GLM45 = TEMPLATE + "{% if tools %}<arg_key>{% endif %}"
SIGNS = {"seed-oss": "<seed:tool_call>", "minimax": "<minimax:tool_call>", "nemotron": "<TOOLCALL>",
         "functools": "functools["}
SIGNED = {name: TEMPLATE + "{% if tools %}" + sign + "{% endif %}" for name, sign in SIGNS.items()}
TOKENS = {"mistral": "[TOOL_CALLS]", "phi4": "<|tool_call|>", "gemma-4": "<|tool_call>",
          "functiongemma": "<start_function_call>", "kimi-k2": "<|tool_calls_section_begin|>",
          "deepseek": "<｜tool▁calls▁begin｜>", "cohere": "<|START_ACTION|>", "olmo-3": "<function_calls>"}
MARKED = {name: TEMPLATE + "{% if tools %}{{ '" + token + "' }}{% endif %}" for name, token in TOKENS.items()}
LFM2 = TEMPLATE + "{% if tools %}List of tools: {% endif %}"
CALL_TOKENS = {**{MARKED[name]: token for name, token in TOKENS.items()}, LFM2: "<|tool_call_start|>"}
CALL_TOKEN_ID = 8187  # that of <|pad|>, which it takes the place of
N_TOOLS = 500 if LONG else 20 if SLOW else 24  # of each format
FORMATS = {"hermes": HERMES, "llama": LLAMA, "glm4": GLM4, "qwen3-coder": CODER, "glm4.5": GLM45,
           **SIGNED, **MARKED, "lfm2": LFM2}


def complete(server, status=200, **fields):
    reply = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 200, "seed": 1, **fields})
    assert reply.status == status, reply.body
    return json.loads(reply.body)


def texts(server, **fields):
    choices = complete(server, **fields)["choices"]
    return [choice["text"] for choice in choices if choice["finish_reason"] == "stop"]


def is_person(text):
    value = json.loads(text)
    return (list(value) == ["name", "age", "tags"] and len(value["name"]) <= 12
            and 0 <= value["age"] <= 120 and len(value["tags"]) <= 3 and set(value["tags"]) <= {"a", "b"})


def has_library(server):
    reply = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1, "guided_regex": "a"})
    assert reply.status == 200 or "without xgrammar" in reply.error["message"], reply.body
    return reply.status == 200


@pytest.fixture(scope="module")
def grammars(server):
    """The server, if it can constrain answers."""
    if not has_library(server):
        pytest.skip("built without xgrammar")
    return server


MESSAGES = [{"role": "user", "content": "x"}]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CHAT_TOOL, STRICT = ({"type": "function", "function": {**FUNCTION, **more}} for more in ({}, {"strict": True}))
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
CHAT_BODY = {"messages": MESSAGES, "max_tokens": 1}
NEEDING = [
    *((COMPLETIONS, {"prompt": "x", "max_tokens": 1, name: value}, name) for name, value in (
        ("guided_regex", "a"), ("guided_choice", ["a"]), ("guided_json", {}), ("guided_grammar", "root ::= \"a\""),
        ("structured_outputs", {"regex": "a"}), ("structured_outputs", {"choice": ["a"]}),
        ("structured_outputs", {"json": {}}), ("structured_outputs", {"grammar": "root ::= \"a\""}),
        ("response_format", {"type": "json_object"}), ("response_format", SCHEMA))),
    *((CHAT, {**CHAT_BODY, **body}, name) for name, body in (
        ("guided_regex", {"guided_regex": "a"}), ("response_format", {"response_format": SCHEMA}),
        ("tool_choice", {"tools": [CHAT_TOOL], "tool_choice": "required"}),
        ("tool_choice", {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ("tools", {"tools": [STRICT]}))),
    *(("/v1/messages", {**CHAT_BODY, "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": one},
       None) for one in ({"type": "any"}, {"type": "tool", "name": "f"})),
    *(("/v1/responses", {"input": "x", "max_output_tokens": 16, **body}, name) for name, body in (
        ("text", {"text": {"format": {"type": "json_schema", "name": "s", "schema": {}}}}),
        ("tool_choice", {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}))),
]


@pytest.mark.parametrize("path,body,param", NEEDING, ids=[f"{row[0][4:]}-{row[2]}" for row in NEEDING])
def test_without_the_library_it_is_refused(server, path, body, param):
    """Each route, in a build with -Dgrammar=disabled; another one takes the same bodies."""
    reply = server.post(path, body)
    if has_library(server):
        assert reply.status == 200, reply.body
        return
    assert reply.status == 400 and "without xgrammar" in reply.error["message"], reply.body
    if path != "/v1/messages":
        assert reply.error["param"] == param and reply.error["code"] == "unsupported", reply.body


def test_what_needs_no_library_works_without(server):
    for path, body in ((COMPLETIONS, {"prompt": "x", "max_tokens": 1, "response_format": {"type": "text"}}),
                       (CHAT, {**CHAT_BODY, "tools": [CHAT_TOOL], "tool_choice": "auto"}),
                       (CHAT, {**CHAT_BODY, "tools": [CHAT_TOOL], "tool_choice": "none"})):
        assert server.post(path, body).status == 200


WAYS = [
    ("regex", {"structured_outputs": {"regex": "[0-9]{3}-(ab|c)"}},
     lambda text: re.fullmatch("[0-9]{3}-(ab|c)", text)),
    ("choice", {"structured_outputs": {"choice": ["Paris", "a \"b\""]}},
     lambda text: text in ("Paris", "a \"b\"")),
    ("grammar", {"structured_outputs": {"grammar": 'root ::= "(" [a-z]{1,3} ")"'}},
     lambda text: re.fullmatch(r"\([a-z]{1,3}\)", text)),
    ("json", {"structured_outputs": {"json": PERSON}}, is_person),
    ("json as text", {"guided_json": json.dumps(PERSON)}, is_person),
    ("older choice", {"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    ("a schema", {"response_format": {"type": "json_schema", "json_schema": {
        "name": "person", "strict": True, "schema": PERSON}}}, is_person),
]


@pytest.mark.parametrize("fields,holds", [pytest.param(*row[1:], id=row[0]) for row in WAYS])
@pytest.mark.parametrize("sampling", [
    {"temperature": 0}, {"temperature": 2, "n": 4}, {"temperature": 1, "n": 2, "best_of": 4},
    {"temperature": 1, "top_p": 0.5, "top_k": 5, "presence_penalty": 1, "repetition_penalty": 1.3},
    {"temperature": 1, "logprobs": 3}, {"temperature": 1, "logit_bias": {"3": 100, "40": -100}},
    {"temperature": 1, "min_tokens": 3}, {"temperature": 0, "ignore_eos": True},
    {"temperature": 1, "kv_policy": {"type": "streaming", "sink": 4, "recent": 60}},
    {"temperature": 1, "prompt": ["x", "Once upon a time"], "stop_token_ids": [5]}],
    ids=lambda fields: "-".join(fields))
def test_answers_are_of_the_form(grammars, fields, holds, sampling):
    finished = texts(grammars, **fields, **sampling)
    assert finished
    for text in finished:
        assert holds(text), text


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_delays_the_end_of_a_form(grammars, ignore_eos):
    """The end may follow each digit.  With logit_bias no other token is as likely."""
    fields = {"guided_regex": "[0-9]+", "ignore_eos": ignore_eos, "temperature": 1, "n": 4,
              "logit_bias": {"8184": 100, "8186": 100}, "return_token_ids": True}
    for n in (0, 12):
        choices = complete(grammars, min_tokens=n, **fields)["choices"]
        assert [len(choice["token_ids"]) for choice in choices] == [max(2, n + 1)] * 4


def test_texts_of_generated_schemas_are_valid():
    """A short form of tests/grammar/check_schemas.py."""
    pytest.importorskip("jsonschema")
    walk = pathlib.Path(BINARY).parent / "tests" / "grammar" / "walk_grammar"
    if not walk.exists():
        pytest.skip("built without xgrammar, or without tests")
    script = ROOT / "tests" / "grammar" / "check_schemas.py"
    done = subprocess.run([sys.executable, script, walk, MODEL, "--schemas", "150", "--texts", "2"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " 0 refused" in done.stdout, done.stdout + done.stderr


def test_json_objects(grammars):
    finished = texts(grammars, response_format={"type": "json_object"}, temperature=1, n=8, max_tokens=400)
    for text in finished:
        assert isinstance(json.loads(text), dict)


def test_a_random_model_complies(grammars, serve, tiny_model):
    server = serve(model=tiny_model)
    finished = texts(server, guided_json=PERSON, temperature=1, n=16, max_tokens=300)
    assert len(finished) > 8
    for text in finished:
        assert is_person(text), text


def test_a_stop_string_still_ends_the_text(grammars):
    choice = complete(grammars, guided_json=PERSON, temperature=0, stop=["age"])["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["text"].startswith('{"name": ')
    assert "age" not in choice["text"]


def test_forced_text_is_counted_and_streamed(grammars):
    fields = {"structured_outputs": {"regex": "This text is forced from its beginning to its end!"}}
    whole = complete(grammars, **fields)
    text = whole["choices"][0]["text"]
    assert text == "This text is forced from its beginning to its end!"
    scored = complete(grammars, logprobs=1, **fields)
    assert scored["choices"][0]["text"] == text
    ids = complete(grammars, return_token_ids=True, **fields)["choices"][0]["token_ids"]
    assert whole["usage"]["completion_tokens"] == len(ids)
    short = complete(grammars, max_tokens=3, **fields)["choices"][0]
    assert short["finish_reason"] == "length" and text.startswith(short["text"])
    assert complete(grammars, max_tokens=3, **fields)["usage"]["completion_tokens"] == 3


def test_seeds_repeat(grammars):
    fields = {"guided_json": PERSON, "temperature": 1.5, "n": 3}
    assert complete(grammars, **fields)["choices"] == complete(grammars, **fields)["choices"]


@pytest.mark.parametrize("schema,named", [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"not": {}}, "not"),
    ({"type": "object", "properties": {"a": {"if": {}}}}, "#/properties/a: if"),
    ({"type": "string", "format": "idn-email"}, "idn-email"), ({"type": "number", "multipleOf": 2}, "multipleOf"),
    ({"allOf": [{}, {}]}, "allOf"), ({"$ref": "#/$defs/a"}, "$ref"), ({"type": "string", "pattern": "(?=a)"}, "Lookahead"),
    ({"$ref": "#"}, "$ref"), ({"type": "string", "maxLength": 1000}, "maxLength"), ({"contains": {}}, "contains"),
    ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "oneOf")])
def test_what_is_not_supported_is_named(grammars, schema, named):
    error = complete(grammars, 400, guided_json=schema)["error"]
    assert error["param"] == "guided_json" and named.split(" ")[-1] in error["message"], error
    assert not re.search("cannot be .* is not supported", error["message"]), error


def test_an_expression_with_half_a_character_is_refused(grammars):
    """The library would write half of it: bytes that are no text."""
    error = complete(grammars, 400, guided_regex="\\ud83d\\ude00")["error"]
    assert error["param"] == "guided_regex" and "half of a character" in error["message"]
    assert complete(grammars, guided_regex="\\u{1f600}", max_tokens=20)["choices"][0]["text"] == "\U0001f600"


HOSTILE = [{"regex": "(" * 2000 + "a" + ")" * 2000}, {"regex": "((a{100}){100}){100}"}, {"regex": "a{1,100000}"},
           {"regex": "[[["}, {"regex": "\\"}, {"grammar": "root ::= root"}, {"grammar": "root ::= root root | \"\""},
           {"grammar": "root ::= a"}, {"grammar": "\x01"}, {"regex": "(a*)*b"}, {"grammar": "root ::= \"a\"{1,99999999}"}]


@pytest.mark.parametrize("fields", HOSTILE, ids=lambda f: str(f)[:40])
def test_hostile_grammars_end_with_an_answer_or_a_refusal(grammars, fields):
    reply = grammars.post(COMPLETIONS, {"prompt": "x", "max_tokens": 40, "structured_outputs": fields})
    assert reply.status in (200, 400)
    if reply.status == 400:
        assert reply.error["param"] == "structured_outputs" and reply.error["type"] == "invalid_request_error"
    assert complete(grammars, max_tokens=1)["choices"]


ITSELF = {"properties": {"self": {"$ref": "#"}}, "required": ["self"]}
DOUBLES = "\n".join(["root ::= a0", *(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(30)), 'a30 ::= "x"'])
ENDLESS = [({"guided_json": ITSELF}, '{"self": {"self": '), ({"guided_grammar": 'root ::= "a" root'}, "aaaa"),
           ({"guided_grammar": 'root ::= "a" b\nb ::= "b" root'}, "abab"), ({"guided_grammar": DOUBLES}, "xxxx"),
           ({"guided_json": {"type": "array", "minItems": 1, "items": {"$ref": "#"}}}, "[[[["),
           ({"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"required": ["b"], "properties": {"b": {"anyOf": [
               {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}}}}}, '{"b": {"b": {"b": ')]


@pytest.mark.parametrize("fields,begins", ENDLESS, ids=[str(fields)[:40] for fields, _ in ENDLESS])
def test_a_text_without_an_end_ends_at_max_tokens(grammars, fields, begins):
    for more in ({}, {"logprobs": 0}):
        answer = complete(grammars, max_tokens=60, **fields, **more)
        choice = answer["choices"][0]
        assert choice["text"].startswith(begins) and choice["finish_reason"] == "length", choice
        assert answer["usage"]["completion_tokens"] == 60


CLOSE = [({"exclusiveMinimum": 0, "exclusiveMaximum": 0.000001}), {"minimum": 1e-8, "maximum": 1e-7},
         {"minimum": 0.1234567, "maximum": 0.1234568}, {"minimum": -1e-9, "exclusiveMaximum": 0},
         {"exclusiveMinimum": 1e-17, "maximum": 1e-16}]


@pytest.mark.parametrize("bounds", CLOSE, ids=str)
def test_numbers_between_close_bounds(grammars, bounds):
    schema = {"type": "object", "properties": {"p": {"type": "number", **bounds}}, "required": ["p"]}
    for text in texts(grammars, guided_json=schema, temperature=1, n=4):
        value = json.loads(text)["p"]
        assert bounds.get("minimum", -1) <= value <= bounds.get("maximum", 1)
        assert bounds.get("exclusiveMinimum", -1) < value < bounds.get("exclusiveMaximum", 1)


def test_bounds_that_leave_no_number_are_refused(grammars):
    for bounds in ({"exclusiveMinimum": 5e-324, "exclusiveMaximum": 1e-323}, {"minimum": 2, "maximum": 1},
                   {"minimum": 1, "exclusiveMaximum": 1}):
        error = complete(grammars, 400, guided_json={"type": "number", **bounds})["error"]
        assert "no number" in error["message"], error


def test_hostile_forms_stop_nothing(small_model):
    """A short form of scripts/load/hostile_forms.py."""
    pytest.importorskip("jsonschema")
    done = subprocess.run([sys.executable, ROOT / "scripts/load/hostile_forms.py", "--binary", BINARY,
                           "--model", small_model, "--forms", "60" if LONG else "15", "--streams", "2",
                           "--clients", "3", "--quiet", "1", "--slack", "30"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "without xgrammar" in done.stdout, done.stdout + done.stderr


def bounded_strings(n, length):
    names = [f"p{i}" for i in range(n)]
    return {"type": "object", "properties": {name: {"type": "string", "maxLength": length} for name in names},
            "required": names}


def test_costly_forms_hold_nothing_and_end_with_the_server(grammars, serve):
    """Forms that take very long to compile: cheap ones pass them, and SIGTERM ends the server."""
    server = serve("--shutdown-timeout", "2")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(server)) for _ in range(4)]
        for i, client in enumerate(clients):
            client.send_completion(prompt="x", max_tokens=4, guided_json=bounded_strings(480 + i, 128))
        assert texts(server, guided_choice=["yes", "no"]) and texts(server, guided_regex="[a-f]{3}")
        assert not select.select([client.socket for client in clients], [], [], 0)[0]
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15 * PATIENCE
        assert [client.read_reply()[0] for client in clients] == [503] * 4


def test_a_form_that_takes_too_long_is_refused_at_once_the_second_time(grammars):
    rules = {"guided_grammar": "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}" for i in range(60)),
                                          'r60 ::= "y" | ""'])}
    for _ in range(2):
        error = complete(grammars, 400, **rules)["error"]
        assert error["param"] == "guided_grammar" and "too " in error["message"], error


@pytest.mark.parametrize("grammar", ["root ::= root", "root ::= \"a\" b\nb ::= b",
                                     "root ::= \"once\" [^\\x00-\\U0010FFFF]"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_without_a_way_on_is_the_requests_fault(grammars, grammar, stream):
    """No text ends there, which is seen only where the answer comes to it."""
    reply = grammars.post(COMPLETIONS, {"prompt": "x", "max_tokens": 40, "stream": stream,
                                        "guided_grammar": grammar})
    if stream and reply.status == 200:
        events = [json.loads(event) for event in sse_events(reply.body) if event != "[DONE]"]
        (error,) = [event["error"] for event in events if "error" in event]
    else:
        assert reply.status == 400, reply.body
        error = reply.error
    assert error["param"] == "guided_grammar" and error["type"] == "invalid_request_error", error


TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {
    "type": "object", "properties": {"word": {"type": "string", "maxLength": 9}, "n": {"type": "integer", "maximum": 5}},
    "required": ["word"]}}}, {"type": "function", "function": {"name": "stop"}}]


def chat(server, status=200, **fields):
    reply = server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "seed": 1, **fields})
    assert reply.status == status, reply.body
    return json.loads(reply.body)


def is_call(call):
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "stop":  # which has no parameters
        return arguments == {}
    return (call["function"]["name"] == "find" and len(arguments["word"]) <= 9
            and arguments.get("n", 0) <= 5 and set(arguments) <= {"word", "n"})


def serve_format(serve, tiny_model, tmp_path, template):
    """A random model with the template, and with the special token that its calls begin with."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text(template)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        text = (model / name).read_text()
        (model / name).write_text(text.replace("<|pad|>", CALL_TOKENS.get(template, "<|pad|>")))
    return serve(model=model)


@pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
def test_calls_that_must_come(grammars, serve, tiny_model, tmp_path, template):
    server = serve_format(serve, tiny_model, tmp_path, template)
    assert "but it shows no tools" in server.log and "shows no tools" not in grammars.log
    named = {"type": "function", "function": {"name": "find"}}
    for choice, parallel in ((named, True), ("required", False), ("required", True)):
        answer = chat(server, tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel, temperature=1, n=4)
        for one in answer["choices"]:
            if one["finish_reason"] == "length":
                continue
            calls = one["message"]["tool_calls"]
            assert calls and all(map(is_call, calls)) and one["message"]["content"] is None, one
            assert len(calls) == 1 or (parallel and choice != named)
            if choice == named:
                assert calls[0]["function"]["name"] == "find"
    assert chat(server, 400, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "g"}})
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    for one in chat(server, tools=strict, temperature=1, n=2, max_tokens=20)["choices"]:
        assert all(map(is_call, one["message"].get("tool_calls", [])))
    bad = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}}]
    assert "not is not supported" in chat(server, 400, tools=bad)["error"]["message"]


def make_tool(rng, name, maker):
    """A strict tool whose arguments have random schemas, which the default one of a definition may be."""
    properties = {key: maker.make(rng, 2) for key in rng.sample(maker.WORDS[:6], rng.randrange(4))}
    schema = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = rng.sample(list(properties), rng.randrange(len(properties) + 1))
    if rng.random() < 0.3:
        schema["$defs"] = {"shade": {"enum": ["light", "dark", "<none>", 3]},
                           "list": {"type": "array", "items": {"$ref": "#/$defs/shade"}, "maxItems": 2}}
        properties["shades"] = {"$ref": "#/$defs/list"}
    if not properties and rng.random() < 0.7:
        schema = {"type": "object", "additionalProperties": maker.make(rng, 1)}
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}


def check_calls(choice, tools):
    """Checks a choice's calls by an independent validator; returns how many there are."""
    jsonschema = pytest.importorskip("jsonschema")
    calls = choice["message"].get("tool_calls") or []
    for call in calls:
        (tool,) = [tool for tool in tools if tool["function"]["name"] == call["function"]["name"]]
        jsonschema.validate(json.loads(call["function"]["arguments"]), tool["function"]["parameters"],
                            jsonschema.Draft202012Validator)
    return len(calls)


@pytest.fixture(scope="module")
def maker():
    """Makes random schemas."""
    pytest.importorskip("jsonschema")
    path = ROOT / "tests" / "grammar" / "check_schemas.py"
    spec = importlib.util.spec_from_file_location("check_schemas", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
def test_calls_of_generated_tools_are_valid(grammars, serve, tiny_model, tmp_path, maker, template):
    """A random model has no wish to comply.  Answers that are cut are the beginning of one."""
    server = serve_format(serve, tiny_model, tmp_path, template)
    rng = random.Random(7)
    n_calls = n_finished = 0
    for i in range(N_TOOLS // 2):
        tools = [make_tool(rng, name, maker) for name in ("f", "get_it")]
        answer = chat(server, tools=tools, tool_choice="required", temperature=1, n=4, seed=i,
                      parallel_tool_calls=bool(i % 2), max_tokens=600)
        for choice in answer["choices"]:
            if choice["finish_reason"] == "length":
                continue
            n_finished += 1
            n = check_calls(choice, tools)
            assert n > 0 and (n == 1 or i % 2), (tools, choice)
            assert choice["message"]["content"] is None, (tools, choice)
            n_calls += n
    assert n_finished > N_TOOLS // 3 and n_calls > n_finished


@pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
def test_strict_tools_that_may_be_called(grammars, serve, tiny_model, tmp_path, maker, template):
    """The answer may be text.  Where a call begins with a token, text is as free as without tools."""
    server = serve_format(serve, tiny_model, tmp_path, template)
    rng = random.Random(3)
    bias = {str(CALL_TOKEN_ID): 4} if template in CALL_TOKENS else {}
    n_calls = n_texts = 0
    for i in range(N_TOOLS // 4):
        tools = [make_tool(rng, name, maker) for name in ("f", "get_it")]
        answer = chat(server, tools=tools, temperature=1, n=4, seed=i, max_tokens=300, logit_bias=bias)
        for choice in answer["choices"]:
            if choice["finish_reason"] != "length":
                n_calls += check_calls(choice, tools)
            n_texts += bool(choice["message"]["content"])
    assert n_texts > 0 and (n_calls > 0 or not bias)


@pytest.mark.parametrize("template", [CODER, GLM45], ids=["qwen3-coder", "glm4.5"])
def test_arguments_without_quotes_are_of_their_types(grammars, serve, tiny_model, tmp_path, template):
    """Forced values that look like others: the schema says what they are."""
    server = serve_format(serve, tiny_model, tmp_path, template)
    values = {"number_text": "12", "null_text": "null", "spaced": "  x ", "object_text": '{"a": 1}', "number": 12,
              "marked": "a</parameter></arg_value>\n<tool_call>", "nothing": None, "quoted": '"x"', "list": ["<", "12"]}
    properties = {key: {"const": value} for key, value in values.items()}
    properties["lettered"] = {"type": "string", "pattern": "^</(arg_value|parameter)>$"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}
    (choice,) = chat(server, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=900)["choices"]
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.pop("lettered") in ("</arg_value>", "</parameter>")
    assert arguments == values


@pytest.mark.parametrize("schema,named", [
    ({"type": "object", "minProperties": 1}, "minProperties"),
    ({"type": "object", "properties": {"a>b": {}}}, "a>b"),
    ({"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}, "#/properties/b"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "$ref #")])
def test_what_elements_cannot_say_is_named(grammars, serve, tiny_model, tmp_path, schema, named):
    """A tool that is not strict is called all the same: its client awaits no more than a call."""
    server = serve_format(serve, tiny_model, tmp_path, CODER)
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    error = chat(server, 400, tools=[tool], tool_choice="required")["error"]
    assert error["param"] == "tools" and named in error["message"], error
    tool["function"]["strict"] = False
    for choice in chat(server, tools=[tool], tool_choice="required", n=4)["choices"]:
        assert choice["finish_reason"] == "length" or choice["message"]["tool_calls"]
    server.wait_logged("loosened parameters=")


AGE = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["age"]}
FORM, OTHER_FORM = ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}}
                    for schema in (PERSON, AGE))


def is_aged(text):
    return list(json.loads(text)) == ["age"]


@pytest.mark.parametrize("strict", [False, True], ids=["free", "strict"])
@pytest.mark.parametrize("template", FORMATS.values(), ids=FORMATS)
def test_an_answer_is_a_call_or_has_the_form(grammars, serve, tiny_model, tmp_path, template, strict):
    """As agents ask whose last answer is of a type.  The names of a call and of a person begin alike."""
    server = serve_format(serve, tiny_model, tmp_path, template)
    tools = [{**tool, "function": {**tool["function"], "strict": strict}} for tool in TOOLS]
    if template in CALL_TOKENS and strict:
        error = chat(server, 400, tools=tools, **FORM)["error"]
        assert "a token of their own" in error["message"] and error["param"] == "response_format", error
        return
    n_calls = n_said = 0
    words = json.loads((tiny_model / "tokenizer.json").read_text())["model"]["vocab"]
    unmarked = {str(i): -100 for word, i in words.items() if word[0] not in '{"'}
    for seed in range(8):
        # A random model begins with a mark nearly always, unless it cannot.
        bias = {"logit_bias": dict(list(unmarked.items())[:1024])} if seed % 2 else {}
        form, is_formed = ((FORM, is_person), (OTHER_FORM, is_aged))[seed // 2 % 2]
        for choice in chat(server, tools=tools, temperature=1, n=8, seed=seed, **bias, **form)["choices"]:
            if choice["finish_reason"] == "length":
                continue
            calls = choice["message"].get("tool_calls") or []
            assert bool(calls) == (choice["finish_reason"] == "tool_calls"), choice
            assert is_formed(choice["message"]["content"]) if not calls else choice["message"]["content"] is None
            assert not strict or all(map(is_call, calls))
            n_calls += bool(calls)
            n_said += not calls
    assert n_said > 0 and bool(n_calls) == (template not in CALL_TOKENS)
    whole = {"structured_outputs": {"json": AGE}}  # of all that is answered
    if strict:
        assert "the whole answer" in chat(server, 400, tools=tools, **whole)["error"]["message"]
    for choice in chat(server, tools=TOOLS, temperature=1, n=4, **whole)["choices"]:
        assert choice["finish_reason"] == "stop" and is_aged(choice["message"]["content"])
    for choice in chat(server, tools=tools, tool_choice="none", temperature=1, n=4, **FORM)["choices"]:
        assert choice["finish_reason"] == "length" or is_person(choice["message"]["content"])


@pytest.mark.parametrize("older,newer", [
    ({"guided_regex": "[ab]"}, {"regex": "[ab]"}), ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
    ({"guided_json": PERSON}, {"json": PERSON}), ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'})])
def test_two_members_may_say_the_same(grammars, older, newer):
    """guidance sends the older and the newer name of vLLM's members."""
    complete(grammars, max_tokens=4, structured_outputs=newer, **older)
    error = complete(grammars, 400, structured_outputs={"regex": "other"}, **older)["error"]
    assert "only one member" in error["message"], error


def test_a_grammar_of_another_language_is_named(grammars):
    for text in ('start: "a" | "b"', '%llguidance {}\n\nstart: /[ab]/'):
        error = complete(grammars, 400, structured_outputs={"grammar": text})["error"]
        assert "must be EBNF" in error["message"] and "Lark" in error["message"], error


def test_messages_and_responses_are_constrained_too(server, grammars):
    """Anthropic's and OpenAI's other shape come to the same request; the model would call nothing."""
    schema = {**TOOLS[0]["function"]["parameters"], "additionalProperties": False}
    answer = server.post("/v1/messages", {
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "temperature": 1,
        "tools": [{"name": "find", "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": "find"}})
    assert answer.status == 200, answer.body
    (call,) = json.loads(answer.body)["content"]
    assert call["type"] == "tool_use" and call["name"] == "find"
    assert len(call["input"]["word"]) <= 9 and set(call["input"]) <= {"word", "n"}
    answer = server.post("/v1/responses", {
        "input": "x", "store": False, "max_output_tokens": 200, "tool_choice": "required",
        "parallel_tool_calls": False,
        "tools": [{"type": "function", "name": "find", "parameters": schema}]})
    assert answer.status == 200, answer.body
    (call,) = json.loads(answer.body)["output"]
    assert call["type"] == "function_call" and len(json.loads(call["arguments"])["word"]) <= 9
    answer = server.post("/v1/responses", {
        "input": "x", "store": False, "max_output_tokens": 200,
        "text": {"format": {"type": "json_schema", "name": "word", "schema": schema}}})
    assert answer.status == 200, answer.body
    (item,) = json.loads(answer.body)["output"]
    assert len(json.loads(item["content"][0]["text"])["word"]) <= 9
