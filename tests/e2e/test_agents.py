"""The turns of Codex and of Claude Code on a real process: each is answered, on templates that take all of
their forms and on those that raise, and each finds the turn before it in the cache."""
import json

import pytest

from agent_bodies import (CLAUDE_HEADERS, CLAUDE_TURNS, CODEX_HEADERS, CODEX_TURNS, NOTE, claude_body, codex_body,
                          conversation, said)
from server import Server

SHOW = ("<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function | tojson }}{{ c.id }}</tool_call>{% endfor %}<|im_end|>\n")
END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    "all": "{% for m in messages %}" + SHOW + "{% endfor %}" + END,
    "system in front": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
                       "{{ raise_exception('System message must be at the beginning.') }}{% endif %}" + SHOW
                       + "{% endfor %}" + END,
    # Like Mistral's: no turn of the user behind results, ids of nine characters.
    "mistral": "{% set ns = namespace(i=0) %}{% for m in messages %}{% if m.role == 'user' or (m.role == 'assistant' and "
               "m.tool_calls is undefined) %}{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('alternate') }}"
               "{% endif %}{% set ns.i = ns.i + 1 %}{% elif m.role == 'system' and not loop.first %}"
               "{{ raise_exception('system') }}{% endif %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
               "{{ raise_exception('id') }}{% endif %}{% endfor %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}"
               "{{ raise_exception('id') }}{% endif %}" + SHOW + "{% endfor %}" + END}


@pytest.fixture(scope="module", params=list(TEMPLATES))
def agent(request, tmp_path_factory):
    """The default model, to which the template does not show the tools: it would call them for ever."""
    folder = tmp_path_factory.mktemp("agents")
    template = folder / "template.jinja"
    template.write_text(TEMPLATES[request.param])
    with Server(folder, "--chat-template", str(template), "--max-model-len", 4096) as server:
        yield server


def events_of(server, path, body, headers):
    reply = server.request("POST", path, json.dumps(body), {**headers, "Content-Type": "application/json"})
    assert reply.status == 200, reply.body
    return [json.loads(line[len("data: "):]) for line in reply.body.decode().splitlines()
            if line.startswith("data: ")]


def check_prefixes(seen):
    """Each turn begins with what the turn before it has left; whole blocks of 64 tokens are found."""
    for (name, n_before, _), (later, _, cached) in zip(seen, seen[1:]):
        assert cached > n_before - 80, (name, later, seen)


def test_codex(agent):
    seen = []
    for name, items in conversation(CODEX_TURNS):
        last = events_of(agent, "/v1/responses", codex_body(items, temperature=0, max_output_tokens=4, cache_salt="codex"),
                         CODEX_HEADERS)[-1]
        assert last["type"] in ("response.completed", "response.incomplete"), (name, last)
        usage = last["response"]["usage"]
        seen.append((name, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]))
    check_prefixes(seen)


def test_claude_code(agent):
    seen = []
    for name, messages in conversation(CLAUDE_TURNS):
        body = claude_body(messages, temperature=0, max_tokens=4, cache_salt="claude")
        end = events_of(agent, "/v1/messages?beta=true", body, CLAUDE_HEADERS)[-2]
        assert end["type"] == "message_delta", (name, end)
        usage = end["usage"]
        n = usage["input_tokens"] + usage["cache_read_input_tokens"]
        counted = agent.request("POST", "/v1/messages/count_tokens?beta=true", json.dumps(body),
                                {**CLAUDE_HEADERS, "Content-Type": "application/json"})
        assert counted.json() == {"input_tokens": n}, name
        seen.append((name, n, usage["cache_read_input_tokens"]))
    check_prefixes(seen)


def test_what_is_skipped_is_logged_once(agent):
    for _ in range(3):
        for body in (codex_body([said("user", "Hello")]), codex_body([said("user", "Hello"), {"type": "of_tomorrow"}])):
            assert agent.post("/v1/responses", {**body, "stream": False, "max_output_tokens": 1}).status == 200
    for skipped in ("list=input type=of_tomorrow", "list=tools type=local_shell"):
        agent.wait_logged(f" skipped {skipped}")
    lines = [line for line in agent.log.splitlines() if " skipped list=" in line]
    assert len(lines) == len(set(line.split(" skipped ")[1] for line in lines))


def test_a_call_of_a_namespace_goes_out_and_comes_back(agent):
    # One call: the default model would go on calling until the context ends.
    body = codex_body([said("user", "Read note 1.")], temperature=0, stream=False, reasoning=None,
                      parallel_tool_calls=False, tools=[
        {"type": "namespace", "name": "mcp__notes", "description": "Notes.", "tools": [
            {**NOTE, "parameters": {"type": "object", "additionalProperties": False, "required": ["id"],
                                    "properties": {"id": {"enum": ["1", "2"]}}}}]}])
    for choice in ("required", {"type": "function", "name": "read_note"},
                   {"type": "function", "name": "read_note", "namespace": "mcp__notes"},
                   {"type": "function", "name": "mcp__notes__read_note"}):
        reply = agent.post("/v1/responses", {**body, "tool_choice": choice})
        if reply.status == 400:
            assert "without xgrammar" in reply.error["message"]
            return
        assert reply.status == 200, reply.body
        (item,) = reply.json()["output"][-1:]
        assert (item["type"], item["name"], item["namespace"]) == ("function_call", "read_note", "mcp__notes"), item
        again = {**body, "max_output_tokens": 2, "input": [*body["input"], item, {
            "type": "function_call_output", "call_id": item["call_id"], "output": "One note."}]}
        assert agent.post("/v1/responses", again).status == 200
