"""POST /v1/responses as Codex sends it and reads what comes back: the members and items that its public
source writes (codex-rs/codex-api), null ones too, and the events without which it gives up."""
import json

import pytest

from server import Server

HEADERS = {"Accept": "text/event-stream", "User-Agent": "codex_cli_rs/0.98.0 (Debian 12.0.0; x86_64) xterm",
           "originator": "codex_cli_rs", "session_id": "0199a213-81c0-7800-8aa1-bbab2a035a53",
           "conversation_id": "0199a213-81c0-7800-8aa1-bbab2a035a53", "Authorization": "Bearer none"}
SHELL = {"type": "function", "name": "shell", "description": "Runs a shell command and returns its output.",
         "strict": False, "parameters": {
             "type": "object", "additionalProperties": False, "required": ["command"], "properties": {
                 "command": {"type": "array", "items": {"type": "string"}, "description": "The command to execute"},
                 "workdir": {"type": "string"}, "timeout_ms": {"type": "number"},
                 "with_escalated_permissions": {"type": "boolean"}, "justification": {"type": "string"}}}}
PLAN = {"type": "function", "name": "update_plan", "description": "Updates the task plan.", "strict": False,
        "parameters": {"type": "object", "additionalProperties": False, "required": ["plan"], "properties": {
            "explanation": {"type": "string"},
            "plan": {"type": "array", "items": {
                "type": "object", "additionalProperties": False, "required": ["step", "status"],
                "properties": {"step": {"type": "string"}, "status": {"type": "string"}}}}}}}
CONTEXT = "<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>"


def message(role, text):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


FIRST = [message("developer", "<permissions>read only</permissions>"), message("user", CONTEXT),
         message("user", "What is in README.md?")]
CALL = {"type": "function_call", "name": "shell", "arguments": '{"command":["cat","README.md"]}', "call_id": "call_1"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I should look."}], "content": None,
           "encrypted_content": None}


def output(value):
    return {"type": "function_call_output", "call_id": "call_1", "output": value}


def turn(items, **fields):
    return {"model": "quire-31m", "instructions": "You are a coding agent.", "input": items,
            "tools": [SHELL, PLAN, {"type": "web_search"}], "tool_choice": "auto", "parallel_tool_calls": False,
            "reasoning": None, "store": False, "stream": True, "include": [],
            "prompt_cache_key": HEADERS["session_id"], "temperature": 0, **fields}  # the last is not Codex's


def ask(server, body):
    """The response and its items as Codex knows them: by response.output_item.done and response.completed."""
    reply = server.request("POST", "/v1/responses", json.dumps(body),
                           {**HEADERS, "Content-Type": "application/json"})
    assert reply.status == 200, reply.body
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    events = [json.loads(line[len("data: "):]) for line in reply.body.decode().splitlines()
              if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created" and "response" in events[0]
    assert kinds[-1] == "response.completed", events[-1]
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert kinds.count("response.output_item.added") == len(items)
    for event in events:
        if event["type"] == "response.output_text.delta":
            assert isinstance(event["delta"], str)
    response = events[-1]["response"]
    usage = response["usage"]
    assert response["id"] and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] >= 0
    assert usage["output_tokens_details"]["reasoning_tokens"] >= 0
    return response, items, events


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """The default model, to which the template does not show the tools: it would never end."""
    folder = tmp_path_factory.mktemp("codex")
    template = folder / "template.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    with Server(folder, "--chat-template", str(template), "--max-model-len", 4096) as server:
        yield server


@pytest.mark.parametrize("items", [
    FIRST, [*FIRST, THOUGHT, CALL, output("# quire\n")],
    [*FIRST, CALL, output([{"type": "input_text", "text": "# quire\n"}])],
    [*FIRST, message("assistant", "I will look."), CALL, output("failed: exit code 1"), message("user", "Thank you.")]],
    ids=["first", "thought", "parts", "later"])
def test_a_turn(agent, items):
    response, done, _ = ask(agent, turn(items))
    assert [item["type"] for item in done] == [item["type"] for item in response["output"]]
    for item in done:
        assert item["type"] == "message" and item["role"] == "assistant"
        assert all(part["type"] == "output_text" for part in item["content"])


def test_what_newer_models_send(agent):
    """Reasoning, its encrypted form and verbosity, and a schema for the last answer."""
    response, (item,), _ = ask(agent, turn(FIRST, reasoning={"effort": "medium", "summary": "auto"},
                                           include=["reasoning.encrypted_content"], text={"verbosity": "medium"}))
    assert response["status"] == "completed" and item["type"] == "message"
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}
    reply = agent.post("/v1/responses", turn(FIRST, stream=False, tools=[], text={"format": {
        "type": "json_schema", "strict": True, "schema": schema, "name": "codex_output_schema"}}))
    if reply.status == 400:
        assert "without xgrammar" in reply.error["message"]
        return
    (part,) = reply.json()["output"][0]["content"]
    assert isinstance(json.loads(part["text"])["ok"], bool)


def test_a_call_is_an_item_that_it_can_run(agent):
    """Codex leaves the choice to the model; this one would never call."""
    body = turn(FIRST, tool_choice="required", tools=[PLAN])
    body["tools"][0] = {**PLAN, "parameters": {"type": "object", "additionalProperties": False,
                                               "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}
    reply = agent.post("/v1/responses", {**body, "stream": False})
    if reply.status == 400:
        assert "without xgrammar" in reply.error["message"]
        return
    _, (item,), events = ask(agent, body)
    assert item["type"] == "function_call" and item["name"] == "update_plan" and item["call_id"]
    assert json.loads(item["arguments"])["n"] in (1, 2)
    assert "response.function_call_arguments.done" in [event["type"] for event in events]
    ask(agent, turn([*FIRST, item, {**output("done"), "call_id": item["call_id"]}]))


def test_a_stream_of_a_prompt_that_is_too_long_fails_with_the_code_that_makes_it_compact(agent):
    """Codex shortens the conversation when a stream fails with context_length_exceeded.  It takes a 400 for the
    end, whatever its code."""
    body = turn([message("user", "long " * 5000)])
    reply = agent.post("/v1/responses", body)
    events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    assert reply.status == 200
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    failed = events[-1]["response"]
    assert failed["status"] == "failed" and failed["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in failed["error"]["message"] and failed["usage"] is None
    whole = agent.post("/v1/responses", {**body, "stream": False})
    assert whole.status == 400 and whole.error["code"] == "context_length_exceeded", whole.body
    # A shorter conversation would not help here.
    most = agent.post("/v1/responses", turn([message("user", "short")], max_output_tokens=5000))
    assert most.status == 400 and most.error["param"] == "max_output_tokens", most.body
