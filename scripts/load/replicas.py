#!/usr/bin/env python3
"""Starts replicas of quire on this machine behind a router and tries what a fleet must do.

    scripts/load/replicas.py --router nginx --replicas 2
    scripts/load/replicas.py --router sglang --replicas 4 --python VENV/bin/python     # has sglang-router
    scripts/load/replicas.py --router quire --trials prefixes      # one process, --data-parallel-size 2

Four trials, each with its figures on stdout as a line of JSON:

    prefixes   prompts that begin alike find their beginning cached: the share of prompt tokens that were.
               All beginnings together are larger than one replica's KV cache, so a router that spreads
               requests by chance loses them again; --spread shows that (the same, and nothing is asked of
               the share).
    chats      short chats whose system prompt is the same, as indented JSON: how often a chat changes its
               replica (of nginx, which tells where it sent a request), where first turns went, and the share
               of the prompt tokens of later turns that was cached.
    kill       a replica is killed (SIGKILL) under streams: only those that ran on it are lost, and none
               that is asked afterwards.
    restart    each replica in turn is ended (SIGTERM) and started again under load: no request is lost.

nginx is configured by config/deploy/nginx.conf, with the replicas' addresses put in.  Exits 1 when one of
these does not hold."""
import argparse
import asyncio
import collections
import http.client
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import types

from client import Client
from load_mix import WORDS
from serving import BINARY, ROOT, Server, free_port

SHARE_WANTED = 0.9


def fetch(port, path):
    return Server(f"http://127.0.0.1:{port}", timeout=10).get(path)


def wait_until(holds, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def answers(port, path):
    try:
        return bool(fetch(port, path)) or True
    except (OSError, RuntimeError, http.client.HTTPException):
        return False


class Process:
    """A program with its log in a file, at a port of its own."""

    def __init__(self, folder, name, ready):
        self.log = folder / f"{name}.log"
        self.port, self.ready, self.process = free_port(), ready, None

    def spawn(self, command):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)

    def wait_ready(self):
        def holds():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.log.name} ended: {self.log.read_text()[-2000:]}")
            return answers(self.port, self.ready)
        wait_until(holds, f"{self.log.name} is ready")

    def end(self, how=signal.SIGTERM):
        """Returns the exit status."""
        self.process.send_signal(how)
        return self.process.wait(60)


class Replica(Process):
    def __init__(self, folder, number, options):
        super().__init__(folder, f"replica-{number}", "/ready")
        self.command = [options.binary, "serve", "--port", self.port, "--served-model-name", "quire",
                        "--device", "cpu", "--threads", "1", "--max-model-len", "2048",
                        "--kv-cache-memory", "96M"]

    def start(self):
        self.spawn(self.command)
        self.wait_ready()

    def running(self):
        return int(re.search(r"^quire_requests_running (\d+)", fetch(self.port, "/metrics"), re.M)[1])


class Quire(Process):
    """One process that has the replicas, and routes between them."""

    def __init__(self, folder, replicas, options):
        super().__init__(folder, "quire", "/ready")
        n = len(replicas)
        self.command = [*replicas[0].command, "--port", self.port, "--data-parallel-size", n, "--threads", n,
                        "--kv-cache-memory", f"{96 * n}M"]

    def finished(self):
        text = fetch(self.port, "/metrics")
        return [int(n) for n in re.findall(r"^quire_replica_requests_submitted_total\S+ (\d+)", text, re.M)]


class Nginx(Process):
    """config/deploy/nginx.conf, with the replicas' addresses for those that it names."""

    def __init__(self, folder, replicas, options):
        super().__init__(folder, "nginx", "/health")
        text = (ROOT / "config/deploy/nginx.conf").read_text()
        lines = re.findall(r"^ *server replica-a\S+ .*\n|^ *server replica-b\S+ .*\n", text, re.M)
        assert len(lines) == 2
        servers = [lines[0].replace("replica-a:8000", f"127.0.0.1:{replica.port}")
                   for replica in replicas]
        text = text.replace("".join(lines), "".join(servers))
        text = text.replace("listen 8080;", f"listen 127.0.0.1:{self.port};")
        text = text.replace("location / {", "location / {\n            add_header X-Replica $upstream_addr;")
        if options.spread:
            text = text.replace("hash $affinity consistent;", "random;")
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
            text = text.replace("http {", f"http {{\n    {name}_temp_path {folder}/{name};", 1)
        text = text.replace("/dev/stdout", f"{folder}/access.log")
        (folder / "nginx.conf").write_text(f"pid {folder}/nginx.pid;\ndaemon off;\n{text}")
        self.command = ["nginx", "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"]


class Sglang(Process):
    """sglang-router of PyPI: finds the replica that has seen most of a text, in a tree of its own."""

    def __init__(self, folder, replicas, options):
        super().__init__(folder, "sglang", "/v1/models")
        self.command = [
            options.python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1",
            "--port", self.port, "--worker-urls", *(f"http://127.0.0.1:{r.port}" for r in replicas),
            "--policy", "random" if options.spread else "cache_aware",
            "--prometheus-port", free_port(), "--health-check-endpoint", "/ready",
            "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
            "--health-success-threshold", "1", "--cb-timeout-duration-secs", "1",
            "--log-level", "warn"]


ROUTERS = {"nginx": Nginx, "quire": Quire, "sglang": Sglang}


class Fleet:
    """Replicas and their router, ended when left."""

    def __init__(self, folder, options):
        self.replicas = [Replica(folder, number, options) for number in range(options.replicas)]
        self.router = ROUTERS[options.router](folder, self.replicas, options)

    def __enter__(self):
        if isinstance(self.router, Quire):
            self.replicas = []
        try:
            for replica in self.replicas:
                replica.spawn(replica.command)
            for replica in self.replicas:
                replica.wait_ready()
            self.router.spawn(self.router.command)
            self.router.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for one in (self.router, *self.replicas):
            if one.process and one.process.poll() is None:
                one.process.terminate()  # first: nginx's workers outlive a master that is killed
                try:
                    one.process.wait(5)
                except subprocess.TimeoutExpired:
                    one.process.kill()
                    one.process.wait()

    def finished(self):
        """How many requests each replica has answered."""
        if not self.replicas:
            return self.router.finished()
        return [int(re.search(r"^quire_requests_finished_total (\d+)", fetch(r.port, "/metrics"), re.M)[1])
                for r in self.replicas]

    def client(self):
        return Client(types.SimpleNamespace(url=f"http://127.0.0.1:{self.router.port}", api_key=None,
                                            timeout=120))


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def body(prompt, max_tokens):
    return json.dumps({"model": "quire", "prompt": prompt, "max_tokens": max_tokens, "stream": True,
                       "temperature": 0, "ignore_eos": True,
                       "stream_options": {"include_usage": True}}).encode()


def failed(samples, max_tokens):
    """The samples without their whole answer."""
    return [sample for sample in samples if sample.error or sample.n_tokens != max_tokens]


async def ask_all(fleet, bodies, n_clients):
    """Asks the bodies in turn on that many connections; returns the samples."""
    waiting, samples = iter(bodies), []

    async def one_client():
        client = fleet.client()
        for one in waiting:
            samples.append(await client.run(one))
        client.close()

    await asyncio.gather(*(one_client() for _ in range(n_clients)))
    return samples


async def try_prefixes(fleet, options):
    """Each beginning is asked once, as its first user would, and then by many in any order.

    The first users are as many at a time as there are replicas: sglang-router gives what it does not know
    to the least busy replica, so fewer users would leave replicas without any beginning."""
    rng = random.Random(options.seed)
    beginnings = [words(rng, 650) for _ in range(8 * options.replicas)]
    first = [body(f"{one} {words(rng, 10)}", 4) for one in beginnings]
    rest = [body(f"{one} {words(rng, 10)}", 4) for one in beginnings for _ in range(options.each)]
    rng.shuffle(rest)
    samples = await ask_all(fleet, first, options.replicas)
    samples += await ask_all(fleet, rest, 2 * options.replicas)
    n_prompt = sum(sample.n_prompt for sample in samples)
    n_cached = sum(sample.n_cached for sample in samples)
    lost = failed(samples, 4)
    used = fleet.finished()
    return {"requests": len(samples), "lost": len(lost), "beginnings": len(beginnings),
            "prompt_tokens": n_prompt, "cached_share": round(n_cached / n_prompt, 4),
            "requests_of_each": used,
            "holds": not lost and min(used) > 0 and
            (options.spread or n_cached >= SHARE_WANTED * n_prompt)}


def chat(connection, messages):
    """Asks for the next turn, and adds it; returns the replica that answered, and its usage."""
    text = json.dumps({"model": "quire", "messages": messages, "max_tokens": 8, "temperature": 0}, indent=2)
    connection.request("POST", "/v1/chat/completions", text, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    told = json.loads(answer.read())
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {told}")
    messages.append({"role": "assistant", "content": told["choices"][0]["message"]["content"] or "Yes."})
    return answer.headers.get("X-Replica"), told["usage"]


def run_chats(port, numbers, n_turns):
    """Returns of each chat the replicas of its turns, and the usages of the turns behind the first."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    rng, replicas, usages = random.Random(5), [], []
    system = {"role": "system", "content": words(rng, 300)}
    for number in numbers:
        messages, on = [system], []
        for turn in range(n_turns):
            messages.append({"role": "user", "content": f"{turn}: {number} {words(rng, 4)}?"})
            replica, usage = chat(connection, messages)
            on.append(replica)
            if turn > 0:
                usages.append(usage)
        replicas.append(on)
    return replicas, usages


async def try_chats(fleet, options):
    n, n_clients, n_turns = 25 * options.replicas, 2 * options.replicas, 5
    done = await asyncio.gather(*(
        asyncio.to_thread(run_chats, fleet.router.port, range(first, n, n_clients), n_turns)
        for first in range(n_clients)))
    replicas = [on for one, _ in done for on in one]
    usages = [usage for _, one in done for usage in one]
    changes = sum(a != b for on in replicas for a, b in zip(on, on[1:]))
    first = collections.Counter(on[0] for on in replicas)
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in usages)
    share = cached / sum(one["prompt_tokens"] for one in usages)
    return {"chats": n, "turns": n * n_turns, "changes": changes, "first_turns_of_each": sorted(first.values()),
            "cached_share_of_later_turns": round(share, 4),
            "holds": options.spread or options.router != "nginx" or
            (changes == 0 and len(first) == options.replicas)}


async def settle(fleet, streams):
    """Waits until every stream runs or has its whole answer; returns how many run on each replica.

    A replica with few streams may have answered one while the other is still reading prompts."""
    n, deadline = len(streams), time.monotonic() + 60
    while True:
        ended = [stream.result() for stream in streams if stream.done()]
        running = [replica.running() for replica in fleet.replicas]
        if any(sample.error for sample in ended) or time.monotonic() > deadline:
            raise RuntimeError(f"{running} of {n} streams run; ended: {[one.error for one in ended]}")
        if len(ended) + sum(running) == n:
            return running
        await asyncio.sleep(0.1)


async def try_kill(fleet, options):
    """Kills the replica with most streams, and asks on at once."""
    rng = random.Random(options.seed + 1)
    n, max_tokens = 6 * options.replicas, options.stream_tokens
    running = [0]
    while not max(running):  # a machine that is very busy may run this script when all have their answers
        clients = [fleet.client() for _ in range(n)]
        streams = [asyncio.create_task(client.run(body(words(rng, 50), max_tokens))) for client in clients]
        running = await settle(fleet, streams)
    victim = max(range(len(running)), key=running.__getitem__)
    fleet.replicas[victim].end(signal.SIGKILL)
    after = await ask_all(fleet, [body(words(rng, 50), 4) for _ in range(4 * n)], options.replicas)
    samples = await asyncio.gather(*streams)
    await asyncio.to_thread(fleet.replicas[victim].start)
    lost, lost_after = failed(samples, max_tokens), failed(after, 4)
    return {"streams": n, "running_on_each": running, "killed": victim, "lost": len(lost),
            "asked_afterwards": len(after), "lost_afterwards": len(lost_after),
            "errors": sorted({str(sample.error)[:100] for sample in lost + lost_after})[:4],
            "holds": 0 < len(lost) <= running[victim] and not lost_after}


async def try_restart(fleet, options):
    """Ends and starts every replica, one after the other, while clients ask without a pause."""
    rng = random.Random(options.seed + 2)
    going, samples = True, []

    async def one_client():
        client = fleet.client()
        while going:
            samples.append(await client.run(body(words(rng, 50), 24)))
        client.close()

    def restart(replica):
        status = replica.end()
        replica.start()
        time.sleep(options.pause)  # the router's next look at it
        return status

    clients = [asyncio.create_task(one_client()) for _ in range(4 * options.replicas)]
    await asyncio.sleep(options.pause)
    statuses = [await asyncio.to_thread(restart, replica) for replica in fleet.replicas]
    going = False
    await asyncio.gather(*clients)
    lost = failed(samples, 24)
    return {"requests": len(samples), "restarts": len(statuses), "exit_statuses": statuses,
            "lost": len(lost), "errors": sorted({str(sample.error)[:100] for sample in lost})[:4],
            "holds": not lost and not any(statuses)}


TRIALS = {"prefixes": try_prefixes, "chats": try_chats, "kill": try_kill, "restart": try_restart}


def parse_arguments():
    """The router quire is one process: a replica of it cannot be killed or started again."""
    parser = argparse.ArgumentParser(description="Tries replicas of quire behind a router.")
    parser.add_argument("--router", choices=tuple(ROUTERS), default="nginx")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--trials", nargs="+", choices=tuple(TRIALS), default=list(TRIALS))
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--python", default=sys.executable, help="Python that has sglang-router")
    parser.add_argument("--each", type=int, default=31,
                        help="prefixes: requests of each beginning behind its first (default %(default)s)")
    parser.add_argument("--stream-tokens", type=int, default=400,
                        help="kill: tokens of each stream (default %(default)s)")
    parser.add_argument("--pause", type=float, default=3,
                        help="restart: seconds between a replica and the next (default %(default)s)")
    parser.add_argument("--spread", action="store_true", help="let the router spread by chance")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.router == "quire" and (options.trials != ["prefixes"] or options.spread):
        parser.error("--router quire: only --trials prefixes, without --spread")
    return options


def main():
    options = parse_arguments()
    good = True
    with tempfile.TemporaryDirectory() as folder, Fleet(pathlib.Path(folder), options) as fleet:
        for name in options.trials:
            begun = time.monotonic()
            result = asyncio.run(TRIALS[name](fleet, options))
            good = good and result["holds"]
            if not result["holds"]:
                print(fleet.router.log.read_text()[-4000:], file=sys.stderr)
            print(json.dumps({"trial": name, "router": options.router, "replicas": options.replicas,
                              **result, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
