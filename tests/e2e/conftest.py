"""Fixtures: a server that the tests of a session share, one for tests that need their own,
a tiny model."""
import ctypes
import json
import os

# Before numpy is there: its products are small here, and threads for each cost more than they do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# glibc gives large arrays back to the system at once, and each new page must be cleared anew.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
if hasattr(libc := ctypes.CDLL(None), "mallopt"):
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)

import pytest

from server import DEVICE, LONG, MODEL, PATIENCE, Server
from small_model import write_small_model
from tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The default model with default settings.  Tests that share it must leave it idle."""
    with Server(tmp_path_factory.mktemp("server")) as shared:
        yield shared


@pytest.fixture(scope="session")
def client(server):
    """The official client of that server."""
    import openai

    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60 * PATIENCE
    ) as one:
        yield one


@pytest.fixture
def serve(tmp_path):
    """serve(*arguments, **rest of Server): a server of the test's own, stopped and checked."""
    servers = []

    def start(*arguments, **rest):
        servers.append(Server(tmp_path, *arguments, **rest))
        return servers[-1]

    yield start
    for one in servers:
        status = one.stop()
        assert status == 0, f"exit status {status}\n{one.log[-8000:]}"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A directory with a random model small enough for thousands of requests under a sanitizer."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """In place of the default model, for tests that compare answers with one another: as many
    layers and heads, pages of the same bytes, and its name, by which filters and patterns are
    found, but a tenth of the work.  With QUIRE_TEST_LONG, and on a GPU, whose bounds are those of
    the default model, it is that one."""
    return small(tmp_path_factory, head_dim=64)


@pytest.fixture(scope="session")
def light_model(tmp_path_factory):
    """The same with pages of fewer bytes, for tests that do not count these: attention takes a
    quarter of the time."""
    return small(tmp_path_factory)


def small(tmp_path_factory, **shape):
    if DEVICE != "cpu" or LONG:
        return MODEL
    directory = tmp_path_factory.mktemp("small") / MODEL.name
    directory.mkdir()
    return write_small_model(directory, **shape)


@pytest.fixture(scope="session")
def goldens():
    with open(MODEL / "goldens.json", encoding="utf-8") as file:
        return json.load(file)["prompts"]


@pytest.fixture(scope="session")
def tokenizer():
    """The independent implementation of the shipped tokenizer."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))
