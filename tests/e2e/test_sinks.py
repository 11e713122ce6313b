"""A model with an attention sink needs the first token, wherever the window has got to, and needs it
near: at the distance that the cache makes, not that of the text."""
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


def table_of(url, *arguments):
    """{the tokens of a row: {column: nats}}, and all of it as it was printed."""
    text = run_script("quality/streaming_perplexity.py", "--url", url, "--window", WINDOW, *arguments)
    rows = {row.pop("tokens"): row for row in csv.DictReader(io.StringIO(text))}
    return {name: row for name, row in rows.items() if name[0].isdigit()}, text


@pytest.mark.skipif(DEVICE != "cpu", reason="about the model, not the device")
def test_a_planted_sink_must_stay_and_stay_near(serve, tmp_path):
    model = tmp_path / "sink"
    run_script("fixtures/plant_sink.py", model, "--windows", 12, "--control", 2, "--rows", 128)
    server = serve("--threads", 2, model=model)
    rows, text = table_of(server.url, "--tokens", 5 * WINDOW, "--bucket", WINDOW)
    first = rows.pop(f"0-{WINDOW - 1}")
    assert first["sink 0 cache"] == first["sink 4 cache"]  # nothing has gone yet
    for row in rows.values():
        assert float(row["sink 0 cache"]) > float(row["sink 4 cache"]) + 1, text
    rows, text = table_of(server.url, "--tokens", 24 * WINDOW, "--bucket", 8 * WINDOW, "--chunk",
                          WINDOW // 4, "--sinks", 4, "--positions", "cache,text")
    first, *later = rows.values()
    for row in later:
        assert float(row["sink 4 cache"]) < float(first["sink 4 cache"]) + 0.5, text
        assert float(row["sink 4 text"]) > float(row["sink 4 cache"]) + 1, text
