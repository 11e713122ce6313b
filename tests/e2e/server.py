"""A quire process under test: started on a free port with a log file, stopped and judged by its
exit status."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/load"))

from ports import free_port  # noqa: E402

BINARY = os.environ.get("QUIRE_TEST_BINARY", str(ROOT / "build" / "quire"))
WRAPPER = shlex.split(os.environ.get("QUIRE_TEST_WRAPPER", ""))
MODEL = ROOT / "models" / "quire-31m"
# Named, not left to --device auto: the same tests must mean the same on a machine with a GPU.
DEVICE = os.environ.get("QUIRE_TEST_DEVICE", "cpu")
# Test files that run at the same time share the CPUs, and several servers the GPU, so each takes a
# part; a test's own flag wins.
N_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
N_THREADS = max(1, len(os.sched_getaffinity(0)) // N_WORKERS)
# Tests count tokens and steps, and look at the answer while it comes: a token for each step, unless they
# say otherwise.
ONE_BY_ONE = {"QUIRE_SPECULATION": "off"}
DEVICE_SETTINGS = {"cpu": {"QUIRE_DEVICE": "cpu", "QUIRE_THREADS": str(N_THREADS)},
                   "cuda": {"QUIRE_DEVICE": "cuda", "QUIRE_KV_CACHE_MEMORY": "1536M"}}[DEVICE]
# For tests that compare an answer obtained alone with the same one in company: the CPU gives the
# same bits in any case, a GPU when asked to.
INVARIANT = {"cpu": (), "cuda": ("--batch-invariant", "true")}[DEVICE]
# Under a sanitizer or valgrind everything takes longer and holds more memory: sizes shrink,
# deadlines grow, and the bounds on time and memory are not asked for.
SLOW = bool(os.environ.get("QUIRE_TEST_SLOW"))
# With what takes many minutes, too.
LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
PATIENCE = 20.0 if WRAPPER else 8.0 if SLOW else 1.0
SANITIZER_EXIT = 86


class Reply:
    """A whole HTTP answer."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers  # http.client's message: case-insensitive
        self.body = body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]


class Server:
    """`quire serve` with the given arguments.  Use as a context manager: leaving it stops the
    process with SIGTERM and asserts that it ended cleanly, which is also how leaks and races found
    by a sanitizer surface.  prefix: a command that runs the server's, such as prlimit's.  stderr:
    a descriptor that gets the log in place of the file.  binary: another quire."""

    def __init__(self, directory, *arguments, model=None, env=None, wait=True, prefix=(),
                 stderr=None, binary=BINARY):
        self.port = free_port()
        self.log_path = pathlib.Path(directory) / f"quire-{self.port}.log"
        command = [*prefix, *WRAPPER, str(binary), "serve"]
        if model:
            command.append(str(model))
        command += ["--port", str(self.port), *map(str, arguments)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        self.started = time.monotonic()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, env={**clean, **ONE_BY_ONE, **DEVICE_SETTINGS, **(env or {})}, stdout=log,
                stderr=stderr or log)
        if wait:
            self.wait_ready()
            # The log is written a moment after what it tells of; tests read what came before.
            if not stderr and not {"--log-level", "QUIRE_LOG_LEVEL"} & {*arguments, *(env or {})}:
                self.wait_logged("listening on")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        status = self.stop()
        if kind is None:
            assert status == 0, f"exit status {status}\n{self.log[-8000:]}"

    def wait_ready(self, seconds=30):
        deadline = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"quire ended with {self.process.returncode}:\n{self.log}")
            try:
                if self.get("/ready").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.005)
        self.process.kill()
        raise AssertionError(f"not ready after {seconds * PATIENCE} s:\n{self.log}")

    def wait_logged(self, text, seconds=20):
        """Waits for a line: the log is written a moment after what it tells of."""
        deadline = time.monotonic() + seconds * PATIENCE
        while text not in self.log:
            assert time.monotonic() < deadline, f"no {text!r} in the log:\n{self.log[-4000:]}"
            time.sleep(0.005)

    def terminate(self, how=signal.SIGTERM):
        self.process.send_signal(how)

    def stop(self, seconds=30):
        """Ends the process, the polite way first; returns its exit status."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"did not stop within {seconds * PATIENCE} s:\n{self.log[-4000:]}"
            ) from None

    def request(self, method, path, body=None, headers=None, timeout=60):
        """One exchange on a connection of its own; body may be bytes, str or something for JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * PATIENCE)
        headers = dict(headers or {})
        if body is not None:
            if not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        if isinstance(body, str):
            body = body.encode()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path, **rest):
        return self.request("GET", path, **rest)

    def post(self, path, body, **rest):
        return self.request("POST", path, body, **rest)

    def complete(self, prompt, **parameters):
        """A completion that must succeed, as parsed JSON.  Greedy unless told otherwise."""
        reply = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **parameters})
        assert reply.status == 200, reply.body
        return reply.json()

    def stream(self, prompt, **parameters):
        """The events of a streamed completion that must succeed, without the closing [DONE]."""
        reply = self.post(
            "/v1/completions", {"prompt": prompt, "temperature": 0, "stream": True, **parameters}
        )
        assert reply.status == 200, reply.body
        events = sse_events(reply.body)
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]

    def metrics(self):
        """Every sample of /metrics, by its name with labels."""
        samples = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def pages_in_use(self):
        return pages_in_use(self.metrics())

    def most_pages(self, least, ask, times=10):
        """The most pages seen in use while ask() is answered.  A busy machine may let the client look so
        seldom that it sees no more than `least`: then it asks again."""
        most = 0
        for _ in range(times):
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                asked = thread.submit(ask)
                while not asked.done():
                    most = max(most, self.pages_in_use())
                    time.sleep(0.002)
                asked.result()
            if most > least:
                break
        return most

    def wait_idle(self, seconds=20):
        """Waits until nothing runs, waits or holds a page; fails when that takes longer."""
        deadline = time.monotonic() + seconds * PATIENCE
        while True:
            m = self.metrics()
            busy = m["quire_requests_running"] + m["quire_requests_waiting"] + pages_in_use(m)
            if not busy:
                return
            assert time.monotonic() < deadline, f"still busy: {m}"
            time.sleep(0.02)  # the server needs the CPU that a reply takes

    def wait_running(self, n):
        """Waits until n sequences run at once."""
        self.wait_for("quire_requests_running", n)

    def wait_for(self, metric, n):
        """Waits until the metric is n at least."""
        deadline = time.monotonic() + 20 * PATIENCE
        while self.metrics()[metric] < n:
            assert time.monotonic() < deadline, self.metrics()
            time.sleep(0.002)

    @contextlib.contextmanager
    def taking(self, n):
        """Leaves the block when the engine has taken n requests that were sent in it.  This is counted: a
        client that a busy machine runs late may never see a short one run."""
        before = self.metrics()["quire_requests_submitted_total"]
        yield
        self.wait_for("quire_requests_submitted_total", before + n)

    def until(self, metric, attempt, times=20):
        """The answer of the first attempt() in which the metric grows: a busy machine runs clients so late
        that what they ask for does not meet, and such an attempt shows nothing."""
        for _ in range(times):
            before = self.metrics()[metric]
            answer = attempt()
            if self.metrics()[metric] > before:
                return answer
        raise AssertionError(f"{metric} did not grow in {times} attempts")

    def at_once(self, ask, asked):
        """[ask(each) for each in asked], whose first requests all lie in the server's sockets before it
        reads one: how they meet does not depend on how busy the machine is."""
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as threads:
            self.process.send_signal(signal.SIGSTOP)
            try:
                answers = threads.map(ask, asked)
                deadline = time.monotonic() + 30 * PATIENCE
                while self.n_unread() < len(asked):
                    assert time.monotonic() < deadline, f"{self.n_unread()} of {len(asked)} were sent"
                    time.sleep(0.002)
            finally:
                self.process.send_signal(signal.SIGCONT)
            return list(answers)

    def n_unread(self):
        """Connections whose bytes the server has yet to read."""
        n = 0
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, _, _, queues, *_ = line.split()
            n += int(local.split(":")[1], 16) == self.port and int(queues.split(":")[1], 16) > 0
        return n

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024


def pages_in_use(metrics):
    """Pages held by sequences: neither free nor kept only for later prefix hits."""
    return metrics["quire_kv_pages_total"] - metrics["quire_kv_pages_free"] - metrics["quire_kv_pages_cached"]


def sse_events(body):
    """The payloads of an event stream, which must be `data: …` events and comments alone."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n"), text[-40:]
    events = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            assert "\n" not in block, block
            continue
        assert block.startswith("data: ") and "\n" not in block, block
        events.append(block[len("data: "):])
    return events
