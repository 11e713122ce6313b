#!/usr/bin/env python3
"""Measures what clients that never finish a request cost the other clients, against a server that
this starts: 64 streams, thousands of half-dead connections from one address, and unfinished bodies.

    scripts/load/crowd.py --quire build/quire --crowd 4200 --bodies-mib 1024

Needs nothing but Python and the descriptors (ulimit -n).  The crowd comes from 127.0.0.2, others
ask from 127.0.0.1.  Half of the crowd closes its side with its half-sent head, the other half stays.
Then bodies of 32 MiB without their last byte come from eight addresses, --bodies-mib of them, while
--max-buffered-body is half of that.  Prints figures; exits 1 when a stream was lost, another client
was refused or the memory passed its bound.
"""
import argparse
import json
import resource
import socket
import subprocess
import sys
import threading
import time

from serving import BINARY, OwnServer

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY_MIB = 32
SLACK_MIB = 64  # libmicrohttpd's buffers, and the allocator


def connect(port, address):
    client = socket.socket()
    client.bind((address, 0))
    client.settimeout(600)
    client.connect(("127.0.0.1", port))
    return client


def stream(port, max_tokens, failures):
    body = json.dumps({"prompt": "a", "max_tokens": max_tokens, "stream": True,
                       "ignore_eos": True}).encode()
    client = connect(port, "127.0.0.3")
    client.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    data = b""
    while more := client.recv(65536):
        data = data[-64:] + more
    if b"data: [DONE]" not in data:
        failures.append("a stream was lost")


def is_served(port):
    with connect(port, "127.0.0.1") as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return b" 200 " in client.recv(64)
        except OSError:
            return False


def send_crowd(port, n, failures):
    crowd, begun, slowest = [], time.monotonic(), 0.0
    for i in range(n):
        client = connect(port, "127.0.0.2")
        try:
            client.send(HEAD, socket.MSG_MORE if i % 2 else 0)
            if i % 2:
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # turned away already
        crowd.append(client)
        if i % 100 == 99:
            asked = time.monotonic()
            if not is_served(port):
                failures.append("another client was refused")
            slowest = max(slowest, time.monotonic() - asked)
    print(f"{n} half-dead connections in {time.monotonic() - begun:.2f} s; others waited at most "
          f"{1000 * slowest:.0f} ms for an answer")
    return crowd


def send_bodies(port, n):
    clients = []
    for i in range(n):
        clients.append(connect(port, f"127.0.1.{1 + i % 8}"))
        try:
            clients[-1].sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (BODY_MIB << 20)
                                + b" " * ((BODY_MIB << 20) - 1))
        except OSError:
            pass  # refused
    return clients


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quire", default=BINARY)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--crowd", type=int, default=4200)
    parser.add_argument("--bodies-mib", type=int, default=1024)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bound = options.bodies_mib // 2
    failures = []
    with OwnServer(options.quire, "--device", "cpu", "--max-buffered-body", f"{bound}M",
                   log=subprocess.DEVNULL) as server:
        threads = [threading.Thread(target=stream,
                                    args=(server.port, options.max_tokens, failures))
                   for _ in range(options.streams)]
        for thread in threads:
            thread.start()
        crowd = send_crowd(server.port, options.crowd, failures)
        running = sum(thread.is_alive() for thread in threads)
        for thread in threads:
            thread.join()
        print(f"{options.streams} streams, {running} still running behind the crowd: "
              f"{failures.count('a stream was lost')} lost")
        for client in crowd:
            client.close()
        before = server.resident_bytes()
        clients = send_bodies(server.port, options.bodies_mib // BODY_MIB)
        grown = (server.resident_bytes() - before) / 2**20
        print(f"{options.bodies_mib} MiB of unfinished bodies: {grown:.0f} MiB resident, "
              f"the bound is {bound}")
        if grown > bound + SLACK_MIB:
            failures.append("bodies took more memory than they may")
        if not is_served(server.port):
            failures.append("another client was refused")
        for client in clients:
            client.close()
    for failure in sorted(set(failures)):
        print(f"{failure}: {failures.count(failure)} times")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
