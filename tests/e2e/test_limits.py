"""Limits of a container: the memory plan and the threads stay within those of its control group, and what does not
fit is named."""
import json
import re
import subprocess

import pytest

from server import DEVICE, ROOT, SLOW, Server

MIB = 1 << 20


def in_group(tmp_path, files):
    """The command prefix that shows these files as the container's control group; None: it may not be."""
    lines = [f"printf '%s\\n' '{text}' > /sys/fs/cgroup/{name}" for name, text in files.items()]
    script = tmp_path / f"group-{len(list(tmp_path.iterdir()))}.sh"
    script.write_text("\n".join(["#!/bin/sh", "mount -t tmpfs none /sys/fs/cgroup || exit 99", *lines,
                                 'exec "$@"\n']))
    script.chmod(0o755)
    return ["unshare", "-m", str(script)]


def may_mount(tmp_path):
    done = subprocess.run([*in_group(tmp_path, {}), "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def group(tmp_path):
    if SLOW or DEVICE != "cpu":
        pytest.skip("plans of the CPU, without a sanitizer's memory")
    try:
        if not may_mount(tmp_path):
            pytest.skip("needs a mount namespace")
    except FileNotFoundError:
        pytest.skip("needs unshare")

    def start(files, *arguments, **rest):
        server = Server(tmp_path, *arguments, prefix=in_group(tmp_path, files), wait=False, **rest)
        servers.append(server)
        return server

    servers = []
    yield start
    for one in servers:
        one.stop()


def memory(limit_mib, used_mib, cached_mib=0):
    return {"memory.max": limit_mib * MIB, "memory.current": used_mib * MIB,
            "memory.stat": f"anon 1\ninactive_file {cached_mib * MIB}"}


def pool_mib(server):
    server.wait_logged("memory plan: weights", seconds=20)
    return float(re.search(r"KV pool ([0-9.]+) MiB", server.log)[1])


@pytest.mark.parametrize("files, least, most", [
    (memory(4096, 100), 900, 1000),  # a quarter of what is left
    (memory(4096, 4000, 3900), 900, 1000),  # a former run's weights are still cached
    ({**memory(8192, 0), "memory.high": 4096 * MIB}, 950, 1024),
    ({"memory.max": "max", "memory.current": 1 << 40}, 1500, 1600),  # all that is of use
])
def test_the_pool_stays_within_the_limit(group, files, least, most):
    server = group(files)
    assert least <= pool_mib(server) <= most
    server.wait_ready()
    assert " warn " not in server.log


def test_a_small_container_has_a_shorter_context(group):
    server = group(memory(450, 20))
    server.wait_ready()
    server.wait_logged("listening on")
    assert pool_mib(server) < 120
    context = server.get("/v1/models").json()["data"][0]["max_model_len"]
    assert 4096 < context < 32768
    assert f"warn  memory plan: texts of up to {context} tokens, not the model's 32768" in server.log
    assert server.complete([65] * 4000, max_tokens=1)["usage"]["prompt_tokens"] == 4000


@pytest.mark.parametrize("arguments, says", [
    (("--max-model-len", "32768"), "lower --max-model-len"),
    (("--kv-cache-memory", "600M"), "--kv-cache-memory takes 0.59 GiB"),
    (("--kv-cache-memory", "450M"), "/sys/fs/cgroup/memory.max allows 0.44 GiB"),
    (("--kv-offload-size", "1G", "--max-model-len", "64"), "--kv-offload-size takes 1.00 GiB"),
])
def test_what_can_never_fit_is_refused_by_name(group, arguments, says):
    server = group(memory(450, 20), *arguments)
    assert server.process.wait(60) == 1
    assert says in server.log


def test_what_may_not_fit_is_warned_of(group):
    server = group(memory(1024, 500), "--kv-cache-memory", "700M")
    server.wait_ready()
    server.wait_logged("listening on")
    assert "warn  memory plan: KV pool, host pool and workspace may take" in server.log


def test_random_weights_that_do_not_fit_are_refused(group, tmp_path):
    model = ROOT / "models/quire-31m"
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 400}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(model / name)
    server = group(memory(450, 20), "--load-format", "dummy", model=tmp_path)
    assert server.process.wait(60) == 1
    assert "--load-format dummy: the weights take" in server.log and "/sys/fs/cgroup/memory.max" in server.log


@pytest.mark.parametrize("quota, n_threads", [
    ("100000 100000", 1), ("50000 100000", 1), ("190000 100000", 1), ("99900000 100000", None), ("max 100000", None)])
def test_no_more_threads_than_the_quota_allows(group, tiny_model, quota, n_threads):
    servers = [group({"cpu.max": text}, "--threads", "0", model=tiny_model) for text in (quota, "max 100000")]
    for one in servers:
        one.wait_logged(" threads, ", seconds=20)
    told = [int(re.search(r"(\d+) threads, ", one.log)[1]) for one in servers]
    assert told[0] == (n_threads or told[1])
