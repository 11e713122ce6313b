"""Conversations at once equal each alone, with clients that leave, too few pages, and states that are
lost: a short form of scripts/load/many_conversations.py."""
import sys

import pytest

from server import DEVICE, ROOT, SLOW

sys.path.insert(0, str(ROOT / "scripts/load"))
import many_conversations  # noqa: E402  the script that is also run by hand, with more of them

pytestmark = pytest.mark.skipif(DEVICE != "cpu" or SLOW,
                                reason="compares texts in other company, several times")

# 26 blocks of 64 tokens: less than what all that runs and all states take.
TIGHT = ("--kv-cache-memory", "20M", "--max-model-len", 1024, "--max-num-seqs", 12)
POLICIES = 11


def trial_of(server, n, *arguments):
    options = many_conversations.read_options(
        ["--conversations", str(n), "--new", "40", "--answer", "4", "12", "--beside", "2", "--long",
         "0.05", *arguments])
    trial = many_conversations.Trial(server, options)
    faults = trial.run()
    trial.report()
    return trial, faults


def total(trial, column):
    return sum(row[column] for row in trial.rows.values())


def test_a_host_pool_has_what_is_evicted(serve, small_model):
    server = serve(*TIGHT, "--kv-offload-size", "256M", model=small_model)
    trial, faults = trial_of(server, 2 * POLICIES, "--turns", "2")
    assert not faults, faults[:5]
    assert server.metrics()["quire_kv_pages_swapped_in_total"] > 0
    assert total(trial, "equal") == 4 * POLICIES and len(trial.rows) == POLICIES


def test_turns_whose_state_is_lost_are_those_of_a_text_read_anew(serve, small_model):
    trial, faults = trial_of(serve(*TIGHT, model=small_model), 10, "--turns", "3", "--seed", "2")
    assert not faults, faults[:5]
    assert total(trial, "anew") > 0 and total(trial, "own") < total(trial, "equal")


def test_states_are_there_as_long_as_pages_are_and_wrong_references_are_seen(serve):
    server = serve()
    trial, faults = trial_of(server, 8, "--turns", "3", "--roomy", "--seed", "3")
    assert not faults, faults[:5]
    assert total(trial, "own") == total(trial, "equal") == 24
    for plant in ("seed", "anew"):
        trial, faults = trial_of(server, 6, "--turns", "2", "--plant", plant, "--seed", "4")
        assert len(faults) >= total(trial, "turns") - total(trial, "equal") > 0
        assert plant == "seed" or trial.rows["full"]["equal"] == 4
