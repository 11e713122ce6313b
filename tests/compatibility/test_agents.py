"""pydantic-ai: text, streams, answers of a type by a schema or by a tool that must be called, by OpenAI's
chats and responses.  Its adapter for Anthropic's shape does not work with the pinned client of that."""
import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from conftest import MODEL

HELLO = "Hello there"
SETTINGS = {"temperature": 0, "max_tokens": 12}


class City(BaseModel):
    name: str = Field(max_length=12)
    people: int = Field(ge=0, le=999)


@pytest.fixture
def model(server, request):
    made = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return made(MODEL, provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="secret"))


@pytest.mark.parametrize("model", ["chat", "responses"], indirect=True)
def test_text(model, said):
    done = Agent(model, model_settings=SETTINGS).run_sync(HELLO)
    assert done.output == said and done.usage.output_tokens > 0


@pytest.mark.parametrize("model", ["chat", "responses"], indirect=True)
def test_streams(model, said):
    done = Agent(model, model_settings=SETTINGS).run_stream_sync(HELLO)
    assert "".join(done.stream_text(delta=True, debounce_by=None)) == said


@pytest.mark.parametrize("model", ["responses"], indirect=True)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_conversation_is_left_on_the_server(server, model, streamed):
    """Only what is new is sent, with the id of the response before; the prompt is that of the whole."""
    def converse(settings):
        agent, history, counts, texts = Agent(model, model_settings={**SETTINGS, **settings}), None, [], []
        for text in (HELLO, "And at night?", "And in spring?"):
            if streamed:
                done = agent.run_stream_sync(text, message_history=history)
                texts.append("".join(done.stream_text(delta=True, debounce_by=None)))
            else:
                done = agent.run_sync(text, message_history=history)
                texts.append(done.output)
            history = done.all_messages()
            counts.append(done.usage.input_tokens)
        return texts, counts

    before = server.metrics()["quire_responses_store_hits_total"]
    kept = converse({"openai_previous_response_id": "auto"})
    assert server.metrics()["quire_responses_store_hits_total"] == before + 2
    assert kept == converse({}) and sorted(set(kept[1])) == kept[1]


@pytest.mark.parametrize("model,wanted", [("chat", NativeOutput(City)), ("chat", ToolOutput(City)),
                                          ("responses", NativeOutput(City)), ("responses", ToolOutput(City))],
                         indirect=["model"], ids=["chat-schema", "chat-tool", "responses-schema", "responses-tool"])
def test_answers_of_a_type(model, wanted):
    agent = Agent(model, output_type=wanted, retries=0,
                  model_settings={"temperature": 0, "max_tokens": 200, "parallel_tool_calls": False})
    city = agent.run_sync("Name a city.").output
    assert isinstance(city, City) and 0 <= city.people <= 999
