"""--kv-events: read by pyzmq and msgpack as a router reads it.  The set of cached blocks, rebuilt from
the events alone, must say how many tokens of a prompt the server finds."""
import struct
import subprocess
import time

import msgpack
import pytest
import zmq

from server import BINARY, DEVICE, PATIENCE, Server, free_port

BLOCK = 64


def has_zeromq():
    done = subprocess.run([BINARY, "serve", "--kv-events", "no-endpoint", "--port", "0"],
                          capture_output=True, text=True, timeout=60)
    return "built without ZeroMQ" not in done.stdout + done.stderr


class Router:
    """The blocks that a server has, as its events tell."""

    def __init__(self, port, topic=b"", rank=0):
        self.rank = rank
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.blocks = {}  # hash: (parent, tokens, media)
        self.numbers, self.topics, self.kinds, self.n_told = [], set(), [], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def listen(self, server, replay_port):
        """Asks for new blocks until the server, which is not told when, knows of the subscription.  What came
        before is told by a replay."""
        for i in range(1000):
            ask(server, prompt_of(100_000 + i, BLOCK + 1))
            if self.socket.poll(50):
                replay(self, replay_port)
                return
        raise AssertionError("no event came")

    def take(self, number, payload):
        written, events, rank = msgpack.unpackb(payload)
        assert abs(written - time.time()) < 600 and rank == self.rank
        self.numbers.append(number)
        for event in events:
            self.kinds.append(event["type"])
            self.n_told += len(event.get("block_hashes", ()))
            getattr(self, event["type"])(event)

    def AllBlocksCleared(self, event):
        assert event == {"type": "AllBlocksCleared"}
        self.blocks.clear()

    def BlockStored(self, event):
        assert event["block_size"] == BLOCK and event["lora_id"] is None
        assert event["medium"] in ("GPU", "CPU") and event["kv_cache_spec_kind"] == "full_attention"
        hashes, tokens, parent = (event[key] for key in (
            "block_hashes", "token_ids", "parent_block_hash"))
        assert len(tokens) == BLOCK * len(hashes)
        for i, name in enumerate(hashes):
            assert parent is None or parent in self.blocks
            own = tokens[BLOCK * i:BLOCK * (i + 1)]
            media = self.blocks.get(name, (0, 0, set()))[2]
            assert event["medium"] not in media, "stored twice"
            self.blocks[name] = (parent, own, media | {event["medium"]})
            parent = name

    def BlockRemoved(self, event):
        for name in event["block_hashes"]:
            media = self.blocks[name][2]
            media.remove(event["medium"])
            if not media:
                del self.blocks[name]

    def receive(self):
        """Takes a message that comes within a while, unless a replay has told it."""
        if self.socket.poll(20):
            topic, number, payload = self.socket.recv_multipart()
            (number,) = struct.unpack(">q", number)
            self.topics.add(topic)
            if number not in self.numbers:
                self.take(number, payload)

    def cached(self, tokens):
        """How many of a prompt's first tokens the server has, by the tokens of its blocks."""
        known = {(parent, tuple(own)): name for name, (parent, own, _) in self.blocks.items()}
        parent, n = None, 0
        # At least one token is computed.
        while n + BLOCK < len(tokens) + (len(tokens) % BLOCK != 0):
            parent = known.get((parent, tuple(tokens[n:n + BLOCK])))
            if parent is None or n + BLOCK > len(tokens):
                break
            n += BLOCK
        return n


def prompt_of(seed, n):
    return [(seed * 7919 + 31 * i) % 5000 + 100 for i in range(n)]


def ask(server, tokens, **parameters):
    answer = server.complete(tokens, max_tokens=1, ignore_eos=True, **parameters)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def drain(server, *routers):
    """Takes all that the server has told."""
    server.wait_idle()
    deadline = time.monotonic() + 20 * PATIENCE
    while sum(router.n_told for router in routers) < server.metrics()["quire_kv_events_total"]:
        assert time.monotonic() < deadline, (server.metrics(), [router.n_told for router in routers])
        for router in routers:
            router.receive()


@pytest.fixture(scope="module")
def built():
    if not has_zeromq():
        pytest.skip("this quire was built without ZeroMQ")


@pytest.fixture
def pair(built, tmp_path, small_model):
    """A server whose pool holds 48 blocks, and a router that has heard it from the start."""
    ports = free_port(), free_port()
    arguments = ["--kv-events", f"tcp://127.0.0.1:{ports[0]}", "--kv-events-replay",
                 f"tcp://127.0.0.1:{ports[1]}", "--max-model-len", 2048, "--max-num-seqs", 4,
                 "--kv-cache-memory", "39M"]
    with Router(ports[0]) as router, Server(tmp_path, *arguments, model=small_model) as server:
        router.listen(server, ports[1])
        router.replay_port = ports[1]
        yield server, router


def replay(router, port, first=0):
    """Asks for all messages from a number on, as vLLM's readers do; returns their numbers."""
    dealer = router.context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, int(5000 * PATIENCE))
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send_multipart([b"", struct.pack(">Q", first)])
    numbers = []
    while True:
        empty, number, payload = dealer.recv_multipart()
        assert empty == b""
        (number,) = struct.unpack(">q", number)
        if number == -1:
            assert payload == b""
            break
        numbers.append(number)
        if number not in router.numbers:
            router.take(number, payload)
    dealer.close()
    return numbers


def test_the_events_say_what_is_cached(pair):
    server, router = pair
    prompts = [prompt_of(i, n) for i, n in enumerate((64, 65, 127, 128, 129, 500, 40))]
    for tokens in prompts:
        ask(server, tokens)
    drain(server, router)
    assert router.topics == {b"kv@127.0.0.1@quire-31m"}
    for tokens in prompts:
        told = router.cached(tokens)
        assert told == ask(server, tokens) == (len(tokens) - 1) // BLOCK * BLOCK
    # A longer text with the same beginning.
    longer = prompts[5] + prompt_of(99, 300)
    drain(server, router)
    assert router.cached(longer) == ask(server, longer) == 448


def test_evicted_blocks_are_removed(pair):
    """Prompts far beyond the pool: at each moment the events say what is left."""
    server, router = pair
    total = server.metrics()["quire_kv_pages_total"]
    prompts = [prompt_of(1000 + i, 700) for i in range(12)]
    for tokens in prompts:
        ask(server, tokens)
    drain(server, router)
    assert "BlockRemoved" in router.kinds
    n_layers = 12
    assert len(router.blocks) <= total / n_layers
    found = 0
    for tokens in prompts[::-1]:
        told = router.cached(tokens)
        assert told == ask(server, tokens), tokens[:3]
        found += told > 0
        drain(server, router)
    assert 0 < found < len(prompts)


def test_salted_and_sparse_prompts_are_not_told(pair):
    server, router = pair
    drain(server, router)
    before = set(router.blocks)
    salted, sparse = prompt_of(7, 300), prompt_of(8, 1500)
    ask(server, salted, cache_salt="mine")
    assert ask(server, salted, cache_salt="mine") == 256
    ask(server, sparse, prefill="sparse")
    ask(server, prompt_of(9, 300), kv_policy={"type": "streaming", "recent": 64})
    drain(server, router)
    assert set(router.blocks) == before
    assert router.cached(salted) == ask(server, salted) == 0
    drain(server, router)
    assert router.cached(salted) == 256


def test_numbers_have_no_gap_and_a_replay_says_the_same(pair):
    server, router = pair
    for i in range(20):
        ask(server, prompt_of(50 + i, 200))
    drain(server, router)
    assert router.numbers == list(range(len(router.numbers)))
    assert router.kinds[0] == "AllBlocksCleared"
    with Router(free_port()) as late:  # which hears nothing of its own
        numbers = replay(late, router.replay_port)
        assert numbers == router.numbers and late.blocks == router.blocks
        assert replay(late, router.replay_port, first=numbers[-1]) == numbers[-1:]
        assert replay(late, router.replay_port, first=10**6) == []
        for frames in ([b""], [b"", b"short"], [b"", b"12345678", b"more"], [b"12345678"]):
            dealer = late.context.socket(zmq.DEALER)
            dealer.connect(f"tcp://127.0.0.1:{router.replay_port}")
            dealer.send_multipart(frames)
            assert not dealer.poll(100)
            dealer.close()
        assert replay(late, router.replay_port) == numbers
    assert server.metrics()["quire_kv_events_total"] >= 20 * 3
    assert server.metrics()["quire_kv_events_overflows_total"] == 0


def test_blocks_move_to_the_host_pool_and_back(built, tmp_path, small_model):
    port, replays = free_port(), free_port()
    with Server(tmp_path, "--kv-events", f"tcp://127.0.0.1:{port}", "--kv-events-topic", "kv@x@y",
                "--kv-events-replay", f"tcp://127.0.0.1:{replays}",
                "--max-model-len", 2048, "--max-num-seqs", 4, "--kv-cache-memory", "39M",
                "--kv-offload-size", "256M", model=small_model) as server, Router(port, b"kv@x@") as router:
        router.listen(server, replays)
        prompts = [prompt_of(2000 + i, 700) for i in range(12)]
        for tokens in prompts:
            ask(server, tokens)
        drain(server, router)
        media = [media for _, _, media in router.blocks.values()]
        assert {"CPU"} in media and {"GPU"} in media and router.topics == {b"kv@x@y"}
        for tokens in prompts:
            assert router.cached(tokens) == ask(server, tokens) == 640


@pytest.mark.skipif(DEVICE != "cpu", reason="each replica has a GPU of its own")
def test_each_replica_tells_what_it_has(built, tmp_path, small_model):
    """On the port behind the one of the replica before, with its rank; no block is of two replicas."""
    first, replays = free_port(2), free_port(2)
    prompts = [prompt_of(3000 + i, 300) for i in range(8)]
    with Server(tmp_path, "--kv-events", f"tcp://127.0.0.1:{first}", "--kv-events-replay",
                f"tcp://127.0.0.1:{replays}", "--max-model-len", 2048, "--kv-cache-memory", "192M",
                "--data-parallel-size", 2, model=small_model) as server, \
            Router(first) as one, Router(first + 1, rank=1) as other:
        for i, router in enumerate((one, other)):
            router.listen(server, replays + i)
        n_told = server.metrics()["quire_kv_events_total"]
        server.at_once(lambda tokens: ask(server, tokens), prompts)  # one by one, chance may choose one replica
        drain(server, one, other)
        for router in (one, other):
            assert router.topics <= {b"kv@127.0.0.1@quire-31m"} and router.blocks
        told = [(one.cached(tokens), other.cached(tokens)) for tokens in prompts]
        assert sorted(told) == sorted([(256, 0)] * told.count((256, 0)) + [(0, 256)] * told.count((0, 256)))
        assert 0 < told.count((256, 0)) < len(prompts)
        assert server.metrics()["quire_kv_events_total"] - n_told == 4 * len(prompts)


@pytest.mark.parametrize("arguments, said", [
    # No address of this machine.
    (["--kv-events", "tcp://203.0.113.1:5557"], "--kv-events tcp://203.0.113.1:5557: "),
    (["--kv-events", "nothing"], "--kv-events nothing: "),
    (["--kv-events", "inproc://a", "--kv-events-replay", "tcp://*:x"], "--kv-events-replay tcp://*:x"),
    (["--kv-events", "inproc://a", "--no-enable-prefix-caching"],
     "--kv-events needs --enable-prefix-caching")])
def test_wrong_settings_end_the_server(built, tmp_path, arguments, said):
    server = Server(tmp_path, *arguments, wait=False)
    assert server.process.wait(60 * PATIENCE) == 1
    assert said in server.log


def test_replay_without_events_is_a_wrong_command(tmp_path):
    server = Server(tmp_path, "--kv-events-replay", "tcp://*:1", wait=False)
    assert server.process.wait(60 * PATIENCE) == 2
    assert "--kv-events-replay needs --kv-events" in server.log


def test_a_quire_without_zeromq_refuses_by_name(tmp_path):
    if has_zeromq():
        pytest.skip("this quire was built with ZeroMQ")
    server = Server(tmp_path, "--kv-events", "tcp://127.0.0.1:5557", wait=False)
    assert server.process.wait(60 * PATIENCE) == 1
    assert "--kv-events: this program was built without ZeroMQ" in server.log
