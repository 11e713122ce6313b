"""axe-core finds nothing on any page, in both colour schemes, on a desktop and on a phone."""
import os
import pathlib

import pytest

from chat import COLOURED, STUB, ask, delta, drop, end, open_chat, will_answer
from server import ROOT

AXE = next(pathlib.Path(os.environ.get("QUIRE_AXE", ROOT / "build/axe")).glob("**/axe.min.js"), None)
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844, "is_phone": True}}
TEXT = ("# A title\n\nSome **text** with `code` and a [link](https://example.org).\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "> quoted\n\n```python\ndef f(x):  # note\n    return 'text' + str(1)\n```\n")


def violations(page):
    """What axe finds, as rule and elements."""
    page.evaluate(AXE.read_text() + "; 0")
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
                          ".then((told) => told.violations.map((each) => [each.id, each.nodes.map((node) => node.html.slice(0, 160)"
                          " + ' ' + node.failureSummary.slice(0, 300))]))")
    page.faults.clear()
    return found


@pytest.mark.skipif(not AXE, reason="axe-core is not there: scripts/test --ui fetches it")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing(browser, server, scheme, size):
    page = open_chat(browser, server, scheme=scheme, **SIZES[size])
    assert violations(page) == []
    page.evaluate(STUB)
    will_answer(page, delta(reasoning_content="A thought."), delta(content=TEXT), end())
    ask(page, "A question")
    page.evaluate("document.querySelector('.thought').open = true")
    page.wait(COLOURED)
    assert violations(page) == []
    will_answer(page, delta(content="Some"), "cut")
    drop(page, "notes.txt", b"A file. " * 40)
    page.wait("document.querySelector('.chip')?.innerText.includes('tokens')")
    assert violations(page) == []
    ask(page, "A long line " * 400)
    assert violations(page) == []
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    will_answer(page, delta(content="I add."), delta(tool_calls=[call]), end("tool_calls"))
    ask(page, "A third")
    page.evaluate("document.querySelectorAll('.fold, #actions').forEach((each) => each.open = true)")
    page.click(".user .bar button:nth-child(2)")
    assert violations(page) == []
    page.evaluate("document.querySelector('#actions').open = false")
    for dialog in ("settings", "key-ask", "delete-ask", "kept-dialog"):
        page.evaluate(f"""document.querySelector('#{dialog}').showModal();
            document.querySelectorAll('#{dialog} details').forEach((each) => each.open = true)""")
        assert violations(page) == [], dialog
        page.evaluate(f"document.querySelector('#{dialog}').close()")
    if size == "phone":
        page.click("#side-open")
        assert violations(page) == []
    page.ask("Page.navigate", url="about:blank")
    page = browser.open(f"{server.url}/inspect", scheme=scheme, **SIZES[size])
    page.wait("document.querySelector('#policy').options.length > 1")
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    assert violations(page) == []
    page = browser.open(f"{server.url}/docs", scheme=scheme, **SIZES[size])
    page.wait("document.querySelectorAll('.route').length > 0")
    page.evaluate("document.querySelectorAll('#post_v1_messages, #get_state').forEach((each) => each.open = true)")
    page.wait("document.querySelectorAll('.inside').length === 2")
    assert violations(page) == []
    page.ask("Page.navigate", url="about:blank")


@pytest.mark.skipif(not AXE, reason="axe-core is not there: scripts/test --ui fetches it")
def test_axe_can_find_something(browser, server):
    page = open_chat(browser, server)
    page.evaluate("document.querySelector('#message').labels[0].remove(); document.querySelector('#message').placeholder = ''")
    assert "label" in [rule for rule, _ in violations(page)]
    page.ask("Page.navigate", url="about:blank")
