"""What goes wrong inside the model stays inside the request that met it."""
import random
import threading

import pytest

from server import INVARIANT, SLOW
from tiny_model import write_tiny_model

POISON = 4711  # the token whose embedding is not a number
N_REQUESTS = 16 if SLOW else 48


@pytest.fixture(scope="module")
def poisoned_model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("poisoned"), nan_token=POISON)


def prompt_of(rng, poisoned):
    prompt = [rng.randrange(10, 4000) for _ in range(rng.randrange(2, 300))]
    if poisoned:
        prompt[rng.randrange(len(prompt))] = POISON
    return prompt


def ask_all(server, bodies):
    """The replies to all of them, asked at once."""
    replies = [None] * len(bodies)

    def ask(i):
        replies[i] = server.post("/v1/completions", bodies[i])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


def test_a_request_that_is_not_a_number_fails_alone(serve, poisoned_model):
    """A third of the requests meet the poison.  The pool is so small that the others get the pages
    that it has been in, whole and in part: what is left there must not reach them."""
    rng = random.Random(7)
    poisoned = [i % 3 == 0 for i in range(N_REQUESTS)]
    bodies = [{"prompt": prompt_of(rng, bad), "max_tokens": 12, "temperature": 0,
               "ignore_eos": True} for bad in poisoned]
    server = serve("--kv-cache-memory", "264K", "--max-model-len", "512", *INVARIANT,
                   model=poisoned_model)
    alone = [server.post("/v1/completions", body) for body in bodies]
    server.wait_idle()
    together = ask_all(server, bodies)
    for bad, one, many in zip(poisoned, alone, together, strict=True):
        for reply in (one, many):
            assert reply.status == (500 if bad else 200), reply.body
            if bad:
                assert "not a number" in reply.error["message"]
        if not bad:
            assert one.json()["choices"] == many.json()["choices"]
    server.wait_idle()
    assert server.get("/health").status == 200
