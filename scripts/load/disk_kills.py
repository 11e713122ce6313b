#!/usr/bin/env python3
"""Kills servers with a cache on disk (kill -9) at random moments, and checks that no answer before or
after is another than that of a server that was never killed, and that every file is sound or gone.

    scripts/load/disk_kills.py [--binary build/quire] [--kills 200] [--seed 7]

Every server uses the folder that the former one left behind.  Prints CSV for every 20 kills: kills,
whole answers, tokens that they found in the cache, kills that left unfinished files, seconds; at the
end what the last server finds.  The first wrong answer ends the program with status 1."""
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
    parser.add_argument("--binary", default=str(ROOT / "build" / "quire"))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    os.environ["QUIRE_TEST_BINARY"] = os.path.abspath(options.binary)
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from disk_kills import Kills
    begun, answers, found, cut = time.monotonic(), 0, 0, 0
    with tempfile.TemporaryDirectory() as directory:
        trial = Kills(pathlib.Path(directory), options.seed)
        print("kills,answers,found_tokens,kills_in_a_write,seconds")
        for n in range(1, options.kills + 1):
            n_answers, n_found, n_cut = trial.kill_once()
            answers, found, cut = answers + n_answers, found + n_found, cut + (n_cut > 0)
            if n % 20 == 0 or n == options.kills:
                print(f"{n},{answers},{found},{cut},{time.monotonic() - begun:.0f}", flush=True)
        print(f"# the last server finds {trial.finish()} tokens, and refuses no file")


if __name__ == "__main__":
    main()
