"""Everything but completions: models, health, version, the tokenizer, request ids, the API key."""
import contextlib
import json
import re
import subprocess

import pytest

from raw import RawConnection
from server import BINARY, DEVICE, MODEL, Server

OPEN_ROUTES = ["/health", "/live", "/ready"]
KEY_ROUTES = ["/v1/models", "/version", "/tokenizer_info"]


def test_a_start_that_fails_is_never_ready(tmp_path, small_model):
    """This one fails behind the loading of the model: connections are answered until they are closed."""
    for _ in range(40 if DEVICE == "cpu" else 5):
        server = Server(tmp_path, "--batch-invariant", "true", "--speculation", "suffix",
                        model=small_model, wait=False)
        while server.process.poll() is None:
            with contextlib.suppress(OSError):
                assert server.get("/ready", timeout=1).status == 503, server.log
        assert server.process.returncode == 1, server.log


@pytest.mark.quick("GET /v1/models", "GET /v1/models/{id}")
def test_models(server):
    models = server.get("/v1/models").json()
    assert models["object"] == "list"
    (model,) = models["data"]
    assert model["object"] == "model"
    assert isinstance(model["created"], int) and isinstance(model["owned_by"], str)
    assert model["max_model_len"] == 32768
    assert server.get(f"/v1/models/{model['id']}").json() == model


def test_unknown_model_id(server):
    reply = server.get("/v1/models/gpt-9")
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"


def test_the_served_name_is_the_one_accepted(server):
    name = server.get("/v1/models").json()["data"][0]["id"]
    assert server.complete("a", model=name, max_tokens=1)["model"] == name


@pytest.mark.quick("GET /health", "GET /live", "GET /ready")
@pytest.mark.parametrize("route", OPEN_ROUTES)
def test_health_routes(server, route):
    assert server.get(route).status == 200


@pytest.mark.quick("GET /version")
def test_version(server):
    """Routers read 'version'; the rest is what `quire version` prints."""
    told = server.get("/version").json()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", told["version"])
    assert re.fullmatch(r"[0-9a-f]{12,}(-dirty)?|unknown", told["commit"])
    printed = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True)
    lines = printed.stdout.splitlines()
    assert lines[0] == f"quire {told['version']}, commit {told['commit']}"
    backends = [line for line in lines[1:-1] if not line.startswith("without ")]
    assert backends == [f"backend {name}, kernels for {', '.join(kernels)}"
                        for name, kernels in told["backends"].items()]
    assert told["backends"]["cpu"][0] == "plain"
    assert "quire %s (commit %s)" % (told["version"], told["commit"]) in server.log
    if "cuda" in told["backends"]:
        assert "sm_80" in told["backends"]["cuda"]


@pytest.mark.quick("GET /metrics")
def test_metrics_are_prometheus_text(server):
    reply = server.get("/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain")
    for line in reply.body.decode().splitlines():
        assert re.fullmatch(r'#.*|[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? [-+0-9.eEInfNa]+', line), line


def test_metrics_count_tokens(server):
    before = server.metrics()
    server.complete([65, 66, 67], max_tokens=5, ignore_eos=True)
    after = server.metrics()
    assert after["quire_prompt_tokens_total"] - before["quire_prompt_tokens_total"] == 3
    assert after["quire_generated_tokens_total"] - before["quire_generated_tokens_total"] == 5


# ---- paths that were joined badly, and bodies that are not JSON yet ----

@pytest.mark.parametrize("path", [
    "/v1//models", "//v1/models", "/v1/models/", "///v1///models//", "/v1/models/?limit=1"])
def test_slashes_that_name_nothing_are_left_out(server, path):
    assert server.get(path).json() == server.get("/v1/models").json()


def test_a_model_is_found_behind_too_many_slashes(server):
    name = server.get("/v1/models").json()["data"][0]["id"]
    for path in (f"//v1/models/{name}", f"/v1/models//{name}", f"/v1/models/{name}/"):
        assert server.get(path).json()["id"] == name
    assert server.get("/health/").status == 200
    assert server.post("/v1//requests/none/cancel/", {}).error["code"] != "not_found"


@pytest.mark.parametrize("path, meant", [
    ("/v1/v1/chat/completions", "/v1/chat/completions"), ("/chat/completions", "/v1/chat/completions"),
    ("/api/v1/chat/completions", "/v1/chat/completions"), ("/v1/chat", "/v1/chat/completions"),
    ("/V1/Chat/Completions", "/v1/chat/completions"), ("/v1/chat/completion", "/v1/chat/completions"),
    ("/v1/chat/completoins", "/v1/chat/completions"), ("/v1/completion", "/v1/completions"),
    ("/completions", "/v1/completions"), ("/openai/v1/responses", "/v1/responses"),
    ("/messages", "/v1/messages"), ("/v1/message", "/v1/messages"),
    ("/messages/count_tokens", "/v1/messages/count_tokens"), ("/models", "/v1/models"),
    ("/models/quire-31m", "/v1/models/{id}"), ("/v1/tokenize", "/tokenize"),
    ("/v1/health", "/health"), ("/healthz", "/health"), ("/metric", "/metrics"),
    ("/v1/requests/x/cancle", None), ("/v1", None), ("/api/show", None), ("/a", None),
    ("/" + 2000 * "v1/", None),
    ("/api/chat", "/v1/chat/completions"), ("/generate", "/v1/completions"), ("/api/tags", "/v1/models"),
    ("/slots", "/state")])
def test_a_path_without_a_route_names_the_one_that_is_meant(server, path, meant):
    reply = server.post(path, {"messages": [{"role": "user", "content": "x"}]})
    assert reply.status == 404 and reply.error["code"] == "not_found"
    said = reply.error["message"].removeprefix(path[:200])
    if "cancle" in path:
        assert "/v1/requests/{id}/cancel" in said
    else:
        assert said.split(";")[0] == (f" does not exist: {meant} may be meant" if meant else
                                      " does not exist: /openapi.json has the routes")
        if meant and meant.startswith("/v1/"):
            assert ("without" if "messages" in meant else "OpenAI") in said.split(";")[1]


@pytest.mark.parametrize("path, what", [
    ("/v1/embeddings", "embeddings"), ("/api/embed", "embeddings"), ("/rerank", "rankings"),
    ("/v1/audio/transcriptions", "speech"), ("/v1/batches", "batches"), ("/infill", "filling in the middle")])
def test_a_path_for_what_is_not_there_says_so(server, path, what):
    reply = server.post(path, {})
    assert reply.status == 404 and reply.error["code"] == "not_found"
    assert f"quire has no {what}; " in reply.error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages",
                                  "/v1/responses", "/tokenize", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "zstd", "br", "gzip, gzip",
                                    "identity, gzip", "GZIP ", "none", "x" * 300])
def test_a_compressed_body_is_refused_by_name(server, path, coding):
    reply = server.post(path, b"\x1f\x8b\0\1", headers={"Content-Encoding": coding})
    assert reply.status == 415 and reply.headers["Accept-Encoding"] == "identity"
    assert "Content-Encoding" in reply.error["message"]
    if path.startswith("/v1/messages"):
        assert reply.json()["type"] == "error"


@pytest.mark.parametrize("coding", ["identity", "Identity ", "identity, identity", ""])
def test_a_body_that_is_not_compressed_may_say_so(server, coding):
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1},
                       headers={"Content-Encoding": coding}).status == 200


def test_the_host_of_a_target_counts_and_not_the_header(server):
    """A page may choose the header of a request through a proxy, but not the target."""
    for host, header, status in (("localhost", "localhost", 200), ("LOCALHOST:1", "evil.example", 200),
                                 ("evil.example", "localhost", 403), ("[::1]:80", "localhost", 200)):
        with RawConnection(server) as connection:
            connection.send(f"GET http://{host}/v1/models HTTP/1.1\r\nHost: {header}\r\n\r\n".encode())
            assert connection.read_reply()[0] == status, (host, header)


def test_tokenize_equals_the_library(server, tokenizer):
    for text in ("", "Hello", "Once upon a time,\n\n\tthere was 1234567.", "naïve 日本語 😀",
                 "<|im_end|>"):
        reply = server.post("/tokenize", {"prompt": text}).json()
        assert reply["tokens"] == tokenizer.encode(text).ids
        assert reply["count"] == len(reply["tokens"])
        assert reply["max_model_len"] == 32768
        bare = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
        assert bare["tokens"] == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.quick("POST /tokenize", "POST /detokenize")
def test_shipped_tokenizer_goldens(server):
    goldens = json.loads((MODEL / "tokenizer_goldens.json").read_text())["strings"]
    for golden in goldens:
        reply = server.post(
            "/tokenize", {"prompt": golden["text"], "add_special_tokens": False}
        ).json()
        assert reply["tokens"] == golden["ids"], golden["text"]
        if golden["decoded_equal"]:
            back = server.post("/detokenize", {"tokens": golden["ids"]}).json()
            assert back["prompt"] == golden["text"]


def test_tokenize_a_megabyte_of_one_letter(server):
    reply = server.post("/tokenize", {"prompt": "a" * (1 << 20)}, timeout=10)
    assert reply.status == 200
    assert reply.json()["count"] > 1000


@pytest.mark.quick("GET /tokenizer_info")
def test_tokenizer_info(server):
    info = server.get("/tokenizer_info").json()
    assert isinstance(info, dict) and info


def test_request_id_is_returned(server):
    reply = server.get("/health", headers={"x-request-id": "abc-1.2_3"})
    assert reply.headers["x-request-id"] == "abc-1.2_3"


@pytest.mark.parametrize("bad", ["a b", "x" * 129, "é", ""])
def test_a_strange_request_id_is_replaced(server, bad):
    reply = server.get("/health", headers={"x-request-id": bad.encode("utf-8")})
    made = reply.headers["x-request-id"]
    assert made and made != bad
    assert re.fullmatch(r"[A-Za-z0-9._-]{8,128}", made)


def test_request_ids_are_distinct_and_logged(server):
    ids = {server.get("/version").headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20
    server.post("/v1/completions", {"prompt": "a", "max_tokens": 1},
                headers={"x-request-id": "to-be-logged"})
    server.wait_logged("to-be-logged")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, tiny_model):
    with Server(
        tmp_path_factory.mktemp("guarded"), "--api-key", "open sesame", model=tiny_model
    ) as one:
        yield one


class TestApiKey:
    @pytest.mark.parametrize("route", OPEN_ROUTES)
    def test_open_routes(self, guarded, route):
        assert guarded.get(route).status == 200

    @pytest.mark.parametrize("route", KEY_ROUTES)
    @pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer open sesam",
                                        "Bearer open sesame!", "open sesame",
                                        "Bearer", "Basic open sesame"])
    def test_refused(self, guarded, route, header):
        reply = guarded.get(route, headers={"Authorization": header} if header else {})
        assert reply.status == 401
        assert reply.error["code"] == "invalid_api_key"

    @pytest.mark.parametrize("route", KEY_ROUTES)
    def test_allowed(self, guarded, route):
        assert guarded.get(route, headers={"Authorization": "Bearer open sesame"}).status == 200

    def test_completions_need_it_before_the_body_is_judged(self, guarded):
        assert guarded.post("/v1/completions", b"not json").status == 401
        reply = guarded.post("/v1/completions", {"prompt": "a", "max_tokens": 1},
                             headers={"Authorization": "Bearer open sesame"})
        assert reply.status == 200

    @pytest.mark.parametrize("line", [
        "Authorization: Bearer open sesame ", "authorization: bearer open sesame\t",
        "Authorization:Bearer open sesame", "Authorization:  Bearer  open sesame \t ",
        "x-api-key: open sesame ", "X-API-KEY:\topen sesame"])
    def test_white_space_around_it_is_no_part_of_it(self, guarded, line):
        with RawConnection(guarded) as connection:
            connection.send(f"GET /v1/models HTTP/1.1\r\nHost: localhost \r\n{line}\r\n\r\n".encode())
            assert connection.read_reply()[0] == 200

    def test_paths_joined_badly_need_it_as_well(self, guarded):
        for path in ("//v1/models", "/v1/models/", "/version/", "//metrics//x"):
            assert guarded.get(path).status == 401

    def test_no_body_is_sent_without_it(self, guarded):
        with RawConnection(guarded) as connection:
            connection.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                            b"Content-Length: 60000000\r\n\r\n{")
            status, headers, body = connection.read_reply()
            assert status == 401 and headers["x-request-id"]
            assert json.loads(body)["error"]["code"] == "invalid_api_key"
            assert connection.is_closed_within(5)

    def test_the_key_is_not_logged(self, guarded):
        assert "sesame" not in guarded.log
