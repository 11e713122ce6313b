"""--batch-invariant: a request's answer has the same bits among others as alone, and however its
prompt is cut into steps."""
import argparse
import contextlib
import sys

from server import ROOT, SLOW

sys.path.insert(0, str(ROOT / "scripts/load"))
import check_invariance  # noqa: E402  the script that is also run by hand, with more requests


def test_mixed_requests_equal_the_same_ones_alone(serve, small_model):
    options = argparse.Namespace(requests=24 if SLOW else 70, context=1000, max_tokens=32, seed=7,
                                 clients=24, timeout=600)
    # Few pages and small steps: requests wait for room, and prompts are cut in many places.
    together = serve("--batch-invariant", "--max-num-batched-tokens", 48, "--max-num-seqs", 24,
                     "--max-model-len", 2048, "--kv-cache-memory", "64M", model=small_model)
    alone = serve("--batch-invariant", "--no-enable-prefix-caching", model=small_model)
    faults, summary = check_invariance.check(contextlib.nullcontext(together.url),
                                             contextlib.nullcontext(alone.url), options)
    assert not faults, "\n".join([*faults[:5], summary])
    assert "\nquire_preemptions_total 0\n" in together.get("/metrics").body.decode()
