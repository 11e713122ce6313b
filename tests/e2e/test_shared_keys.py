"""Selections on a model whose last layers read the keys of earlier ones, against the oracle: what a
filter chooses holds for all layers that read a sparse layer's keys."""
import pytest

import test_offload_oracle
from offload_oracle import Selection
from oracle_model import Model
from precision import PRECISE
from server import INVARIANT, Server
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


@pytest.mark.parametrize("n_prompt", [257, 411])
def test_a_last_row_by_itself_answers_the_same(tmp_path, n_prompt):
    """A chunk of more than 256 rows leaves the prompt's last one to the next step; the other server has
    no such chunk."""
    model = link_checkpoint(tmp_path / "model", CHECKPOINTS["gemma4_shared"])
    answers = []
    for n_rows in (512, 128):
        with Server(tmp_path, *PRECISE, *INVARIANT, "--max-num-batched-tokens", n_rows,
                    "--max-num-seqs", 4, "--kv-cache-memory", "64M", model=model) as one:
            answers.append(one.complete(tokens_of(n_prompt, 7), max_tokens=16, logprobs=3, ignore_eos=True,
                                        return_token_ids=True)["choices"][0])
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert answers[0]["logprobs"] == answers[1]["logprobs"]
