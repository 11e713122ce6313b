"""The page at /docs in a headless Chromium: each route and field of the description is on it, and a key is asked for.
QUIRE_UI_SCREENSHOTS=DIR keeps a picture."""
import os
import pathlib

from server import Server

SCREENSHOTS = os.environ.get("QUIRE_UI_SCREENSHOTS")
READY = "document.querySelectorAll('.route').length > 0"
# Opens every part, and those within them, three deep: schemas may contain themselves.
OPEN_ALL = """(async () => {
    for (let depth = 0; depth < 3; depth++) {
        document.querySelectorAll('details').forEach((each) => each.open = true);
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return document.querySelectorAll('details').length;
})()"""


def test_every_route_and_field_is_shown(browser, server):
    description = server.get("/openapi.json").json()
    page = browser.open(f"{server.url}/docs")
    page.wait(READY)
    shown = page.evaluate("[...document.querySelectorAll('.route .path')].map((each) => each.textContent)")
    assert shown == list(description["paths"])
    assert page.text("#told") == f"{len(shown)} routes."
    page.evaluate(OPEN_ALL)
    for path, methods in description["paths"].items():
        (operation,) = methods.values()
        text = page.text(f"#{operation['operationId']}")
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        for name, member in body.get("properties", {}).items():
            is_refused = member["description"].startswith("Not supported")
            assert name in text and (is_refused or member["description"] in text), (path, name)
        assert ("text/event-stream" in text) == ("text/event-stream" in operation["responses"]["200"]["content"]), path
    if SCREENSHOTS:
        page.screenshot(pathlib.Path(SCREENSHOTS, "docs.png"), "#post_v1_messages")
    page.check_clean(server.url)


def test_a_field_is_found(browser, server):
    page = browser.open(f"{server.url}/docs#post_v1_responses")
    page.wait(READY)
    assert page.evaluate("[...document.querySelectorAll('details[open]')].map((each) => each.id)") == ["post_v1_responses"]
    page.click("#find")
    page.type("max_output_tokens")
    left = "[...document.querySelectorAll('.route')].filter((each) => !each.hidden).map((each) => each.id)"
    assert page.evaluate(left) == ["post_v1_responses"]
    page.check_clean(server.url)


def test_the_description_needs_the_key(browser, tmp_path):
    with Server(tmp_path, "--api-key", "secret") as guarded:
        page = browser.open(f"{guarded.url}/docs")
        page.wait("document.querySelector('#told').className === 'bad'")
        assert page.text("#told") == "The description needs the API key."
        page.click("#key")
        page.type("secret")
        page.press("Enter")
        page.wait(READY)
        page.click("#post_tokenize summary")
        page.wait("document.querySelectorAll('#post_tokenize pre').length")
        command = page.text("#post_tokenize pre")
        assert "$KEY" in command and "secret" not in command
        page.ask("Page.navigate", url="about:blank")
