"""--data-parallel-size: several engines behind one port answer as one does, texts go where their beginning is
cached, each has a folder of its own on disk, and metrics tell of each.

The choice itself is tested by tests/server/test_router.c, failures by test_replicas.c and test_serve.c."""
import concurrent.futures
import subprocess

import pytest

from composition import prompt_of, text_of
from server import BINARY, DEVICE, SLOW, Server

N = 2
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
        with pytest.raises(OSError):
            replicas.post("/v1/completions", {"prompt": prompt_of(70, 700 + i), "max_tokens": 1900,
                                              "ignore_eos": True, "stream": False}, timeout=0.2)
    replicas.wait_idle(20)


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


@pytest.mark.parametrize("command", ["bench", "info"])
def test_other_commands_have_one_replica(command, small_model):
    done = subprocess.run([BINARY, command, str(small_model), "--data-parallel-size", "2"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode != 0 and "--data-parallel-size must be 1" in done.stderr, done.stderr
