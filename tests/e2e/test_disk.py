"""--kv-disk-path: prefixes and states of conversations survive restarts and kills, and nothing that
happens to the folder changes an answer.  The tier by itself is tested in tests/kv/test_disk.c, whole
engines to the bit in tests/engine/test_disk.c."""
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess

import pytest

from composition import prompt_of, text_of
from disk_kills import HEAVY, PROMPTS, Kills
from server import BINARY, DEVICE, INVARIANT, Server

SMALL = ("--kv-cache-memory", {"cpu": "24M", "cuda": "12M"}[DEVICE], "--max-model-len", 1024)
N_KILLS = int(os.environ.get("QUIRE_TEST_DISK_KILLS", 8))


@pytest.fixture
def start(tmp_path, small_model):
    """Starts servers on one folder, one after the other.  They must end well, or be killed."""
    servers = []

    def on_disk(*arguments, **rest):
        servers.append(Server(tmp_path, *SMALL, "--kv-disk-path", tmp_path / "cache", *arguments,
                              model=small_model, **rest))
        return servers[-1]

    yield on_disk
    for one in servers:
        status = one.stop()
        assert status in (0, -signal.SIGKILL), f"exit status {status}\n{one.log[-8000:]}"


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def ask(server, prompt, **parameters):
    return server.complete(prompt, **{"max_tokens": 20, **parameters}, ignore_eos=True, logprobs=0,
                           return_token_ids=True)


def said(answer):
    choice = answer["choices"][0]
    return choice["token_ids"], choice["logprobs"] if DEVICE == "cpu" else None


def begins_alike(answer, other):
    """On a GPU rows behind a cached prefix are summed in another order, and a near tie may turn the text:
    only its first tokens must be the same."""
    n = None if DEVICE == "cpu" else 5
    (ours, probabilities), (theirs, others) = said(answer), said(other)
    return ours[:n] == theirs[:n] and probabilities == others


def whole_blocks(prompt):
    return (len(prompt) - 1) // 64 * 64


def test_prefixes_survive_a_restart(start):
    """They do not fit the pages together, so some are written when they are evicted, others at the
    end."""
    server = start()
    first = [ask(server, prompt) for prompt in PROMPTS]
    assert all(cached(answer) == 0 for answer in first)
    server.stop()
    server = start()
    assert "cache on disk" in server.log
    for prompt, before in zip(PROMPTS, first):
        again = ask(server, prompt)
        assert cached(again) == whole_blocks(prompt)
        assert begins_alike(again, before)
    m = server.metrics()
    assert m["quire_kv_disk_hits_total"] >= sum(whole_blocks(p) // 64 for p in PROMPTS)
    assert m["quire_kv_disk_read_bytes_total"] > 0
    assert m["quire_kv_disk_refused_total"] == m["quire_kv_disk_failed_total"] == 0
    assert m["quire_kv_disk_bytes"] <= m["quire_kv_disk_max_bytes"] == 16 << 30


def test_a_pause_is_enough(start):
    """What is cached is saved while there are no requests: a kill behind that loses nothing."""
    server = start()
    before = ask(server, PROMPTS[0])
    n_blocks = whole_blocks(PROMPTS[0] + before["choices"][0]["token_ids"]) // 64
    server.wait_for("quire_kv_disk_written_total", n_blocks)
    server.process.kill()
    server.process.wait()
    again = ask(start(), PROMPTS[0])
    assert cached(again) == whole_blocks(PROMPTS[0]) and said(again) == said(before)


def test_conversations_go_on_after_restarts(start):
    """As if there had been none: bounded caches leave whole states."""
    def turns(next_server):
        prompt, out = prompt_of(200), []
        for i in range(4):
            answer = ask(next_server(i), prompt, kv_policy=HEAVY, cache_salt="same")
            out.append((said(answer), cached(answer), answer["usage"]["kv"]))
            prompt = prompt + answer["choices"][0]["token_ids"] + prompt_of(30, seed=i + 1)
        return out

    servers = []

    def restarted(_):
        if servers:
            servers[-1].stop()
        servers.append(start())
        return servers[-1]

    after_restarts = turns(restarted)
    servers[-1].stop()
    shutil.rmtree(servers[-1].log_path.parent / "cache")
    one = start()
    assert turns(lambda _: one) == after_restarts
    assert [found for _, found, _ in after_restarts] == [0, 219, 269, 319]


def test_salts_stay_apart_and_mean_the_same(start):
    server = start()
    for salt in ("one", "two"):
        assert cached(ask(server, PROMPTS[0], cache_salt=salt)) == 0
    server.stop()
    server = start()
    for salt in ("one", "two"):
        assert cached(ask(server, PROMPTS[0], cache_salt=salt)) == whole_blocks(PROMPTS[0])
    for salt in ({"cache_salt": "three"}, {}):
        assert cached(ask(server, PROMPTS[0], **salt)) == 0


def test_many_at_once_find_their_prefixes(start):
    """More than read at a time, and more than there are pages for."""
    server = start(*INVARIANT)
    first = [ask(server, prompt) for prompt in PROMPTS]
    server.stop()
    server = start(*INVARIANT)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        again = list(threads.map(lambda prompt: ask(server, prompt), PROMPTS * 3))
    assert [said(a)[0] for a in again] == [said(a)[0] for a in first] * 3
    # What is evicted once more before its request starts may be computed after all.
    n_whole = 3 * sum(whole_blocks(prompt) for prompt in PROMPTS)
    assert sum(cached(answer) for answer in again) > 0.7 * n_whole
    server.wait_idle()


def spoil(folder, rng):
    """Half of the files: a bit, or the end is missing."""
    n = 0
    for path in folder.glob("[0-9a-f][0-9a-f]/*"):
        if rng.random() < 0.5:
            continue
        data = bytearray(path.read_bytes())
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data[:at] if rng.random() < 0.3 else data)
        n += 1
    return n


def test_spoilt_files_change_no_answer(start, tmp_path):
    rng = random.Random(1)
    server = start()
    first = [ask(server, prompt) for prompt in PROMPTS]
    server.stop()
    assert spoil(tmp_path / "cache", rng) > 10
    server = start()
    assert [said(ask(server, prompt)) for prompt in PROMPTS] == [said(a) for a in first]
    assert server.metrics()["quire_kv_disk_refused_total"] > 0


def test_a_folder_is_for_one_server(start, tmp_path):
    start()
    second = Server(tmp_path, "--kv-disk-path", tmp_path / "cache", wait=False)
    assert second.process.wait(30) == 1
    assert "another server uses this folder" in second.log


@pytest.mark.parametrize("arguments, why", [
    (("--no-enable-prefix-caching",), "--kv-disk-path needs --enable-prefix-caching"),
    (("--kv-disk-path", "/dev/null"), "/dev/null"),
    (("--kv-disk-path", "/proc/quire/none"), "/proc/quire/none"),
])
def test_what_cannot_be_used_ends_the_start(tmp_path, arguments, why):
    server = Server(tmp_path, "--kv-disk-path", tmp_path / "cache", *arguments, wait=False)
    assert server.process.wait(30) == 1
    assert why in server.log


def test_a_full_disk_costs_only_hits(start):
    """Here one that takes no file larger than 100 KB."""
    server = start(prefix=("prlimit", "--fsize=100000", "env", "--ignore-signal=XFSZ"))
    first = ask(server, PROMPTS[0])
    server.wait_for("quire_kv_disk_failed_total", 1)
    server.wait_logged("the cache on disk:")
    again = ask(server, PROMPTS[0])
    assert said(again) == said(first) and cached(again) > 0  # from memory
    assert server.metrics()["quire_kv_disk_items"] == 0


def test_the_size_is_kept(start, tmp_path):
    server = start("--kv-disk-size", "8M")
    for prompt in PROMPTS:
        ask(server, prompt)
    server.stop()
    files = list((tmp_path / "cache").glob("[0-9a-f][0-9a-f]/*"))
    assert 0 < sum(path.stat().st_size for path in files) <= 8 << 20
    assert cached(ask(start("--kv-disk-size", "8M"), PROMPTS[-1])) > 0


def test_kills_at_any_moment_change_no_answer(tmp_path):
    trial = Kills(tmp_path)
    for _ in range(N_KILLS):
        trial.kill_once()
    assert trial.finish() > 0


def test_help_says_where(start):
    text = subprocess.run([BINARY, "serve", "--help-all"], capture_output=True, text=True,
                          check=True).stdout
    assert "--kv-disk-path" in text and "--kv-disk-size" in text
