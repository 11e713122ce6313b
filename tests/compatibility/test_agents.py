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


@pytest.mark.parametrize("model,wanted", [("chat", NativeOutput(City)), ("chat", ToolOutput(City)),
                                          ("responses", NativeOutput(City)), ("responses", ToolOutput(City))],
                         indirect=["model"], ids=["chat-schema", "chat-tool", "responses-schema", "responses-tool"])
def test_answers_of_a_type(model, wanted):
    agent = Agent(model, output_type=wanted, retries=0,
                  model_settings={"temperature": 0, "max_tokens": 200, "parallel_tool_calls": False})
    city = agent.run_sync("Name a city.").output
    assert isinstance(city, City) and 0 <= city.people <= 999
