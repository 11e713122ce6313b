"""POST /v1/chat/completions: the official client, the rendered prompt, what a message cannot do,
refusals by name."""
import json
import re

import pytest

from server import PATIENCE, ROOT, sse_events

CHATML = ("{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
          "{{ message.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
HELLO = [{"role": "user", "content": "Hello there"}]
GREEDY = {"messages": HELLO, "max_tokens": 8, "temperature": 0}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def ask(server, status=200, **fields):
    reply = server.post(PATH, {**GREEDY, **fields})
    assert reply.status == status, reply.body
    return reply.json()


def render(messages, generation_prompt=True):
    """What the shipped template makes of messages."""
    text = "<|begin_of_text|>" + "".join(
        f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + ("<|im_start|>assistant\n" if generation_prompt else "")


def prompt_ids(server, **fields):
    answer = ask(server, **{"max_tokens": 1, "return_token_ids": True, **fields})
    return answer["choices"][0]["prompt_token_ids"]


@pytest.mark.quick("POST /v1/chat/completions")
def test_the_client_reads_an_answer(client, model):
    answer = client.chat.completions.create(model=model, **GREEDY)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 8


def test_a_stream_is_the_whole_answer(client, model):
    whole = client.chat.completions.create(model=model, **GREEDY)
    with client.chat.completions.create(model=model, **GREEDY, stream=True,
                                        stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [c.choices[0].delta.content or "" for c in chunks[:-1]]
    assert "".join(deltas) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_template_makes_the_prompt(server, tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, *HELLO,
                {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Why?"}]
    expected = tokenizer.encode(render(messages), add_special_tokens=False).ids
    assert prompt_ids(server, messages=messages) == expected


def test_it_answers_as_the_same_text_does(server):
    """The chat, and a completion of what its template makes of it."""
    text = server.complete(render(HELLO), max_tokens=8, temperature=0, add_special_tokens=False)
    assert text["choices"][0]["text"] == ask(server)["choices"][0]["message"]["content"]


def test_parts_are_joined(server):
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    joined = [{"role": "user", "content": "Hello\nthere"}]
    assert (prompt_ids(server, messages=[{"role": "user", "content": parts}])
            == prompt_ids(server, messages=joined))


@pytest.mark.parametrize("token", SPECIAL)
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_no_message_is_a_special_token(server, tokenizer, token, role):
    """Nor a part of one, which the template's own text would make whole."""
    special = {tokenizer.token_to_id(one) for one in SPECIAL}
    plain = [i for i in prompt_ids(server, messages=[{"role": role, "content": "x"}])
             if i in special]
    for content in (token, f"a{token}b", token * 3, token[:-1], token[1:], f"x\n{token}\n"):
        ids = prompt_ids(server, messages=[{"role": role, "content": content}])
        assert [i for i in ids if i in special] == plain, content


def test_the_last_message_is_continued(server, tokenizer):
    begun = [*HELLO, {"role": "assistant", "content": "Hello! My name is"}]
    ids = prompt_ids(server, messages=begun, continue_final_message=True)
    text = render(begun, generation_prompt=False).removesuffix("<|im_end|>\n")
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids


def test_without_a_generation_prompt(server, tokenizer):
    ids = prompt_ids(server, add_generation_prompt=False)
    assert ids == tokenizer.encode(render(HELLO, False), add_special_tokens=False).ids


def test_a_developer_is_a_system(server):
    """The template does not know the role."""
    assert (prompt_ids(server, messages=[{"role": "developer", "content": "x"}, *HELLO])
            == prompt_ids(server, messages=[{"role": "system", "content": "x"}, *HELLO]))


def test_logprobs(client, model):
    answer = client.chat.completions.create(model=model, **GREEDY, logprobs=True, top_logprobs=3)
    scored = answer.choices[0].logprobs.content
    assert len(scored) == answer.usage.completion_tokens
    assert all(len(one.top_logprobs) == 3 and one.logprob <= 0 for one in scored)
    assert all(one.top_logprobs[0].token == one.token for one in scored)
    text = b"".join(bytes(one.bytes) for one in scored).decode()
    assert text.removesuffix("<|im_end|>") == answer.choices[0].message.content
    assert not client.chat.completions.create(model=model, **GREEDY, logprobs=True
                                              ).choices[0].logprobs.content[0].top_logprobs


def test_choices_differ_by_their_seeds(client, model):
    fields = {**GREEDY, "temperature": 1, "max_tokens": 20}
    together = client.chat.completions.create(model=model, **fields, n=3, seed=5).choices
    alone = [client.chat.completions.create(model=model, **fields, seed=5 + i).choices[0]
             for i in range(3)]
    assert [c.index for c in together] == [0, 1, 2]
    assert [c.message.content for c in together] == [c.message.content for c in alone]


@pytest.mark.parametrize("policy", [
    {"type": "streaming", "sink": 4, "recent": 64},
    {"type": "heavy_hitter", "heavy": 32, "recent": 32}])
def test_policies(server, policy):
    answer = ask(server, kv_policy=policy, max_tokens=100, ignore_eos=True)
    assert answer["usage"]["kv"]["policy"] == policy["type"]
    assert answer["usage"]["kv"]["evicted_tokens"] > 0


def test_without_max_tokens_the_model_ends_it(server):
    answer = server.post(PATH, {"messages": HELLO, "temperature": 0}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_what_only_openai_has_is_ignored(server):
    extra = {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "me",
             "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low",
             "parallel_tool_calls": True, "tools": [], "tool_choice": "none",
             "modalities": ["text"], "response_format": {"type": "text"},
             "prediction": {"type": "content", "content": "x"}}
    assert ask(server, **extra)["choices"] == ask(server)["choices"]


BAD = [
    ("none", {"messages": None}, "messages"),
    ("empty", {"messages": []}, "messages"),
    ("a string", {"messages": "Hello"}, "messages"),
    ("no object", {"messages": ["Hello"]}, "messages"),
    ("no role", {"messages": [{"content": "x"}]}, "messages"),
    ("a wrong role", {"messages": [{"role": "function", "content": "x"}]}, "messages"),
    ("no content", {"messages": [{"role": "user"}]}, "messages"),
    ("a number", {"messages": [{"role": "user", "content": 5}]}, "messages"),
    ("an image", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ("a part without text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
     "messages"),
    ("a user's calls", {"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]},
     "messages"),
    ("a call without a name", {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
     "messages"),
    ("arguments that are no JSON", {"messages": [{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": "{"}}]}]}, "messages"),
    ("top_logprobs alone", {"top_logprobs": 2}, "top_logprobs"),
    ("too many", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("logprobs as a number", {"logprobs": 3}, "logprobs"),
    ("both", {"add_generation_prompt": True, "continue_final_message": True},
     "continue_final_message"),
    ("kwargs", {"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ("effort", {"reasoning_effort": 3}, "reasoning_effort"),
    ("a template", {"chat_template": CHATML}, "chat_template"),
    ("audio", {"modalities": ["text", "audio"]}, "modalities"),
    ("a format", {"response_format": {"type": "structural_tag"}}, "response_format"),
    ("a tool that is not there", {"tool_choice": "required"}, "tool_choice"),
    ("temperature", {"temperature": 3}, "temperature"),
]


@pytest.mark.parametrize("fields,param", [pytest.param(*row[1:], id=row[0]) for row in BAD])
def test_refusals_name_the_parameter(server, fields, param):
    error = ask(server, 400, **fields)["error"]
    assert error["param"] == param and param in error["message"]


def test_a_chat_that_is_too_long(server):
    error = ask(server, 400, messages=[{"role": "user", "content": "word " * 40000}])["error"]
    assert error["code"] == "context_length_exceeded"


def test_calls_of_the_older_kind_are_refused_by_name(server):
    """They would be left out of the prompt else, because no template knows them."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    error = ask(server, 400, messages=[*HELLO, call, *HELLO])["error"]
    assert error["message"] == "messages[1].function_call is not supported: calls are in tool_calls"
    ask(server, messages=[*HELLO, {"role": "assistant", "content": "Hi", "function_call": None}, *HELLO])


def test_integers_may_be_written_as_doubles(server):
    answer = ask(server, max_tokens=2.0, logprobs=True, top_logprobs=3.0, seed=7.0)
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in tokens] == [3, 3]
    assert "must be an integer" in ask(server, 400, logprobs=True, top_logprobs=2.5)["error"]["message"]


def with_template(serve, tmp_path, source, **rest):
    path = tmp_path / "template.jinja"
    path.write_text(source)
    return serve("--chat-template", path, **rest)


def test_a_file_of_its_own(serve, tmp_path, tokenizer):
    server = with_template(serve, tmp_path, "{{ messages[0].content }}{{ shout }}")
    ids = prompt_ids(server, chat_template_kwargs={"shout": "!"})
    assert ids == tokenizer.encode("Hello there!", add_special_tokens=False).ids


def test_what_a_template_raises_is_a_400(serve, tmp_path):
    server = with_template(
        serve, tmp_path, "{% if messages[0].role != 'system' %}"
        "{{ raise_exception('a system message must come first') }}{% endif %}x")
    error = ask(server, 400)["error"]
    assert error["param"] == "messages" and "a system message must come first" in error["message"]


def test_a_template_that_cannot_be_compiled_ends_the_start(serve, tmp_path):
    server = with_template(serve, tmp_path, "{{ messages }}\n{% for %}", wait=False)
    assert server.process.wait(30 * PATIENCE) != 0
    assert "template.jinja" in server.log and "line 2, column" in server.log
    server.stop = lambda: 0


def test_the_default_model_is_told_of_tools(server, tokenizer):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    text = tokenizer.decode(prompt_ids(server, messages=messages, tools=[tool]),
                            skip_special_tokens=False)
    assert text.startswith("<|begin_of_text|><|im_start|>system\nBe brief.\n\nYou can call")
    assert json.dumps(tool) in text and text.count("<|im_start|>") == 3
    assert prompt_ids(server, messages=messages, tools=[tool], tool_choice="none") == (
        prompt_ids(server, messages=messages))


def test_the_default_model_calls_a_tool(server):
    """Of its own accord: nothing constrains the answer."""
    weather = {"type": "function", "function": {
        "name": "get_weather", "description": "The weather in a city", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    question = {"role": "user", "content": "What is the weather in Lisbon?"}
    choice = ask(server, messages=[question], tools=[weather], temperature=0,
                  max_tokens=60)["choices"][0]
    call = choice["message"]["tool_calls"][0]["function"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["name"] == "get_weather" and json.loads(call["arguments"]) == {"city": "Lisbon"}


def test_the_default_model_answers_from_the_text(server):
    text = "Peter is 34 years old. Clara lives in Oslo. Clara is a baker."
    messages = [{"role": "user", "content": f"{text}\nWhere does Clara live?"}]
    first = ask(server, messages=messages, temperature=0, max_tokens=20)["choices"][0]["message"]
    assert "Oslo" in first["content"]
    messages += [first, {"role": "user", "content": "How old is Peter?"}]
    second = ask(server, messages=messages, temperature=0, max_tokens=20)["choices"][0]["message"]
    assert "34" in second["content"]


def test_the_default_model_answers_as_the_readme_says(server):
    """Rows that begin with `and then:` go on with the conversation of the row above."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("to the letter")[2]
    text = re.search(r"^> (.*)$", section, re.MULTILINE)[1]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", section.partition("\n\nAsked")[0], re.MULTILINE)[2:]
    assert len(rows) >= 5
    for question, expected in rows:
        if question.startswith("and then: "):
            messages += [answer, {"role": "user", "content": question.partition(": ")[2]}]
        else:
            messages = [{"role": "user", "content": f"{text}\n{question}"}]
        answer = ask(server, messages=messages, max_tokens=60)["choices"][0]["message"]
        assert answer["content"] == expected


def test_a_model_without_a_template(serve, tiny_model, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in tiny_model.iterdir():
        (bare / file.name).write_bytes(file.read_bytes())
    config = json.loads((bare / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    server = serve(model=bare)
    error = ask(server, 400)["error"]
    assert error["code"] == "unsupported" and "--chat-template" in error["message"]


THINKING = ("{{ messages[0].content }}{% if enable_thinking is not defined or enable_thinking %}"
            "<think>\n{% else %}<think></think>{% endif %}")


def test_reasoning_is_a_member_of_its_own(serve, tmp_path):
    """The prompt begins it, and this model never ends it."""
    server = with_template(serve, tmp_path, THINKING)
    answer = ask(server, ignore_eos=True)
    message = answer["choices"][0]["message"]
    assert message["content"] == "" and message["reasoning"] == message["reasoning_content"] != ""
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 8
    chunks = [json.loads(event) for event in sse_events(
        server.post(PATH, {**GREEDY, "ignore_eos": True, "stream": True}).body) if event != "[DONE]"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == message["reasoning"]
    assert "".join(d.get("content") or "" for d in deltas) == ""
    kept = ask(server, ignore_eos=True, separate_reasoning=False)["choices"][0]["message"]
    assert kept["content"].strip("\n") == message["reasoning"].strip("\n")
    assert "reasoning" not in kept
    for off in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        assert "reasoning" not in ask(server, **off)["choices"][0]["message"]
