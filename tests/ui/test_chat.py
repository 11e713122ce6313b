"""The chat at / in a headless Chromium: conversations, branches, files, settings, errors, the keyboard."""
import json
import re

from browser import CTRL, SHIFT
from chat import (COLOURED, DONE, READY, STUB, answers_of, ask, delta, drop, end, open_chat, pdf_of,
                  will_answer)
from server import Server


def test_an_answer_ends_by_itself(page, server):
    ask(page, "Hello")
    (answer,) = answers_of(page)
    stats = page.text(".assistant .stats")
    assert answer and re.search(r"quire-31m · .*tokens/s · first token after .* · \d+ tokens written · \d+ read", stats)
    assert "longest answer" not in stats
    assert page.text("#said").startswith("The answer is complete")


def test_conversations_are_kept_found_renamed_and_deleted(page):
    for text in ("Tell me of whales", "Tell me of lamps"):
        will_answer(page, delta(content=f"About {text[11:]}."), end())
        ask(page, text)
        page.click("#new")
    page.ask("Page.reload")
    page.wait(READY)
    assert page.wait("document.querySelectorAll('.entry').length") == 2
    page.click("#search")
    page.type("about whales")
    page.wait("document.querySelectorAll('.entry').length === 1")
    page.click(".entry")
    page.wait("document.querySelectorAll('.message').length === 2")
    assert answers_of(page) == ["About whales."]
    page.wait("!document.querySelector('#actions').hidden")  # the list is read again first
    page.click("#actions summary")
    page.click("#rename")
    page.type("Sea")
    page.press("Enter")
    page.wait("document.querySelector('#conversation-title').textContent === 'Sea'")
    page.click("#actions summary")
    page.click("#delete")
    page.click("#delete-yes")
    page.evaluate("document.querySelector('#search').value = ''")
    page.wait("document.querySelectorAll('.message').length === 0")
    page.ask("Page.reload")
    page.wait(READY)
    page.wait("document.querySelectorAll('.entry').length === 1")
    assert page.text(".entry") == "Tell me of lamps"


def test_a_conversation_that_is_deleted_while_it_is_answered_does_not_come_back(page):
    will_answer(page, delta(content="Once"), "no end")
    page.click("#message")
    page.type("Tell me of lamps")
    page.click("#send")
    page.wait("document.querySelector('.assistant > .content')?.innerText === 'Once'")
    page.wait("!document.querySelector('#actions').hidden")
    page.click("#actions summary")
    page.click("#delete")
    page.click("#delete-yes")
    page.wait("document.querySelectorAll('.message').length === 0")
    page.wait("document.querySelector('#list .hint') !== null")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 2500))")  # it is kept each 2 s
    page.ask("Page.reload")
    page.wait(READY)
    page.wait("document.querySelector('#list').children.length === 1")
    assert page.text("#list .hint") == "None yet. Conversations are kept in this browser only."


def test_versions_of_answers_and_questions(page):
    for text in ("one", "two", "three"):
        will_answer(page, delta(content=text), end())
    ask(page, "Count")
    page.click(".assistant .bar button:nth-child(2)")
    page.wait(f"document.querySelector('.assistant > .content').innerText === 'two' && {DONE}")
    assert page.text(".assistant .versions span") == "2 of 2"
    page.click(".assistant [aria-label='Earlier version']")
    page.wait("document.querySelector('.assistant > .content').innerText === 'one'")
    page.click(".user .bar button:nth-child(2)")
    page.evaluate("document.querySelector('.user textarea').select()")
    page.type("Count on")
    page.press("Enter")
    page.wait(f"document.querySelector('.assistant > .content')?.innerText === 'three' && {DONE}")
    assert page.text(".user .versions span") == "2 of 2"
    assert page.evaluate("bodies.at(-1).messages") == [{"role": "user", "content": "Count on"}]
    page.click(".user [aria-label='Earlier version']")
    page.wait("document.querySelector('.assistant > .content').innerText === 'one'")


def test_exported_conversations_can_be_imported(page):
    will_answer(page, delta(content="An answer with `code`."), end())
    ask(page, "A question")
    page.evaluate("""{ window.saved = []; URL.createObjectURL = (blob) => (saved.push(blob), 'blob:x');
        HTMLAnchorElement.prototype.click = function () {}; }""")
    for name in ("export-md", "export-json"):
        page.click("#actions summary")
        page.click(f"#{name}")
    markdown, text = page.evaluate("Promise.all(saved.map((each) => each.text()))")
    assert markdown == "# A question\n\n## You\n\nA question\n\n## quire-31m\n\nAn answer with `code`.\n"
    page.evaluate(f"""{{ const data = new DataTransfer(); data.items.add(new File([{json.dumps(text)}], 'x.json'));
        const field = document.querySelector('#import-file'); field.files = data.files;
        field.dispatchEvent(new Event('change')); }}""")
    page.wait("document.querySelectorAll('.entry').length === 2")
    assert answers_of(page) == ["An answer with code."]


def test_reasoning_is_folded_and_calls_are_answered(page):
    call = {"index": 0, "id": "abc123xyz", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    will_answer(page, delta(reasoning_content="Let me *think*."), delta(content="I add."),
                delta(tool_calls=[call]), end("tool_calls"))
    will_answer(page, delta(content="It is 2."), end())
    ask(page, "What is 1 + 1?")
    assert page.evaluate("document.querySelector('.thought').open") is False
    assert "Calls the tool add" in page.text(".assistant .extra")
    page.click(".results textarea")
    page.type("2")
    page.click(".results button")
    page.wait(f"document.querySelectorAll('.assistant').length === 2 && {DONE}")
    sent = page.evaluate("bodies.at(-1).messages")
    assert [each["role"] for each in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == "abc123xyz" and sent[2]["content"] == "2"


def test_files_are_counted_and_sent(page, server):
    text = "The lamp was green. " * 50
    drop(page, "notes.txt", text.encode())
    n = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["count"]
    page.wait(f"document.querySelector('.chip')?.innerText.includes('{n} tokens of 32,768')")
    drop(page, "letter.pdf", pdf_of("A letter of Ines"))
    page.wait("document.querySelectorAll('.chip').length === 2 && "
              "!document.querySelector('#files').innerText.includes('being read')")
    drop(page, "picture.png", bytes([137, 80, 78, 71, 0, 0, 255, 254]) * 40)
    page.wait("!document.querySelector('#composer-problem').hidden")
    assert "neither text nor a PDF" in page.text("#composer-problem")
    will_answer(page, delta(content="Green."), end())
    ask(page, "Which colour?")
    (sent,) = page.evaluate("bodies.at(-1).messages")
    assert sent["content"].startswith('<document name="notes.txt">\nThe lamp')
    assert "A letter of Ines" in sent["content"] and sent["content"].endswith("Which colour?")


def test_settings_are_kept_and_sent(page):
    page.click("#settings-open")
    for name, value in (("system", "Be brief."), ("temperature", "0.5"), ("key", "secret")):
        page.evaluate(f"""{{ const e = document.querySelector('#{name}'); e.value = '{value}';
            e.dispatchEvent(new Event('change', {{bubbles: true}})); }}""")
    page.choose("#policy", "streaming")
    page.evaluate("""{ const e = document.querySelector('[data-name=recent]'); e.value = '60';
        e.dispatchEvent(new Event('change', {bubbles: true})); }""")
    page.ask("Page.reload")
    page.wait(READY)
    page.evaluate(STUB)
    will_answer(page, delta(content="Yes."), end())
    ask(page, "Well?")
    body = page.evaluate("bodies.at(-1)")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["temperature"] == 0.5 and body["kv_policy"]["recent"] == 60 and body["return_kept_positions"] is True
    assert not {"max_tokens", "top_p", "seed"} & set(body)
    assert page.text("#settings-summary") == "keeps: streaming · system prompt"
    assert "secret" not in page.evaluate("location.href + document.cookie")


def test_what_a_budget_has_kept(page):
    page.click("#settings-open")
    page.choose("#policy", "streaming")
    page.evaluate("""{ const e = document.querySelector('[data-name=recent]'); e.value = '28';
        e.dispatchEvent(new Event('change', {bubbles: true})); }""")
    page.click("#settings-close")
    ask(page, "Hello. " * 40 + "Who are you?")
    page.evaluate("[...document.querySelectorAll('.bar button')].find((e) => e.textContent === 'What the cache kept').click()")
    page.wait("document.querySelectorAll('#kept span.gone').length > 0")
    note = page.text("#kept-note")
    assert re.match(r"\d+ of \d+ tokens are still there", note)
    assert "Hello. Hello." in page.text("#kept .gone")
    assert answers_of(page)[0].strip()[:4] in page.text("#kept")


def test_a_stream_that_is_cut_off_keeps_what_came(page):
    will_answer(page, delta(content="The beginning"), "cut")
    will_answer(page, delta(content=" and the end."), end())
    ask(page, "Tell")
    assert answers_of(page) == ["The beginning"]
    assert "ended in the middle" in page.text(".problem p")
    page.click(".problem button:nth-of-type(2)")
    page.wait(f"document.querySelector('.problem p') === null && {DONE}")
    assert answers_of(page) == ["The beginning and the end."]
    assert page.evaluate("bodies.at(-1).continue_final_message") is True


def test_a_server_that_dies_in_an_answer(browser, tmp_path):
    one = Server(tmp_path)
    try:
        page = open_chat(browser, one)
        page.evaluate("{ const real = fetch; window.fetch = (path, how) => real(path, how?.body"
                      " ? {...how, body: how.body.replace('{', '{\"ignore_eos\":true,')} : how); }")
        page.click("#message")
        page.type("Tell a long story.")
        page.press("Enter")
        page.wait("document.querySelector('.assistant > .content')?.innerText.length > 40")
        one.process.kill()
        page.wait("document.querySelectorAll('.problem button').length > 0")
        assert "ended in the middle" in page.text(".problem p")
        assert len(answers_of(page)[0]) > 40
        assert page.evaluate("""['#settings-open', '#state'].every((each) => {
            const e = document.querySelector(each); return e.scrollWidth <= e.clientWidth; })""")  # nothing is squeezed
        page.wait("document.querySelector('#state-text').textContent === 'server not reached'")
        page.click(".problem button")
        page.wait("[...document.querySelectorAll('.problem p')].some((e) => e.innerText.includes('does not answer'))")
        page.ask("Page.navigate", url="about:blank")
    finally:
        one.process.kill()
        one.process.wait()


def test_a_key_is_asked_for(browser, tmp_path):
    with Server(tmp_path, "--api-key", "secret") as guarded:
        page = browser.open(f"{guarded.url}/")
        page.wait("document.querySelector('#key-ask').open && document.activeElement.id === 'key-typed'")
        page.type("wrong")
        page.press("Enter")
        page.wait("!document.querySelector('#key-wrong').hidden")
        page.type("secret")
        page.press("Enter")
        page.wait(READY)
        ask(page, "Hello")
        assert answers_of(page)[0]
        page.evaluate("localStorage.clear()")
        page.ask("Page.navigate", url="about:blank")


def test_the_keyboard_is_enough(page):
    """A question, a stop, a search and a new conversation without a pointer; the order of the focus."""
    assert page.focused() == "message"
    will_answer(page, delta(content="An answer."), end())
    page.type("A question")
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.message').length === 2 && {DONE}")
    page.press("k", CTRL)
    assert page.focused() == "search"
    page.press("O", CTRL + SHIFT)
    page.wait("document.querySelectorAll('.message').length === 0 && document.activeElement.id === 'message'")
    page.evaluate("document.querySelector('.skip').focus()")
    order = []
    for _ in range(20):
        page.press("Tab")
        order.append(page.focused())
    wanted = ["new", "search", "settings-open", "message", "attach", "send"]
    assert [each for each in order if each in wanted][:6] == wanted


def test_markdown_becomes_elements(page):
    text = ("# Title\n\nA **bold** [link](https://example.org/a?b=1&c=2), `x < y` &amp; 2 &lt; 3.\n\n"
            "| a | b |\n|---|---|\n| 1 | 2 |\n\n- [x] done\n- not\n\n```python\ndef f():\n    return '<b>'\n```\n")
    will_answer(page, delta(content=text[:60]), delta(content=text[60:]), end())
    ask(page, "Show")
    page.wait(COLOURED)
    html = page.evaluate("document.querySelector('.assistant > .content').outerHTML")
    assert "<h3>Title</h3>" in html and "<strong>bold</strong>" in html and "<td>2</td>" in html.replace(' class=""', "")
    assert "<code>x &lt; y</code> &amp; 2 &lt; 3." in html
    assert page.evaluate("document.querySelector('.assistant a').href") == "https://example.org/a?b=1&c=2"
    assert page.text(".assistant pre") == "def f():\n    return '<b>'"
