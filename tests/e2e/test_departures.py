"""Clients that leave in every phase of a request leave nothing behind: a short form of
scripts/load/departures.py."""
import pytest

from departures import CELLS, Departures
from server import DEVICE, SLOW


@pytest.fixture(scope="module")
def departures(tmp_path_factory, small_model):
    trial = Departures(tmp_path_factory.mktemp("departures"), small_model)
    yield trial
    assert set(trial.close()) == {0}


# What CUDA refuses by name has no cell there.
CPU_ONLY = ("filters",)


@pytest.mark.parametrize("cell", [cell for cell in CELLS
                                  if DEVICE == "cpu" or not cell.startswith(CPU_ONLY)])
def test_a_client_that_leaves_leaves_nothing_behind(departures, cell):
    departures.run(cell, 1 if SLOW else 2)
