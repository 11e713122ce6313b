#!/usr/bin/env python3
"""Fails every system call of each phase of a server's life, one after another, and says what died,
hung, answered wrongly or left something behind.

    scripts/load/fail_calls.py [--binary build/quire] [--step N] [--most N] [PHASE ...]

The phases are those of tests/e2e/failing_calls.py: starts, kinds of request, with TLS, with
publishers, with a cache on disk, and the end.  Each call fails in up to three ways.  Prints CSV:
phase, attempts, calls that failed, how often a library then ended the process (LibraryEnds says
which, and where), faults, seconds; at the end how often each call failed, by name.
Faults are explained on standard error, and make the exit status 1.  The binary must lie in its build
folder."""
import argparse
import collections
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help="all of them, if none is named")
    parser.add_argument("--binary", default=str(ROOT / "build" / "quire"))
    parser.add_argument("--first", type=int, default=1, help="the first call that fails")
    parser.add_argument("--step", type=int, default=1, help="fail every N-th call only")
    parser.add_argument("--most", type=int, default=1 << 30, help="attempts of a phase")
    return parser.parse_args()


def run(failing, name, make, asked, counts):
    """Sweeps a phase; returns its faults."""
    begin, n, faults = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory() as directory:
        phase = make(pathlib.Path(directory))
        n_failed = n_library = 0
        for what, failed, fault in failing.sweep(phase, asked.first, asked.step, True, asked.most):
            n, n_failed = n + 1, n_failed + failed
            if failed:
                counts[what] += 1
            if isinstance(fault, failing.LibraryEnds):
                n_library += 1
            elif fault:
                faults.append(fault)
                print(f"{name}, {fault}", file=sys.stderr, flush=True)
        try:
            phase.close()
        except (failing.Fault, AssertionError) as fault:
            faults.append(fault)
            print(f"{name}, at the end: {fault}", file=sys.stderr, flush=True)
    print(f"{name},{n},{n_failed},{n_library},{len(faults)},{time.monotonic() - begin:.0f}", flush=True)
    return faults


def main():
    asked = arguments()
    os.environ["QUIRE_TEST_BINARY"] = os.path.abspath(asked.binary)
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    import failing_calls as failing
    import failing_memory

    counts, n_faults = collections.Counter(), 0
    with tempfile.TemporaryDirectory() as model:
        if not failing.is_usable(model):
            sys.exit("this system does not let a program watch another's calls, or nothing is built")
        phases = failing.phases(failing_memory.write_small_vocabulary(pathlib.Path(model)))
        unknown = set(asked.phases) - set(phases)
        if unknown:
            sys.exit(f"no such phase: {', '.join(unknown)}; there are {', '.join(phases)}")
        print("phase,attempts,failed,by_libraries,faults,seconds")
        for name in asked.phases or phases:
            n_faults += len(run(failing, name, phases[name], asked, counts))
    print("# " + ", ".join(f"{what} {n}" for what, n in sorted(counts.items())))
    return n_faults > 0


if __name__ == "__main__":
    sys.exit(main())
