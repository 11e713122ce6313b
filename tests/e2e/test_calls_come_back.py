"""What is answered as a tool call is taken back in the next turn, from the official clients, in every
dialect and every format of calls, with values at the edges of JSON."""
import json
import shutil

import pytest

from server import PATIENCE, Server
from test_structured import ROOT, has_library

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

pytestmark = pytest.mark.filterwarnings("ignore")
# Harmony's marks are all tokens of their own: test_harmony.py has it.
TEMPLATES = sorted(path.stem for path in (ROOT / "tests/template/calls").glob("*.jinja") if path.stem != "harmony")
# Of formats whose calls begin with a special token, which no text forces: that stands for one of the tokenizer's.
TOKENS = {"mistral-array": "[TOOL_CALLS]", "mistral-named": "[TOOL_CALLS]", "phi-4": "<|tool_call|>",
          "lfm2": "<|tool_call_start|>", "olmo-3": "<function_calls>", "functiongemma": "<start_function_call>", "cohere": "<|START_ACTION|>", "gemma-4": "<|tool_call>", "kimi-k2": "<|tool_calls_section_begin|>",
          "deepseek": "<｜tool▁calls▁begin｜>", "deepseek-fenced": "<｜tool▁calls▁begin｜>"}
USER = {"role": "user", "content": "x"}
DEEP = "{" + '"a": {' * 99 + "}" * 99 + "}"
EDGES = {  # members of the arguments, as they are written
    "beyond int64": [("n", "123456789012345678901234"), ("m", "-9223372036854775809")],
    "uint64": [("n", "18446744073709551615")],
    "beyond doubles": [("n", "1e400"), ("m", "-1E+999"), ("k", "1e-400")],
    "as written": [("n", "0.1000"), ("m", "1.0"), ("k", "-0.0"), ("j", "1e2"), ("i", "-0"), ("order", "[3, 1]")],
    "nested": [("a", DEEP)],
    "nested arrays": [("a", "[" * 120 + "]" * 120)],
    "empty key": [("", '""')],
    "nothing": [],
    "null": [("n", "null"), ("m", "[null, {}]")],
    "NUL": [("s", r'"a\u0000b"')],
    "pair": [("s", r'"\ud83d\ude00"'), ("t", '"😀"')],
    "half": [("s", r'"\ud83d"')],
    "other half": [("s", r'["x\ude00y", "\ud83d\ud83d\ude00"]')],
    "doubled": [("n", "1"), ("m", "1e400"), ("n", "2")],
    "doubled inside": [("n", '[{"a": 1, "a": {"b": 1.50, "b": 2.50}}]')],
    "control characters": [("s", r'"\b\f\n\r\t\u001f\u007f\/"')],
    "separators": [("s", '"\u2028\u2029\ufeff"')],
}
UNFORCED = ("half", "other half", "doubled", "doubled inside")  # no schema asks for them


def object_of(members):
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in members) + "}"


def text_of(name, members):
    """How the format writes the call."""
    whole = object_of(members)
    if name in ("qwen3-coder", "seed-oss"):
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in members)
        mark = "seed:tool_call" if name == "seed-oss" else "tool_call"
        return f"<{mark}>\n<function=f>\n{inner}</function>\n</{mark}>"
    if name == "lfm2":
        inner = ", ".join(f"{key}={value}" for key, value in members)
        return f"<|tool_call_start|>[f({inner})]<|tool_call_end|>"
    if name == "minimax":
        inner = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in members)
        return f'<minimax:tool_call>\n<invoke name="f">\n{inner}</invoke>\n</minimax:tool_call>'
    if name == "glm-4.5":
        inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in members)
        return f"<tool_call>f\n{inner}</tool_call>"
    return {"nemotron": '<TOOLCALL>[{"name": "f", "arguments": %s}]</TOOLCALL>',
            "phi-4-functools": 'functools[{"name": "f", "arguments": %s}]',
            "hermes": '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
            "llama-3": '{"name": "f", "parameters": %s}', "glm-4": "f\n%s"}[name] % whole


def force(name, members):
    """What makes the model call so: more members of the request, and the schema of the function."""
    if name not in TOKENS:
        return {"structured_outputs": {"choice": [text_of(name, members)]}}, {}
    properties = {key: {"const": f"<{i}>"} for i, (key, _) in enumerate(members)}
    return {}, {"type": "object", "properties": properties, "required": list(properties)}


class Raw:
    """Puts values into the bodies of a client's requests, which Python's own JSON would change."""

    def __init__(self, members):
        self.values = {f'"<{i}>"'.encode(): value.encode() for i, (_, value) in enumerate(members)}

    def __call__(self, request):
        body = request.read()
        for mark, value in self.values.items():
            body = body.replace(mark, value)
        request.stream = type(request.stream)(body)
        request.headers["Content-Length"] = str(len(body))


@pytest.fixture(scope="module", params=TEMPLATES)
def dialect_server(request, tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("calls")
    model = folder / "model"
    shutil.copytree(tiny_model, model)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        text = (model / name).read_text()
        (model / name).write_text(text.replace("<|pad|>", TOKENS.get(request.param, "<|pad|>")))
    with Server(folder, "--chat-template", ROOT / f"tests/template/calls/{request.param}.jinja", model=model) as one:
        if not has_library(one):
            pytest.skip("built without xgrammar")
        one.template = request.param
        yield one


def expected(members):
    """What a parser makes of the arguments; U+FFFD stands for half a pair."""
    def replaced(value):
        if isinstance(value, str):
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if isinstance(value, list):
            return [replaced(item) for item in value]
        return {key: replaced(item) for key, item in value.items()} if isinstance(value, dict) else value

    return replaced(json.loads(object_of(members)))


def check_text(text, members):
    assert json.loads(text) == expected(members), text
    pairs = []
    json.loads(text, object_pairs_hook=lambda each: pairs.append(each))
    assert all(len(each) == len(dict(each)) for each in pairs), text
    text.encode().decode()
    if not any("\\ud" in value for _, value in members) and len(dict(members)) == len(members):
        for _, value in members:
            if "doubled" not in text and value.lstrip("-")[:1].isdigit():
                assert value in text, text


# ---- chat ----

def chat_message(client, streams, **fields):
    if not streams:
        return client.chat.completions.create(**fields).choices[0].message.model_dump(exclude_none=True)
    calls = {}
    for chunk in client.chat.completions.create(stream=True, **fields):
        for part in (chunk.choices[0].delta.tool_calls if chunk.choices else None) or []:
            call = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": {
                "name": part.function.name, "arguments": ""}})
            call["function"]["arguments"] += part.function.arguments or ""
    return {"role": "assistant", "tool_calls": [calls[i] for i in sorted(calls)]}


def chat(client, streams, more, schema, members):
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema or {
        "type": "object", "properties": {}}}}]
    force = {} if more else {"tool_choice": "required", "parallel_tool_calls": False}
    message = chat_message(client, streams, model="model", messages=[USER], tools=tools, max_tokens=900, temperature=0,
                           extra_body=more, **force)
    (call,) = message["tool_calls"]
    check_text(call["function"]["arguments"], members)
    client.chat.completions.create(model="model", tools=tools, max_tokens=2, messages=[
        USER, message, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}])
    return call["function"]["arguments"]


# ---- responses ----

def responses(client, streams, more, schema, members):
    tools = [{"type": "function", "name": "f", "description": "d", "strict": False,
              "parameters": schema or {"type": "object", "properties": {}}}]
    fields = dict(model="model", input=[USER], tools=tools, max_output_tokens=900, temperature=0, extra_body=more,
                  **({} if more else {"tool_choice": "required", "parallel_tool_calls": False}))
    if streams:
        with client.responses.stream(**fields) as stream:
            for _ in stream:
                pass
            output = stream.get_final_response().output
    else:
        output = client.responses.create(**fields).output
    items = [item.model_dump(exclude_none=True) for item in output]
    (call,) = [item for item in items if item["type"] == "function_call"]
    call.pop("parsed_arguments", None)
    check_text(call["arguments"], members)
    client.responses.create(model="model", tools=tools, max_output_tokens=2, input=[USER, *items, {
        "type": "function_call_output", "call_id": call["call_id"], "output": "ok"}])
    return call["arguments"]


# ---- messages ----

def messages(client, streams, more, schema, members):
    tools = [{"name": "f", "description": "d", "input_schema": schema or {"type": "object", "properties": {}}}]
    fields = dict(model="model", messages=[USER], tools=tools, max_tokens=900, extra_body={"temperature": 0, **more},
                  **({} if more else {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}))
    if streams:
        with client.messages.stream(**fields) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**fields)
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    client.messages.create(model="model", tools=tools, max_tokens=2, messages=[
        USER, {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"}]}])


@pytest.mark.parametrize("edge", EDGES)
def test_calls_come_back(dialect_server, edge):
    name, members = dialect_server.template, EDGES[edge]
    if name in TOKENS and edge in UNFORCED:
        pytest.skip("no schema asks for this")
    if name == "gemma-4" and edge.startswith("nested"):
        pytest.skip("the template writes values by a macro that calls itself, which is cut off at 400 levels")
    more, schema = force(name, members)
    hooks = {"event_hooks": {"request": [Raw(members)]}} if name in TOKENS else {}
    with openai.DefaultHttpxClient(**hooks) as http, anthropic.DefaultHttpxClient(**hooks) as other:
        oa = openai.OpenAI(base_url=f"{dialect_server.url}/v1", api_key="k", max_retries=0, http_client=http,
                           timeout=60 * PATIENCE)
        an = anthropic.Anthropic(base_url=dialect_server.url, api_key="k", max_retries=0, http_client=other,
                                 timeout=60 * PATIENCE)
        for dialect in (chat, responses):
            whole, streamed = (dialect(oa, streams, more, schema, members) for streams in (False, True))
            assert whole == streamed
        for streams in (False, True):
            messages(an, streams, more, schema, members)
