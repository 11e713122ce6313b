"""A visitor's walk, recorded as the pictures of docs/page.md: QUIRE_UI_SCREENSHOTS says where they go,
QUIRE_UI_MODEL with which model the visitor chats."""
import os
import pathlib
import signal
import time

import pytest

from chat import DONE, ask, drop, open_chat
from server import Server

SCREENSHOTS = os.environ.get("QUIRE_UI_SCREENSHOTS")
MODEL = os.environ.get("QUIRE_UI_MODEL")
QUESTIONS = ["What is a lighthouse for?", "How far can its light be seen?", "Write a function in Python that adds two numbers.",
             "List three famous lighthouses in a table.", "Thank you. What was my first question?"]
SIZE = {"width": 1080, "height": 720}

pytestmark = pytest.mark.skipif(not SCREENSHOTS, reason="QUIRE_UI_SCREENSHOTS is not set")


@pytest.fixture(scope="module")
def visited(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("visited"), model=MODEL) as one:
        yield one


def shoot(page, name):
    page.screenshot(pathlib.Path(SCREENSHOTS) / f"chat-{name}.png")


def set_field(page, selector, value):
    page.evaluate(f"""{{ const e = document.querySelector('{selector}'); e.value = '{value}';
        e.dispatchEvent(new Event('change', {{bubbles: true}})); }}""")


def test_five_turns_and_a_policy(browser, visited):
    page = open_chat(browser, visited, **SIZE)
    set_field(page, "#temperature", "0")
    set_field(page, "#max_tokens", "220")
    for question in QUESTIONS:
        ask(page, question, 240)
    shoot(page, "turns")
    page.click("#settings-open")
    set_field(page, "#policy", "streaming")
    set_field(page, "[data-name=recent]", "124")
    shoot(page, "policy")
    page.click("#settings-close")
    ask(page, "Which of the lighthouses is the oldest?", 240)
    page.evaluate("[...document.querySelectorAll('.bar button')].findLast((e) => e.textContent === 'What the cache kept').click()")
    page.wait("document.querySelectorAll('#kept span').length > 0")
    shoot(page, "kept")
    page.ask("Page.navigate", url="about:blank")
    page = open_chat(browser, visited, width=390, height=780, scheme="dark", is_phone=True)
    page.click("#side-open")
    page.click(".entry")
    page.wait("document.querySelectorAll('.message').length > 8")
    shoot(page, "phone")
    page.ask("Page.navigate", url="about:blank")


def test_a_first_visit_and_a_long_file(browser, server):
    page = open_chat(browser, server, **SIZE)
    shoot(page, "first")
    days = [f"Day {i}: the wind came from the north, and the lamp burned well.\n" for i in range(1, 1150)]
    days[200] = "Clara lives in Oslo. Clara is a baker.\n"
    drop(page, "logbook.txt", "".join(days).encode())
    page.wait("document.querySelector('.chip')?.innerText.includes(' of ')", 120)
    shoot(page, "file")
    set_field(page, "#temperature", "0")
    ask(page, "Where does Clara live?", 600)
    assert page.evaluate("document.querySelector('.assistant > .content').innerText.trim()") == "Clara lives in Oslo."
    assert "23,0" in page.evaluate("document.querySelector('.assistant').innerText")  # tokens that were read
    shoot(page, "answered")
    page.ask("Page.navigate", url="about:blank")


def test_the_end_of_the_server(browser, tmp_path):
    one = Server(tmp_path, "--isa", "plain", model=MODEL)  # slow enough to be stopped in an answer
    try:
        page = open_chat(browser, one, **SIZE)
        is_long = "[...document.querySelectorAll('.assistant > .content')].at(-1)?.innerText.length > 150"
        for turn in range(1, 20):  # answers are drawn, and some are short
            page.click("#message")
            page.type("Write a long story about the keeper of a lighthouse.")
            page.press("Enter")
            page.wait(f"document.querySelectorAll('.message').length === {2 * turn}")
            page.wait(f"{is_long} || {DONE}", 300)
            one.process.send_signal(signal.SIGSTOP)
            time.sleep(1)  # what has been sent still comes
            if not page.evaluate(DONE):
                break
            one.process.send_signal(signal.SIGCONT)
        assert not page.evaluate(DONE)
        one.process.kill()
        page.wait("document.querySelectorAll('.problem button').length > 0")
        page.wait("document.querySelector('#state-text').textContent === 'server not reached'")
        shoot(page, "killed")
        page.ask("Page.navigate", url="about:blank")
    finally:
        one.process.kill()
        one.process.wait()
