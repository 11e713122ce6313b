#!/usr/bin/env python3
"""Offers a running server ten times what it can do, and says what is left of its goodput and how long a
refusal takes.

    quire serve --max-num-seqs 8 --max-num-queued-reqs 8 &
    scripts/load/overload.py --clients 16

The capacity is the goodput of a closed loop of --clients, as many as the server lets run and wait.  It is
measured before and after each overload, and the mean of the two counts: a machine that others use, too, is
not the same for long.  An overload is an open loop of --times that rate for --seconds.  Both are
loadtest.py's, with its limits on the first token and on each further one.  The clients run on this machine.

What the machine itself adds is measured beside it: a process that only sleeps notes how late it is woken
(lag).  A refusal takes two such wakes, of the server's loop and of the client.

Prints CSV, a line for each run and one of medians.  Exits 1 when the median goodput is below --least of the
capacity, or the 99th percentile of refusals above --within milliseconds."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

LOADTEST = pathlib.Path(__file__).resolve().parent / "loadtest.py"
COLUMNS = ("capacity_per_s", "offered_per_s", "goodput_per_s", "share_percent", "refused",
           "refused_p50_ms", "refused_p99_ms", "refused_max_ms", "lag_p99_ms", "lag_max_ms", "failed", "load_average")
# Sleeps until its standard input ends.
SLEEPER = """
import select, sys, time
late = []
while True:
    due = time.monotonic() + 0.005
    if select.select([sys.stdin], [], [], 0.005)[0]:
        break
    late.append(1000 * (time.monotonic() - due))
late.sort()
print(late[int(0.99 * len(late))], late[-1])
"""


class Lag:
    """How late a process is woken while the block runs."""

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", SLEEPER], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_):
        self.p99_ms, self.max_ms = map(float, self.process.communicate()[0].split())


def loadtest(options, seed, *arguments):
    done = subprocess.run(
        [sys.executable, LOADTEST, "--url", options.url, "--json", "--seed", str(seed),
         "--prompt-tokens", str(options.prompt_tokens), "--max-tokens", str(options.max_tokens),
         "--goodput-ttft", str(options.ttft), "--goodput-itl", str(options.itl),
         *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return json.loads(done.stdout)


def measure_capacity(options, seed):
    result = loadtest(options, seed, "--clients", options.clients,
                      "--requests", options.capacity_requests)
    if result["goodput"]["requests_per_s"] == 0:
        sys.exit("overload: no answer of the closed loop is within --ttft and --itl")
    return result["goodput"]["requests_per_s"]


def run_once(options, seed):
    before = measure_capacity(options, seed)
    rate = options.times * before
    with Lag() as lag:
        over = loadtest(options, seed + 1, "--rate", rate,
                        "--requests", round(rate * options.seconds))
    load_average = os.getloadavg()[0]
    capacity = (before + measure_capacity(options, seed + 2)) / 2
    refused = over.get("refused", {"requests": 0, "ms": {"p50": 0, "p99": 0, "max": 0}})
    return {"capacity_per_s": capacity, "offered_per_s": rate,
            "goodput_per_s": over["goodput"]["requests_per_s"],
            "share_percent": 100 * over["goodput"]["requests_per_s"] / capacity,
            "refused": refused["requests"], "refused_p50_ms": refused["ms"]["p50"],
            "refused_p99_ms": refused["ms"]["p99"], "refused_max_ms": refused["ms"]["max"],
            "lag_p99_ms": lag.p99_ms, "lag_max_ms": lag.max_ms,
            "failed": over["failed"] - refused["requests"], "load_average": load_average}


def print_line(name, values):
    print(name, *(f"{values[column]:.2f}" for column in COLUMNS), sep=",", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Offers a server more than it can do.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=16,
                        help="that the server lets run and wait (default %(default)s)")
    parser.add_argument("--times", type=float, default=10, help="the capacity (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of an overload")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--capacity-requests", type=int, default=192)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ttft", type=float, default=4000, metavar="MS", help="limit of goodput")
    parser.add_argument("--itl", type=float, default=100, metavar="MS", help="and for each token")
    parser.add_argument("--least", type=float, default=90, metavar="PERCENT")
    parser.add_argument("--within", type=float, default=10, metavar="MS")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    options = parse_arguments()
    print("run", *COLUMNS, sep=",")
    runs = []
    for number in range(options.runs):
        runs.append(run_once(options, options.seed + 1000 * number))
        print_line(number + 1, runs[-1])
    medians = {column: statistics.median(run[column] for run in runs) for column in COLUMNS}
    print_line("median", medians)
    good = (medians["share_percent"] >= options.least and
            0 < medians["refused_p99_ms"] <= options.within)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
