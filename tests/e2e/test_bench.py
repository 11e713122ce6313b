"""`quire bench`: what fits is run, what does not is named, and how far it is stands on standard
error."""
import csv
import re
import subprocess

import pytest

from server import BINARY, DEVICE, PATIENCE, WRAPPER

PAGE = 32 << 10  # bytes of 64 tokens in all layers of the tiny model, in 32 bits


def bench(model, *arguments):
    """Rows of the table, by phase, prompt and batch; the comments; what was said."""
    done = subprocess.run(
        [*WRAPPER, BINARY, "bench", str(model), "--device", DEVICE, "--runs", "1",
         "--kv-cache-dtype", "float32", "--max-resident", "0", *map(str, arguments)],
        capture_output=True, text=True, timeout=120 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    comments = [line for line in done.stdout.splitlines() if line.startswith("#")]
    table = csv.DictReader(line for line in done.stdout.splitlines() if not line.startswith("#"))
    rows = {(row["phase"], int(row["prompt_tokens"]), int(row["sequences"])): row for row in table}
    return rows, comments, done.stderr


@pytest.mark.skipif(DEVICE != "cpu", reason="counts the CPU backend's pages")
@pytest.mark.parametrize("n_prompt,batch,n_generate,step,n_pages", [
    (256, 64, 2, 2048, 374),  # the last prompt wants a page besides for each that runs
    (100, 37, 40, 300, 111),  # what all have at the end counts
])
def test_what_fits_the_pool_is_run(tiny_model, n_prompt, batch, n_generate, step, n_pages):
    """A pool that is large enough is not refused, one that is a page too small is not tried."""
    for n in (n_pages - 1, n_pages):
        rows, comments, _ = bench(
            tiny_model, "--prompts", n_prompt, "--batches", batch, "--generate", n_generate,
            "--max-num-batched-tokens", step, "--max-model-len", 512, "--max-num-seqs", 128,
            "--kv-cache-memory", n * PAGE)
        # Steps this short may all be over before the first is seen: then no rate is given.
        unmeasured = f"# decode,{n_prompt},{batch} not measured: no step decoded all sequences"
        is_run = ("decode", n_prompt, batch) in rows or unmeasured in comments
        said = f"# decode,{n_prompt},{batch} not run: exceeds the KV pool" in comments
        assert is_run == (n == n_pages) and said != is_run, comments


def test_what_cannot_run_is_named(tiny_model):
    rows, comments, _ = bench(tiny_model, "--prompts", "64,4000", "--batches", "4,9", "--generate",
                              100, "--max-num-seqs", 8, "--max-model-len", 1000)
    assert "# prefill,4000 not run: exceeds --max-model-len" in comments
    assert "# decode,64,9 not run: exceeds --max-num-seqs" in comments
    assert "# decode,4000,4 not run: exceeds --max-model-len" in comments
    assert set(rows) == {("prefill", 64, 1), ("decode", 64, 4)}


def test_how_far_it_is_is_told(tiny_model):
    rows, _, said = bench(tiny_model, "--prompts", "64,512", "--batches", "1,8", "--generate", 100)
    assert len(rows) == 6
    assert re.search(r"^bench: takes at least \d+ s, the time at this machine's bounds$", said,
                     re.MULTILINE)
    progress = re.findall(r"^bench: \[#*-*\] +(\d+) %, .* left: (prefill|decode) of ", said,
                          re.MULTILINE)
    shares = [int(share) for share, _ in progress]
    assert shares == sorted(shares) and shares[-1] == 99 and len(shares) > 2
    assert {"prefill", "decode"} <= {phase for _, phase in progress}
