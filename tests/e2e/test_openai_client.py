"""The official Python client against a real process: sync, async, streaming, raw responses, its
exceptions."""
import asyncio

import openai
import pytest

from server import PATIENCE

TALE = "Once upon a time there was"
NEW = {"model": "", "prompt": TALE, "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def parameters(client):
    return {**NEW, "model": client.models.list().data[0].id}


def with_async_client(server, work):
    """Runs work(client) to its end on an event loop of its own."""
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0,
                                      timeout=60 * PATIENCE) as client:
            return await work(client)

    return asyncio.run(run())


def test_models(client, parameters):
    assert client.models.retrieve(parameters["model"]).id == parameters["model"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_completion(client, parameters):
    answer = client.completions.create(**parameters)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer._request_id


def test_streaming(client, parameters):
    whole = client.completions.create(**parameters).choices[0].text
    with client.completions.create(
        **parameters, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8


def test_leaving_a_stream_early(server, client, parameters):
    with client.completions.create(**{**parameters, "max_tokens": 5000}, stream=True,
                                   extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.wait_idle()


def test_raw_response(client, parameters):
    raw = client.completions.with_raw_response.create(**parameters)
    assert raw.status_code == 200
    assert raw.headers["x-request-id"]
    assert raw.parse().choices[0].text
    with client.completions.with_streaming_response.create(**parameters, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_every_parameter_at_once(client, parameters):
    answer = client.completions.create(
        **{**parameters, "temperature": 0.7}, best_of=3, n=2, echo=True, frequency_penalty=0.5,
        presence_penalty=0.5, logit_bias={"100": -10}, logprobs=3, seed=8, stop=["zebra"],
        top_p=0.9, user="someone",
        extra_body={"top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 2,
                    "ignore_eos": True,
                    "stop_token_ids": [5]})
    assert len(answer.choices) == 2
    assert all(choice.text.find(TALE) >= 0 and choice.logprobs.tokens for choice in answer.choices)


def test_exceptions(client, parameters):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{**parameters, "temperature": 9})
    assert caught.value.param == "temperature" and caught.value.request_id
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(**{**parameters, "model": "gpt-9"})
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{**parameters, "prompt": [5] * 40000})
    assert caught.value.code == "context_length_exceeded"


def test_authentication(serve, tiny_model):
    server = serve("--api-key", "secret", model=tiny_model)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        assert client.models.list().data


def test_async(server, parameters):
    async def work(client):
        prompts = [f"{TALE} a {animal}" for animal in ("cat", "dog", "hen", "fox")]
        answers = await asyncio.gather(
            *(client.completions.create(**{**parameters, "prompt": prompt}) for prompt in prompts))
        alone = [await client.completions.create(**{**parameters, "prompt": prompt})
                 for prompt in prompts]
        return [a.choices[0].text for a in answers], [a.choices[0].text for a in alone]

    together, alone = with_async_client(server, work)
    assert together == alone


def test_async_streaming(server, parameters):
    async def one(client, prompt):
        stream = await client.completions.create(**{**parameters, "prompt": prompt}, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def work(client):
        return await asyncio.gather(*(one(client, TALE) for _ in range(16)))

    assert len(set(with_async_client(server, work))) == 1


def test_async_cancellation(server, parameters):
    async def work(client):
        task = asyncio.create_task(client.completions.create(**{**parameters, "max_tokens": 5000},
                                                             extra_body={"ignore_eos": True}))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_async_client(server, work)
    server.wait_idle()
