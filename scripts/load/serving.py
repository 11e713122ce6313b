"""Servers of load tests: one that is started on a free port and ended, or one that runs already; and what
they tell of themselves.  Needs nothing but Python, on Linux."""
import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.parse

from ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = str(ROOT / "build" / "quire")


def clock(process_id=None):
    """Seconds: the time that passes, or the CPU time of a process, in hundredths, for a machine that
    others use, too."""
    if not process_id:
        return time.monotonic()
    with open(f"/proc/{process_id}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(process_id):
    pages = pathlib.Path(f"/proc/{process_id}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def read_events(answer, parse=json.loads):
    """Yields the events of http.client's answer; RuntimeError: it is a refusal, or the stream ends early."""
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.read()[:400]!r}")
    while line := answer.readline():
        if line == b"data: [DONE]\n":
            return
        if line.startswith(b"data: "):
            event = parse(line[len(b"data: "):])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            yield event
    raise RuntimeError("the stream ended early")


class Server:
    """A server that runs at the URL.  Each request has a connection of its own."""

    def __init__(self, url, api_key=None, timeout=3600):
        self.url, self.timeout = url.rstrip("/"), timeout
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    @contextlib.contextmanager
    def answer(self, method, path, body=None, timeout=None):
        """Yields http.client's answer while its connection is open."""
        url = urllib.parse.urlsplit(self.url)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        with contextlib.closing(http.client.HTTPConnection(url.hostname, url.port or 80,
                                                           timeout=timeout or self.timeout)) as connection:
            connection.request(method, url.path + path, data,
                               {"Content-Type": "application/json", **self.headers})
            yield connection.getresponse()

    def get(self, path):
        """Returns the text of an answer; RuntimeError: it was refused."""
        with self.answer("GET", path) as answer:
            text = answer.read().decode()
        if answer.status != 200:
            raise RuntimeError(f"{path}: status {answer.status}: {text[:400]}")
        return text

    def post(self, path, body):
        """Returns the object of an answer; RuntimeError: it was refused."""
        with self.answer("POST", path, body) as answer:
            text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: status {answer.status}: {text[:400]!r}")
        return json.loads(text)

    def events(self, body, path="/v1/completions", parse=json.loads):
        """Yields the events of a stream; RuntimeError: it was refused, or ended early."""
        with self.answer("POST", path, body) as answer:
            yield from read_events(answer, parse)

    def model(self):
        return json.loads(self.get("/v1/models"))["data"][0]

    def metrics(self):
        """Every sample of /metrics, by its name with labels."""
        lines = (line.rsplit(" ", 1) for line in self.get("/metrics").splitlines()
                 if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def metric(self, name):
        """The sum over all labels."""
        return sum(value for key, value in self.metrics().items() if key.split("{")[0] == name)

    def is_ready(self):
        try:
            return bool(self.get("/ready")) or True
        except (OSError, RuntimeError, http.client.HTTPException):
            return False


class OwnServer(Server):
    """`BINARY serve` with the arguments, from its start to SIGTERM.  log: a file or descriptor for what it
    writes; None: this program's standard error.  env: beside this program's."""

    def __init__(self, binary, *arguments, env=None, log=None, seconds=600):
        self.port = free_port()
        super().__init__(f"http://127.0.0.1:{self.port}")
        binary = [binary] if isinstance(binary, (str, pathlib.Path)) else [*binary]
        begin = time.monotonic()
        self.process = subprocess.Popen(
            list(map(str, [*binary, "serve", *arguments, "--port", self.port])),
            env={**os.environ, **(env or {})}, stdout=log or sys.stderr, stderr=log)
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > begin + seconds:
                self.process.kill()
                sys.exit(f"the server did not start: status {self.process.wait()}")
            time.sleep(0.01)
        self.start_s = time.monotonic() - begin

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, seconds=120):
        """Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def cpu_seconds(self):
        return clock(self.process.pid)

    def resident_bytes(self):
        return resident_bytes(self.process.pid)
