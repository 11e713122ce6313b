"""The turns of Codex and of Claude Code (tests/e2e/agent_bodies.py), sent by the official clients, which read
each event of the answers: whole and streamed."""
import anthropic
import openai
import pytest

from agent_bodies import (CLAUDE_HEADERS, CLAUDE_TURNS, CODEX_HEADERS, CODEX_TURNS, claude_body, codex_body,
                          conversation)


@pytest.fixture(scope="module")
def openai_client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


@pytest.fixture(scope="module")
def anthropic_client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)


@pytest.mark.parametrize("name,items", list(conversation(CODEX_TURNS)), ids=list(CODEX_TURNS))
def test_codex(openai_client, name, items):
    body = codex_body(items, max_output_tokens=4, temperature=0)
    kept = {member: body.pop(member) for member in ("client_metadata",)}
    stream = openai_client.responses.create(**body, extra_headers=CODEX_HEADERS, extra_body=kept)
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type in ("response.completed", "response.incomplete")
    whole = openai_client.responses.create(**{**body, "stream": False}, extra_body=kept)
    assert whole.output_text == events[-1].response.output_text


@pytest.mark.parametrize("name,messages", list(conversation(CLAUDE_TURNS)), ids=list(CLAUDE_TURNS))
def test_claude_code(anthropic_client, name, messages):
    body = claude_body(messages, max_tokens=4)
    more = {"extra_headers": CLAUDE_HEADERS, "extra_body": {"temperature": 0}}
    stream = anthropic_client.beta.messages.create(**body, **more)
    events = list(stream)
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    text = "".join(event.delta.text for event in events
                   if event.type == "content_block_delta" and event.delta.type == "text_delta")
    whole = anthropic_client.beta.messages.create(**{**body, "stream": False}, **more)
    assert "".join(block.text for block in whole.content if block.type == "text") == text
    counted = {member: body[member] for member in ("model", "messages", "system", "tools", "thinking")}
    n = anthropic_client.beta.messages.count_tokens(**counted, extra_headers=CLAUDE_HEADERS).input_tokens
    assert n == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_models_as_claude_code_asks_for_them(anthropic_client):
    (model,) = anthropic_client.models.list(limit=1000).data
    assert (model.type, model.id, model.display_name) == ("model", "quire-31m", "quire-31m") and model.created_at
