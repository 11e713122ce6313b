"""Responses that are stored: conversations that go on from them, what the cache finds of these, bounds on
memory, and clients that leave."""
import concurrent.futures
import json
import random
import socket

import openai
import pytest

from server import SLOW

PATH = "/v1/responses"
# Long enough for several blocks of the prefix cache.
LONG = "The tide tables of the harbour are kept by the oldest pilot. " * 40
TOOL = {"type": "function", "name": "depth", "description": "The depth of the water.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}},
                       "required": ["at"]}}
THINKING = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def ask(client, model, text, streamed=False, **fields):
    fields = {"model": model, "input": text, "temperature": 0, "max_output_tokens": 12, **fields}
    if not streamed:
        return client.responses.create(**fields)
    *_, last = client.responses.create(**fields, stream=True)
    return last.response  # of response.completed or response.incomplete


def as_input(response):
    """The response's items as a client sends them back."""
    return [item.model_dump(exclude_none=True) for item in response.output]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_conversation_goes_on_as_if_it_were_sent(client, model, streamed):
    sent, before = [], None
    for text in (LONG, "And at night?", "And in spring?"):
        sent.append({"role": "user", "content": text})
        kept = ask(client, model, text, streamed, previous_response_id=before)
        whole = ask(client, model, sent, store=False)
        assert kept.output_text == whole.output_text
        assert kept.usage.input_tokens == whole.usage.input_tokens
        assert kept.previous_response_id == before and kept.store and not whole.store
        sent += as_input(kept)
        before = kept.id


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_the_prompt_begins_with_the_turn_before(server, client, model, streamed):
    """All of the first prompt and answer but the last block is found in the cache."""
    first = ask(client, model, LONG + str(streamed), streamed, instructions="Be brief.", max_output_tokens=150,
                extra_body={"ignore_eos": True})
    second = ask(client, model, "And at night?", streamed, instructions="Be brief.",
                 previous_response_id=first.id)
    n_before = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens > n_before - 1
    cached = second.usage.input_tokens_details.cached_tokens
    assert n_before - 64 <= cached + 1, (n_before, cached)


def test_instructions_and_tools_are_those_of_each_request(client, model):
    first = ask(client, model, "Hello", instructions="Be brief.", tools=[TOOL])
    second = ask(client, model, "And?", previous_response_id=first.id)
    whole = ask(client, model, [{"role": "user", "content": "Hello"}, *as_input(first),
                                {"role": "user", "content": "And?"}])
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert second.instructions is None and second.tools == []


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_calls_and_their_outputs_are_turns(client, model, streamed):
    first = ask(client, model, "How deep is it at the pier?", streamed, tools=[TOOL],
                tool_choice="required", max_output_tokens=100)
    call = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "4 m"}
    second = ask(client, model, [output], streamed, tools=[TOOL], previous_response_id=first.id)
    asked = {"role": "user", "content": "How deep is it at the pier?"}
    whole = ask(client, model, [asked, *as_input(first), output], tools=[TOOL])
    assert second.output_text == whole.output_text
    assert second.usage.input_tokens == whole.usage.input_tokens
    refers = ask(client, model, [asked, *({"type": "item_reference", "id": item.id}
                                          for item in first.output), output], tools=[TOOL])
    assert refers.usage.input_tokens == whole.usage.input_tokens
    # The call is stored with the items of this turn, not as a reference to the first.
    client.responses.delete(first.id)
    third = ask(client, model, "Thanks", tools=[TOOL], previous_response_id=refers.id)
    assert third.usage.input_tokens > whole.usage.input_tokens


def test_reasoning_is_a_turn(serve, tmp_path):
    """By a template whose model thinks, and that shows earlier thoughts."""
    (tmp_path / "template.jinja").write_text(THINKING)
    server = serve("--chat-template", tmp_path / "template.jinja")
    if server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_regex": "a"}).status != 200:
        pytest.skip("built without xgrammar")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as own:
        said = {"structured_outputs": {"choice": ["It is deep.\n</think>\n\n4 m"]}}
        model = own.models.list().data[0].id
        first = ask(own, model, "Why?", extra_body=said, max_output_tokens=60)
        assert [item.type for item in first.output] == ["reasoning", "message"]
        second = ask(own, model, "And?", previous_response_id=first.id)
        whole = ask(own, model, [{"role": "user", "content": "Why?"}, *as_input(first),
                                 {"role": "user", "content": "And?"}])
        alone = ask(own, model, [{"role": "user", "content": "Why?"}, as_input(first)[1],
                                 {"role": "user", "content": "And?"}])
    assert second.usage.input_tokens == whole.usage.input_tokens > alone.usage.input_tokens
    assert second.output == [] or second.output[0].content[0].text == whole.output[0].content[0].text


@pytest.mark.quick("GET /v1/responses/{id}", "DELETE /v1/responses/{id}", "GET /v1/responses/{id}/input_items", "POST /v1/responses/{id}/cancel")
def test_a_stored_response_is_shown_listed_and_dropped(client, model):
    made = ask(client, model, [{"role": "user", "content": word} for word in ("a", "b", "c")])
    assert client.responses.retrieve(made.id).model_dump() == made.model_dump()
    page = client.responses.input_items.list(made.id, limit=2, order="asc")
    assert [item.content[0].text for item in page.data] == ["a", "b"] and page.has_more
    assert [item.content[0].text for item in page] == ["a", "b", "c"]  # with the pages behind it
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel,
                 client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(made.id)


def test_what_is_not_stored_is_named(client, model):
    made = ask(client, model, "Hello", store=False)
    with pytest.raises(openai.BadRequestError) as why:
        ask(client, model, "And?", previous_response_id=made.id)
    assert why.value.code == "previous_response_not_found"
    assert why.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError) as why:
        ask(client, model, [{"type": "item_reference", "id": made.output[0].id}])
    assert why.value.param == "input"


def test_without_a_store_it_says_so(serve, small_model):
    server = serve("--responses-store-size", 0, model=small_model)
    made = server.post(PATH, {"input": "a", "max_output_tokens": 2}).json()
    assert made["store"] is False
    reply = server.post(PATH, {"input": "b", "previous_response_id": made["id"]})
    assert reply.status == 400 and "--responses-store-size" in reply.error["message"]
    assert server.get(f"{PATH}/{made['id']}").status == 404
    assert "quire_responses_stored" not in server.metrics()


def test_keys_share_no_response(serve, small_model):
    keys = [{"name": name, "key": name} for name in ("one", "two")]
    server = serve("--api-keys", json.dumps({"keys": keys}), model=small_model)
    one, two = ({"Authorization": f"Bearer {key['key']}"} for key in keys)
    made = server.post(PATH, {"input": "a", "max_output_tokens": 2}, headers=one).json()
    assert server.get(f"{PATH}/{made['id']}", headers=one).status == 200
    assert server.get(f"{PATH}/{made['id']}", headers=two).status == 404
    assert server.request("DELETE", f"{PATH}/{made['id']}", headers=two).status == 404
    body = {"input": "b", "previous_response_id": made["id"], "max_output_tokens": 2}
    assert server.post(PATH, body, headers=two).error["code"] == "previous_response_not_found"
    assert server.post(PATH, body, headers=one).status == 200


def test_a_key_cannot_evict_what_another_has(serve, small_model):
    keys = [{"name": name, "key": name} for name in ("one", "two")]
    server = serve("--api-keys", json.dumps({"keys": keys}), "--responses-store-size", "256K", model=small_model)
    one, two = ({"Authorization": f"Bearer {key['key']}"} for key in keys)

    def store(key, **fields):
        fields = {"input": "a", "max_output_tokens": 2, "metadata": {"filler": "y" * 10000}, **fields}
        reply = server.post(PATH, fields, headers=key)
        assert reply.status == 200, reply.text
        return reply.json()["id"]

    kept = store(one)
    made = [store(two) for _ in range(60)]
    evicted = [name for name in made if server.get(f"{PATH}/{name}/input_items", headers=two).status == 404][-1]
    assert server.get(f"{PATH}/{kept}", headers=one).status == 200
    why = "it was evicted, because later responses needed its space (--responses-store-size 262144)"
    for _ in range(2):
        reply = server.post(PATH, {"input": "b", "previous_response_id": evicted}, headers=two)
        assert reply.status == 400 and why in reply.error["message"]
        assert reply.error["code"] == "previous_response_not_found"
    reply = server.get(f"{PATH}/{evicted}", headers=two)
    assert reply.status == 404 and why in reply.error["message"]
    assert server.get(f"{PATH}/{evicted}", headers=one).error["message"].count("another API key's") == 1
    metrics = server.metrics()
    assert metrics['quire_responses_store_misses_total{reason="space"}'] >= 3
    assert metrics['quire_responses_dropped_total{reason="space"}'] > 30
    # A conversation that goes on stays whole while others come: its earlier objects are given up.
    first = before = store(two)
    for _ in range(30):
        before = store(two, previous_response_id=before)
        store(two)
    assert "object was evicted" in server.get(f"{PATH}/{first}", headers=two).error["message"]
    assert store(two, previous_response_id=first)
    server.stop()
    assert server.log.count("asked for a stored response that was evicted") == 1


def test_replicas_share_the_store(serve, small_model):
    server = serve("--data-parallel-size", 2, model=small_model)
    before = None
    for _ in range(6):
        made = server.post(PATH, {"input": "a", "max_output_tokens": 2,
                                  "previous_response_id": before})
        assert made.status == 200
        before = made.json()["id"]


def test_they_expire(serve, small_model):
    server = serve("--responses-store-time", 1, model=small_model)
    server.post(PATH, {"input": "a", "max_output_tokens": 2})
    dropped = 'quire_responses_dropped_total{reason="age"}'
    metrics = server.metrics()
    assert metrics["quire_responses_stored"] + metrics[dropped] == 1
    server.wait_for(dropped, 1)
    assert server.metrics()["quire_responses_stored"] == 0


def leave(server, body):
    """Asks for a stream and leaves in the middle of it."""
    text = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (PATH.encode(), len(text), text))
        sock.recv(random.Random(len(text)).randrange(200, 4000))


def test_memory_is_bounded_under_load(serve, tiny_model):
    """Thousands of responses, chained and not, of clients some of which leave."""
    n = 500 if SLOW else 10000
    size = 420 * n  # of some 2,000 bytes for each
    server = serve("--responses-store-size", size, "--max-model-len", 4096, "--tokenizer-cache-size", 0,
                   "--kv-cache-memory", "16M", model=tiny_model)

    def converse(i):
        rng, before, answers = random.Random(i), None, []
        for turn in range(n // 500):
            body = {"input": "x" * rng.randrange(1, 60), "max_output_tokens": 1,
                    "metadata": {"filler": "y" * rng.randrange(2000)}, "previous_response_id": before}
            if rng.random() < 0.02:
                leave(server, {**body, "stream": True, "max_output_tokens": 200})
            made = server.post(PATH, body)
            answers.append(made.status)
            if made.status == 400:
                assert made.error["code"] == "previous_response_not_found"
            before = made.json().get("id") if rng.random() < 0.9 else None
        return answers

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        warm = list(pool.map(converse, range(200)))
        resident = server.resident_bytes()
        rest = list(pool.map(converse, range(200, 500)))
    statuses = [status for answers in warm + rest for status in answers]
    assert set(statuses) <= {200, 400} and statuses.count(200) > 0.8 * len(statuses)
    metrics = server.metrics()
    assert metrics["quire_responses_stored_bytes"] <= size
    assert metrics['quire_responses_dropped_total{reason="space"}'] > len(statuses) / 2
    assert SLOW or server.resident_bytes() < resident + (16 << 20)  # sanitizers keep what is freed
    server.wait_idle()


def test_paths_and_ids_of_any_form(server):
    rng = random.Random(3)
    letters = "abz09-_.~%/?#&=+ \\\"'é\u202e" + "x" * 5
    for _ in range(300):
        name = "".join(rng.choice(letters) for _ in range(rng.choice((1, 5, 40, 300))))
        path = "".join(c if c.isascii() and (c.isalnum() or c in "-_.~/?&=+") else f"%{b:02X}"
                       for c in name for b in c.encode()[:1])
        tail = rng.choice(("", "/input_items", "/input_items?limit=2&after=x", "/cancel", "/", "/x"))
        for method in ("GET", "DELETE", "POST"):
            status = server.request(method, f"{PATH}/{path}{tail}", body="{}" if method == "POST" else None).status
            assert status in (400, 404, 405), (method, path, tail, status)
        for body in ({"input": "a", "previous_response_id": name},
                     {"input": [{"type": "item_reference", "id": name}]}):
            assert server.post(PATH, body).status in (400, 404)
