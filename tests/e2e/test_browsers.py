"""What web pages may do: names of the server, origins, preflight requests."""
import pytest

PAGE = "https://chat.example"


def ask(server, path="/v1/models", method="GET", **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.request(method, path, headers=names)


@pytest.mark.parametrize("host,status", [
    ("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200),
    ("10.1.2.3", 200), ("rebound.example", 403), ("localhost.example:8000", 403),
    ("127.0.0.1.example", 403), ("1.2.3.4x", 403)])
def test_a_loopback_address_knows_its_names(serve, tiny_model, host, status):
    server = serve(model=tiny_model)
    assert ask(server, Host=host).status == status
    assert ask(server, "/live", Host=host).status == status


def test_other_names_can_be_allowed(serve, tiny_model):
    server = serve("--allowed-hosts", "gpu.example, quire", model=tiny_model)
    for host, status in (("gpu.example:8000", 200), ("Quire", 200), ("localhost", 200),
                         ("127.0.0.1", 200), ("rebound.example", 403)):
        assert ask(server, Host=host).status == status
    server = serve("--allowed-hosts", "*", model=tiny_model)
    assert ask(server, Host="rebound.example").status == 200


def test_other_origins_are_refused_unless_listed(serve, tiny_model):
    server = serve(model=tiny_model)
    refused = ask(server, Origin=PAGE)
    assert refused.status == 403 and b"origin_not_allowed" in refused.body
    assert "Access-Control-Allow-Origin" not in refused.headers
    assert ask(server, Origin="null").status == 403
    own = f"127.0.0.1:{server.port}"
    assert ask(server, Host=own, Origin=f"http://{own}").status == 200
    assert ask(server, Host=own, Origin=f"http://{own}9").status == 403
    # A page can send this without asking beforehand; it must not cost a step.
    refused = server.request("POST", "/v1/completions", b'{"prompt": "a"}',
                             headers={"Origin": PAGE, "Content-Type": "text/plain"})
    assert refused.status == 403


def test_listed_origins_may_read(serve, tiny_model):
    server = serve("--allowed-origins", f"{PAGE}, http://localhost:3000", "--api-key", "sesame",
                   model=tiny_model)
    for origin in (PAGE, "http://localhost:3000"):
        answer = ask(server, Origin=origin)
        assert answer.status == 401 and answer.headers["Access-Control-Allow-Origin"] == origin
        answer = ask(server, Origin=origin, Authorization="Bearer sesame")
        assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == origin
        assert answer.headers["Vary"] == "Origin"
    assert ask(server, Origin="https://chat.example.evil").status == 403
    assert "Access-Control-Allow-Origin" not in ask(server, Authorization="Bearer sesame").headers


def test_a_preflight_needs_no_key(serve, tiny_model):
    server = serve("--allowed-origins", PAGE, "--api-key", "sesame", model=tiny_model)
    answer = ask(server, "/v1/chat/completions", "OPTIONS", Origin=PAGE,
                 Access_Control_Request_Method="POST",
                 Access_Control_Request_Headers="authorization,content-type")
    assert answer.status == 204 and answer.body == b""
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
    assert ask(server, "/v1/models", "OPTIONS", Origin="https://other.example",
               Access_Control_Request_Method="POST").status == 403
    assert ask(server, "/v1/models", "OPTIONS", Authorization="Bearer sesame").status == 405


def test_any_origin_can_be_allowed(serve, tiny_model):
    server = serve("--allowed-origins", "*", model=tiny_model)
    assert ask(server, Origin="null").headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_ends_at_its_deadline(serve, stream):
    server = serve("--request-deadline", 1)
    body = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": stream,
            "kv_policy": {"type": "streaming", "recent": 64}}
    answer = server.post("/v1/completions", body)
    assert answer.status == (200 if stream else 504)
    assert b"deadline_exceeded" in answer.body and b"[DONE]" not in answer.body
    server.wait_idle()
    assert server.complete("a", max_tokens=2)["usage"]["completion_tokens"] == 2
