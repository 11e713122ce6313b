"""The documentation: links lead somewhere, the README is short, all settings and rooms are there."""
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

from server import BINARY, ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SCRIPTS = ROOT / "scripts/ci"
SOURCES = {path.name for room in ("engine", "server", "cuda", "scripts", "tests")
           for path in (ROOT / room).rglob("*.*")}
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def prose(path):
    """The text of a page without its code."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(path):
    """The names by which headings of a page are linked: GitHub's."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_page
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


@by_page
def test_files_that_pages_name_exist(page):
    """What looks like a path of the tree, or in code like a source file, is one."""
    text = page.read_text(encoding="utf-8")
    form = r"(?<![\w/.-])((?:engine|server|cuda|scripts|tests|config)/[\w./-]*\w)"
    for path in re.findall(form, text):
        is_example = re.search(r"NAME|MODEL|/x\.[ch]$|_bench$", path)
        assert is_example or (ROOT / path).exists(), path
    for name in re.findall(r"`([\w-]+\.(?:c|h|cu|cuh|py))`", text):
        assert name in SOURCES | {"x.c", "x.h"}, name


def test_headings_that_sources_name_exist():
    """A comment's docs/x.md, "Heading" leads to that heading of that page."""
    for room in ("engine", "server", "cuda", "config"):
        for path in (ROOT / room).rglob("*.*"):
            text = re.sub(r"\n \* ?", " ", path.read_text(encoding="utf-8"))
            for name, heading in re.findall(r'(docs/[\w/-]+\.md)(?:, "([^"]+)")?', text):
                page = ROOT / name
                assert page.exists(), f"{path}: {name}"
                headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
                assert not heading or heading in headings, f"{path}: {heading}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_page_is_linked_from_the_readme():
    """From the README itself, or from a page that it links."""
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", prose(page))
        todo += [(page.parent / link).resolve() for link in links if not link.startswith("http")]
    assert set(PAGES) <= seen


def test_settings_are_up_to_date():
    """docs/settings.md is what `quire serve --help-all` and config/quire.json say."""
    done = subprocess.run([sys.executable, SCRIPTS / "make_settings_doc.py", "--check", BINARY],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_memory_tables_are_up_to_date():
    """docs/memory.md has what `quire info` says of five shapes."""
    done = subprocess.run([sys.executable, SCRIPTS / "make_memory_doc.py", "--check", BINARY], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr


def test_every_page_is_in_a_menu_of_the_site():
    menu = re.findall(r"^ +- ([\w/.-]+\.md)$", (ROOT / "docs/site.yml").read_text(), re.MULTILINE)
    assert len(menu) == len(set(menu)) and set(menu) >= {str(page.relative_to(ROOT)) for page in PAGES}
    assert all((ROOT / page).is_file() for page in menu)


def test_reasons_for_dense_prompts_are_explained():
    """Those that usage.prefill.why_dense may name, in docs/sparse-prefill.md and in the schema of answers."""
    source = (ROOT / "server/api/prefill_account.c").read_text(encoding="utf-8")
    reasons = re.findall(r'\[DENSE_\w+\] = "(\w+)"', source)
    page = (ROOT / "docs/sparse-prefill.md").read_text(encoding="utf-8")
    table = page.split("### Why a prompt was dense")[1].split("\n#")[0]
    assert len(reasons) == 8 and re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)[1:] == reasons
    answers = json.loads((ROOT / "server/answers.json").read_text(encoding="utf-8"))
    assert answers["prefill_usage"]["properties"]["why_dense"]["enum"] == [*reasons, None]


def test_the_architecture_names_every_room():
    spec = importlib.util.spec_from_file_location("check_rooms", SCRIPTS / "check_rooms.py")
    check_rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_rooms)
    text = pathlib.Path(ROOT, "docs/architecture.md").read_text(encoding="utf-8")
    for room in check_rooms.ROOMS:
        if not room.endswith(".c"):
            assert re.search(rf"\| `{room}/?` \|", text), room


def table_under(page, heading):
    """The first cell and the rest of each row of the table under a heading."""
    text = (ROOT / page).read_text().split(f"\n{heading}\n", 1)[1]
    rows = re.search(r"\n(\|.*?)\n\n", text, re.DOTALL)[1].splitlines()[2:]
    return [row.strip("|").split(" |", 1) for row in rows]


def test_every_family_has_its_formats_of_calls():
    """The table names all architectures, once each, and only formats that are read and explained."""
    def names(cells):
        return [name for cell in cells for name in re.findall(r"`(\w+(?:ForCausalLM|ForConditionalGeneration|GLMModel))`", cell)]

    table = table_under("docs/chat-templates.md", "## Tool calls of each family")
    served = set(names(cell for cell, _ in table_under("docs/models.md", "## Families")))
    listed = names(cell for cell, _ in table)
    assert len(listed) == len(set(listed)) and served == set(listed), served ^ set(listed)
    source = (ROOT / "server/api/conversation/tool_formats.c").read_text()
    formats = set(re.findall(r'^    {"([\w.-]+)", "', source.split("formats[] = {")[1].split("};")[0], re.MULTILINE))
    explained = {cell.strip(" `") for cell, _ in table_under("docs/api.md", "### Tool calls")}
    assert formats == explained
    written = {name for _, cell in table for name in re.findall(r"`([a-z0-9.]+(?:-[a-z0-9.]+)*)`", cell)} - {"tools"}
    assert formats - {"kimi-k2", "minimax"} <= written <= formats, written ^ formats
