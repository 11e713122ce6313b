"""`quire run`, `quire chat` and `quire doctor`: what people do at a terminal."""
import http.server
import json
import os
import pathlib
import pty
import signal
import subprocess
import threading
import time

import pytest

from server import BINARY, DEVICE, MODEL, PATIENCE, free_port

GREEDY = "--temperature", "0", "--max-tokens", "24", "--device", DEVICE
# An answer that goes on until it is stopped.
LONG = "--raw", "--temperature", "0", "--max-tokens", "20000", "--device", DEVICE
QUESTION = "Who are you?"


def quire(*arguments, text=None, status=0):
    """What a command prints, and says on standard error."""
    given = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    done = subprocess.run([BINARY, *arguments], **given, capture_output=True, text=True,
                          errors="surrogateescape", timeout=60 * PATIENCE, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def served(server, messages):
    answer = server.post("/v1/chat/completions",
                         {"messages": messages, "temperature": 0, "max_tokens": 24})
    return json.loads(answer.body)["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def answer(server):
    return served(server, [{"role": "user", "content": QUESTION}])


def test_run_prints_what_a_server_answers(server, answer):
    assert quire("run", MODEL, QUESTION, *GREEDY)[0] == answer + "\n"
    assert quire("run", "--url", server.url, QUESTION, *GREEDY)[0] == answer + "\n"


def test_input_stands_before_the_prompt(server):
    expected = served(server, [{"role": "system", "content": "Be short."},
                               {"role": "user", "content": f"A river.\n\n{QUESTION}"}])
    given = "run", "--url", server.url, *GREEDY, "--system", "Be short.", QUESTION
    shown, _ = quire(*given[:-1], MODEL.name, QUESTION, text="A river.\n")
    assert shown == expected + "\n"
    assert "may be MODEL or a prompt" in quire(*given, text="A river.\n", status=1)[1]


def test_a_text_is_continued(server):
    whole = server.post("/v1/completions",
                        {"prompt": "The river", "temperature": 0, "max_tokens": 24})
    shown, _ = quire("run", "--url", server.url, *GREEDY, "--raw", text="The river")
    assert shown.rstrip("\n") == json.loads(whole.body)["choices"][0]["text"].rstrip("\n")


def test_a_text_goes_on_to_its_end(server):
    """Of an own server; one at a URL says itself how long an answer is."""
    given = "run", "--raw", "--temperature", "0", "--max-model-len", "128", "--device", DEVICE
    shown, said = quire(*given, MODEL, "The river")
    whole = json.loads(server.post("/v1/completions", {"prompt": "The river", "temperature": 0, "min_p": 0.1,
                                                       "max_tokens": 120}).body)["choices"][0]
    assert shown.startswith(whole["text"][:60]) and len(shown) > 200
    assert ("cut off" in said) == (whole["finish_reason"] == "length")


@pytest.mark.parametrize("arguments, status, words", [
    (["run", MODEL], 1, "there is no prompt"),
    (["run", "/nowhere", "x"], 1, "/nowhere: there is no such folder"),
    (["run", MODEL, "x", "y"], 2, "'y' is not expected here"),
    (["run", MODEL, "x", "--max-tokens", "-1"], 2, "--max-tokens: -1 is out of range"),
    (["run", MODEL, "x", "--raw", "--system", "y"], 2, "--raw excludes --system"),
    (["run", "--url", "nowhere", "x"], 1, "'nowhere' is neither http://"),
    (["run", "--url", "http://127.0.0.1:1", "x"], 1, "Connection refused"),
])
def test_what_is_wrong_is_said(arguments, status, words):
    assert words in quire(*arguments, status=status)[1]


@pytest.mark.parametrize("command", [["list"], ["version"], ["info", MODEL], ["health", "--port", "1"], ["doctor"]])
def test_a_misspelt_variable_is_named(command, tmp_path):
    env = {**os.environ, "QUIRE_MAX_NUM_SEQ": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([BINARY, *command], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60 * PATIENCE, check=False)
    said = "the variable QUIRE_MAX_NUM_SEQ is no setting and is ignored: QUIRE_MAX_NUM_SEQS may be meant"
    assert done.stderr.count(said) == 1
    assert said not in done.stdout


@pytest.mark.parametrize("command", ["serve", "run", "chat", "bench", "tune", "info", "quantize", "tokenize",
                                     "pull", "list", "rm", "health", "doctor"])
def test_each_command_has_a_help_of_its_own(command):
    shown, said = quire(command, "--help")
    assert shown.startswith(f"usage: quire {command}") and said == ""


@pytest.mark.parametrize("given, meant", [("ls", "list"), ("show", "info"), ("start", "serve"), ("tokenise", "tokenize")])
def test_a_command_of_another_program_is_explained(given, meant):
    assert f"there is no command '{given}': {meant} may be meant" in quire(given, status=2)[1]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", ">/dev/full"])
def test_standard_descriptors_may_be_closed(closed, answer):
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', BINARY, "run", MODEL, QUESTION, *GREEDY]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60 * PATIENCE, check=False)
    if closed == "<&-":
        assert (done.returncode, done.stdout) == (0, answer + "\n")
    else:
        assert done.returncode == 1 and done.stderr.startswith("quire: standard output: ")


def test_a_server_needs_no_standard_descriptor():
    port = free_port()
    command = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', BINARY, "serve", MODEL, "--port", str(port),
               "--device", DEVICE, "--max-model-len", "1024"]
    with subprocess.Popen(command) as child:
        try:
            deadline = time.monotonic() + 60 * PATIENCE
            while subprocess.run([BINARY, "health", "--port", str(port)],
                                 capture_output=True, check=False).returncode:
                assert child.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            child.terminate()
        assert child.wait(60 * PATIENCE) == 0


def test_help_of_a_command_is_asked_for_by_name():
    assert quire("help", "run") == quire("run", "--help")
    assert "there is no command 'nothing'" in quire("help", "nothing", status=2)[1]
    assert "takes nothing" in quire("version", "x", status=2)[1]


def test_a_refusal_is_said(server):
    shown = quire("run", "--url", server.url, text="word " * 40000, status=1)
    assert shown[0] == "" and "token" in shown[1]


def listening(pid):
    """The sockets of a process that other processes can connect to."""
    inodes = {line.split()[9] for path in ("/proc/net/tcp", "/proc/net/tcp6")
              for line in pathlib.Path(path).read_text().splitlines()[1:]
              if line.split()[3] == "0A"}
    inodes |= {line.split()[6] for line in pathlib.Path("/proc/net/unix").read_text().splitlines()
               if len(line.split()) > 6 and line.split()[3] == "00010000"}
    links = [os.readlink(one) for one in pathlib.Path(f"/proc/{pid}/fd").iterdir()
             if os.path.islink(one)]
    return [link for link in links if link.removeprefix("socket:[").rstrip("]") in inodes]


def test_no_port_is_open_and_ctrl_c_ends_both():
    child = subprocess.Popen([BINARY, "run", MODEL, "Count.", *LONG], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout.read(1)
    children = pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    assert len(children) == 1
    assert listening(children[0]) == []
    child.send_signal(signal.SIGINT)
    assert child.wait(20 * PATIENCE) == 130
    assert not os.path.exists(f"/proc/{children[0]}")


def test_the_server_ends_with_a_killed_command():
    child = subprocess.Popen([BINARY, "run", MODEL, "Count.", *LONG], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout.read(1)
    server, = pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    child.kill()
    child.wait()
    deadline = time.monotonic() + 20 * PATIENCE
    while os.path.exists(f"/proc/{server}") and time.monotonic() < deadline:
        if "Z" in pathlib.Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0]:
            break
        time.sleep(0.05)
    else:
        assert not os.path.exists(f"/proc/{server}")


def test_a_chat_remembers(server, answer, tmp_path):
    path = tmp_path / "chat.json"
    lines = (f'{QUESTION}\n"""One.\nTwo."""\n/save {path}\n/reset\n/nothing\nA \\\nline.\n'
             "/system \udcff\n/exit\nNot read.\n")
    shown, _ = quire("chat", "--url", server.url, *GREEDY, text=lines)
    saved = json.loads(path.read_text())["messages"]
    assert [one["role"] for one in saved] == ["user", "assistant"] * 2
    assert saved[1]["content"] == answer and saved[2]["content"] == "One.\nTwo."
    assert saved[3]["content"] == served(server, saved[:3])
    assert "the system's message is not UTF-8" in shown
    assert "there is no /nothing" in shown and "Not read" not in shown
    assert served(server, [{"role": "user", "content": "A \nline."}]) in shown


def test_a_private_chat_answers(answer, monkeypatch, tmp_path):
    # The settings of a server that runs, which have no meaning for a private one.
    monkeypatch.setenv("QUIRE_SSL_CERTFILE", str(tmp_path / "none"))
    monkeypatch.setenv("QUIRE_SSL_KEYFILE", str(tmp_path / "none"))
    monkeypatch.setenv("QUIRE_KV_EVENTS", "nonsense")
    monkeypatch.setenv("QUIRE_KV_DISK_PATH", str(tmp_path / "disk"))
    assert quire("chat", MODEL, *GREEDY, text=QUESTION + "\n")[0] == answer + "\n"


# ---- quire doctor ----


def test_doctor_names_each_check_and_what_to_do():
    lines, _ = quire("doctor", "--device", "cpu", "--max-connections", "100")
    found = json.loads(quire("doctor", "--json", "--device", "cpu", "--max-connections", "100")[0])
    assert found["status"] in ("ok", "note")
    assert {"cpu", "memory", "gpu", "open files", "model cache"} <= {
        one["name"] for one in found["checks"]}
    for one in found["checks"]:
        assert f"{one['level']:8} {one['name']:13} " in lines
        assert one["remedy"] in lines and one["text"]
        assert one["level"] == "ok" or one["remedy"]


@pytest.mark.parametrize("arguments, name", [
    (["doctor", "--isa", "neon" if os.uname().machine == "x86_64" else "avx2"], "cpu"),
    (["doctor", "/nowhere"], "model"),
])
def test_doctor_finds_what_keeps_a_server_from_serving(arguments, name):
    found = json.loads(quire(*arguments, "--device", "cpu", "--json", status=1)[0])
    assert [one["name"] for one in found["checks"] if one["level"] == "problem"] == [name]


def test_a_device_that_is_not_asked_for_is_no_problem():
    isa = "neon" if os.uname().machine == "x86_64" else "avx2"
    text = subprocess.run([BINARY, "doctor", "--device", "cuda", "--isa", isa, "--json"],
                          capture_output=True, text=True, check=False).stdout
    assert {one["name"]: one["level"] for one in json.loads(text)["checks"]}["cpu"] == "note"


def test_doctor_finds_a_model_in_the_cache(monkeypatch, tmp_path):
    folder = tmp_path / "hub/models--someone--small"
    snapshot = folder / "snapshots" / ("0" * 40)
    for one in (snapshot, folder / "refs"):
        one.mkdir(parents=True)
    (folder / "refs/main").write_text("0" * 40)
    for one in pathlib.Path(MODEL).resolve().iterdir():
        (snapshot / one.name).symlink_to(one)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    found = json.loads(quire("doctor", "someone/small", "--device", "cpu", "--json")[0])
    assert {one["name"]: one["level"] for one in found["checks"]}["model"] == "ok"


def test_doctor_sees_the_limits():
    text = subprocess.run(["bash", "-c", 'ulimit -n 300; exec "$0" doctor --device cpu --json', BINARY],
                          capture_output=True, text=True, check=True).stdout
    found = {one["name"]: one for one in json.loads(text)["checks"]}["open files"]
    assert found["level"] == "note" and "300 open files" in found["text"]
    assert "LimitNOFILE" in found["remedy"]


# ---- servers that are not to be trusted ----

EVENT = 'data: {"choices": [{"delta": %s}]}\n\n'


@pytest.fixture
def stream():
    """stream(text, status): the URL of a server that answers so."""
    servers = []

    def start(text, status=200):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        servers.append(http.server.HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize("text, status, words", [
    (EVENT % '{"content": "a"}', 200, "the answer breaks off"),
    ("data: {nonsense\n\n", 200, "the stream"),
    ('data: {"error": {"message": "it is broken"}}\n\n', 200, "it is broken"),
    ('{"error": {"message": "no such model"}}', 404, "no such model"),
    ('{"error": {"message": "no\\u001b[2J mo\\u009bdel"}}', 404, "no[2J model"),
    ("<html>", 502, "status 502"),
    ("data: " + "x" * (5 << 20), 200, "more than 4 MiB"),
    ("data: " + "[" * 100000 + "\n", 200, "the stream"),
])
def test_faults_of_a_server_are_told(stream, text, status, words):
    assert words in quire("run", "--url", stream(text, status) + "/v1", "x", status=1)[1]


def on_terminal(*arguments):
    """What a command writes to a terminal."""
    near, far = pty.openpty()
    with subprocess.Popen([BINARY, *arguments], stdin=subprocess.DEVNULL, stdout=far, stderr=far):
        os.close(far)
        shown = b""
        while True:
            try:
                part = os.read(near, 4096)
            except OSError:
                break
            shown += part
    os.close(near)
    return shown.decode()


def test_answers_do_not_control_the_terminal(stream):
    hostile = "a\x1b]0;title\x07b\x9bc\x7f\rd\te"
    text = (EVENT % json.dumps({"reasoning_content": "why\x1b[2J"})
            + EVENT % json.dumps({"content": hostile}) + "data: [DONE]\n\n")
    url = stream(text)
    shown = on_terminal("run", "--url", url, "x")
    assert shown == "\x1b[2mwhy[2J\x1b[0m\r\n\r\na]0;titlebcd\te\r\n"
    assert quire("run", "--url", url, "x")[0] == hostile.replace("\r", "\n") + "\n"
