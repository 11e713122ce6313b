#!/usr/bin/env python3
"""Measures what it costs a server to send its tokens: the rate of many streams over HTTP beside that of the
same batch without HTTP (quire bench), and the CPU time that the loop thread takes for each token.

    scripts/load/streams.py 8b --load-format dummy --prompt-tokens 512 --max-tokens 640
    scripts/load/streams.py --api chat --no-bench --max-tokens 2000 --seconds 5 -- --device cpu

Starts `quire serve` with the model and what follows --, and asks for --streams answers to random prompts.  The
measurement begins when every stream has begun.  It ends before the first stream does, or after --seconds.  So all
of them generate all the time, as in the rows "decode" of quire bench.  Before it, the same streams run for two
seconds and are given up: a device's first steps of a size take longer.  quire bench comes last, once for each
length that prompts have had: a chat's have more tokens than words.  The server counts the tokens.  The clients
are --processes processes that read what has come and count events: they parse nothing, and each reads tens of
thousands of events a second.  A token without text has no event: a model whose vocabulary is larger than its
tokenizer's (make_bench_model.py without --large-tokenizer) needs --request '{"return_token_ids": true}'.

Needs nothing but Python, on Linux.  Prints CSV.  Exits 1 if more than --max-loss of the rate is lost, and if the
clients have read fewer events than nine tenths of the tokens."""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
import select
import socket
import subprocess
import sys
import time

from serving import BINARY, OwnServer

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
EVENTS_OF_A_BEGINNING = 4  # the first ones may come before there are tokens
WORDS = ("river", "tree", "house", "dog", "water", "little", "red", "bird")


def body_of(options, api, number):
    """The body of a request, whose prompt has --prompt-tokens ids, or as many words."""
    rng = random.Random(number)
    body = {"max_tokens": options.max_tokens, "stream": True, "ignore_eos": True, "temperature": 0,
            **options.request}
    if api == "completions":
        return body | {"prompt": [rng.randrange(8000) for _ in range(options.prompt_tokens)]}
    text = " ".join(rng.choice(WORDS) for _ in range(options.prompt_tokens))
    return body | {"messages": [{"role": "user", "content": text}]}


class Stream:
    """One connection, and what is known of its answer."""

    def __init__(self, port, path, body):
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(head.encode() + data)
        self.last = b""  # byte that was read
        self.n_events = 0

    def read(self):
        """Reads what has come.  Returns the number of events, and whether the stream is over.  Comments, which
        a stream has while its prompt is computed, are no events."""
        data = self.socket.recv(1 << 16)
        if not self.last and not data.startswith(b"HTTP/1.1 200"):
            sys.exit(f"a request was refused: {data[:400]}")
        n = data.count(b"\n\n") + (self.last == b"\n" and data.startswith(b"\n"))
        n -= data.count(b": ping\n\n")
        self.last = data[-1:]
        self.n_events += n
        return n, not data or b"data: [DONE]" in data


class Counts:
    """What one client process has seen; only it writes them."""

    def __init__(self):
        self.n_events, self.n_begun, self.n_over = (multiprocessing.Value("Q", 0, lock=False)
                                                    for _ in range(3))


def read_streams(options, api, numbers, counts):
    """The work of one client process: a stream for each of the numbers."""
    streams, poll, begun = {}, select.epoll(), set()
    for number in numbers:
        stream = Stream(options.port, PATHS[api], body_of(options, api, number))
        streams[stream.socket.fileno()] = stream
        poll.register(stream.socket, select.EPOLLIN)
    while streams:
        for descriptor, _ in poll.poll():
            n_events, is_over = streams[descriptor].read()
            counts.n_events.value += n_events
            if streams[descriptor].n_events >= EVENTS_OF_A_BEGINNING:
                begun.add(descriptor)
                counts.n_begun.value = len(begun)
            if is_over:
                counts.n_over.value += 1
                poll.unregister(descriptor)
                del streams[descriptor]


class Clients:
    def __init__(self, options, api):
        self.counts = [Counts() for _ in range(options.processes)]
        self.processes = [
            multiprocessing.Process(target=read_streams, daemon=True, args=(
                options, api, range(i, options.streams, options.processes), counts))
            for i, counts in enumerate(self.counts)]
        for process in self.processes:
            process.start()

    def total(self, name):
        return sum(getattr(counts, name).value for counts in self.counts)

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.join()


class Server(OwnServer):
    def __init__(self, options):
        # Like `quire bench`, unless told otherwise: a token for each step.
        env = {"QUIRE_SPECULATION": os.environ.get("QUIRE_SPECULATION", "off")}
        super().__init__(options.quire, *options.serve, env=env, log=subprocess.DEVNULL)
        options.port = self.port

    def n_tokens(self):
        return self.metric("vllm:generation_tokens_total")

    def prompt_tokens(self, options, api):
        body = {**body_of(options, api, 0), "max_tokens": 1, "stream": False}
        try:
            return self.post(PATHS[api], body)["usage"]["prompt_tokens"]
        except RuntimeError as refusal:
            sys.exit(f"a request was refused: {refusal}")

    def loop_seconds(self):
        """The CPU time of the loop, which is the process's first thread."""
        path = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat")
        return 1e-9 * int(path.read_text(encoding="utf-8").split()[0])


def wait_until_all_have_begun(clients, options):
    while clients.total("n_begun") < options.streams:
        time.sleep(0.01)
        if not all(process.is_alive() for process in clients.processes):
            sys.exit("a client has ended before all streams had begun: more --max-tokens?")


def warm_up(options, server, api):
    clients = Clients(options, api)
    try:
        wait_until_all_have_begun(clients, options)
        time.sleep(min(2, options.seconds))
    finally:
        clients.stop()
    while server.metric("vllm:num_requests_running") > 0:
        time.sleep(0.05)


def measure(options, server, api):
    """Runs the streams once.  Returns what they did in all, as seconds, tokens, events and CPU seconds
    of the loop."""
    clients = Clients(options, api)

    def sample():
        return time.monotonic(), server.n_tokens(), clients.total("n_events"), server.loop_seconds()

    try:
        wait_until_all_have_begun(clients, options)
        begin = end = sample()
        while end[0] - begin[0] < options.seconds:
            time.sleep(0.25)
            latest = sample()
            if clients.total("n_over") > 0:
                break
            end = latest
    finally:
        clients.stop()
    if end is begin:
        sys.exit("the streams were over too soon: they need more --max-tokens")
    return [later - earlier for earlier, later in zip(begin, end)]


def bench(options, n_prompt):
    """Returns the rate of the same batch without HTTP."""
    command = [options.quire, "bench", *options.serve, "--prompts", str(n_prompt), "--batches",
               str(options.streams), "--generate", str(options.max_tokens), "--runs", "3",
               "--max-resident", "0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=True)
    rows = [line.split(",") for line in done.stdout.splitlines() if line.startswith("decode,")]
    if not rows:
        sys.exit(f"quire bench has measured nothing: {done.stdout}")
    return float(rows[0][3])


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Compares the rate of many streams over HTTP with the engine's own.",
        epilog="Options of quire serve come last, behind --.")
    parser.add_argument("model", nargs="?", help="model directory (default: the default model)")
    parser.add_argument("--quire", default=BINARY, help="the program (default %(default)s)")
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--streams", type=int, default=256, help="(default %(default)s)")
    parser.add_argument("--processes", type=int, default=4, help="of clients (default %(default)s)")
    parser.add_argument("--api", choices=tuple(PATHS), action="append", help="(default: both)")
    parser.add_argument("--request", type=json.loads, default={}, metavar="JSON",
                        help="members that each request has besides, an object")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="(default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=512, help="of each (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="at most (default %(default)s)")
    parser.add_argument("--no-bench", action="store_true", help="measure over HTTP only")
    parser.add_argument("--max-loss", type=float, default=0.03,
                        help="of the rate, as a share (default %(default)s)")
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    options = parser.parse_args(own)
    options.serve = [*([options.model] if options.model else []), "--load-format",
                     options.load_format, "--max-num-seqs", str(options.streams),
                     *sys.argv[len(own) + 2:]]
    return options


def run_streams(options):
    """Returns for each API the tokens of a prompt and what measure() returns."""
    server, results = Server(options), {}
    try:
        for api in options.api or PATHS:
            n_prompt = server.prompt_tokens(options, api)
            warm_up(options, server, api)
            results[api] = n_prompt, measure(options, server, api)
    finally:
        server.stop()
    return results


def main():
    options, rc = parse_arguments(), 0
    print("api,streams,prompt_tokens,seconds,tokens_per_s,engine_tokens_per_s,of_engine,events_per_s,"
          "loop_us_per_token,loop_share", flush=True)
    results = run_streams(options)
    for api, (n_prompt, (seconds, n_tokens, n_events, loop_s)) in results.items():
        engine = None if options.no_bench else bench(options, n_prompt)
        share = n_tokens / seconds / engine if engine else None
        print(f"{api},{options.streams},{n_prompt},{seconds:.2f},{n_tokens / seconds:.0f},"
              f"{f'{engine:.0f},{share:.3f}' if share else ','},{n_events / seconds:.0f},"
              f"{1e6 * loop_s / n_tokens:.2f},{loop_s / seconds:.3f}", flush=True)
        if n_events < 0.9 * n_tokens:
            print(f"{api}: tokens have no events: see the head of this file", file=sys.stderr)
        if n_events < 0.9 * n_tokens or (share and share < 1 - options.max_loss):
            rc = 1
    return rc


if __name__ == "__main__":
    sys.exit(main())
