"""/openapi.json describes what the parsers read, and what it describes survives bad input.

The values are generated from the description: for every member of every body wrong types, extremes,
hostile texts, and nothing at all."""
import http.client
import json
import re

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

def test_every_route_is_there(tiny_server, described):
    for path, methods in described["paths"].items():
        for method in methods:
            status = tiny_server.request(method.upper(), path.replace("{id}", "x"), body="{}"
                                         if method == "post" else None).status
            assert status != 405 and (status != 404 or "{id}" in path), (method, path, status)
    documented = set(re.findall(r"`(?:(?:GET|POST) )?(/[a-z0-9_/{}.]*)`",
                                (ROOT / "docs/api.md").read_text().split("## POST")[0]))
    assert documented == set(described["paths"])


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
                       "server/api/conversation/tool_calls.c"}


def test_the_documents_name_every_member(described):
    text = (ROOT / "docs/api.md").read_text()
    missing = {name for path in with_bodies(described)
               for name, member in schema_of(described, path)["properties"].items()
               if f"`{name}`" not in text and not member["description"].startswith("Not supported")}
    assert missing == set()


# ---- bad input ----

def nested(described, path):
    """Bodies in which a member of a member is bad, by the schemas that have members."""
    schema = schema_of(described, path)
    properties = schema["properties"]
    base = base_of(schema)
    for name, parts in described["components"]["schemas"].items():
        if name not in properties:
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
