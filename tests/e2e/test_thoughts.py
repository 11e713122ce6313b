"""Where a prompt leaves a thought: open, closed or never begun, by new answers, continued ones and those of
which thinking is switched off, on every route, whole and streamed."""
import json

import pytest

from server import Server

HEAD = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
# What the template begins: `begins` is open, closed or none; thinking that is off closes it at once.
TEMPLATE = HEAD + ("{% if add_generation_prompt %}<|im_start|>assistant\n"
                   "{% if begins == 'closed' or (enable_thinking is defined and not enable_thinking and "
                   "begins == 'open') %}<think>\n\n</think>\n\n{% elif begins in ('open', 'always') %}<think>\n"
                   "{% endif %}{% endif %}")
USER = [{"role": "user", "content": "x"}]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinker")
    (folder / "template.jinja").write_text(TEMPLATE)
    with Server(folder, "--chat-template", folder / "template.jinja") as one:
        if one.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_regex": "a"}).status != 200:
            pytest.skip("built without xgrammar")
        yield one


def body_of(path, last, fields):
    messages = USER + ([{"role": "assistant", "content": last}] if last is not None else [])
    if path == MESSAGES:
        return {"messages": messages, "max_tokens": 60, "temperature": 0, **fields}
    go_on = {"continue_final_message": True} if last is not None else {}
    if path == RESPONSES:
        return {"input": messages, "max_output_tokens": 60, "temperature": 0, **go_on, **fields}
    return {"messages": messages, "max_tokens": 60, "temperature": 0, **go_on, **fields}


def whole(path, answer):
    """Reasoning and content."""
    if path == CHAT:
        message = answer["choices"][0]["message"]
        return message.get("reasoning") or "", message["content"]
    if path == MESSAGES:
        blocks = answer["content"]
        return ("".join(b.get("thinking", "") for b in blocks), "".join(b.get("text", "") for b in blocks))
    texts = {"reasoning": "", "message": ""}
    for item in answer["output"]:
        texts[item["type"]] += "".join(part["text"] for part in item["content"])
    return texts["reasoning"], texts["message"]


def streamed(path, body):
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    thought = said = ""
    for event in events:
        if path == CHAT:
            delta = event["choices"][0]["delta"] if event["choices"] else {}
            thought += delta.get("reasoning") or ""
            said += delta.get("content") or ""
        elif path == MESSAGES:
            thought += event.get("delta", {}).get("thinking", "")
            said += event.get("delta", {}).get("text", "")
        elif event["type"] == "response.reasoning_text.delta":
            thought += event["delta"]
        elif event["type"] == "response.output_text.delta":
            said += event["delta"]
    return thought, said


def ask(server, path, last=None, **fields):
    body = body_of(path, last, fields)
    reply = server.post(path, body)
    assert reply.status == 200, reply.body
    parts = whole(path, reply.json())
    assert streamed(path, server.post(path, {**body, "stream": True}).body) == parts
    return parts


def choice(text):
    return {"structured_outputs": {"choice": [text]}}


def begins(state, off=False):
    return {"chat_template_kwargs": {"begins": state, **({"enable_thinking": False} if off else {})}}


# What is written is all of the choice, from the first token on; the last two columns are what comes of it.
CASES = [
    # a new answer
    ("open", None, " a\n</think>\n\nb", " a\n", "b"),
    ("closed", None, "  b", "", "  b"),
    ("closed", None, "\n\nb", "", "\n\nb"),
    ("none", None, "<think>a</think>b", "a", "b"),
    ("none", None, "  <think>\na</think>\n b", "a", " b"),
    # one that goes on
    ("open", "Hello", " world", "", " world"),
    ("open", "def f():", "\n    return 1", "", "\n    return 1"),
    ("none", "Hello", "\n\n- x", "", "\n\n- x"),
    ("closed", "1.", "\t2", "", "\t2"),
    ("none", "<think>\nFirst I", " look.</think>Then.", " look.", "Then."),
    ("open", "<think>", "\nI look.</think> Then.", "\nI look.", " Then."),
    ("open", "<think>\nFirst.\n</think>\n\n", "Then", "", "Then"),
    ("none", "<think>a</think>b", " c", "", " c"),
    ("none", "The mark <think> is", " one", "", " one"),
]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("state,last,text,reasoning,content", CASES)
def test_what_a_thought_is(thinker, path, state, last, text, reasoning, content):
    assert ask(thinker, path, last, **begins(state), **choice(text)) == (reasoning, content)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("state", ["open", "closed", "none", "always"])
@pytest.mark.parametrize("text", ["yes", "  spaces", "\n\nx"])
def test_no_thought_where_thinking_is_off(thinker, path, state, text):
    """`always`: the template begins a thought nevertheless.  It is closed at once, with a line end at most."""
    reasoning, content = ask(thinker, path, **begins(state, off=True), **choice(text))
    assert reasoning == "" and content == (text.lstrip("\n") if state == "always" else text)


@pytest.mark.parametrize("fields", [
    {"reasoning_effort": "none"}, {"enable_thinking": False}, {"thinking": {"type": "disabled"}},
    {"reasoning": {"effort": "none"}}], ids=json.dumps)
def test_every_way_to_switch_it_off(thinker, fields):
    for path in (CHAT, RESPONSES, MESSAGES):
        for state in ("open", "none"):
            got = ask(thinker, path, chat_template_kwargs={"begins": state}, **fields, **choice("  yes"))
            assert got == ("", "  yes")


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_user_opens_and_closes_nothing(thinker, path):
    for text in ("<think>", "</think>", "<|im_start|>assistant\n<think>\n"):
        user = [{"role": "user", "content": text}]
        name = "input" if path == RESPONSES else "messages"
        for state, expected in (("closed", ("", " x")), ("open", (" x", ""))):
            form = choice(" x" if state == "closed" else " x</think>")
            assert ask(thinker, path, **{name: user}, **begins(state), **form) == expected


def test_a_thought_alone_goes_on(thinker):
    """Its template writes the thoughts of no message."""
    for message in ({"role": "assistant", "reasoning": "First I", "content": ""},
                    {"role": "assistant", "reasoning_content": "First I", "content": None}):
        got = ask(thinker, CHAT, messages=[*USER, message], continue_final_message=True, **choice(" look.</think>x"))
        assert got == (" look.", "x")
    block = {"type": "thinking", "thinking": "First I", "signature": ""}
    got = ask(thinker, MESSAGES, messages=[*USER, {"role": "assistant", "content": [block]}],
              **choice(" look.</think>x"))
    assert got == (" look.", "x")


@pytest.mark.parametrize("empty", ["", None, " \n", []], ids=json.dumps)
def test_nothing_to_go_on_with_is_a_new_answer(thinker, empty):
    plain = ask(thinker, CHAT, max_tokens=8)
    last = {"role": "assistant", "content": empty}
    assert ask(thinker, CHAT, messages=[*USER, last], continue_final_message=True, max_tokens=8) == plain
    if empty is not None:
        assert ask(thinker, MESSAGES, messages=[*USER, last], max_tokens=8) == ask(thinker, MESSAGES, max_tokens=8)


def test_a_chat_says_what_a_completion_of_its_prompt_does(thinker):
    for state, last in (("none", None), ("closed", None), ("none", "The sun was"), ("none", "1.")):
        body = body_of(CHAT, last, {**begins(state), "max_tokens": 8})
        ids = thinker.post(CHAT + "/render", body).json()["token_ids"]
        text = thinker.post("/v1/completions", {"prompt": ids, "max_tokens": 8, "temperature": 0}).json()
        assert whole(CHAT, thinker.post(CHAT, body).json()) == ("", text["choices"][0]["text"])


# ---- stop strings ----

STOPS = [
    ("open", " the end.\n</think>\n\nNow the end.", ["the"], " the end.\n", "Now "),
    ("none", "<think>the</think>a the b", ["the"], "the", "a "),
    ("none", "\n<think>\na</think>\n\nb\n\nc", ["\n\n", "zzz"], "a", "b"),
    ("none", "\n\nb", ["\n"], "", ""),
    ("none", "  the", ["the"], "", "  "),
    ("none", "<thinker> a", ["think"], "", "<"),
    ("closed", "a the b", ["the"], "", "a "),
    ("open", "<</think>a<b", ["<"], "<", "a"),
]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("state,text,stop,reasoning,content", STOPS)
def test_stop_strings_end_what_is_said(thinker, path, state, text, stop, reasoning, content):
    if path == RESPONSES:
        pytest.skip("OpenAI's responses have no stop strings")
    name = "stop_sequences" if path == MESSAGES else "stop"
    form = {**begins(state, off="</think>" not in text), **choice(text)}
    assert ask(thinker, path, **form, **{name: stop}) == (reasoning, content)
    whole_text = ask(thinker, CHAT, **form, stop=stop, separate_reasoning=False)
    at = min(text.index(one) for one in stop if one in text)
    assert whole_text == ("", text[:at])
