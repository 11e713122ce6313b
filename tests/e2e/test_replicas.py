"""Two replicas behind nginx, as config/deploy/nginx.conf has it.  scripts/load/replicas.py says what the
trials are, and tries sglang-router, too."""
import json
import subprocess
import sys

import pytest

from server import BINARY, DEVICE, PATIENCE, ROOT, SLOW


@pytest.mark.skipif(SLOW or DEVICE != "cpu", reason="it tries nginx, and takes its time")
def test_a_killed_replica_and_a_rolling_restart():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/load/replicas.py", "--binary", BINARY, "--router", "nginx",
         "--trials", "restart", "kill", "--stream-tokens", "500", "--pause", "1.5"],
        capture_output=True, text=True, timeout=300 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    restart, kill = map(json.loads, done.stdout.splitlines())
    assert restart["exit_statuses"] == [0, 0] and restart["requests"] > restart["lost"] == 0
    assert 0 < kill["lost"] <= max(kill["running_on_each"]) and kill["lost_afterwards"] == 0
