"""Selections on a model whose last layers read the keys of earlier ones, against the oracle: what a
filter chooses holds for all layers that read a sparse layer's keys."""
import pytest

import test_offload_oracle
from offload_oracle import Selection
from oracle_model import Model
from precision import PRECISE
from server import Server
from test_families import CHECKPOINTS, CONTEXT, DATA, link_checkpoint
from test_offload_windows import tokens_of

FILTERS, WAIT = (1,), 0  # layer 3 follows, whose keys layers 5 and 6 read


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared")
    model = link_checkpoint(directory / "model", CHECKPOINTS["gemma4_shared"])
    filters = test_offload_oracle.write_filters(directory / "filters.json", FILTERS, WAIT)
    with Server(directory, *PRECISE, "--max-num-seqs", 8, "--max-model-len", CONTEXT,
                "--max-num-batched-tokens", 160, "--kv-cache-memory", "64M", "--kv-offload-size",
                "16M", "--filters-file", filters, "--no-enable-prefix-caching", model=model) as one:
        yield one


def test_layers_with_keys_are_listed(server):
    listed = server.get("/v1/models").json()["data"][0]["offload"]["layers"]
    assert listed == {"filter": [1], "sparse": [3], "windowed": [0, 2], "dense": []}


@pytest.mark.parametrize("offload", [False, True], ids=["not_moved", "moved"])
def test_answers_are_the_oracles(server, offload):
    oracle = Model(DATA / CHECKPOINTS["gemma4_shared"])
    selection = Selection(FILTERS, WAIT, selected=64, tail=64)
    questions = [(tokens_of(n, n), selection, offload, 50) for n in (240, 300, 410)]
    texts = test_offload_oracle.check_answers(server, oracle, questions)
    assert all(0 < text.n_fetched < text.n_chosen for text in texts)
    server.wait_idle()
