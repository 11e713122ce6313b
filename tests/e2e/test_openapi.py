"""/openapi.json describes what the parsers read, and what it describes survives bad input.

The values are generated from the description: for every member of every body wrong types, extremes,
hostile texts, and nothing at all."""
import http.client
import json
import re

import jsonschema
import pytest

from server import PATIENCE, ROOT

# What a body needs, by the names of required members.
SAMPLES = {"prompt": "Once", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1,
           "input": "Hi", "tokens": [5, 6]}
# Members that keep a generated answer short, by the route's name of them.
SHORT = ("max_output_tokens", "max_tokens")

DEEP = "[" * 40 + "]" * 40
# JSON texts, some of which no JSON library would write.
VALUES = (
    "true", "false", "0", "-1", "1", "1.5", "3", '"x"', '""', "[]", "{}", "[[]]", "[null]", "[1]",
    '["x"]', '[{"a":1}]', '{"a":1}', '{"type":"x"}', '{"type":null}',
    "2147483648", "-2147483649", "4294967296", "9223372036854775807", "-9223372036854775808",
    "18446744073709551616", "1" + "0" * 400, "1e308", "-1e308", "1e-320", "1e999", "NaN",
    '"' + "a" * 70000 + '"', '"\\u0000"', '"\\ud800"', '"<|im_end|>"', '"%s%n"', '"../../etc/passwd"',
    '"\\u202e\\ufeff\\uffff"', "[" + ",".join(["0"] * 3000) + "]", DEEP,
    '{"__proto__":{"constructor":null}}')


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory, tiny_model):
    from server import Server

    with Server(tmp_path_factory.mktemp("openapi"), "--max-model-len", 128,
                model=tiny_model) as one:
        yield one


@pytest.fixture(scope="module")
def described(tiny_server):
    return tiny_server.get("/openapi.json").json()


def schema_of(described, path):
    body = described["paths"][path]["post"].get("requestBody")
    return body and body["content"]["application/json"]["schema"]


def with_bodies(described):
    return [path for path, methods in described["paths"].items()
            if "post" in methods and schema_of(described, path)]


def base_of(schema):
    body = {name: SAMPLES[name] for name in schema["required"]}
    if not body:
        body["prompt"] = SAMPLES["prompt"]
    for name in SHORT:
        if name in schema["properties"]:
            body[name] = 1
            break
    return body


class Asker:
    """One connection for thousands of requests."""

    def __init__(self, server, path):
        self.path = path
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port,
                                                     timeout=60 * PATIENCE)

    def ask(self, body):
        self.connection.request("POST", self.path, body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, answer.read()


def error_of(path, status, body):
    """The error of an answer, whose shape is that of the route."""
    error = json.loads(body)["error"]
    assert error["message"] and error["type"], (path, status, body)
    return error


def text_with(body, name, value):
    """The body as JSON, with a member of this JSON text."""
    rest = {k: v for k, v in body.items() if k != name}
    members = [f"{json.dumps(k)}:{json.dumps(v)}" for k, v in rest.items()]
    return "{" + ",".join([*members, f"{json.dumps(name)}:{value}"]) + "}"


# ---- the description ----

@pytest.mark.quick("GET /openapi.json")
def test_every_route_is_there(tiny_server, described):
    for path, methods in described["paths"].items():
        for method in methods:
            status = tiny_server.request(method.upper(), path.replace("{id}", "x").replace("{file}", "chat.js"), body="{}"
                                         if method == "post" else None).status
            assert status != 405 and (status != 404 or "{id}" in path), (method, path, status)
    documented = set(re.findall(r"`(?:(?:GET|POST) )?(/[a-z0-9_/{}.]*)`",
                                (ROOT / "docs/api.md").read_text().split("## POST")[0]))
    assert documented == set(described["paths"])


@pytest.mark.quick()
def test_every_route_has_a_quick_test(described):
    """One that scripts/test --quick runs, and that names the route."""
    marked = [route for file in (ROOT / "tests/e2e").glob("test_*.py")
              for names in re.findall(r"^@pytest\.mark\.quick\((.*)\)$", file.read_text(), re.MULTILINE)
              for route in re.findall(r'"(.*?)"', names)]
    assert set(marked) == {f"{method.upper()} {path}" for path, methods in described["paths"].items()
                           for method in methods}


def test_a_published_validator_takes_it(described):
    """openapi-spec-validator knows the rules of OpenAPI 3.1, as other programs do that read the description."""
    from openapi_spec_validator import OpenAPIV31SpecValidator

    assert [error.message for error in OpenAPIV31SpecValidator(described).iter_errors()] == []
    # It finds a parameter that the path does not have.
    parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    operation = {"parameters": [parameter], "responses": {"200": {"description": "A file."}}}
    broken = {**{name: described[name] for name in ("openapi", "info")}, "paths": {"/ui/{file}": {"get": operation}}}
    assert list(OpenAPIV31SpecValidator(broken).iter_errors())


def test_references_lead_somewhere(described):
    text = json.dumps(described)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in described["components"]["schemas"]
    assert described["openapi"].startswith("3.1")


def test_every_member_is_known_to_its_parser(tiny_server, described):
    """A value of the wrong type is refused by the member's name, so something reads it."""
    unread = []
    for path in with_bodies(described):
        schema, asker = schema_of(described, path), Asker(tiny_server, path)
        for name, member in schema["properties"].items():
            kinds = json.dumps(member)
            value = "[[3]]" if '"object"' in kinds or "refused" in kinds else '{"a":[3]}'
            if "$ref" in kinds or '"object"' in kinds and '"string"' not in kinds:
                value = "3"
            status, body = asker.ask(text_with(base_of(schema), name, value))
            if status not in (400, 404):
                unread.append((path, name, value, status))
                continue
            error = error_of(path, status, body)
            if name not in error["message"] and name not in (error.get("param") or ""):
                unread.append((path, name, value, error))
    assert unread == []


def test_every_member_that_is_read_is_described():
    """Bodies are read by the tables from which the description is written, and in no other way."""
    readers = {str(path.relative_to(ROOT)) for folder in ("server/api", "server/ops")
               for path in (ROOT / folder).rglob("*.c") if "json_object_get(root, " in path.read_text()}
    assert readers == {"server/api/request_fields.c",            # the one that reads tables
                       "server/api/responses/request.c",         # repeats members in the answer
                       "server/api/conversation/conversation.c",  # these two read what a model wrote
                       "server/api/conversation/tool_json.c"}


def test_the_documents_name_every_member(described):
    text = (ROOT / "docs/api.md").read_text()
    missing = {name for path in with_bodies(described)
               for name, member in schema_of(described, path)["properties"].items()
               if f"`{name}`" not in text and not member["description"].startswith("Not supported")}
    assert missing == set()


# ---- answers ----

def conforms(described, name, answer):
    """An answer is what its schema says, and has no member that the schema does not know."""
    schemas = described["components"]["schemas"]
    schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer)
    assert_known(schemas, schemas[name], answer, name)


def assert_known(schemas, schema, value, place):
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
    choices = schema.get("anyOf", [schema])
    choices = [schemas[c["$ref"].rsplit("/", 1)[1]] if "$ref" in c else c for c in choices]
    if isinstance(value, list):
        for choice in choices:
            for one in value if "items" in choice else []:
                assert_known(schemas, choice["items"], one, f"{place}[]")
    if not isinstance(value, dict) or not any("properties" in c for c in choices):
        return
    fitting = [c for c in choices if set(c.get("required", [])) <= set(value)
               and c.get("properties", {}).get("type", {}).get("const", value.get("type"))
               == value.get("type")]
    known = {}
    for choice in fitting:
        known.update(choice.get("properties", {}))
    if place in OPEN_ANSWERS:
        return
    assert set(value) <= set(known), (place, set(value) - set(known))
    for name, one in value.items():
        assert_known(schemas, known[name], one, f"{place}.{name}")


# Of these only some members are described: their types have their own.
OPEN_ANSWERS = {"openapi", "state", "message.content[]", "message_event.message.content[]",
                "message_event.content_block", "message_event.delta", "response.output[]",
                "response_event.response.output[]", "response_event.item", "response_event",
                "response_items.data[]"}
CHAT = [{"role": "user", "content": "Hi"}]
ASKED = {"/v1/completions": {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1,
                             "return_token_ids": True},
         "/v1/completions/render": {"prompt": "a"}, "/v1/chat/completions/render": {"messages": CHAT},
         "/v1/chat/completions": {"messages": CHAT, "max_tokens": 2, "logprobs": True,
                                  "top_logprobs": 1, "return_token_ids": True, "return_kept_positions": True},
         "/v1/messages": {"messages": CHAT, "max_tokens": 2},
         "/v1/messages/count_tokens": {"messages": CHAT},
         "/v1/responses": {"input": "a", "max_output_tokens": 2},
         "/tokenize": {"prompt": "a", "return_token_strs": True}, "/detokenize": {"tokens": [5]}}


def content_of(described, path, method, status="200"):
    return described["paths"][path][method]["responses"][status]["content"]


def schema_name(content, kind="application/json"):
    return content[kind]["schema"]["$ref"].rsplit("/", 1)[1]


def test_every_operation_has_a_name_of_its_own(described):
    names = [one["operationId"] for methods in described["paths"].values()
             for one in methods.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"(get|post|delete)(_[a-z0-9]+)*", name) for name in names)
    assert "post_v1_chat_completions" in names and "get_v1_models_id" in names


def test_answers_are_as_described(tiny_server, described):
    for path, body in ASKED.items():
        reply = tiny_server.post(path, body)
        assert reply.status == 200, reply.body
        conforms(described, schema_name(content_of(described, path, "post")), reply.json())
    model = tiny_server.get("/v1/models").json()["data"][0]["id"]
    stored = tiny_server.post("/v1/responses", ASKED["/v1/responses"]).json()["id"]
    for path, methods in described["paths"].items():
        content = content_of(described, path, "get") if "get" in methods else {}
        if "application/json" in content:
            name = stored if path.startswith("/v1/responses/") else model
            conforms(described, schema_name(content), tiny_server.get(path.replace("{id}", name)).json())
    dropped = tiny_server.request("DELETE", f"/v1/responses/{stored}").json()
    conforms(described, schema_name(content_of(described, "/v1/responses/{id}", "delete")), dropped)
    assert set(ASKED) == set(with_bodies(described))


@pytest.mark.parametrize("path", [path for path in ASKED if "render" not in path])
def test_refusals_are_as_described(tiny_server, described, path):
    name = schema_name(content_of(described, path, "post", "default"))
    conforms(described, name, tiny_server.post(path, {}).json())
    assert (name == "messages_error") == path.startswith("/v1/messages")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages",
                                  "/v1/responses"])
def test_events_are_as_described(tiny_server, described, path):
    name = schema_name(content_of(described, path, "post"), "text/event-stream")
    for more in ({}, {"stream_options": {"include_usage": True}}):
        reply = tiny_server.post(path, {**ASKED[path], "stream": True, **more})
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        data = re.findall(r"^data: (.*)$", reply.body.decode(), re.M)
        assert len(data) > 3
        for one in data:
            if one != "[DONE]":
                conforms(described, name, json.loads(one))


# What a schema cannot tell: the length of a prompt, and texts that are a language of their own.
TOO_LOOSE = ("maximum context length", "invalid JSON", "tokens were asked for", "needs logprobs",
             "does not exist", "not found", "only allowed with stream", "must not be more than max_tokens")
LANGUAGES = {"guided_json", "guided_regex", "guided_grammar", "json_schema", "grammar", "regex", "ebnf",
             "format", "response_format", "output_format", "structured_outputs", "text", "thinking",
             "modalities", "web_search_options", "tools", "tool_choice", "messages", "input", "system", "output_config", "functions",
             "function_call", "reasoning"}


def test_what_is_described_is_read(tiny_server, described):
    """The description is not looser than the parser, but for what has words of its own."""
    loose = []
    for path in with_bodies(described):
        schema, asker = schema_of(described, path), Asker(tiny_server, path)
        for name, member in schema["properties"].items():
            checks = jsonschema.Draft202012Validator(
                {**member, "components": described["components"]})
            for value in VALUES if name not in LANGUAGES else ():
                if value == "NaN" or "\\ud800" in value or not checks.is_valid(json.loads(value)):
                    continue
                status, body = asker.ask(text_with(base_of(schema), name, value))
                if status == 200:
                    continue
                said = error_of(path, status, body)["message"]
                if not any(words in said for words in TOO_LOOSE):
                    loose.append((path, name, value[:40], said[:100]))
    assert loose == [], sorted({(n, s) for _, n, _, s in loose})


# ---- bad input ----

def nested(described, path):
    """Bodies in which a member of a member is bad, by the schemas that have members."""
    schema = schema_of(described, path)
    properties = schema["properties"]
    base = base_of(schema)
    for name, parts in described["components"]["schemas"].items():
        if f"schemas/{name}\"" not in json.dumps(properties.get(name)):
            continue
        objects = parts.get("anyOf", [parts])
        for one in objects:
            for member in one.get("properties", {}):
                need = {m: one["properties"][m]["enum"][0] for m in one.get("required", [])}
                for value in VALUES:
                    yield text_with(base, name, text_with(need, member, value))
    for name, wrap in (("messages", '[{"role":"user","content":%s}]'),
                       ("messages", '[{"role":%s,"content":"x"}]'),
                       ("messages", '[{"role":"assistant","tool_calls":%s}]'),
                       ("messages", '[{"role":"user","content":[{"type":"text","text":%s}]}]'),
                       ("messages", '[{"role":"user","content":[{"type":%s}]}]'),
                       ("input", '[{"role":"user","content":%s}]'),
                       ("input", '[{"type":"function_call","call_id":"1","name":%s,"arguments":%s}]'),
                       ("input", '[{"type":"reasoning","summary":%s,"content":%s}]'),
                       ("tools", '[{"type":"function","name":%s,"function":%s}]'),
                       ("tools", '[{"name":"f","input_schema":%s}]'),
                       ("prompt", "[%s]"), ("prompt", "[[%s]]"), ("tokens", "[%s]")):
        if name in properties:
            for value in VALUES:
                yield text_with(base, name, wrap.replace("%s", value))


def bodies(described, path):
    schema = schema_of(described, path)
    base = base_of(schema)
    for name in schema["properties"]:
        for value in VALUES:
            yield text_with(base, name, value)
        yield text_with({}, name, "null")
    for name in base:
        yield json.dumps({k: v for k, v in base.items() if k != name})
    yield from nested(described, path)
    whole = json.dumps(base)
    yield from ("", " ", "null", "[]", '"x"', "3", "{", whole[:-1], whole + "}", whole + whole,
                DEEP, "{" * 10000, '{"a":' * 10000, whole.replace(":", ""), "\x00" + whole,
                whole[:-1] + ',"prompt":1,"prompt":"x","messages":1,"messages":[]}')
    yield b"\xff\xfe" + whole.encode()
    yield whole.encode()[:-1] + b',"x":"\xc3\x28"}'


PATHS = ("/v1/completions", "/v1/completions/render", "/v1/chat/completions",
         "/v1/chat/completions/render", "/v1/messages", "/v1/messages/count_tokens",
         "/v1/responses", "/tokenize", "/detokenize")


def test_all_routes_with_bodies_get_bad_ones(described):
    assert set(PATHS) == set(with_bodies(described))


@pytest.mark.parametrize("path", PATHS)
def test_bad_input_is_refused_and_leaves_nothing(tiny_server, described, path):
    asker, resident = Asker(tiny_server, path), []
    for _ in range(2):
        n = 0
        for body in bodies(described, path):
            status, answer = asker.ask(body if isinstance(body, bytes) else body.encode())
            assert status in (200, 400, 404), (path, body[:200], status, answer[:400])
            if status != 200:
                error_of(path, status, answer)
            n += 1
        assert n > 60
        tiny_server.wait_idle()
        resident.append(tiny_server.resident_bytes())
    # The first pass fills pools and caches; a leak of 100 bytes a request would show in the second.
    assert resident[1] - resident[0] < 4 << 20, resident
    assert tiny_server.get("/health").status == 200
