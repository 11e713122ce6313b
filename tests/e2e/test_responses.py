"""POST /v1/responses on a real process: the official client, the same text as a chat has, streams,
conversations, errors."""
import openai
import pytest

HELLO = "Hello there"
PATH = "/v1/responses"


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def chat_text(server, messages, **fields):
    answer = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.quick("POST /v1/responses")
def test_the_text_is_that_of_a_chat(server, client, model):
    answer = client.responses.create(model=model, input=HELLO, instructions="Be brief.",
                                     temperature=0)
    assert answer.output_text == chat_text(server, [{"role": "system", "content": "Be brief."},
                                                    {"role": "user", "content": HELLO}])
    assert answer.status == "completed" and answer.instructions == "Be brief."
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_stream_is_the_whole_answer(client, model):
    whole = client.responses.create(model=model, input=HELLO, temperature=0)
    with client.responses.stream(model=model, input=HELLO, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        whole.output_text)
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_conversation_is_sent_whole(server, client, model):
    first = client.responses.create(model=model, input=HELLO, temperature=0, store=False)
    items = [{"role": "user", "content": HELLO}, *first.output,
             {"role": "user", "content": "And now?"}]
    second = client.responses.create(model=model, input=items, temperature=0, store=False,
                                     max_output_tokens=8)
    messages = [{"role": "user", "content": HELLO},
                {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "And now?"}]
    assert second.output_text == chat_text(server, messages, max_tokens=8)


def test_it_ends_with_the_most_tokens(client, model):
    answer = client.responses.create(model=model, input=HELLO, temperature=0, max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[-1].status == "incomplete"


def test_logprobs(client, model):
    answer = client.responses.create(model=model, input=HELLO, temperature=0, top_logprobs=2,
                                     include=["message.output_text.logprobs"])
    scored = answer.output[0].content[0].logprobs
    assert len(scored) == answer.usage.output_tokens - 1  # the end token is none of the text
    assert "".join(one.token for one in scored) == answer.output_text
    assert all(len(one.top_logprobs) == 2 for one in scored)


def test_what_only_openai_has_is_ignored(client, model):
    client.responses.create(model=model, input=HELLO, max_output_tokens=1, store=True, user="me",
                            metadata={"a": "b"}, service_tier="auto", prompt_cache_key="k",
                            include=["reasoning.encrypted_content"], tools=[{"type": "web_search"}],
                            parallel_tool_calls=True, truncation="disabled",
                            text={"format": {"type": "text"}, "verbosity": "low"})


@pytest.mark.parametrize("fields, param", [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"truncation": "middle"}, "truncation"),
    ({"truncation": "auto", "input": "many words " * 40000}, "input"),
    ({"temperature": 3}, "temperature"),
    ({"max_output_tokens": 10**6}, "max_output_tokens"),
    ({"input": [{"type": "message", "role": "user", "content": [
        {"type": "input_image", "image_url": "x"}]}]}, "input"),
    ({"input": "many words " * 40000}, "input"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools")])
def test_errors_name_the_field(client, model, fields, param):
    with pytest.raises(openai.BadRequestError) as why:
        client.responses.create(**{"model": model, "input": HELLO, **fields})
    assert why.value.body["param"] == param
