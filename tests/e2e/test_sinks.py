"""A model with an attention sink needs the first token, wherever the window has got to."""
import csv
import io
import subprocess
import sys

import pytest

from server import DEVICE, ROOT

WINDOW = 64


def run_script(name, *arguments):
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(DEVICE != "cpu", reason="about the model, not the device")
def test_a_planted_sink_must_stay(serve, tmp_path):
    model = tmp_path / "sink"
    run_script("plant_sink.py", model, "--windows", 12, "--control", 2, "--rows", 128)
    server = serve("--threads", 2, model=model)
    table = run_script("streaming_perplexity.py", "--url", server.url, "--tokens", 5 * WINDOW,
                       "--window", WINDOW, "--bucket", WINDOW)
    rows = {row["tokens"]: row for row in csv.DictReader(io.StringIO(table))}
    first = rows.pop(f"0-{WINDOW - 1}")
    assert first["sink 0"] == first["sink 4"]  # nothing has gone yet
    for name, row in rows.items():
        if name[0].isdigit():
            assert float(row["sink 0"]) > float(row["sink 4"]) + 1, table
