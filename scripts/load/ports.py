"""Ports for servers that a test or a script starts."""
import os
import random
import socket

# Below those that the kernel gives to outgoing connections (32768 and up on Linux): one of them may be
# taken between the moment in which it was seen to be free and the server's start.
FIRST, LAST = 10240, 32767
draw = random.SystemRandom()  # tests seed the others


def free_port(n=1):
    """The first of n neighbours at which nothing listens, at any address.  Workers of one test run draw
    from ranges of their own, so that no two find the same port free."""
    n_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = (LAST + 1 - FIRST) // n_workers
    start = FIRST + worker * size
    while True:
        port = draw.randrange(start, start + size - n + 1)
        if all(map(is_free, range(port, port + n))):
            return port


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
            return True
        except OSError:
            return False
