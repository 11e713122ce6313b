#!/usr/bin/env python3
"""Lets clients leave in every phase of a request, under every KV policy and every way to read a
prompt, and checks after each departure that not one page, host block or place in the queue is taken.

    scripts/load/departures.py [--binary build/quire] [--times 50] [CELL ...]

The cells are those of tests/e2e/departures.py.  Prints CSV: cell, departures, seconds.  The first
thing that is left behind ends the program with status 1."""
import argparse
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL")
    parser.add_argument("--binary", default=str(ROOT / "build" / "quire"))
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_args()
    os.environ["QUIRE_TEST_BINARY"] = os.path.abspath(options.binary)
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from departures import CELLS, Departures
    with tempfile.TemporaryDirectory() as directory:
        trial = Departures(pathlib.Path(directory))
        print("cell,departures,seconds")
        for cell in options.cells or CELLS:
            begun = time.monotonic()
            trial.run(cell, options.times)
            print(f"{cell},{options.times},{time.monotonic() - begun:.1f}", flush=True)
        if any(trial.close()):
            sys.exit("a server did not end well")


if __name__ == "__main__":
    main()
