"""anthropic: sync and async, whole and streamed, tools, counting, errors."""
import asyncio

import anthropic
import pytest

from conftest import MODEL

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 12,
       "extra_body": {"temperature": 0}}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as one:
        yield one


def test_a_message(client, said):
    answer = client.messages.create(**ASK)
    assert [block.text for block in answer.content] == [said]
    assert answer.usage.output_tokens > 0


def test_a_stream(client, said):
    with client.messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == said
        final = stream.get_final_message()
    assert final.content[0].text == said and final.stop_reason


def test_async(server, said):
    async def ask():
        async with anthropic.AsyncAnthropic(base_url=server.url, auth_token="secret",
                                            api_key=None) as client:
            async with client.messages.stream(**ASK) as stream:
                return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == said


def test_tools_and_their_results(client):
    messages = [*ASK["messages"],
                {"role": "assistant", "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "it"}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "It is blue."}]}]
    answer = client.messages.create(**{**ASK, "messages": messages}, tools=[TOOL],
                                    system=[{"type": "text", "text": "Be brief.",
                                             "cache_control": {"type": "ephemeral"}}])
    assert answer.stop_reason in ("end_turn", "max_tokens", "tool_use")


def test_counting(client):
    counted = client.messages.count_tokens(model=MODEL, messages=ASK["messages"])
    usage = client.messages.create(**ASK).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors(client, server):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASK, "model": "other"})
    with pytest.raises(anthropic.BadRequestError) as why:
        client.messages.create(**{**ASK, "max_tokens": -1})
    assert "max_tokens" in why.value.body["error"]["message"]
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="wrong").messages.create(**ASK)
