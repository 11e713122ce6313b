"""A server of the evaluation's own: started on a free port, stopped when the evaluation ends."""
import contextlib
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "load"))

from ports import free_port  # noqa: E402  (the path comes first)

START_S = 120
STOP_S = 30


class NotServing(Exception):
    """The server did not start."""


def is_ready(url):
    try:
        with urllib.request.urlopen(url + "/v1/models", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 401  # it serves, and wants a key
    except OSError:
        return False


def wait_ready(process, url, log):
    deadline = time.monotonic() + START_S
    while not is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            raise NotServing(f"`{shlex.join(process.args)}` does not serve:\n"
                             f"{log.read().decode(errors='replace')[-2000:]}")
        time.sleep(0.05)


@contextlib.contextmanager
def served(command):
    """The URL of `command --port N`, for as long as the context lasts."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*shlex.split(command), "--port", str(port)], stdout=log,
                                   stderr=log)
        try:
            wait_ready(process, url, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
