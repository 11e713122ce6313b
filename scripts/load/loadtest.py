#!/usr/bin/env python3
"""Runs many streaming clients against a running server and prints the time to the first token and
between tokens, and the throughput.

    scripts/load/loadtest.py --clients 64 --requests 512 --prompt-tokens 128 --max-tokens 64

Needs nothing but Python.  Each client keeps one connection and sends the next request when its last
is answered.  Every request has a prompt of its own (random token ids from --seed), so prefix
caching does not flatter the numbers unless --shared-prefix says how many first tokens all prompts
have in common.  The table goes to stdout; with --json the results go there as one object, and the
table to stderr, where the progress bar is, too.  Exits 1 when any request failed.
"""
import argparse
import asyncio
import json
import random
import sys
import time
import urllib.parse


class Sample:
    """One request as its client saw it, in seconds since it was sent."""

    def __init__(self):
        self.first = None
        self.gaps = []
        self.total = None
        self.n_tokens = 0
        self.error = None


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
    """One keep-alive connection; opened on first use and again after a failure."""

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

    async def run(self, body):
        sample = Sample()
        try:
            if not self.writer:
                await self.open()
            await asyncio.wait_for(self.exchange(body, sample), self.options.timeout)
        except (OSError, ValueError, EOFError, asyncio.TimeoutError,
                asyncio.LimitOverrunError) as error:
            sample.error = f"{type(error).__name__}: {error}"
            self.close()
        return sample

    async def exchange(self, body, sample):
        url = urllib.parse.urlsplit(self.options.url)
        key = f"Authorization: Bearer {self.options.api_key}\r\n" if self.options.api_key else ""
        sent = time.monotonic()
        self.writer.write(f"POST {url.path.rstrip('/')}/v1/completions HTTP/1.1\r\n"
                          f"Host: {url.netloc}\r\n{key}Content-Type: application/json\r\n"
                          f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if status != 200:
            text = (await self.read_plain_body(head)).decode(errors="replace")
            raise ValueError(f"HTTP {status}: {text[:300]}")
        last = None
        async for event in self.events(head):
            now = time.monotonic()
            if "error" in event:
                raise ValueError(f"error event: {event['error']}")
            if event.get("usage"):
                sample.n_tokens = event["usage"]["completion_tokens"]
            if not event["choices"] or not event["choices"][0]["text"]:
                continue
            if last is None:
                sample.first = now - sent
            else:
                sample.gaps.append(now - last)
            last = now
        sample.total = time.monotonic() - sent

    async def read_plain_body(self, head):
        for line in head.split("\r\n"):
            if line.startswith("content-length:"):
                return await self.reader.readexactly(int(line.split(":")[1]))
        return b""

    async def events(self, head):
        """The JSON events of a chunked event stream, read to its last chunk so that the connection
        can be used again."""
        if "transfer-encoding: chunked" not in head:
            raise ValueError("the answer is not a chunked stream")
        pending = b""
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pending += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
            *blocks, pending = pending.split(b"\n\n")
            for block in blocks:
                if block.startswith(b"data: ") and block != b"data: [DONE]":
                    yield json.loads(block[6:])
        await self.reader.readexactly(2)


def make_body(options, number):
    rng = random.Random(options.seed * 1_000_003 + number)
    shared = random.Random(options.seed)
    n_shared = min(options.shared_prefix, options.prompt_tokens)
    prompt = [shared.randrange(options.vocabulary) for _ in range(n_shared)]
    prompt += [rng.randrange(options.vocabulary) for _ in range(options.prompt_tokens - n_shared)]
    body = {"prompt": prompt, "max_tokens": options.max_tokens, "temperature": options.temperature,
            "stream": True,
            "ignore_eos": True, "stream_options": {"include_usage": True}}
    if options.model:
        body["model"] = options.model
    return json.dumps(body).encode()


async def run_load(options):
    """Returns the samples and the seconds from the first request to the last answer."""
    numbers = iter(range(options.requests))
    samples = []
    progress = Progress(options.requests)

    async def client_loop():
        client = Client(options)
        for number in numbers:  # shared: each number is taken once
            sample = await client.run(make_body(options, number))
            samples.append(sample)
            progress.advance(sample)
        client.close()

    begun = time.monotonic()
    await asyncio.gather(*(client_loop() for _ in range(min(options.clients, options.requests))))
    return samples, time.monotonic() - begun


def percentiles(values):
    """Nearest-rank percentiles in milliseconds; None for an empty sample."""
    ordered = sorted(values)
    if not ordered:
        return None

    def rank(p):  # whole numbers: p / 100 is not one in floating point
        return round(1000 * ordered[(p * len(ordered) + 99) // 100 - 1], 3)

    return {"mean": round(1000 * sum(ordered) / len(ordered), 3), "p50": rank(50), "p90": rank(90),
            "p95": rank(95), "p99": rank(99), "max": rank(100)}


def summarise(options, samples, seconds):
    good = [sample for sample in samples if not sample.error]
    n_tokens = sum(sample.n_tokens for sample in good)
    return {
        "clients": options.clients, "requests": len(samples), "failed": len(samples) - len(good),
        "prompt_tokens": options.prompt_tokens, "max_tokens": options.max_tokens,
        "seconds": round(seconds, 3), "requests_per_s": round(len(good) / seconds, 2),
        "generated_tokens_per_s": round(n_tokens / seconds, 1),
        "prompt_tokens_per_s": round(len(good) * options.prompt_tokens / seconds, 1),
        "first_token_ms": percentiles([sample.first for sample in good
                                       if sample.first is not None]),
        "between_tokens_ms": percentiles([gap for sample in good for gap in sample.gaps]),
        "whole_request_ms": percentiles([sample.total for sample in good]),
        "tokens_per_s_per_client": round(n_tokens / sum(s.total for s in good), 2) if good else 0,
    }


def print_table(result, out):
    print(f"{result['requests']} requests, {result['failed']} failed, {result['seconds']} s: "
          f"{result['requests_per_s']} requests/s, "
          f"{result['generated_tokens_per_s']} generated tokens/s, "
          f"{result['prompt_tokens_per_s']} prompt tokens/s", file=out)
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    print(f"{'milliseconds':<16}" + "".join(f"{column:>11}" for column in columns), file=out)
    for label, name in (("first token", "first_token_ms"), ("between tokens", "between_tokens_ms"),
                        ("whole request", "whole_request_ms")):
        if result[name]:
            print(f"{label:<16}" + "".join(f"{result[name][column]:>11.2f}" for column in columns),
                  file=out)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Load test for an OpenAI-compatible completions server.")
    parser.add_argument("--url", default="http://127.0.0.1:8000",
                        help="server, without /v1 (default %(default)s)")
    parser.add_argument("--clients", type=int, default=64,
                        help="connections at once (default %(default)s)")
    parser.add_argument("--requests", type=int, default=512,
                        help="requests in all (default %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=128,
                        help="length of each prompt (default %(default)s)")
    parser.add_argument("--shared-prefix", type=int, default=0,
                        help="first tokens that all prompts share")
    parser.add_argument("--max-tokens", type=int, default=64,
                        help="tokens to generate each (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--vocabulary", type=int, default=8000,
                        help="prompt ids are below this (default %(default)s)")
    parser.add_argument("--model", help="model name to send")
    parser.add_argument("--api-key")
    parser.add_argument("--timeout", type=float, default=600,
                        help="seconds for one request (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1,
                        help="seed of the random prompts (default %(default)s)")
    parser.add_argument("--json", action="store_true",
                        help="print the results to stdout as one JSON object")
    options = parser.parse_args()
    if min(options.clients, options.requests, options.prompt_tokens, options.max_tokens) < 1:
        parser.error("--clients, --requests, --prompt-tokens and --max-tokens are at least 1")
    return options


def main():
    options = parse_arguments()
    try:
        samples, seconds = asyncio.run(run_load(options))
    except KeyboardInterrupt:
        return 130
    result = summarise(options, samples, seconds)
    print_table(result, sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(result))
    for message in sorted({sample.error for sample in samples if sample.error})[:5]:
        print(f"failed: {message}", file=sys.stderr)
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
