"""The page at /inspect in a headless Chromium: a generation, what the cache has kept, the live view, the
keyboard, a phone, both colour schemes.  QUIRE_UI_SCREENSHOTS=DIR keeps the pictures of docs/page.md."""
import os
import pathlib
import re
import threading
import time

import pytest

from browser import CTRL
from server import Server

SCREENSHOTS = os.environ.get("QUIRE_UI_SCREENSHOTS")
READY = "document.querySelector('#policy').options.length > 1"
DONE = "document.querySelector('#told').textContent"
KEPT = "document.querySelectorAll('#kept span').length"
STREAMING, HITTERS, OFFLOAD = "1", "2", "3"  # of the examples


def open_page(browser, server, **rest):
    page = browser.open(f"{server.url}/inspect", **rest)
    page.wait(READY)
    return page


@pytest.fixture
def page(browser, server):
    """A page of the test's own, which must have asked no other server and complained of nothing."""
    one = open_page(browser, server)
    yield one
    one.check_clean(server.url)


def generate(page, example=None, seed="7", n="40"):
    if example:
        page.choose("#example", example)
    page.evaluate(f"document.querySelector('#seed').value = '{seed}';"
                  f"document.querySelector('#max_tokens').value = '{n}'")
    page.click("#go")
    return page.wait(DONE)


def usage_of(page):
    pairs = page.evaluate("""[...document.querySelectorAll('#usage div')].map(
        (each) => [each.children[0].textContent, each.children[1].textContent])""")
    return dict(pairs)


def number(text):
    return float(re.match(r"[\d,.]+", text).group().replace(",", ""))


def await_idle(server, seconds=20):
    deadline = time.monotonic() + seconds
    while server.get("/state").json()["requests"]["running"] > 0:
        assert time.monotonic() < deadline, "a request still runs"


def test_a_generation(page, server):
    assert generate(page) == "Done: 40 tokens."
    usage = usage_of(page)
    answer = page.evaluate("document.querySelector('#answer').textContent")
    body = {"prompt": page.evaluate("document.querySelector('#prompt').value"), "max_tokens": 40,
            "temperature": 0.8, "top_p": 0.95, "seed": 7}
    assert answer == server.post("/v1/completions", body).json()["choices"][0]["text"]
    assert usage["Answer tokens"] == "40" and usage["Policy"] == "full"
    assert number(usage["Speed"]) > 0 and number(usage["First token"]) > 0


def test_a_stop_keeps_what_was_said(page, server):
    page.evaluate("document.querySelector('#max_tokens').value = '8000'")
    page.click("#go")
    page.wait("document.querySelectorAll('.tok').length > 5")
    page.click("#stop")
    told = page.wait(DONE)
    assert re.fullmatch(r"Stopped: \d+ tokens\.", told) and number(told.split()[1]) < 8000
    await_idle(server)
    assert page.evaluate("document.querySelector('#go').disabled") is False


def test_probabilities_of_a_token(page):
    generate(page)
    page.hover(".tok:nth-child(3)")
    shown = page.wait("document.querySelector('#token').textContent")
    assert shown.startswith("Token 3:")
    shares = [float(each) for each in re.findall(r"([\d.]+) %", shown)]
    assert len(shares) >= 5 and 0 < sum(shares) <= 100.5


def test_what_a_budget_has_kept(page):
    generate(page, STREAMING)
    page.wait(KEPT)
    n = number(usage_of(page)["Prompt tokens"]) + 39
    runs = page.evaluate("""[...document.querySelectorAll('#kept span')].map((each) =>
        [each.title, each.classList.contains('gone'), each.classList.contains('answer')])""")
    last = int(n) - 1
    assert runs == [["tokens 0 to 3: 100 % of the heads", False, False],
                    [f"tokens 4 to {last - 60}: < 0.1 % of the heads", True, False],
                    [f"tokens {last - 59} to {last - 39}: 100 % of the heads", False, False],
                    [f"tokens {last - 38} to {last}: 100 % of the heads", False, True]]
    text = page.evaluate("document.querySelector('#kept').textContent")
    assert page.evaluate("document.querySelector('#prompt').value") in text
    assert page.text("#kept-note").startswith(f"64 of {last + 1} tokens")
    # The strip: the first column is drawn, and one of the evicted middle is not.
    row = page.evaluate("""(() => { const c = document.querySelector('#kept-strip');
        const row = c.getContext('2d').getImageData(0, 5, c.width, 1).data;
        return [row[3], row[4 * Math.floor(0.4 * c.width) + 3]]; })()""")
    assert row[0] > 0 and row[1] == 0


@pytest.mark.parametrize("example", [HITTERS, OFFLOAD])
def test_heads_that_keep_different_tokens(page, example):
    generate(page, example)
    page.wait(KEPT)
    shares = page.evaluate("""[...document.querySelectorAll('#kept span')].map((each) =>
        Number(each.style.getPropertyValue('--share')))""")
    assert 1 in shares and any(0 < share < 1 for share in shares)
    assert (0 in shares) == (example == HITTERS)  # a selection forgets nothing
    assert number(usage_of(page)["Prompt tokens"]) > 200


def test_a_device_that_cannot_tell_is_asked_without(page):
    """As a GPU answers under a budget."""
    page.evaluate("""{ const real = window.fetch, error = {message: 'the device cannot tell',
            param: 'return_kept_positions'};
        window.fetch = (path, how) => how?.body?.includes('return_kept_positions')
            ? Promise.resolve(new Response(JSON.stringify({error}), {status: 400}))
            : real(path, how); }""")
    assert generate(page, STREAMING) == "Done: 40 tokens."
    assert page.text("#kept-note") == "the device cannot tell"
    assert page.evaluate("document.querySelector('#kept').hidden")
    assert usage_of(page)["Resident"] == "64"


def test_a_chat_goes_on(page, server):
    page.click("[name=api][value=chat]")
    for i, message in enumerate(("Who kept the lamp? Bram kept it.", "And who?")):
        page.click("#message")
        page.type(message)
        assert generate(page, n="8").startswith("Done")
        page.wait(KEPT)
        turns = page.evaluate("[...document.querySelectorAll('#turns li')].map((e) => e.className)")
        assert turns == ["user", "assistant"] * (i + 1)
    assert page.text("#message") == ""
    assert "Who kept the lamp?" in page.text("#kept")


def test_an_error_names_what_is_wrong(page):
    page.evaluate("document.querySelector('#temperature').value = '3'")
    page.click("#go")
    error = page.wait("!document.querySelector('#error').hidden && "
                      "document.querySelector('#error').textContent")
    assert error == "temperature must be between 0 and 2, not 3"
    assert page.faults.pop().startswith("Failed to load resource")  # Chromium tells of each 400


def test_text_of_the_model_is_no_markup(page):
    page.evaluate("document.querySelector('#prompt').value = '<img src=x onerror=violations.push(1)>'")
    generate(page, n="5")
    page.wait(KEPT)
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert "<img src=x" in page.text("#kept")


def test_the_live_view_moves(page, server):
    def stream():
        body = {"prompt": "Once", "max_tokens": 2500, "ignore_eos": True,
                "kv_policy": {"type": "streaming"}}
        server.post("/v1/completions", body, timeout=120)

    page.wait("document.querySelector('#running').textContent === '0'")
    clients = [threading.Thread(target=stream) for _ in range(3)]
    for one in clients:
        one.start()
    page.wait("document.querySelector('#running').textContent === '3'")
    page.click("#sequences summary")
    page.wait("document.querySelectorAll('#sequences-body tr').length === 3")
    page.wait("Number(document.querySelector('#rate').textContent.replace(',', '')) > 10")
    page.wait("document.querySelector('#pages-legend').textContent.includes('streaming')")
    if SCREENSHOTS:
        page.screenshot(pathlib.Path(SCREENSHOTS) / "page-engine.png", "#live")
    for one in clients:
        one.join()
    page.wait("document.querySelector('#running').textContent === '0'")
    page.wait("document.querySelector('#ttft').textContent !== '–'")


def test_the_keyboard_is_enough(page):
    """From the top by Tab alone: to the prompt, a text, a generation, its tokens, a stop."""
    order = []
    for _ in range(12):
        page.press("Tab")
        order.append(page.focused())
    assert order[:4] == ["A", "A", "A", "key"]  # the way past the live view, and the other pages
    assert order.index("prompt") < order.index("go")
    page.evaluate("document.querySelector('#prompt').focus();"
                  "document.querySelector('#prompt').select()")
    page.type("Once upon a time")
    page.press("Enter", CTRL)
    page.wait(DONE)
    page.evaluate("document.querySelector('#answer').focus()")
    page.press("End")
    last = page.text("#token")
    page.press("ArrowLeft")
    assert last.startswith("Token 80:") and page.text("#token").startswith("Token 79:")
    page.evaluate("document.querySelector('#max_tokens').value = '8000'")
    page.press("Enter", CTRL)
    page.wait("document.querySelectorAll('.tok').length > 5 && !document.querySelector('#stop').disabled")
    page.press("Escape")
    assert page.wait(DONE).startswith("Stopped")


def test_what_can_be_used_has_a_name(page):
    """Every field and region has one for screen readers, by what Chromium tells readers."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    fields = {"textbox", "spinbutton", "combobox", "checkbox", "radio", "button", "progressbar"}
    named = [(each["role"]["value"], each.get("name", {}).get("value"))
             for each in nodes if not each["ignored"] and each["role"]["value"] in fields]
    assert len(named) > 15 and all(name for _, name in named), named


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width, height, is_phone", [(1280, 900, False), (390, 844, True)])
def test_schemes_and_widths(browser, server, scheme, width, height, is_phone):
    page = open_page(browser, server, width=width, height=height, scheme=scheme, is_phone=is_phone)
    generate(page, HITTERS, n="60")
    page.wait(KEPT)
    page.hover(".tok:nth-child(4)")
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide == [width, width]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert contrast(ground, ink) > 7
    assert (luminance(ground) > 0.5) == (scheme == "light")
    gone = page.evaluate("getComputedStyle(document.querySelector('#kept .gone')).color")
    sheet = page.evaluate("getComputedStyle(document.querySelector('#kept-part')).backgroundColor")
    assert contrast(gone, sheet) > 4.5
    if SCREENSHOTS:
        name = f"page-{'phone-' if is_phone else ''}{scheme}.png"
        page.screenshot(pathlib.Path(SCREENSHOTS) / name)
    page.check_clean(server.url)


def luminance(colour):
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4
              for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_a_key_stays_in_memory(browser, tmp_path):
    with Server(tmp_path, "--api-key", "secret") as guarded:
        page = browser.open(f"{guarded.url}/inspect")
        page.wait("document.querySelector('#state-text').textContent === 'needs the API key'")
        page.click("#key")
        page.type("secret")
        page.press("Enter")
        page.wait(READY)
        assert generate(page, n="3") == "Done: 3 tokens."
        stored = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
        assert stored == [0, 0, ""] and "secret" not in page.evaluate("location.href")
        assert all("401" in each for each in page.faults)
        page.ask("Page.navigate", url="about:blank")
