"""An image of the Dockerfile, run as a container runtime would: as the image's user, with a root that
cannot be written, no capabilities, and processes of its own.  scripts/ci/check_image builds it and calls
this, with a mount namespace of its own, as root.

QUIRE_TEST_IMAGE is the mounted root of a container made from the image, QUIRE_TEST_IMAGE_CONFIG its
configuration (JSON, with Docker's names).  crun runs it.  The network is the machine's: the image holds
no client, and curl asks from outside."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/load"))

from ports import free_port  # noqa: E402  (the path comes first)

ROOT = pathlib.Path(os.environ["QUIRE_TEST_IMAGE"])
CONFIG = json.loads(pathlib.Path(os.environ["QUIRE_TEST_IMAGE_CONFIG"]).read_text())
MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
USER = int(CONFIG["User"])
ENVIRONMENT = dict(one.split("=", 1) for one in CONFIG["Env"])
CGROUPS = pathlib.Path("/sys/fs/cgroup")


@pytest.fixture(scope="session", autouse=True)
def one_hierarchy_of_cgroups():
    """crun 1.8 refuses a machine that has both versions mounted, although it is told to use none.
    This hides the older ones in the mount namespace of the tests."""
    if (CGROUPS / "cgroup.controllers").exists():
        return
    subprocess.run(["umount", "--recursive", CGROUPS], check=True)
    subprocess.run(["mount", "-t", "cgroup2", "none", CGROUPS], check=True)


class Container:
    """The image, run with these arguments behind its entrypoint."""

    def __init__(self, folder, *arguments, models=None, env=None):
        self.port = free_port()
        self.name = f"quire-{os.getpid()}-{self.port}"
        self.bundle = folder / self.name
        self.bundle.mkdir()
        self.env = {**ENVIRONMENT, "QUIRE_PORT": str(self.port), **(env or {})}
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                   "options": ["nosuid", "mode=755", "size=64k"]}]
        if models:
            mounts.append({"destination": "/models", "type": "bind", "source": str(models),
                           "options": ["rbind", "ro"]})
        spec = {"ociVersion": "1.0.2", "root": {"path": str(ROOT), "readonly": True},
                "process": self.process([*CONFIG["Entrypoint"], *arguments]), "mounts": mounts,
                "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]}}
        (self.bundle / "config.json").write_text(json.dumps(spec))
        self.log_path = self.bundle / "log"
        with open(self.log_path, "wb") as log:
            self.process_of_crun = subprocess.Popen(
                self.crun("run", "--bundle", str(self.bundle), self.name), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL)

    def process(self, command):
        none = {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")}
        return {"terminal": False, "user": {"uid": USER, "gid": USER}, "args": command, "cwd": "/",
                "env": [f"{name}={value}" for name, value in self.env.items()],
                "capabilities": none, "noNewPrivileges": True}

    @staticmethod
    def crun(*arguments):
        return ["crun", "--cgroup-manager=disabled", *arguments]

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_ready(self):
        deadline = time.monotonic() + 120
        while self.ask("/ready", "-o", "/dev/null", "-w", "%{http_code}") != "200":
            assert self.process_of_crun.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)
        return self

    def ask(self, path, *arguments, body=None):
        """What curl prints; nothing if there is no answer."""
        if body:
            arguments += ("-H", "Content-Type: application/json", "-d", json.dumps(body))
        return subprocess.run(["curl", "-sS", "-m", "60", f"http://127.0.0.1:{self.port}{path}",
                               *arguments], capture_output=True, text=True, check=False).stdout

    def inside(self, *command, **env):
        """The exit status and the output of a command in the running container."""
        given = [word for pair in env.items() for word in ("--env", "=".join(pair))]
        done = subprocess.run(self.crun("exec", "--user", f"{USER}:{USER}", *given,
                                        self.name, *command), check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def stop(self):
        """What `docker stop` does; returns the exit status."""
        if self.process_of_crun.poll() is None:
            subprocess.run(self.crun("kill", self.name, str(int(signal.SIGTERM))), check=True)
        try:
            return self.process_of_crun.wait(60)
        finally:
            subprocess.run(self.crun("delete", "--force", self.name), check=False,
                           capture_output=True)


@pytest.fixture(scope="module")
def container(tmp_path_factory):
    one = Container(tmp_path_factory.mktemp("container"), "--served-model-name", "image-test",
                    "--max-num-seqs", "4")
    try:
        yield one.wait_ready()
    finally:
        one.stop()


def test_the_image_says_what_it_is():
    assert CONFIG["Entrypoint"] == ["quire", "serve"] and not CONFIG.get("Cmd")
    assert "8000/tcp" in CONFIG["ExposedPorts"] and "/models" in CONFIG["Volumes"]
    assert USER > 0  # by number: Kubernetes' runAsNonRoot cannot look a name up


def test_the_image_holds_nothing_to_build_with():
    for leftover in ("usr/bin/gcc", "usr/bin/ninja", "src"):
        assert not (ROOT / leftover).exists(), leftover
    assert not any((ROOT / "var/lib/apt/lists").glob("*Packages*"))


def test_it_runs_as_its_user_without_privileges(container):
    status, text = container.inside("bash", "-c", "id -u; grep CapEff /proc/1/status; umask; "
                                    "for f in / /opt/quire /models /tmp; do touch $f/x; done")
    lines = text.splitlines()
    assert lines[0] == str(USER) and lines[1].split()[1] == "0" * 16
    assert status != 0 and text.count("Read-only file system") + text.count("denied") == 4, text


def test_the_log_has_no_complaint(container):
    """A root that cannot be written is nothing to warn of."""
    words = [line.split(" ", 2)[1] for line in container.log.splitlines()
             if "no API key is required" not in line]
    assert "warn" not in words and "error" not in words, container.log
    assert "listening on" in container.log


def test_every_library_is_there(container):
    status, text = container.inside("bash", "-c", "ldd $(command -v quire)")
    assert status == 0 and "not found" not in text, text


def test_flags_reach_the_server(container):
    models = json.loads(container.ask("/v1/models"))["data"]
    assert [model["id"] for model in models] == ["image-test"]
    status, text = container.inside("quire", "version")
    assert status == 0 and "commit 000000000000" in text and "/opt/quire/share/quire/models" in text


def test_a_completion_and_a_chat(container):
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    answer = json.loads(container.ask("/v1/completions", body=body))
    assert answer["usage"]["completion_tokens"] == 8 and answer["choices"][0]["text"].strip()
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
    answer = json.loads(container.ask("/v1/chat/completions", body=chat))
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert 1 <= answer["usage"]["completion_tokens"] <= 8


def test_constrained_answers_are_built_in(container):
    body = {"messages": [{"role": "user", "content": "A colour?"}], "max_tokens": 16,
            "structured_outputs": {"choice": ["red", "green"]}}
    answer = json.loads(container.ask("/v1/chat/completions", body=body))
    assert answer["choices"][0]["message"]["content"] in ("red", "green"), answer


def test_the_health_check_tells_a_server_from_none(container):
    kind, *command = CONFIG["Healthcheck"]["Test"]
    assert kind == "CMD"
    assert container.inside(*command) == (0, "")
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        assert container.inside(*command, QUIRE_PORT=str(taken.getsockname()[1]))[0] != 0


def test_a_model_of_the_volume_is_served_and_sigterm_ends_it(tmp_path):
    one = Container(tmp_path, "/models/quire-31m", "--kv-cache-memory", "512M", models=MODELS)
    try:
        one.wait_ready()
        assert "the model's files are in /models/quire-31m" in one.log
        assert json.loads(one.ask("/v1/models"))["data"][0]["id"] == "quire-31m"
    finally:
        status = one.stop()
    assert status == 0, one.log
