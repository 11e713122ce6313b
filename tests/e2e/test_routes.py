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


@pytest.mark.parametrize("route", OPEN_ROUTES)
def test_health_routes(server, route):
    assert server.get(route).status == 200


def test_version(server):
    """Routers read 'version'; the rest is what `quire version` prints."""
    told = server.get("/version").json()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", told["version"])
    assert re.fullmatch(r"[0-9a-f]{12,}(-dirty)?|unknown", told["commit"])
    printed = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True)
    lines = printed.stdout.splitlines()
    assert lines[0] == f"quire {told['version']}, commit {told['commit']}"
    assert lines[1:-1] == [f"backend {name}, kernels for {', '.join(kernels)}"
                           for name, kernels in told["backends"].items()]
    assert told["backends"]["cpu"][0] == "plain"
    assert "quire %s (commit %s)" % (told["version"], told["commit"]) in server.log
    if "cuda" in told["backends"]:
        assert "sm_80" in told["backends"]["cuda"]


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


def test_tokenize_equals_the_library(server, tokenizer):
    for text in ("", "Hello", "Once upon a time,\n\n\tthere was 1234567.", "naïve 日本語 😀",
                 "<|im_end|>"):
        reply = server.post("/tokenize", {"prompt": text}).json()
        assert reply["tokens"] == tokenizer.encode(text).ids
        assert reply["count"] == len(reply["tokens"])
        assert reply["max_model_len"] == 32768
        bare = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
        assert bare["tokens"] == tokenizer.encode(text, add_special_tokens=False).ids


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

    def test_nobody_sends_a_body_without_it(self, guarded):
        with RawConnection(guarded) as connection:
            connection.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                            b"Content-Length: 60000000\r\n\r\n{")
            status, headers, body = connection.read_reply()
            assert status == 401 and headers["x-request-id"]
            assert json.loads(body)["error"]["code"] == "invalid_api_key"
            assert connection.is_closed_within(5)

    def test_the_key_is_not_logged(self, guarded):
        assert "sesame" not in guarded.log
