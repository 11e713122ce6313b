"""One failed allocation ends a request, or a start, and never the server: a sample of what
scripts/load/fail_allocations.py does with every one."""
import os

import pytest

import failing_memory
from server import BINARY, DEVICE, WRAPPER, Server

pytestmark = pytest.mark.skipif(
    not failing_memory.LIBRARY.exists() or bool(WRAPPER) or DEVICE != "cpu",
    reason="sanitizers, valgrind and CUDA have memory of their own")

KINDS = list(failing_memory.KINDS)
STEP = 11  # of a request's 20 to 120 allocations
START_STEP = 13  # of some 500
MIB = 1 << 20
LOADER_FAILED = 127  # the exit status of ld.so
LOWEST = 60  # MiB in which the libraries may not fit


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    server = failing_memory.Failing(tmp_path_factory.mktemp("failing"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    return failing_memory.write_small_vocabulary(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("n", [1, failing_memory.FOR_EVER], ids=["one", "all_from_there"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_without_memory_ends_alone(failing, kind, n):
    first = 1 + KINDS.index(kind) * 5 % STEP
    faults = list(failing_memory.sweep_request(failing, kind, first, STEP, n))
    assert not faults, "\n".join(faults)


def test_a_start_without_memory_ends_with_a_sentence(tmp_path, small_model):
    results = list(failing_memory.sweep_start(tmp_path, small_model, 3, START_STEP))
    faults = [fault for _, fault in results if fault]
    assert not faults, "\n".join(faults)
    assert sum(failed for failed, _ in results) > 20


def judge_failed_start(status, log, mib):
    last = (log.strip().splitlines() or [""])[-1]
    if status == LOADER_FAILED:  # the libraries alone did not fit
        assert mib == LOWEST and "error while loading shared libraries" in last, log
    else:
        assert status == 1 and " error " in last, (status, log)


@pytest.mark.parametrize("mib", [LOWEST, 90, 120, 150, 180, 250, 400])
def test_little_address_space_is_a_sentence_or_enough(tmp_path, small_model, mib):
    """The limit is what the program's file takes, which is tens of MiB with CUDA's kernels, and so much
    more.  The pool's threads used to be made at the first request, which ended the process."""
    limit = os.path.getsize(BINARY) + mib * MIB
    server = Server(tmp_path, "--threads", 1, "--kv-cache-memory", "4M", "--max-num-seqs", 4,
                    "--max-num-batched-tokens", 64, "--max-model-len", 256, model=small_model,
                    prefix=("prlimit", f"--as={limit}"), wait=False)
    try:
        server.wait_ready()
    except AssertionError:
        judge_failed_start(server.process.returncode, server.log, mib)
        return
    for length in (10, 1000, 1_000_000, 10_000_000):
        reply = server.post("/tokenize", {"prompt": "x " * (length // 2)})
        assert reply.status in (200, 400, 500, 503), reply.body
        if reply.status == 400:
            assert b"JSON" not in reply.body
        assert server.process.poll() is None, server.log
    assert server.stop() == 0
