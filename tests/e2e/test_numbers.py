"""Numbers that 64 bits and doubles cannot hold, and deep nesting: what is passed on stays as it is written, what is
needed is refused by name."""
import json
import shutil

import pytest

CHAT = "/v1/chat/completions"
BIG = ("18446744073709551615", "1000000000000000019884624838656", "-9223372036854775809", "1e400", "-1E+999")
WRITTEN = (*BIG, "1.50", "0.1000", "-0", "-0.0", "1e2", "12", "9223372036854775807")


def body(more, content="x"):
    return ('{"messages": [{"role": "user", "content": %s}], "max_tokens": 2, %s}' % (json.dumps(content), more)).encode()


def tool(schema):
    return '"tools": [{"type": "function", "function": {"name": "f", "parameters": %s}}]' % schema


def nested(n, inner="1"):
    return '{"a": ' * n + inner + "}" * n


def prompt_of(server, more, content="x"):
    reply = server.post(CHAT + "/render", body(more, content))
    assert reply.status == 200, reply.body
    return server.post("/detokenize", {"tokens": reply.json()["token_ids"]}).json()["prompt"]


@pytest.mark.parametrize("number", WRITTEN)
def test_templates_show_numbers_as_they_are_written(server, number):
    schema = '{"type": "object", "properties": {"n": {"default": %s, "examples": [%s, "%s"]}}}' % (number, number, number)
    prompt = prompt_of(server, tool(schema))
    assert f'"default": {number}, "examples": [{number}, "{number}"]' in prompt
    call = ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "a", "type": '
            '"function", "function": {"name": "f", "arguments": %s}}]}, {"role": "tool", "tool_call_id": "a", "content": '
            '"ok"}]}')
    for arguments in (json.dumps('{"n":%s}' % number), '{"n": %s}' % number):
        reply = server.post(CHAT + "/render", (call % arguments).encode())
        assert reply.status == 200, reply.body
        assert '{"n": %s}' % number in server.post(
            "/detokenize", {"tokens": reply.json()["token_ids"]}).json()["prompt"]


@pytest.mark.parametrize("number", BIG)
def test_ignored_numbers_are_ignored(server, number):
    for more in ('"metadata": {"id": %s}', '"unknown": %s', '"unknown": [[%s]]', '"chat_template_kwargs": {"x": %s}'):
        assert server.post(CHAT, body(more % number)).status == 200
    for path, text in (("/v1/messages", '{"max_tokens": 2, "messages": [{"role": "user", "content": "x"}], "x": %s}'),
                       ("/v1/responses", '{"max_output_tokens": 2, "input": "x", "metadata": {"x": %s}}'),
                       ("/v1/completions", '{"max_tokens": 2, "prompt": "x", "x": %s}'),
                       ("/tokenize", '{"prompt": "x", "x": %s}')):
        reply = server.post(path, (text % number).encode())
        assert reply.status == 200, reply.body


@pytest.mark.parametrize("name", ["seed", "top_k", "temperature", "top_p", "max_completion_tokens", "n", "presence_penalty",
                                  "min_tokens", "top_logprobs", "repetition_penalty"])
@pytest.mark.parametrize("number", BIG)
def test_needed_numbers_are_refused_by_name(server, name, number):
    reply = server.post(CHAT, body(f'"logprobs": true, "{name}": {number}'))
    assert reply.status == 400, reply.body
    assert reply.error["param"] == name and name in reply.error["message"], reply.error


def test_strings_are_no_numbers(server):
    """A string says what it says, whatever the reader's own marks are."""
    for text in ("\x01" + "1,3", "\x01", "18446744073709551615", "\x01" * 600, "1e400"):
        assert text in prompt_of(server, '"x": 1e400', text)


@pytest.mark.parametrize("n", [32, 128, 240])
def test_deep_values_are_passed_on(server, n):
    assert server.post(CHAT, body('"metadata": ' + nested(n))).status == 200
    prompt = prompt_of(server, tool('{"type": "object", "default": %s}' % nested(n)))
    assert nested(n) in prompt
    reply = server.post("/v1/messages", (
        '{"max_tokens": 2, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": '
        '"tool_use", "id": "t", "name": "f", "input": %s}]}, {"role": "user", "content": [{"type": "tool_result", '
        '"tool_use_id": "t", "content": "ok"}]}]}' % nested(n)).encode())
    assert reply.status == 200, reply.body


def test_deeper_ones_are_refused_by_the_bound(server):
    for n in (256, 1000, 300000):
        reply = server.post(CHAT, body('"metadata": ' + nested(n)))
        assert reply.status == 400 and "nested deeper than 256" in reply.error["message"], reply.body


def test_model_files_may_have_any_number(serve, tiny_model, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        text = (model / name).read_text().rstrip()
        more = '"model_max_length_": 1000000000000000019884624838656, "huge": 1e400, "deep": %s' % nested(200)
        (model / name).write_text(text[:-1] + ", " + more + "}")
    text = json.loads((model / "tokenizer_config.json").read_text())
    assert text["model_max_length_"] > 2**64
    (model / "tokenizer_config.json").write_text(json.dumps(text | {"model_max_length": 10**30}).replace("Infinity", "1e400"))
    server = serve(model=model)
    assert server.complete("x", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_needed_number_of_a_file_is_named(tiny_model, tmp_path):
    from server import Server
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2**64}))
    server = Server(tmp_path, model=model, wait=False)
    assert server.process.wait(30) != 0
    assert "num_hidden_layers" in server.log
