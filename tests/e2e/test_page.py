"""The page at / as it is served, and the routes that it asks; tests/ui has it in a browser."""
import base64
import hashlib
import json
import re
import time

import pytest

from raw import RawConnection
from server import ROOT, SLOW, Server

UI = ROOT / "server/ui"


@pytest.fixture(scope="module")
def page(server):
    return server.get("/")


def part(page, name):
    text = page.body.decode()
    return re.search(f"<{name}>(.*)</{name}>", text, re.DOTALL).group(1)


def hash_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@pytest.mark.quick("GET /")
def test_the_page_is_one_document(page):
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert part(page, "style") == (UI / "page.css").read_text()
    assert part(page, "script") == (UI / "page.js").read_text()
    loaded = re.findall(r"""(?:src|href|action)=["']([^"']*)""", (UI / "page.html").read_text())
    assert loaded and all(each.startswith(("#", "data:")) for each in loaded)
    assert "url(" not in part(page, "style") and "@import" not in part(page, "style")


def test_the_policy_allows_the_page_and_nothing_else(page):
    policy = dict(each.strip().split(" ", 1)
                  for each in page.headers["Content-Security-Policy"].split(";"))
    assert policy == {"default-src": "'none'", "script-src": hash_of(part(page, "script")),
                      "style-src": hash_of(part(page, "style")), "connect-src": "'self'",
                      "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
                      "frame-ancestors": "'none'"}
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Referrer-Policy"] == "no-referrer"


def test_no_text_becomes_markup():
    script = (UI / "page.js").read_text()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                "DOMParser", "localStorage", "sessionStorage", "indexedDB", "document.cookie"):
        assert way not in script, way


def test_a_browser_that_has_the_page_gets_304(server, page):
    tag = page.headers["ETag"]
    assert page.headers["Cache-Control"] == "no-cache"
    for tags in (tag, f'"x", W/{tag}', "*"):
        reply = server.get("/", headers={"If-None-Match": tags})
        assert (reply.status, reply.body, reply.headers["ETag"]) == (304, b"", tag)
        assert reply.headers["Content-Security-Policy"] == page.headers["Content-Security-Policy"]
    assert server.get("/", headers={"If-None-Match": '"other"'}).body == page.body


def test_a_connection_lives_on_after_304(server, page):
    with RawConnection(server) as raw:
        request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nIf-None-Match: {page.headers['ETag']}\r\n\r\n"
        for _ in range(2):
            raw.send(request.encode())
            status, headers = raw.read_head()
            assert status == 304 and "content-length" not in headers or headers["content-length"] == "0"


def test_head_and_other_methods(server, page):
    head = server.request("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) == len(page.body)
    assert server.post("/", {}).status == 405


def test_every_route_that_the_page_asks_exists(server):
    script = (UI / "page.js").read_text()
    asked = set(re.findall(r"""'(/[a-z0-9_/]+)'""", script))
    paths = server.get("/openapi.json").json()["paths"]
    assert asked == {"/state", "/tokenize", "/v1/models", "/v1/completions",
                     "/v1/chat/completions"}
    assert asked <= set(paths)


def test_every_field_that_the_page_sends_exists(server):
    """Those of the form by their ids; unknown members would be ignored in silence."""
    html, paths = (UI / "page.html").read_text(), server.get("/openapi.json").json()["paths"]
    script = (UI / "page.js").read_text()
    listed = re.search(r"for \(const name of (\[.*?\])\)", script, re.DOTALL).group(1)
    names = json.loads(listed.replace("'", '"'))
    assert len(names) > 5 and all(f'id="{name}"' in html for name in names)
    for path in ("/v1/completions", "/v1/chat/completions"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(names) | {"ignore_eos", "stop", "cache_salt", "kv_policy", "prefill",
                             "return_kept_positions", "return_progress"} <= set(body["properties"])


def test_the_page_can_be_turned_off(tmp_path, tiny_model):
    with Server(tmp_path, "--no-ui", model=tiny_model) as one:
        reply = one.get("/")
        assert reply.status == 404 and reply.error["message"] == "/ does not exist"
        assert one.get("/state").status == 200


def test_the_page_needs_no_key_and_its_routes_do(tmp_path, tiny_model):
    with Server(tmp_path, "--api-key", "secret", model=tiny_model) as one:
        page = one.get("/")
        assert page.status == 200 and b"secret" not in page.body
        assert one.get("/state").status == 401
        assert one.get("/state", headers={"Authorization": "Bearer secret"}).status == 200


# ---- GET /state ----

@pytest.mark.quick("GET /state")
def test_an_idle_engine(tmp_path, tiny_model):
    with Server(tmp_path, model=tiny_model) as one:
        reply = one.get("/state")
        state, models = reply.json(), one.get("/v1/models").json()["data"][0]
        assert reply.headers["Cache-Control"] == "no-store"
        assert state["model"] == models["id"] and state["state"] == "ready"
        assert state["requests"] == {"running": 0, "waiting": 0, "submitted": 0, "finished": 0,
                                     "cancelled": 0, "failed": 0, "preempted": 0}
        assert state["tokens"] == {"prompt": 0, "cached": 0, "generated": 0}
        assert state["pages"]["free"] == state["pages"]["total"] > 0
        assert {each["type"] for each in models["kv_policies"]} <= {
            each["policy"] for each in state["policies"]}
        assert all(each["pages"] == each["running"] == 0 for each in state["policies"])
        assert state["sequences"] == []
        assert state["first_token"] == {"count": 0, "seconds": 0}


@pytest.mark.parametrize("policy, pages", [({"type": "full"}, None),
                                           ({"type": "streaming", "sink": 4, "recent": 59}, 1)])
def test_what_runs_is_told(tmp_path, tiny_model, policy, pages):
    n = 500 if SLOW else 3000
    with Server(tmp_path, model=tiny_model) as one:
        with RawConnection(one) as raw:
            raw.send_completion(prompt=[5] * 130, max_tokens=n, ignore_eos=True, stream=True,
                                kv_policy=policy)
            raw.read_until(b"data: ")
            state = one.get("/state").json()
        while one.get("/state").json()["requests"]["running"]:
            pass
        time.sleep(0.002)  # time_s has milliseconds, and the client has left
        after = one.get("/state").json()
    assert state["requests"]["running"] == 1 and state["requests"]["submitted"] == 1
    (sequence,) = state["sequences"]
    (by_policy,) = (each for each in state["policies"] if each["policy"] == policy["type"])
    assert sequence["policy"] == policy["type"] and not sequence["sparse"]
    assert sequence["prompt_tokens"] == sequence["processed_tokens"] == 130
    assert 0 < sequence["generated_tokens"] <= n
    assert by_policy["running"] == 1 and by_policy["pages"] == sequence["pages"]
    # One layer: a budget of 63 tokens has one page, and one more for its free slot is not needed.
    assert sequence["pages"] == pages if pages else sequence["pages"] >= 3
    assert after["requests"]["running"] == 0 and after["sequences"] == []
    assert after["tokens"]["generated"] >= sequence["generated_tokens"]
    assert after["first_token"]["count"] == 1 and after["first_token"]["seconds"] > 0
    assert after["time_s"] > state["time_s"]
