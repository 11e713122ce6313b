"""Bodies as programs send them that stumbled here once: recorded, and cut down to their form."""
import json

import pytest

from server import Server

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ASK = [{"role": "user", "content": "Weather in Lisbon?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The default model, which calls tools as Qwen does."""
    with Server(tmp_path_factory.mktemp("programs")) as one:
        reply = one.post(CHAT, {"messages": ASK, "max_tokens": 1, "structured_outputs": {"regex": "a"}})
        if reply.status != 200:
            pytest.skip("built without xgrammar")
        yield one


def tool(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters, **more}}


def answer(server, path, body):
    reply = server.post(path, body)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


# ---- smolagents 1.26: ToolCallingAgent asks for a call each time, with OpenAPI's `nullable` ----

SMOL = {"model": "quire-31m", "max_tokens": 120, "stop": ["Observation:", "Calling tools:"], "temperature": 0,
        "tool_choice": "required", "messages": [
            {"role": "system", "content": [{"type": "text", "text": "You are an expert."}]},
            {"role": "user", "content": [{"type": "text", "text": "New task:\nWeather in Lisbon?"}]}],
        "tools": [tool("weather", {"type": "object", "required": ["city", "unit"], "properties": {
            "city": {"enum": ["Lisbon", "Porto"], "description": "the city"},
            "unit": {"type": "string", "nullable": True, "enum": ["c", "f"], "description": "c or f"}}})]}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_smolagents(server, stream):
    if stream:
        reply = server.post(CHAT, {**SMOL, "stream": True, "stream_options": {"include_usage": True}})
        assert reply.status == 200 and b'"finish_reason":"tool_calls"' in reply.body, reply.body
        return
    (choice,) = answer(server, CHAT, SMOL)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        assert arguments["city"] in ("Lisbon", "Porto") and arguments["unit"] in ("c", "f", None)


# ---- OpenAI's Agents SDK 0.24: strict tools that may be called, and an answer of a type ----

CITY = {"properties": {"name": {"title": "Name", "enum": ["Lisbon"]},
                       "people": {"anyOf": [{"type": "integer", "maximum": 9}, {"type": "null"}], "title": "People"}},
        "required": ["name", "people"], "title": "City", "type": "object", "additionalProperties": False}
ARGUMENTS = {"properties": {"city": {"title": "City", "enum": ["Lisbon", "Porto"]},
                            "unit": {"anyOf": [{"enum": ["c", "f"]}, {"type": "null"}], "title": "Unit"}},
             "required": ["city", "unit"], "title": "weather_args", "type": "object", "additionalProperties": False}
FUNCTION = tool("weather", ARGUMENTS, strict=True)
FORMAT = {"name": "final_output", "schema": CITY, "strict": True}


def is_city(text):
    return set(json.loads(text)) == {"name", "people"} and json.loads(text)["name"] == "Lisbon"


def is_weather(arguments):
    return json.loads(arguments)["city"] in ("Lisbon", "Porto")


def test_agents_sdk_in_a_chat(server):
    body = {"model": "quire-31m", "temperature": 0, "max_tokens": 100, "tools": [FUNCTION],
            "messages": [{"role": "system", "content": "Help."}, *ASK],
            "response_format": {"type": "json_schema", "json_schema": FORMAT}}
    (choice,) = answer(server, CHAT, body)["choices"]
    assert choice["finish_reason"] == "tool_calls", choice  # which the default model wants
    assert all(is_weather(call["function"]["arguments"]) for call in choice["message"]["tool_calls"])
    (choice,) = answer(server, CHAT, {**body, "tool_choice": "none"})["choices"]
    assert choice["finish_reason"] == "stop" and is_city(choice["message"]["content"]), choice


def test_agents_sdk_in_responses(server):
    body = {"model": "quire-31m", "temperature": 0, "max_output_tokens": 100, "include": [], "instructions": "Help.",
            "input": ASK, "tools": [{"type": "function", **FUNCTION["function"]}],
            "text": {"format": {"type": "json_schema", **FORMAT}}}
    done = answer(server, RESPONSES, body)
    assert done["status"] == "completed" and {item["type"] for item in done["output"]} == {"function_call"}, done
    assert all(is_weather(item["arguments"]) for item in done["output"])


# ---- MCP servers: schemas of any origin, in tools that are not strict and must be called ----

@pytest.mark.parametrize("schema", [
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, {"type": "string", "maxLength": 2000},
    {"type": "string", "pattern": "^(?!-)[a-z]+$"}, {"not": {"type": "null"}}, {"type": "string", "format": "path"},
    {"type": "number", "multipleOf": 0.01}, {"type": "string", "contentMediaType": "text/html", "enumNames": ["a"]}])
def test_a_forced_call_by_a_schema_that_cannot_be_followed(server, schema):
    body = {"messages": ASK, "max_tokens": 300, "temperature": 0, "tool_choice": "required",
            "tools": [tool("weather", {"type": "object", "properties": {"city": {"enum": ["Lisbon"]}, "x": schema},
                                       "required": ["city"]})]}
    (choice,) = answer(server, CHAT, body)["choices"]
    if choice["finish_reason"] == "tool_calls":
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["city"] == "Lisbon"
    else:
        assert choice["finish_reason"] == "length", choice


# ---- llm 0.36, and any other: a call without arguments, as models write it ----

@pytest.mark.parametrize("text", ['{"name": "now", "arguments": null}', '{\n  "name": "now",\n  "arguments": {}\n}',
                                  '<tool_call>\n{"name": "now", "arguments": null}\n</tool_call>',
                                  '<tool_call>\n{"name": "now"}\n</tool_call>'])
def test_a_call_without_arguments(server, text):
    body = {"messages": ASK, "tools": [tool("now", {"type": "object", "properties": {}})],
            "structured_outputs": {"choice": [text]}}
    (choice,) = answer(server, CHAT, {**body, "max_tokens": 60})["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("now", {})


# ---- what is refused says what to send in its place ----

@pytest.mark.parametrize("fields,says", [
    ({"functions": [{"name": "f"}]}, "functions is not supported: send tools"),
    ({"function_call": {"name": "f"}}, "function_call is not supported: send tool_choice"),
    ({"messages": [*ASK, {"role": "function", "name": "f", "content": "x"}]}, "have the role tool")])
def test_older_requests(server, fields, says):
    reply = server.post(CHAT, {"messages": ASK, "max_tokens": 1, **fields})
    assert reply.status == 400 and says in reply.error["message"], reply.body
