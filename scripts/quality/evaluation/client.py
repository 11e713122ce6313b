"""An asyncio client of the completions API, for any server that speaks it.

A request ends in one of four ways: an answer; Refused (the server understood and said no); Failed
(it broke, or answered nonsense; the evaluation goes on and counts it as wrong); Gone (it is not
there any more; the evaluation stops, and can be resumed).  429 and 503 are waited out."""
import asyncio
import json
import math
import time
from dataclasses import dataclass

import aiohttp

CONNECT_TRIES = 3
LONGEST_WAIT_S = 30.0
# The forms in which servers take the question "how likely is this prompt?": some refuse
# max_tokens 0, and some read logprobs 0 as "none".
SCORING_FORMS = ({"max_tokens": 0, "logprobs": 0}, {"max_tokens": 1, "logprobs": 1})


class Refused(Exception):
    """A 4xx answer."""


class Failed(Exception):
    """A 5xx answer, a broken one, or none in time."""


class Gone(Exception):
    """Nobody answers at the URL."""


@dataclass
class Answer:
    text: str
    finish_reason: str | None
    usage: dict | None
    ttft_s: float | None  # None: the server did not stream
    duration_s: float


def base_url(url):
    """The URL without the /v1 that some people write."""
    return url.rstrip("/").removesuffix("/v1")


def error_text(status, body):
    """What a person should read of an error answer: its message, and the parameter it names."""
    try:
        error = json.loads(body)["error"]
        text, param = error["message"], error.get("param")
    except (ValueError, TypeError, KeyError, AttributeError):
        text, param = body[:300].decode(errors="replace"), None
    return f"HTTP {status}: {text}" + (f" (param {param})" if param else "")


class Client:
    """Use as an async context manager."""

    def __init__(self, url, model=None, api_key=None, timeout_s=600.0, patience_s=600.0):
        self.url = base_url(url)
        self.model = model
        self.timeout_s = timeout_s  # of one request
        self.patience_s = patience_s  # with a server that keeps saying 429 or 503
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._form = None  # the one of SCORING_FORMS that this server takes

    async def __aenter__(self):
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_):
        await self._session.close()

    async def get_json(self, path):
        """None where the server has no such route."""
        async def read(response):
            return await response.json(content_type=None)

        try:
            return await self._exchange("GET", path, None, read)
        except (Refused, Failed):
            return None

    async def complete(self, prompt, max_tokens, fields):
        """The greedy answer, streamed, so that the time to the first token is known."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}, **fields}
        sent = None

        async def read(response):
            return await read_answer(response, sent)

        def stamp():
            nonlocal sent
            sent = time.monotonic()

        return await self._exchange("POST", "/v1/completions", body, read, stamp)

    async def score(self, prompt_ids, fields):
        """(natural log-probabilities of every token but the first, usage)."""
        for form in [self._form] if self._form else SCORING_FORMS:
            try:
                found = await self._score_as(form, prompt_ids, fields)
            except Refused:
                if self._form or form is SCORING_FORMS[-1]:
                    raise
                continue
            if found is not None:
                self._form = form
                return found
        raise Failed("the server answers echo with logprobs without the prompt's log-probabilities")

    async def _score_as(self, form, prompt_ids, fields):
        body = {"model": self.model, "prompt": prompt_ids, "echo": True, "temperature": 0, **form,
                **fields}

        async def read(response):
            return await response.json(content_type=None)

        answer = await self._exchange("POST", "/v1/completions", body, read)
        try:
            values = answer["choices"][0]["logprobs"]["token_logprobs"]
            values = values[1:len(prompt_ids)]  # not what was generated
        except (KeyError, IndexError, TypeError):
            return None
        if len(values) != len(prompt_ids) - 1:
            return None
        if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
            raise Failed("a log-probability is no finite number")
        return values, answer.get("usage")

    async def _exchange(self, method, path, body, read, on_send=lambda: None):
        tries, deadline = 0, time.monotonic() + self.patience_s
        while True:
            try:
                on_send()
                async with self._session.request(method, self.url + path, json=body) as response:
                    if response.status == 200:
                        return await read(response)
                    text = error_text(response.status, await response.read())
                    wait = retry_after(response)
            except asyncio.TimeoutError:
                raise Failed(f"no answer within {self.timeout_s:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                tries += 1
                if tries == CONNECT_TRIES:
                    raise Gone(f"{self.url}: {type(error).__name__}: {error}") from None
                await asyncio.sleep(tries)
                continue
            except (ValueError, KeyError, TypeError) as error:
                raise Failed(f"unreadable answer: {type(error).__name__}: {error}") from None
            if wait is None or time.monotonic() + wait > deadline:
                raise (Refused if response.status < 500 else Failed)(text)
            await asyncio.sleep(wait)


def retry_after(response):
    """Seconds to wait before asking again; None: asking again is no use."""
    if response.status not in (429, 503):
        return None
    try:
        wait = float(response.headers.get("Retry-After", 1))
    except ValueError:  # an HTTP date: the clocks need not agree, so it is not worth reading
        wait = 1.0
    return min(max(wait, 0.0), LONGEST_WAIT_S)


async def read_answer(response, sent):
    """An event stream, or the plain JSON of a server that does not stream."""
    text, finish, usage, first = "", None, None, None
    async for event in read_events(response):
        if "error" in event:
            raise Failed(f"error event: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            if choice.get("text") and first is None:
                first = time.monotonic()
            text += choice.get("text") or ""
            finish = choice.get("finish_reason") or finish
    end = time.monotonic()
    if finish is None:
        raise Failed("the answer ended without a finish_reason")
    streamed = response.content_type == "text/event-stream"
    ttft = (first or end) - sent if streamed else None
    return Answer(text, finish, usage, ttft, end - sent)


async def read_events(response):
    if response.content_type != "text/event-stream":
        yield await response.json(content_type=None)
        return
    pending = b""
    async for chunk in response.content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            payload = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and payload != b"[DONE]":
                yield json.loads(payload)
