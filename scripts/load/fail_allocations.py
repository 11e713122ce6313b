#!/usr/bin/env python3
"""Fails every allocation of a start and of each kind of request, one after another, and says what
died, answered wrongly or left something behind.

    scripts/load/fail_allocations.py [--binary build/quire] [--step N] [--all-from-there] [KIND ...]

Prints CSV: what was tried, runs, allocations that failed, faults.  Faults are explained on standard
error, and make the exit status 1.  The binary must lie in its build folder, built without a
sanitizer."""
import argparse
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="start, or a kind of request")
    parser.add_argument("--binary", default=str(ROOT / "build" / "quire"))
    parser.add_argument("--step", type=int, default=1, help="fail every N-th allocation only")
    parser.add_argument("--all-from-there", action="store_true",
                        help="fail all allocations from one on, not one alone")
    return parser.parse_args()


def report(name, n_runs, n_failed, faults):
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{name},{n_runs},{n_failed},{len(faults)}", flush=True)
    return bool(faults)


def main():
    asked = arguments()
    os.environ["QUIRE_TEST_BINARY"] = os.path.abspath(asked.binary)
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    import failing_memory as failing

    n = failing.FOR_EVER if asked.all_from_there else 1
    failed = False
    print("what,runs,failed,faults")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        if not asked.kinds or "start" in asked.kinds:
            (directory / "model").mkdir()
            model = failing.write_small_vocabulary(directory / "model")
            results = list(failing.sweep_start(directory, model, 1, asked.step, n))
            faults = [fault for _, fault in results if fault]
            failed |= report("start", len(results), sum(count for count, _ in results), faults)
        for kind in asked.kinds or failing.KINDS:
            if kind == "start":
                continue
            server = failing.Failing(directory)
            faults = list(failing.sweep_request(server, kind, 1, asked.step, n))
            try:
                server.close()
            except failing.Fault as fault:
                faults.append(f"{kind}: {fault}")
            failed |= report(kind, server.n_runs, server.n_failed, faults)
    return failed


if __name__ == "__main__":
    sys.exit(main())
