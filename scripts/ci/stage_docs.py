#!/usr/bin/env python3
"""Copies the documentation, and what it links to in the tree, into a folder from which a site can be made.

    scripts/ci/stage_docs.py DIR

Paths stay as they are, so links do, too.  DIR is made anew."""
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def linked_files(page):
    """The files of the tree that a page links to, pictures among them."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s#]+)", text):
        if not re.match(r"https?:", link):
            target = (page.parent / link).resolve()
            if target.is_file():
                yield target


def main():
    out = pathlib.Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    todo, seen = [ROOT / "README.md"], set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        if file.suffix == ".md":
            todo += linked_files(file)
        target = out / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


if __name__ == "__main__":
    main()
