"""One client of a load test: a keep-alive connection on which it sends a completion or a chat, reads the
stream, and notes when each piece of the answer came.  Needs nothing but Python."""
import asyncio
import json
import math
import sys
import time
import urllib.parse


class Sample:
    """One request as its client saw it.  Times are those of time.monotonic(), in seconds."""

    def __init__(self, due=None):
        self.due = due  # when it should have been sent; what follows counts from here
        self.arrivals = []  # of each event with text
        self.ended = None
        self.n_tokens = self.n_prompt = self.n_cached = 0
        self.text = ""
        self.error = None
        self.refused = None  # seconds from sending the request to the answer 429

    @property
    def first(self):
        return self.arrivals[0] - self.due if self.arrivals else None

    @property
    def gaps(self):
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:])]

    @property
    def per_token(self):
        """Seconds for each token behind the first: the mean of the request."""
        if self.n_tokens < 2 or not self.arrivals:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.n_tokens - 1)

    @property
    def total(self):
        return self.ended - self.due if self.ended else None

    def note(self, event):
        """Takes one event of the stream."""
        usage = event.get("usage")
        if usage:
            self.n_tokens = usage["completion_tokens"]
            self.n_prompt = usage["prompt_tokens"]
            self.n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event["choices"][:1]:
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
            if text:
                self.text += text
                self.arrivals.append(time.monotonic())


class Progress:
    """A bar on stderr, redrawn at most ten times a second and only on a terminal."""

    WIDTH = 40

    def __init__(self, n_total):
        self.n_total, self.n_done, self.n_tokens = n_total, 0, 0
        self.begun = time.monotonic()
        self.drawn = 0.0

    def advance(self, sample):
        self.n_done += 1
        self.n_tokens += sample.n_tokens
        now = time.monotonic()
        if sys.stderr.isatty() and (now - self.drawn > 0.1 or self.n_done == self.n_total):
            self.drawn = now
            filled = self.WIDTH * self.n_done // self.n_total
            rate = self.n_tokens / max(now - self.begun, 1e-9)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            end = "\n" if self.n_done == self.n_total else ""
            print(f"\r[{bar}] {self.n_done}/{self.n_total}  {rate:.0f} tokens/s ", end=end,
                  file=sys.stderr, flush=True)


class Client:
    """One keep-alive connection; opened on first use and again after a failure.  options has url,
    api_key and timeout."""

    def __init__(self, options):
        self.options = options
        self.reader = self.writer = None

    async def open(self):
        url = urllib.parse.urlsplit(self.options.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        self.reader, self.writer = await asyncio.open_connection(url.hostname, port,
                                                                 ssl=url.scheme == "https" or None)

    def close(self):
        if self.writer:
            self.writer.close()
        self.reader = self.writer = None

    async def run(self, body, path="/v1/completions", due=None):
        """Sends the body, which is bytes of JSON that ask for a stream, and returns its sample."""
        sample = Sample(due or time.monotonic())
        try:
            await asyncio.wait_for(self.exchange(body, path, sample), self.options.timeout)
        except (OSError, ValueError, EOFError, asyncio.TimeoutError,
                asyncio.LimitOverrunError) as error:
            sample.error = f"{type(error).__name__}: {error}"
            self.close()
        return sample

    async def exchange(self, body, path, sample):
        if not self.writer:
            await self.open()
        url = urllib.parse.urlsplit(self.options.url)
        key = f"Authorization: Bearer {self.options.api_key}\r\n" if self.options.api_key else ""
        sent = time.monotonic()
        self.writer.write(f"POST {url.path.rstrip('/')}{path} HTTP/1.1\r\n"
                          f"Host: {url.netloc}\r\n{key}Content-Type: application/json\r\n"
                          f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if status != 200:
            text = (await self.read_plain_body(head)).decode(errors="replace")
            sample.error = f"HTTP {status}: {text[:300]}"
            sample.refused = time.monotonic() - sent if status == 429 else None
        else:
            await self.read_stream(head, sample)
        if "connection: close" in head:
            self.close()

    async def read_stream(self, head, sample):
        async for event in self.events(head):
            if "error" in event:
                raise ValueError(f"error event: {event['error']}")
            sample.note(event)
        sample.ended = time.monotonic()

    async def read_plain_body(self, head):
        for line in head.split("\r\n"):
            if line.startswith("content-length:"):
                return await self.reader.readexactly(int(line.split(":")[1]))
        return b""

    async def events(self, head):
        """The JSON events of a chunked event stream, read to its last chunk so that the connection
        can be used again.  A stream without its end is an error."""
        if "transfer-encoding: chunked" not in head:
            raise ValueError("the answer is not a chunked stream")
        pending, done = b"", False
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pending += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
            *blocks, pending = pending.split(b"\n\n")
            for block in blocks:
                if block == b"data: [DONE]":
                    done = True
                elif block.startswith(b"data: "):
                    yield json.loads(block[6:])
        await self.reader.readexactly(2)
        if not done:
            raise EOFError("the stream ends without [DONE]")


class Stream(Client):
    """Completions, token by token: `arrivals` are the seconds of the clock at which they came."""

    def __init__(self, options):
        super().__init__(options)
        self.arrivals, self.usage, self.error = [], None, None

    def note(self, event):
        now = time.monotonic()
        for choice in event["choices"]:
            self.arrivals += [now] * len((choice["logprobs"] or {"tokens": ()})["tokens"])
        self.usage = event.get("usage") or self.usage

    async def ask(self, body):
        await self.exchange(body, "/v1/completions", self)
        if self.error:
            raise ValueError(self.error)


def random_tokens(rng, options, n):
    return [rng.randrange(3, options.vocabulary) for _ in range(n)]


def body_of(prompt, max_tokens, **parameters):
    """Of a stream whose tokens are an event each."""
    return json.dumps({"prompt": prompt, "max_tokens": max_tokens, "stream": True, "logprobs": 0,
                       "ignore_eos": True, "stream_options": {"include_usage": True},
                       **parameters}).encode()


def rank(ordered, percent):
    """The nearest-rank percentile of values in order."""
    return ordered[max(0, math.ceil(percent * len(ordered) / 100) - 1)]


def percentiles(values):
    """Nearest-rank percentiles in milliseconds; None for an empty sample."""
    ordered = sorted(values)
    if not ordered:
        return None
    names = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
    return {"mean": round(1000 * sum(ordered) / len(ordered), 3),
            **{name: round(1000 * rank(ordered, percent), 3) for name, percent in names.items()}}


class Answer:
    """What a request gave, by choice; numbers are kept as they were written, by parse()."""

    LISTS = ("tokens", "token_logprobs", "top_logprobs")

    def __init__(self):
        self.choices, self.whole = {}, True

    def add(self, choices):
        for choice in choices:
            known = self.choices.setdefault(
                choice["index"], {"text": "", "token_ids": [], "finish_reason": None,
                                  **{name: [] for name in self.LISTS}})
            known["text"] += choice["text"]
            known["token_ids"] += choice.get("token_ids") or []
            known["finish_reason"] = choice["finish_reason"] or known["finish_reason"]
            for name in self.LISTS:
                known[name] += (choice["logprobs"] or {}).get(name) or []

    def n_tokens(self):
        return sum(len(choice["tokens"]) for choice in self.choices.values())

    def difference(self, alone):
        """None, or where this answer is not (the beginning of) the other."""
        if self.whole and self.choices.keys() != alone.choices.keys():
            return f"choices {sorted(self.choices)} and {sorted(alone.choices)}"
        for index, mine in self.choices.items():
            for name, theirs in alone.choices[index].items():
                if self.whole and mine[name] == theirs:
                    continue
                if not self.whole and (mine[name] is None or
                                       theirs[:len(mine[name])] == mine[name]):
                    continue
                at = next((i for i, (a, b) in enumerate(zip(mine[name], theirs)) if a != b),
                          min(len(mine[name]), len(theirs)))
                return (f"choice {index}, {name}[{at}]: {mine[name][at:at + 3]} together, "
                        f"{theirs[at:at + 3]} alone")
        return None


def parse(text):
    return json.loads(text, parse_float=str)
