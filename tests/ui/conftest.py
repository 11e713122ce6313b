"""Fixtures: a server that the tests of the page share, and a browser."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from browser import CHROMIUM, Browser  # noqa: E402
from chat import READY, STUB, check_clean, open_chat  # noqa: E402
from server import Server  # noqa: E402


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The default model with default settings."""
    with Server(tmp_path_factory.mktemp("server")) as shared:
        yield shared


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    assert CHROMIUM, "these tests need Debian's chromium"
    with Browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def page(browser, server):
    """A page of the test's own, without conversations, which must have asked no other server."""
    one = open_chat(browser, server)
    one.evaluate("""(async () => { const store = await import('/ui/store.js');
        for (const each of await store.all()) await store.remove(each.id);
        localStorage.clear(); })()""")
    one.ask("Page.reload")
    one.wait(READY)
    one.evaluate(STUB)
    yield one
    check_clean(one, server)
    one.ask("Page.navigate", url="about:blank")
