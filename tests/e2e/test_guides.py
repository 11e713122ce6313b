"""The guides: their Python is run in order, on a server of each page, and prints what the page says.

Blocks of LangChain are left out: scripts/ci/compatibility runs that client."""
import contextlib
import io
import re
import subprocess

import pytest

from server import ROOT, Server

GUIDES = ROOT / "docs/guides"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The folder with the text that the first guide makes by its command."""
    folder = tmp_path_factory.mktemp("guides")
    command = re.search(r"^    (\{ head .*?>text\.txt)$", (GUIDES / "long-document.md").read_text(), re.MULTILINE | re.DOTALL)
    (folder / "models").symlink_to(ROOT / "models")
    subprocess.run(command.group(1).replace("\n    ", "\n"), shell=True, cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("name", ["long-document", "long-conversation"])
def test_a_guide_prints_what_it_says(tmp_path, text, monkeypatch, name):
    blocks = BLOCK.findall((GUIDES / f"{name}.md").read_text())
    assert len(blocks) > 1 and all(said for _, said in blocks)
    monkeypatch.chdir(text)
    names = {}
    with Server(tmp_path) as server:
        for code, said in blocks:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code.replace("http://127.0.0.1:8000", server.url), names)  # pylint: disable=exec-used
            assert out.getvalue() == said, code
