"""--data-parallel-size: several engines behind one port answer as one does, texts go where their beginning is
cached, each has a folder of its own on disk, and metrics tell of each.

The choice itself is tested by tests/server/test_router.c, failures by test_replicas.c and test_serve.c."""
import concurrent.futures
import shutil
import subprocess
import time

import pytest

from composition import prompt_of
from raw import RawConnection
from server import BINARY, DEVICE, LONG, PATIENCE, SLOW, Server

N = 2
N_LEAVING = 64 if SLOW else 192
N_SHORT = 10000 if LONG else 300 if SLOW else 1000
MEMORY = ("--max-model-len", 2048, "--kv-cache-memory", "192M")
pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="each replica has a GPU of its own")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory, small_model):
    with Server(tmp_path_factory.mktemp("replicas"), "--data-parallel-size", N, *MEMORY,
                model=small_model) as shared:
        yield shared


@pytest.fixture(scope="module")
def single(tmp_path_factory, small_model):
    with Server(tmp_path_factory.mktemp("single"), *MEMORY, model=small_model) as shared:
        yield shared


def of_each(server, name):
    metrics = server.metrics()
    return [metrics[f'quire_replica_{name}{{replica="{i}"}}'] for i in range(N)]


def test_answers_are_those_of_one_replica(replicas, single):
    """Whatever else runs, greedy and sampled, several choices at once, cached or not."""
    n = 12 if SLOW else 48
    before = of_each(replicas, "requests_submitted_total")

    def ask(server, i):
        answer = server.complete(prompt_of(40 + 23 * (i % 9), i % 7), max_tokens=10 + i % 20, seed=i, n=1 + i % 3,
                                 temperature=i % 2 * 0.8, ignore_eos=True, return_token_ids=True)
        return [choice["token_ids"] for choice in answer["choices"]]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: ask(replicas, i), range(n)))
    assert got == [ask(single, i) for i in range(n)]
    after = of_each(replicas, "requests_submitted_total")
    assert all(b > a for a, b in zip(before, after)) and sum(after) - sum(before) == sum(len(one) for one in got)
    replicas.wait_idle()


def test_no_line_of_a_start_is_said_twice(tmp_path, small_model):
    with Server(tmp_path, "--device", "auto", "--data-parallel-size", N, *MEMORY, model=small_model,
                env={"CUDA_VISIBLE_DEVICES": ""}) as server:
        lines = [line.split(" ", 1)[1] for line in server.log.splitlines()]
        assert len(lines) == len(set(lines)), server.log
        assert "running on the CPU" in server.log


def test_a_text_goes_where_its_beginning_is(replicas):
    """Turns of conversations find all whole blocks of the turns before them, as with one replica."""
    texts = [prompt_of(300, 100 + i) for i in range(6)]
    for turn in range(3):
        for i, text in enumerate(texts):
            answer = replicas.complete(text, max_tokens=8, ignore_eos=True, return_token_ids=True)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= (len(text) - 60) // 64 * 64 if turn else cached == 0
            texts[i] = text + answer["choices"][0]["token_ids"] + prompt_of(40, 1000 + 10 * i + turn)
    replicas.wait_idle()


def test_metrics_are_sums_and_of_each(replicas):
    for i in range(4):
        replicas.complete(prompt_of(90, 500 + i), max_tokens=5, ignore_eos=True)
    replicas.wait_idle()
    metrics = replicas.metrics()
    assert of_each(replicas, "healthy") == [1, 1]
    for name in ("requests_submitted_total", "prompt_tokens_total", "cached_tokens_total", "generated_tokens_total"):
        assert sum(of_each(replicas, name)) == metrics[f"quire_{name}"], name
    assert min(of_each(replicas, "generated_tokens_total")) > 0


def test_one_replica_has_no_numbers_of_its_own(single):
    """Only that it is healthy, which the alert looks for."""
    assert [name for name in single.metrics() if "replica" in name] == ['quire_replica_healthy{replica="0"}']


def test_a_request_is_cancelled_on_its_replica(replicas):
    for i in range(N + 1):
        with RawConnection(replicas) as client, replicas.taking(1):
            client.send_completion(prompt=prompt_of(70, 700 + i), max_tokens=1900, ignore_eos=True)
    replicas.wait_idle()


def test_each_replica_has_a_folder_of_its_own(tmp_path, small_model):
    """After a restart texts go where they were, and are found there; the bound is that of all folders."""
    prompts = [prompt_of(200 + 64 * i, 900 + i) for i in range(8)]

    def run():
        with Server(tmp_path, "--data-parallel-size", N, *MEMORY, "--kv-disk-path", tmp_path / "cache",
                    "--kv-disk-size", "256M", model=small_model) as server:
            answers = [server.complete(prompt, max_tokens=10, ignore_eos=True, return_token_ids=True)
                       for prompt in prompts]
            used, metrics = of_each(server, "requests_submitted_total"), server.metrics()
            assert server.stop() == 0
        return used, metrics, answers

    used, metrics, first = run()
    assert min(used) > 0 and metrics["quire_kv_disk_max_bytes"] == 256 << 20
    for i in range(N):
        assert list((tmp_path / "cache" / f"replica-{i}").rglob("*")), i
    used, metrics, again = run()
    assert min(used) > 0
    for prompt, one, other in zip(prompts, first, again):
        assert other["choices"][0]["token_ids"] == one["choices"][0]["token_ids"]
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(prompt) - 1) // 64 * 64
    assert metrics["quire_kv_disk_hits_total"] >= sum((len(prompt) - 1) // 64 for prompt in prompts)


def answer_of(server, prompt):
    answer = server.complete(prompt, max_tokens=10, ignore_eos=True, return_token_ids=True)
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_replica_that_cannot_write_loses_only_what_is_on_disk(tmp_path, small_model):
    """Its folder is gone, so that each of its files is refused, as on a full disk."""
    prompts = [prompt_of(200, 950 + i) for i in range(8)]
    with Server(tmp_path, "--data-parallel-size", N, *MEMORY, "--kv-disk-path", tmp_path / "cache",
                model=small_model) as server:
        shutil.rmtree(tmp_path / "cache" / "replica-1")
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:  # so that each replica has some
            first = list(pool.map(lambda prompt: answer_of(server, prompt), prompts))
        assert min(of_each(server, "requests_submitted_total")) > 0
        server.wait_for("quire_kv_disk_failed_total", 1)
        server.wait_logged("the cache on disk:")
        again = [answer_of(server, prompt) for prompt in prompts]
        assert [tokens for tokens, _ in again] == [tokens for tokens, _ in first]
        assert all(n_cached == 192 for _, n_cached in again)
        assert of_each(server, "healthy") == [1, 1]
    assert list((tmp_path / "cache" / "replica-0").rglob("*"))


def leave(server, i):
    """A client that goes at once, or in the middle of its stream."""
    with RawConnection(server) as connection:
        connection.send_completion(prompt=prompt_of(60 + 20 * (i % 9), 4000 + i), max_tokens=1500, ignore_eos=True,
                                   stream=i % 2 == 0)
        if i % 4 == 0:
            connection.read_until(b"data: {")


def test_clients_that_leave_leave_nothing_behind(replicas):
    before = of_each(replicas, "requests_submitted_total")
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        list(pool.map(lambda i: leave(replicas, i), range(N_LEAVING)))
    replicas.wait_idle(60)
    assert all(b > a for a, b in zip(before, of_each(replicas, "requests_submitted_total")))
    assert of_each(replicas, "requests_running") == of_each(replicas, "requests_waiting") == [0, 0]


def test_sigterm_lets_the_requests_of_all_replicas_finish(tmp_path, small_model):
    with Server(tmp_path, "--data-parallel-size", N, "--shutdown-timeout", 600, *MEMORY, model=small_model) as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            with server.taking(8):
                streams = [pool.submit(server.stream, prompt_of(80, 5000 + i), max_tokens=300, ignore_eos=True,
                                       stream_options={"include_usage": True}) for i in range(8)]
            assert min(of_each(server, "requests_submitted_total")) > 0
            server.terminate()
            for stream in streams:
                assert stream.result()[-1]["usage"]["completion_tokens"] == 300
        assert server.process.wait(30 * PATIENCE) == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_ends_the_loading_of_replicas(tmp_path, small_model, ranks):
    """At moments from its first line to its last weight."""
    for i in range(6):
        server = Server(tmp_path, "--data-parallel-size", N, "--tensor-parallel-size", ranks, "--threads", N * ranks,
                        *MEMORY, model=small_model, wait=False)
        server.wait_logged(" info ")
        time.sleep(0.03 * i * PATIENCE)
        assert server.stop() == 0, server.log


def test_short_requests_leave_no_memory_behind(tmp_path, tiny_model):
    """A fifth of them first: pages of the pool are touched for the first time then."""
    with Server(tmp_path, "--data-parallel-size", N, "--max-model-len", 256, "--kv-cache-memory", "2M",
                model=tiny_model) as server:
        def ask(i):
            way = (server.complete, server.stream)[i % 2]
            way([3 + i % 250, 4 + i // 250 % 250] * (1 + i % 20), max_tokens=1 + i % 3)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(N_SHORT // 5)))
            server.wait_idle()
            warm = server.resident_bytes()
            list(pool.map(ask, range(N_SHORT // 5, N_SHORT)))
            server.wait_idle()
        grown = server.resident_bytes() - warm
        print(f"{grown} bytes after {N_SHORT} requests")
        assert min(of_each(server, "requests_submitted_total")) > 0
        if not SLOW:
            assert grown < 1 << 20


@pytest.mark.parametrize("command", ["bench", "info"])
def test_other_commands_have_one_replica(command, small_model):
    done = subprocess.run([BINARY, command, str(small_model), "--data-parallel-size", "2"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode != 0 and "--data-parallel-size must be 1" in done.stderr, done.stderr
