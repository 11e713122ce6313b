"""Open WebUI: its own server, asked as its page asks it.  It brings torch, so it is not among the requirements: the
command is looked for in PATH.

    python3 -m venv build/venv-open-webui && build/venv-open-webui/bin/python -m pip install open-webui==0.12.4
"""
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from conftest import MODEL
from server import ROOT, free_port

OPEN_WEBUI = shutil.which("open-webui", path=os.pathsep.join(
    [str(ROOT / "build/venv-open-webui/bin"), os.environ.get("PATH", "")]))
pytestmark = pytest.mark.skipif(not OPEN_WEBUI, reason="Open WebUI is not installed: see this file's first lines")
TEXT = "Peter is 34 years old. Clara lives in Oslo. Clara is a baker.\nWhere does Clara live?"
USER = [{"role": "user", "content": TEXT}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class WebUI:
    def __init__(self, address):
        self.address, self.token = address, None

    def ask(self, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.address + path, data, headers), timeout=180) as reply:
            return reply.read().decode()

    def json(self, path, body=None):
        return json.loads(self.ask(path, body))

    def chat(self, **fields):
        return self.json("/api/chat/completions", {
            "model": MODEL, "messages": USER, "temperature": 0, "stream": False, **fields})["choices"][0]["message"]


@pytest.fixture(scope="module")
def webui(server, tmp_path_factory):
    """Signed in as the one user that it has without accounts."""
    folder = tmp_path_factory.mktemp("open-webui")
    port = free_port()
    env = {**os.environ, "DATA_DIR": str(folder), "WEBUI_AUTH": "False", "OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1",
           "ENABLE_OLLAMA_API": "False", "OPENAI_API_BASE_URL": server.url + "/v1", "OPENAI_API_KEY": "secret"}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([OPEN_WEBUI, "serve", "--host", "127.0.0.1", "--port", str(port)],
                                   cwd=folder, env=env, stdout=log, stderr=log)
    one = WebUI(f"http://127.0.0.1:{port}")
    try:
        for _ in range(1200):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            try:
                one.token = one.json("/api/v1/auths/signin", {"email": "", "password": ""})["token"]
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        assert one.token, (folder / "log").read_text()[-2000:]
        yield one
    finally:
        process.terminate()
        process.wait(30)


def test_it_lists_the_model(webui):
    assert [model["id"] for model in webui.json("/api/models?refresh=true")["data"]] == [MODEL]


def test_it_chats(webui):
    webui.json("/api/models?refresh=true")
    assert webui.chat()["content"] == "Clara lives in Oslo."
    events = [line[6:] for line in webui.ask("/api/chat/completions", {
        "model": MODEL, "messages": USER, "temperature": 0, "stream": True}).split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event).get("choices", [])]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Clara lives in Oslo."


def test_it_gets_calls(webui):
    webui.json("/api/models?refresh=true")
    (call,) = webui.chat(messages=[{"role": "user", "content": "What is the weather in Lisbon?"}],
                         tools=[WEATHER])["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Lisbon"}


@pytest.mark.parametrize("task", ["title", "tags", "follow_up"])
def test_its_tasks_beside_a_chat_are_answered(webui, task):
    webui.json("/api/models?refresh=true")
    answer = webui.json(f"/api/v1/tasks/{task}/completions", {"model": MODEL, "messages": USER, "chat_id": "one"})
    assert answer["choices"][0]["message"]["content"]


def test_its_routes_of_other_apis_reach_the_server(webui):
    webui.json("/api/models?refresh=true")
    message = webui.json("/api/v1/messages", {"model": MODEL, "max_tokens": 20, "temperature": 0, "messages": USER})
    assert message["content"] == [{"type": "text", "text": "Clara lives in Oslo."}]
    response = webui.json("/openai/responses", {"model": MODEL, "input": TEXT, "temperature": 0,
                                                "max_output_tokens": 20})
    assert response["output"][-1]["content"][0]["text"] == "Clara lives in Oslo."
