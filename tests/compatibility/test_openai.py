"""openai: sync and async, whole and streamed, completions, chats, tools, responses, errors."""
import asyncio

import openai
import pytest

from conftest import MODEL

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there"}], "temperature": 0,
       "max_tokens": 12}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as one:
        yield one


def test_a_chat(client, said):
    assert client.chat.completions.create(**ASK).choices[0].message.content == said


def test_a_streamed_chat(client, said):
    chunks = list(client.chat.completions.create(**ASK, stream=True,
                                                 stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == said
    assert chunks[-1].usage.completion_tokens > 0


def test_the_stream_helper(client, said):
    with client.chat.completions.stream(**ASK) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == said


def test_async(server, said):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret") as client:
            whole = client.chat.completions.create(**ASK)
            response = client.responses.create(model=MODEL, input="Hello there", temperature=0,
                                               max_output_tokens=12)
            first, second = await asyncio.gather(whole, response)
            stream = await client.chat.completions.create(**ASK, stream=True)
            third = "".join([c.choices[0].delta.content or "" async for c in stream])
        return first.choices[0].message.content, second.output_text, third

    assert asyncio.run(ask()) == (said, said, said)


def test_completions(client):
    whole = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8,
                                      temperature=0, logprobs=2)
    assert len(whole.choices[0].logprobs.tokens) == 8
    stream = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8,
                                       temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in stream) == whole.choices[0].text


def test_tools_and_their_results(client):
    """The model calls none; what a conversation with calls looks like must be read."""
    messages = [*ASK["messages"],
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "call_1", "type": "function",
                     "function": {"name": "look", "arguments": '{"at": "it"}'}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "It is blue."}]
    answer = client.chat.completions.create(**{**ASK, "messages": messages}, tools=[TOOL])
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_responses(client, said):
    fields = {"model": MODEL, "input": "Hello there", "temperature": 0, "max_output_tokens": 12}
    assert client.responses.create(**fields).output_text == said
    with client.responses.stream(**fields) as stream:
        types = [event.type for event in stream]
        assert stream.get_final_response().output_text == said
    assert types[0] == "response.created" and types[-1] in ("response.completed",
                                                            "response.incomplete")


def test_models_and_errors(client, server):
    assert [m.id for m in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**ASK, "model": "other"})
    with pytest.raises(openai.BadRequestError) as why:
        client.chat.completions.create(**{**ASK, "temperature": 9})
    assert why.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong").models.list()
