"""What started the server is told how far it is (systemd's Type=notify), and may end it at any moment."""
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from server import BINARY, PATIENCE, SLOW, Server


class Supervisor:
    """The socket of a supervisor.  name: a path, or an abstract name with '@'."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name[0] == "@" else name)
        self.socket.settimeout(20 * PATIENCE)
        self.environment = {"NOTIFY_SOCKET": name}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def next(self):
        """The next message, as a dictionary."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n") if line)


def names(tmp_path):
    return {"path": str(tmp_path / "notify"), "abstract": f"@quire-{os.getpid()}-{time.monotonic_ns()}"}


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_supervisor_is_told(tmp_path, tiny_model, kind):
    with Supervisor(names(tmp_path)[kind]) as supervisor:
        server = Server(tmp_path, model=tiny_model, env=supervisor.environment, wait=False)
        told = supervisor.next()
        assert told["READY"] == "1" and str(server.port) in told["STATUS"]
        assert server.get("/ready").status == 200
        server.terminate(signal.SIGHUP)
        told = supervisor.next()
        assert told["RELOADING"] == "1" and int(told["MONOTONIC_USEC"]) > 0
        assert supervisor.next()["READY"] == "1"
        server.terminate()
        assert supervisor.next()["STOPPING"] == "1"
        assert server.stop() == 0


def test_a_start_that_fails_is_never_ready(tmp_path, tiny_model):
    (tmp_path / "config.json").write_text("{}")
    with Supervisor(names(tmp_path)["path"]) as supervisor:
        server = Server(tmp_path, model=tmp_path, env=supervisor.environment, wait=False)
        assert "STOPPING" in supervisor.next()
        assert server.process.wait(20 * PATIENCE) == 1


@pytest.mark.parametrize("of_this_process", [True, False])
def test_the_watchdog_is_told_while_no_step_is_stuck(tmp_path, tiny_model, of_this_process):
    with Supervisor(names(tmp_path)["path"]) as supervisor:
        watch = {"WATCHDOG_USEC": "800000", **({} if of_this_process else {"WATCHDOG_PID": "1"})}
        with Server(tmp_path, model=tiny_model, env={**supervisor.environment, **watch}):
            told = [supervisor.next()]
            supervisor.socket.settimeout((20 if of_this_process else 2) * PATIENCE)
            try:
                while len(told) < 4:
                    told.append(supervisor.next())
            except TimeoutError:
                pass
            assert sum("WATCHDOG" in one for one in told) == (3 if of_this_process else 0)


@pytest.mark.parametrize("name", ["/nowhere/notify", "relative", "@", "vsock:2:1", "/" + "x" * 200])
def test_a_socket_that_cannot_be_reached_costs_a_warning(serve, tiny_model, name):
    server = serve(model=tiny_model, env={"NOTIFY_SOCKET": name})
    assert server.get("/ready").status == 200
    assert " warn  NOTIFY_SOCKET: " in server.log


def can_unshare():
    done = subprocess.run(["unshare", "-fp", "--mount-proc", "true"], capture_output=True, check=False)
    return done.returncode == 0


def takes(process, number):
    """Whether it is quire, and has a handler for the signal."""
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        told = dict(line.rstrip("\n").split(":", 1) for line in file)
    return told["Name"].strip() == "quire" and int(told["SigCgt"], 16) >> (number - 1) & 1


@pytest.mark.skipif(SLOW or not shutil.which("unshare") or not can_unshare(), reason="needs namespaces")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["serve", "bench"])
@pytest.mark.parametrize("delay", [0, 0.01, 0.05, 0.2])
def test_process_1_ends_at_any_moment(tiny_model, how, command, delay):
    """A process 1 without handlers never sees these signals.  The first moment is that of the handler; the
    dynamic loader runs before."""
    process = subprocess.Popen(
        ["unshare", "-fp", "--mount-proc", "--kill-child", BINARY, command, str(tiny_model), "--device", "cpu",
         "--threads", "1", *(["--port", "0"] if command == "serve" else [])],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    deadline = time.monotonic() + 10 * PATIENCE
    while time.monotonic() < deadline:
        with open(children, encoding="ascii") as file:
            child = file.read().split()
        if child and takes(child[0], how):
            break
    time.sleep(delay)
    if process.poll() is None:
        os.kill(int(child[0]), how)
    assert process.wait(10 * PATIENCE) == 0


@pytest.mark.skipif(SLOW, reason="times are those of a start")
@pytest.mark.parametrize("delay", [0, 0.02, 0.05, 0.2])
def test_a_reload_during_the_start_does_no_harm(tmp_path, tiny_model, delay):
    server = Server(tmp_path, model=tiny_model, wait=False)
    deadline = time.monotonic() + 10 * PATIENCE
    while not takes(server.process.pid, signal.SIGHUP) and time.monotonic() < deadline:
        pass
    time.sleep(delay)
    server.terminate(signal.SIGHUP)
    server.wait_ready()
    assert server.stop() == 0
