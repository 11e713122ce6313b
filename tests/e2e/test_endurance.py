"""A thousand requests of every kind leave nothing behind.

This is also what runs under valgrind: leaving the server's context asserts its exit status, which a
leak spoils."""
import random

from raw import RawConnection
from server import SLOW, WRAPPER, Server

N_REQUESTS = 1000
N_LEFT = 20 if SLOW else 500  # tokens of an answer that its client may not wait for
# Valgrind runs one thread at a time: workers that wait would take most of it.
THREADS = ["--threads", "1"] if WRAPPER else []


def one_request(server, rng, i):
    prompt = [rng.randrange(8000) for _ in range(rng.randrange(1, 40))]
    parameters = {"max_tokens": rng.randrange(0, 4), "echo": True, "ignore_eos": True}
    kind = i % 8
    if kind == 0:
        server.complete(prompt, logprobs=3, **parameters)
    elif kind == 1:
        server.stream(prompt, **parameters)
    elif kind == 2:
        server.complete("some words to read", n=2, best_of=3, temperature=1, seed=i,
                        stop=["a", "xyz"], logit_bias={"5": 1.5}, **parameters)
    elif kind == 3:
        assert server.post("/v1/completions", {"prompt": prompt, "temperature": 7}).status == 400
    elif kind == 4:
        assert server.post("/v1/completions", b'{"prompt": [1, 2').status == 400
    elif kind == 5:
        server.post("/tokenize", {"prompt": "some words to read"})
        assert server.post("/detokenize", {"tokens": prompt}).status == 200
    elif kind == 6:
        with RawConnection(server) as connection:
            connection.send_completion(
                prompt=prompt, stream=bool(i & 8), max_tokens=N_LEFT, ignore_eos=True
            )
            if i & 16:
                connection.socket.recv(10)
    else:
        path = ("/v1/models", "/health", "/metrics", "/nowhere")[i // 8 % 4]
        assert server.get(path).status in (200, 404)


def test_a_thousand_mixed_requests(tmp_path, tiny_model):
    rng = random.Random(1000)
    with Server(tmp_path, *THREADS, model=tiny_model) as server:
        for i in range(N_REQUESTS // 5):
            one_request(server, rng, i)
        server.wait_idle(20)
        warm = server.resident_bytes()
        for i in range(N_REQUESTS // 5, N_REQUESTS):
            one_request(server, rng, i)
        server.wait_idle(20)
        if not SLOW and not WRAPPER:
            # Cached pages of the pool may still be touched first.
            assert server.resident_bytes() - warm < 24 << 20
