"""One system call that fails ends a request, or a start, and never the server: a sample of what
scripts/load/fail_calls.py does with every one; QUIRE_TEST_LONG tries them all."""

import pytest

import failing_calls
import failing_memory
from server import DEVICE, LONG, SLOW, WRAPPER

# How far apart, of the 30 calls of a request, 100 of the disk's, 130 of an end, 450 of a start.
STEPS = {"start": 11, "full_start": 41, "end": 11, "disk": 3, "killed_disk": 9}
REQUESTS = ("whole", "streamed", "choices", "tokenize", "bad_json", "left", "tls_streamed",
            "everything_whole")


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("small")
    if bool(WRAPPER) or SLOW or DEVICE != "cpu":
        pytest.skip("sanitizers, valgrind and CUDA make calls of their own")
    if not failing_calls.is_usable(directory):
        pytest.skip("this system lets no program watch another's calls")
    return failing_memory.write_small_vocabulary(directory)


@pytest.mark.parametrize("name", failing_calls.phases(None) if LONG else (*STEPS, *REQUESTS))
def test_a_failed_call_ends_no_server(tmp_path, small_model, name):
    phase = failing_calls.phases(small_model)[name](tmp_path)
    first = 1 + len(name) % 5
    step = 1 if LONG else STEPS.get(name, 5)
    # A slow attempt makes more calls: a busy machine must not make the sample longer.
    most = 1 << 30 if LONG else 40
    results = list(failing_calls.sweep(phase, first, step, every_variant=LONG, most=most))
    phase.close()
    faults = [str(fault) for _, _, fault in results
              if fault and not isinstance(fault, failing_calls.LibraryEnds)]
    assert not faults, "\n".join(faults)
    assert sum(failed for _, failed, _ in results) >= 3
