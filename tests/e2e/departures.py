"""Clients that leave: in each phase of a request, under each policy and each way to read a prompt.

A cell of the matrix is a request and the moment at which its client leaves, now with a close, now
with a reset.  Afterwards no page, no host block and no place in a queue may be taken: the prefix cache
is off, so what was free before must be free again, exactly."""
import json
import random
import struct
import socket
import time
from contextlib import ExitStack

from raw import RawConnection, completion_request
from server import DEVICE, PATIENCE, Server

# A GPU reads a prompt too fast for a client to leave meanwhile: it gets smaller chunks there.
OPTIONS = ("--no-enable-prefix-caching", "--max-num-seqs", 4,
           "--max-num-batched-tokens", {"cpu": 256, "cuda": 16}[DEVICE])
ROOMY = (*OPTIONS, "--kv-cache-memory", "128M", "--kv-offload-size", "128M", "--max-model-len", 4096)
TIGHT = (*OPTIONS, "--kv-cache-memory", {"cpu": "16M", "cuda": "8M"}[DEVICE],
         "--kv-offload-size", "64M", "--max-model-len", 1280)
VOCABULARY = 8000


def prompt(n, seed=7):
    rng = random.Random(seed)
    return [rng.randrange(10, VOCABULARY) for _ in range(n)]


def body(n_prompt=300, **parameters):
    return {"prompt": prompt(n_prompt), "max_tokens": 900, "ignore_eos": True, "temperature": 0,
            "stream": True, **parameters}


# ---- moments ----

def at_prefill(server, client):
    """The prompt is being computed: no token has come."""
    server.wait_for("quire_requests_submitted_total", server.before["quire_requests_submitted_total"] + 1)


def at_decode(server, client):
    while b"data: {" not in client.buffer:
        client.buffer += client.socket.recv(65536)


def at_whole_answer(server, client):
    server.wait_for("quire_generated_tokens_total", server.before["quire_generated_tokens_total"] + 5)


def at_queue(server, client):
    server.wait_for("quire_requests_waiting", 1)


def at_swap(server, client):
    server.wait_for("quire_kv_pages_swapped_out_total", server.before["quire_kv_pages_swapped_out_total"] + 1)


# ---- cells: name -> (server's options, requests that hold the server, request, moment) ----

POLICIES = {
    "full": {"type": "full"},
    "streaming": {"type": "streaming", "sink": 4, "recent": 124},
    "heavy_hitter": {"type": "heavy_hitter", "recent": 64, "heavy": 64},
    "heavy_hitter whole": {"type": "heavy_hitter", "recent": 64, "heavy": 64, "prompt": "whole"},
    "offload kept": {"type": "offload", "selected": 64, "tail": 64, "offload": False},
    "offload moved": {"type": "offload", "selected": 64, "tail": 64, "offload": True},
    "layers": {"type": "full", "layers": [
        {"first": 0, "last": 1, "kv_policy": {"type": "streaming", "recent": 124}}]},
}
PREFILLS = {
    "dense": "dense",
    "sparse": "sparse",
    "a_shape": {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 64, "recent": 128}},
    "filters": {"mode": "sparse", "pattern": {"type": "filters", "selected": 128, "chunk": 128}},
}
CELLS = {
    "queued": (ROOMY, [body(max_tokens=3700)] * 4, body(), at_queue),
    "prefill": (ROOMY, [], body(3000), at_prefill),
    "decode": (ROOMY, [], body(), at_decode),
    "whole answer": (ROOMY, [], body(stream=False), at_whole_answer),
    "echo": (ROOMY, [], body(2000, echo=True, logprobs=1), at_prefill),
    "n > 1": (ROOMY, [], body(n=4), at_decode),
    "swapped": (TIGHT, [body(priority=-1)], body(priority=1), at_swap),
    **{f"{name}, prefill": (ROOMY, [], body(3000, kv_policy=policy), at_prefill)
       for name, policy in POLICIES.items()},
    **{f"{name}, decode": (ROOMY, [], body(kv_policy=policy), at_decode)
       for name, policy in POLICIES.items()},
    **{f"{name} prompt": (ROOMY, [], body(3000, prefill=prefill), at_prefill)
       for name, prefill in PREFILLS.items()},
}


def leave(client, hard):
    if hard:  # a reset
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def taken(server):
    """What is not free, by name; nothing if all is as it was at the start."""
    m = server.metrics()
    counts = {"pages": m["quire_kv_pages_total"] - m["quire_kv_pages_free"],
              "host bytes": m["quire_kv_store_used_bytes"],
              "stored pages": m["quire_kv_pages_stored"],
              "running": m["quire_requests_running"], "waiting": m["quire_requests_waiting"]}
    return {name: n for name, n in counts.items() if n}


def settle(server, cell):
    deadline = time.monotonic() + 20 * PATIENCE
    while left := taken(server):
        assert time.monotonic() < deadline, f"{cell}: left behind: {json.dumps(left)}"
        time.sleep(0.005)


def try_cell(server, cell, hard):
    """One departure; fails when something is left behind, or when the moment never comes."""
    _, holders, request, moment = CELLS[cell]
    with ExitStack() as others:
        for holder in holders:
            other = others.enter_context(RawConnection(server))
            other.send(completion_request(**holder))
            at_decode(server, other)
        server.before = server.metrics()
        client = RawConnection(server)
        client.send(completion_request(**request))
        moment(server, client)
        leave(client, hard)
    settle(server, cell)


class Departures:
    """Servers for the cells, started when a cell needs them."""

    def __init__(self, directory, model=None):
        self.directory, self.model, self.servers = directory, model, {}

    def server(self, options):
        if options not in self.servers:
            self.servers[options] = Server(self.directory, *options, model=self.model)
        return self.servers[options]

    def run(self, cell, n):
        server = self.server(CELLS[cell][0])
        settle(server, cell)
        for i in range(n):
            try_cell(server, cell, hard=i % 2 == 1)
        assert server.complete("a", max_tokens=2)["usage"]["completion_tokens"] == 2
        settle(server, cell)

    def close(self):
        return [server.stop() for server in self.servers.values()]
