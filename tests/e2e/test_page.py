"""The pages at /, /inspect and /docs as they are served, and the routes that they ask; tests/ui has them in
a browser."""
import gzip
import hashlib
import json
import re
import time

import pytest

from raw import RawConnection
from server import ROOT, SLOW, Server

UI = ROOT / "server/ui"
SOURCES = sorted(UI.glob("*.js"))
PAGES = {"/": "chat.html", "/inspect": "inspect.html", "/docs": "docs.html"}
POLICY = {"default-src": "'none'", "script-src": "'self'", "style-src": "'self'",
          "worker-src": "'self'", "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'",
          "form-action": "'none'", "frame-ancestors": "'none'",
          "require-trusted-types-for": "'script'", "trusted-types": "libraries"}
GZIP = {"Accept-Encoding": "br, gzip"}
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


@pytest.fixture(scope="module")
def page(server):
    return server.get("/")


def libraries(server):
    """The names of the libraries that this build has found."""
    listed = server.get("/ui/libraries.js").body.decode()
    return json.loads(re.search(r"LIBRARIES = (.*);", listed).group(1))


def check_headers(reply):
    policy = dict(each.strip().split(" ", 1)
                  for each in reply.headers["Content-Security-Policy"].split(";"))
    assert policy == POLICY
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Referrer-Policy"] == "no-referrer"
    assert reply.headers["Cache-Control"] == "no-cache"


@pytest.mark.quick("GET /", "GET /inspect", "GET /docs", "GET /ui/{file}")
def test_every_file_is_served(server):
    """Those of the tree, under their paths, with the headers that keep a browser within them."""
    tags = set()
    for path, name in PAGES.items():
        reply = server.get(path)
        assert (reply.status, reply.body) == (200, (UI / name).read_bytes())
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        check_headers(reply)
        tags.add(reply.headers["ETag"])
    for file in [*SOURCES, *UI.glob("*.css")]:
        reply = server.get(f"/ui/{file.name}")
        assert (reply.status, reply.body) == (200, file.read_bytes()), file.name
        assert reply.headers["Content-Type"] == TYPES[file.suffix]
        check_headers(reply)
        tags.add(reply.headers["ETag"])
    assert len(tags) == len(PAGES) + len(SOURCES) + len(list(UI.glob("*.css")))


def test_pages_load_files_of_this_server_only():
    for name in PAGES.values():
        text = (UI / name).read_text()
        loaded = re.findall(r"""(?:src|href|action)=["']([^"']*)""", text)
        files = [each for each in loaded if each.startswith("ui/")]
        assert len(files) == 3 and all((UI / each[3:]).is_file() for each in files)
        assert set(loaded) - set(files) <= {"./", "inspect", "docs", "openapi.json", "#message", "#prompt-part", "#routes",
                                            *(each for each in loaded if each.startswith("data:"))}
        assert "<style" not in text and " style=" not in text and " on" not in re.sub(
            r">[^<]*<", "><", text)
    for file in SOURCES:
        for imported in re.findall(r"""from '([^']*)'""", file.read_text()):
            assert imported == "./libraries.js" or (UI / imported).is_file()
    for file in UI.glob("*.css"):
        assert "url(" not in file.read_text() and "@import" not in file.read_text()


def test_libraries_are_what_the_packages_have(server):
    for name in libraries(server):
        plain = server.get(f"/ui/lib/{name}", headers=GZIP)
        assert plain.status == 200 and plain.headers["Content-Encoding"] == "gzip"
        assert len(gzip.decompress(plain.body)) > 10000
        check_headers(plain)
        refused = server.get(f"/ui/lib/{name}", headers={"Accept-Encoding": "identity"})
        assert refused.status == 406 and "gzip" in refused.error["message"]
        licences = gzip.decompress(server.get("/ui/licenses.txt", headers=GZIP).body).decode()
        assert name in licences and "License:" in licences


def test_other_files_do_not_exist(server):
    for path in ("/ui/", "/ui/nothing.js", "/ui/lib/nothing.js", "/ui/../ui/chat.js",
                 "/ui/files.h", "/ui/chat.html", "/inspect/x", "/docs/x"):
        assert server.get(path).status == 404, path


def test_no_text_becomes_markup():
    """Names of ways by which a string becomes markup, a script, or is kept where it should not be."""
    for file in SOURCES:
        script = file.read_text()
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                    "new Function", "DOMParser", "setHTML", "srcdoc", "createContextualFragment",
                    "document.cookie", "http://", "https://"):
            assert way not in script, (file.name, way)
        assert ("sessionStorage" in script) == (file.name == "composer.js")  # the draft of a tab
        assert ("localStorage" in script) == (file.name == "settings.js")
        assert ("indexedDB" in script) == (file.name == "store.js")


def test_a_browser_that_has_a_file_gets_304(server, page):
    for path in ("/", "/inspect", "/ui/chat.js"):
        whole = server.get(path)
        tag = whole.headers["ETag"]
        for tags in (tag, f'"x", W/{tag}', "*"):
            reply = server.get(path, headers={"If-None-Match": tags})
            assert (reply.status, reply.body, reply.headers["ETag"]) == (304, b"", tag)
            check_headers(reply)
        assert server.get(path, headers={"If-None-Match": '"other"'}).body == whole.body


def test_a_tag_is_that_of_the_content(server, page):
    assert page.headers["ETag"] == f'"{hashlib.sha256(page.body).hexdigest()[:32]}"'


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
    for path in ("/", "/inspect", "/ui/chat.js"):
        assert server.post(path, {}).status == 405


def test_every_route_that_the_pages_ask_exists(server):
    asked = set()  # relative: a proxy may put a path before all of them
    for file in SOURCES:
        asked |= set(re.findall(r"""(?:ask|askJson)\('([a-z0-9_/.]+)'""", file.read_text()))
    asked |= set(re.findall(r"""path: '([a-z0-9_/]+)'""", (UI / "inspect.js").read_text()))
    paths = server.get("/openapi.json").json()["paths"]
    assert asked == {"openapi.json", "state", "tokenize", "v1/models", "v1/completions", "v1/chat/completions"}
    assert {f"/{each}" for each in asked} <= set(paths)


def fields_of(server, path):
    body = server.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]
    return set(body["content"]["application/json"]["schema"]["properties"])


def test_every_field_that_the_pages_send_exists(server):
    """Those of the forms by their ids; unknown members would be ignored in silence."""
    html, script = (UI / "inspect.html").read_text(), (UI / "inspect.js").read_text()
    listed = re.search(r"for \(const name of (\[.*?\])\)", script, re.DOTALL).group(1)
    names = json.loads(listed.replace("'", '"'))
    assert len(names) > 5 and all(f'id="{name}"' in html for name in names)
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert set(names) | {"ignore_eos", "stop", "cache_salt", "kv_policy", "prefill",
                             "return_kept_positions", "return_progress"} <= fields_of(server, path)
    html, script = (UI / "chat.html").read_text(), (UI / "settings.js").read_text()
    names = json.loads(re.search(r"NUMBERS = (\[.*?\])", script).group(1).replace("'", '"'))
    assert len(names) > 3 and all(f'id="{name}"' in html for name in names)
    assert set(names) | {"model", "messages", "tools", "reasoning_effort", "kv_policy", "prefill",
                         "return_kept_positions", "return_progress", "continue_final_message",
                         "add_generation_prompt"} <= fields_of(server, "/v1/chat/completions")


def test_the_pages_can_be_turned_off(tmp_path, tiny_model):
    with Server(tmp_path, "--no-ui", model=tiny_model) as one:
        for path in (*PAGES, "/ui/chat.js"):
            reply = one.get(path)
            assert reply.status == 404 and reply.error["message"] == f"{path} does not exist"
        assert one.get("/state").status == 200


def test_the_pages_need_no_key_and_their_routes_do(tmp_path, tiny_model):
    with Server(tmp_path, "--api-key", "secret", model=tiny_model) as one:
        for path in (*PAGES, "/ui/chat.js"):
            page = one.get(path)
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
        def ask():
            with RawConnection(one) as raw:
                raw.send_completion(prompt=[5] * 130, max_tokens=n, ignore_eos=True, stream=True,
                                    kv_policy=policy)
                raw.read_until(b"data: ")
                state = one.get("/state").json()
            while one.get("/state").json()["requests"]["running"]:
                pass
            return state

        # A busy machine may let the client look when all tokens have come: then it asks again.
        state = next(state for state in (ask() for _ in range(20)) if state["requests"]["running"])
        time.sleep(0.002)  # time_s has milliseconds, and the client has left
        after = one.get("/state").json()
    assert state["requests"]["running"] == 1
    assert state["requests"]["submitted"] == after["first_token"]["count"] == after["requests"]["submitted"]
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
    assert after["first_token"]["seconds"] > 0
    assert after["time_s"] > state["time_s"]
