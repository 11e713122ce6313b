"""LangChain, LlamaIndex and litellm: each by OpenAI's shapes and by Anthropic's."""
import litellm
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from conftest import MODEL

HELLO = "Hello there"
MESSAGES = [{"role": "user", "content": HELLO}]


@tool
def look(at: str) -> str:
    """Looks."""
    return at


# ---- LangChain ----

def langchain_model(server, kind):
    if kind == "anthropic":
        return ChatAnthropic(model=MODEL, base_url=server.url, api_key="secret", temperature=0,
                             max_tokens=12, max_retries=0)
    return ChatOpenAI(model=MODEL, base_url=f"{server.url}/v1", api_key="secret", temperature=0,
                      max_tokens=12, max_retries=0, use_responses_api=kind == "responses")


@pytest.mark.parametrize("kind", ["chat", "responses", "anthropic"])
def test_langchain(server, said, kind):
    model = langchain_model(server, kind)
    whole = model.invoke(HELLO)
    assert whole.text == said and whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in model.stream(HELLO)) == said
    assert [one.text for one in model.batch([HELLO, HELLO])] == [said, said]


@pytest.mark.parametrize("kind", ["chat", "responses", "anthropic"])
def test_langchain_tools(server, kind):
    model = langchain_model(server, kind).bind_tools([look])
    call = {"name": "look", "args": {"at": "it"}, "id": "call_1", "type": "tool_call"}
    answer = model.invoke([HumanMessage(HELLO), AIMessage("", tool_calls=[call]),
                           ToolMessage("It is blue.", tool_call_id="call_1")])
    assert isinstance(answer, AIMessage)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_langchain_leaves_conversations_on_the_server(server, streamed):
    def converse(**fields):
        model = ChatOpenAI(model=MODEL, base_url=f"{server.url}/v1", api_key="secret", temperature=0,
                           max_tokens=100, max_retries=0, use_responses_api=True, **fields)
        model = model.bind_tools([look], tool_choice="look")
        messages, counts = [HumanMessage("Look at the sea")], []
        for _ in range(2):
            if streamed:
                first, *rest = model.stream(messages)
                answer = sum(rest, first)
            else:
                answer = model.invoke(messages)
            counts.append(answer.usage_metadata["input_tokens"])
            call = answer.tool_calls[0]
            messages += [answer, ToolMessage("It is blue.", tool_call_id=call["id"])]
        return counts

    before = server.metrics()["quire_responses_store_hits_total"]
    kept = converse(use_previous_response_id=True)
    assert server.metrics()["quire_responses_store_hits_total"] == before + 1
    assert kept == converse() and kept[1] > kept[0]


# ---- LlamaIndex ----

def test_llama_index(server, said):
    model = OpenAILike(model=MODEL, api_base=f"{server.url}/v1", api_key="secret", temperature=0,
                       max_tokens=12, is_chat_model=True, max_retries=0)
    messages = [ChatMessage(role="user", content=HELLO)]
    assert model.chat(messages).message.content == said
    assert "".join(part.delta for part in model.stream_chat(messages)) == said
    plain = OpenAILike(model=MODEL, api_base=f"{server.url}/v1", api_key="secret", temperature=0,
                       max_tokens=8, is_chat_model=False, max_retries=0)
    assert plain.complete("Once upon a time").text


# ---- litellm ----

def litellm_fields(server, provider):
    base = server.url if provider == "anthropic" else f"{server.url}/v1"
    return {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "secret",
            "messages": MESSAGES, "temperature": 0, "max_tokens": 12, "num_retries": 0}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_litellm(server, said, provider):
    fields = litellm_fields(server, provider)
    assert litellm.completion(**fields).choices[0].message.content == said
    stream = litellm.completion(**fields, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == said


def test_litellm_completions(server):
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="Once upon a",
                                     api_base=f"{server.url}/v1", api_key="secret", max_tokens=4)
    assert answer.choices[0].text
