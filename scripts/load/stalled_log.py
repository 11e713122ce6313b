#!/usr/bin/env python3
"""Measures the cost of a blocked reader of the log: a server's answers to /version with a reader that
reads and with one that does not.

    scripts/load/stalled_log.py --requests 10000

Starts the server twice for each round, with its standard error a pipe of 4 KiB: once a thread reads
it, once it is not read.  Prints the times of the requests, one after another on one connection, the
lines that were dropped, and how long SIGTERM took.  Needs nothing but Python.  Exits 1 when a
request failed or the server did not end with status 0.
"""
import argparse
import fcntl
import http.client
import os
import subprocess
import sys
import threading
import time

from serving import BINARY, OwnServer


def read_to_end(descriptor):
    while os.read(descriptor, 65536):
        pass


def ask(connection, path):
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        sys.exit(f"stalled_log: {path} was answered {answer.status}")


def measure(options, is_read):
    """Milliseconds of each request, lines dropped, seconds from SIGTERM to the end."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    if is_read:
        threading.Thread(target=read_to_end, args=(reader,), daemon=True).start()
    with OwnServer(options.binary, *options.serve, log=writer) as server:
        os.close(writer)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=options.timeout)
        times = []
        for _ in range(options.requests):
            begun = time.perf_counter()
            ask(connection, "/version")
            times.append(1e3 * (time.perf_counter() - begun))
        dropped = int(server.metric("quire_log_dropped_lines_total"))
        begun = time.monotonic()
        status = server.stop(60)
    if status != 0:
        sys.exit(f"stalled_log: the server ended with status {status}")
    return times, dropped, time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(
        description="Measures the cost of a blocked reader of the log.")
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("serve", nargs="*", help="after --: arguments of `quire serve`")
    parser.add_argument("--requests", type=int, default=10000, help="(default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--timeout", type=float, default=30,
                        help="seconds for one request (default %(default)s)")
    options = parser.parse_args()
    print(f"{'reader':<9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'dropped':>9}{'stop s':>8}")
    for _ in range(options.rounds):
        for name, is_read in (("reads", True), ("stalled", False)):
            try:
                times, dropped, stop = measure(options, is_read)
            except (OSError, http.client.HTTPException, subprocess.TimeoutExpired) as error:
                sys.exit(f"stalled_log: {name}: {type(error).__name__}: {error}")
            times.sort()
            p50, p99 = (times[(p * len(times) + 99) // 100 - 1] for p in (50, 99))
            print(f"{name:<9}{p50:>9.3f}{p99:>9.3f}{times[-1]:>9.3f}{dropped:>9}{stop:>8.2f}",
                  flush=True)


if __name__ == "__main__":
    main()
