"""smolagents and magentic: calls that must come, and answers of a type."""
from typing import Literal, Optional

import pytest
import smolagents
from magentic import FunctionCall, OpenaiChatModel, StreamedStr, prompt
from pydantic import BaseModel

from conftest import MODEL

Place = Literal["Lisbon", "Porto"]
MOST = 60


class City(BaseModel):
    name: Place
    coast: Optional[bool]


# ---- smolagents ----

@smolagents.tool
def weather(city: str, unit: Optional[str] = None) -> str:
    """Tells the weather.

    Args:
        city: where
        unit: c or f
    """
    return "rain"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_smolagents_calls_tools_with_optional_arguments(server, streamed):
    model = smolagents.OpenAIServerModel(model_id=MODEL, api_base=f"{server.url}/v1", api_key="secret", temperature=0,
                                         max_tokens=MOST, client_kwargs={"max_retries": 0})
    agent = smolagents.ToolCallingAgent(tools=[weather], model=model, max_steps=1, verbosity_level=0,
                                        stream_outputs=streamed)
    agent.run("Weather in Lisbon?")
    (step,) = [one for one in agent.memory.steps if isinstance(one, smolagents.ActionStep) and one.step_number == 1]
    # The default model may fill what has no end; a request that is refused raises an error.
    assert step.tool_calls or step.token_usage.output_tokens == MOST, step


# ---- magentic ----

def test_magentic(server, said):
    model = OpenaiChatModel(MODEL, base_url=f"{server.url}/v1", api_key="secret", temperature=0, max_tokens=12)
    longer = OpenaiChatModel(MODEL, base_url=f"{server.url}/v1", api_key="secret", temperature=0, max_tokens=200)

    def look(city: Place) -> str:
        return city

    @prompt("Hello there", model=model)
    def hello() -> str: ...

    @prompt("Hello there", model=model)
    def hello_streamed() -> StreamedStr: ...

    @prompt("Name a city.", model=longer)
    def city() -> City: ...

    @prompt("Look at Lisbon.", functions=[look], model=longer)
    def call() -> FunctionCall[str]: ...

    assert hello() == said and "".join(hello_streamed()) == said
    assert isinstance(city(), City)
    assert call()() in ("Lisbon", "Porto")
