"""Fixtures: one server for all clients."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from server import Server  # noqa: E402

MODEL = "quire-31m"


class KeyedServer(Server):
    """A server that asks for a key, which its own requests carry."""

    def request(self, method, path, body=None, headers=None, timeout=60):
        return super().request(method, path, body,
                               {"Authorization": "Bearer secret", **(headers or {})}, timeout)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with KeyedServer(tmp_path_factory.mktemp("server"), "--api-key", "secret") as one:
        yield one
        one.wait_idle()


@pytest.fixture(scope="session")
def said(server):
    """What the model says to `Hello there`, greedily, asked without any client."""
    reply = server.post("/v1/chat/completions",
                        {"messages": [{"role": "user", "content": "Hello there"}],
                         "temperature": 0, "max_tokens": 12})
    return reply.json()["choices"][0]["message"]["content"]
