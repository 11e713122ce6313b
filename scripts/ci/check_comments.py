#!/usr/bin/env python3
"""Checks that comments and texts read as plain English, as CONTRIBUTING.md describes.

    scripts/ci/check_comments.py [--root DIR] [PATH ...]

The comment above a function begins with a verb in the third person ("Returns how many pages the
layer's list lacks."), and no comment speaks of data as of persons.  Nor does a text that users see:
a string of the program, a page of docs/, or an explanation in config/quire.json.  In tests/ comments
and names are read, but no strings.  A comment is at most 100 columns wide.

A sentence that is new in a comment has at most 25 words, and none that the glossary of
CONTRIBUTING.md refuses.  New is what no changed file had before: at the merge base with main, or,
on main itself, one commit before.  Without git or without history this part is left out.

PATH limits the check to files below it; by default it covers engine/, server/, cuda/, tests/,
docs/ and config/.  Exits 1 when a comment or a text breaks a rule."""
import argparse
import ast
import io
import pathlib
import re
import sys
import tokenize

from history import git

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = "engine", "server", "cuda", "tests", "docs", "config"
SOURCES = ".c", ".h", ".cc", ".cu", ".cuh"
SCRIPTS = (".py",)
PAGES = ".md", ".json"
# A block comment in the first column, and the line below it.
ABOVE = re.compile(r"^/\*(.*?)\*/\n([^\n]*)", re.DOTALL | re.MULTILINE)
FUNCTION = re.compile(r"^(?!struct \w+ \{|union|enum|typedef|#)(?:template|__|[a-z])[^;={]*\(")
VERB = re.compile(r"[A-Z][a-z]+s\b")
# Words that end like a verb and are none.
NO_VERBS = {"This", "Its", "As", "Others", "Those", "Thus", "Always", "Less", "Unless", "Besides",
            "Perhaps", "Rows", "Tokens", "Layers", "Pages", "Blocks", "Bytes", "Slots", "Sequences",
            "Requests", "Heads", "Keys", "Values", "Scores", "Bits", "Steps", "Prompts", "Results",
            "Kernels", "Weights", "Hours", "Means", "Multiples", "Threads", "Lines", "Words",
            "Sums", "Names", "Events", "Options", "Settings", "Files", "Models", "Parts", "Units",
            "Tiles", "Columns", "Diagonals", "Pairs", "Items", "Plans", "Graphs", 
            "Seconds", "Times", "Elements", "Clients", "Answers", "Ours", "Theirs", "Has", "Was"}
PERSONS = re.compile(r"\b(who|whom|whoever|whomever|nobody|somebody|everybody|anybody)\b",
                     re.IGNORECASE)
NAMES = re.compile(r"\b\w*?(?:\b|_)(who|whom|whoever|nobody|somebody|everybody|anybody)(?:\b|_)\w*")
# In texts also "whose": "a prompt with more pages", not "a prompt whose pages".
TEXT_PERSONS = re.compile(PERSONS.pattern.replace("who|", "who|whose|", 1), re.IGNORECASE)
# Texts that mean a person, by file.
ALLOWED = {"server/tune/tune_prompts.c": {"though nobody had asked"}}  # prose that a model reads
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
MAX_COLUMNS = 100
MAX_WORDS = 25
# The worst words of the glossary: metaphors that no reader of another project knows.
REFUSED = re.compile(r"\b(bystanders?|patience|vouch\w*|needless\w*|lent|lends?|as well as it|so many"
                     r" as well|theirs|the like of it)\b", re.IGNORECASE)
DRAWN = re.compile(r"[─│┌┐└┘├┤┬┴┼▲▼►◄|]|\S {3,}\S|^ {3,}")


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def faults_of_page(name, text):
    text = CODE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    for person in TEXT_PERSONS.finditer(text):
        yield f"{name}:{line_of(text, person.start())}: speaks of a person: {person.group()!r}"


def faults_of_source(name, text):
    for found in ABOVE.finditer(text):
        comment, below = found.group(1).strip(" *\n"), found.group(2)
        if found.start() == 0 or comment.startswith("----") or not FUNCTION.match(below):
            continue
        word = VERB.match(comment)
        if not word or word.group() in NO_VERBS:
            line = line_of(text, found.start())
            yield f"{name}:{line}: not a verb in the third person: {comment[:60]!r}"
    for found in COMMENT.finditer(text):
        part = found.group()
        person = (PERSONS if part[0] == "/" else TEXT_PERSONS).search(part)
        if person and part.strip('"') not in ALLOWED.get(str(name), ()):
            line = line_of(text, found.start() + person.start())
            yield f"{name}:{line}: speaks of a person: {person.group()!r}"


def comments_of(text):
    """Each comment with its first line, counted from 0."""
    for found in COMMENT.finditer(text):
        if found.group()[0] == "/":
            yield text.count("\n", 0, found.start()), found.group()


def wide_comments(name, text):
    lines = text.split("\n")
    for first, comment in comments_of(text):
        for i in range(first, first + comment.count("\n") + 1):
            if len(lines[i]) > MAX_COLUMNS:
                yield f"{name}:{i + 1}: a comment is wider than {MAX_COLUMNS} columns"


def sentences_of(text):
    """Each sentence of the comments with its line; drawings, tables and code are none."""
    for first, comment in comments_of(text):
        prose = []
        for i, line in enumerate(comment.split("\n")):
            line = re.sub(r"^\s*(/\*+|//|\*(?!/))|\*/\s*$", "", line)
            prose.append((first + i, "" if DRAWN.search(line) else line.strip()))
        at, words = None, []
        for line, part in [*prose, (0, "")]:
            for word in part.split() or [None]:
                if word is not None:
                    at = line if not words else at
                    words.append(word)
                if words and (word is None or re.search(r"[.?!][\"')]*$", word)):
                    yield at + 1, " ".join(words)
                    words = []


def base_of(root):
    """The commit that new lines are compared with; None if there is none."""
    head = git(root, "rev-parse", "HEAD")
    for branch in ("origin/main", "main"):
        base = head and git(root, "merge-base", "HEAD", branch)
        if base and base != head:
            return base.strip()
    base = git(root, "rev-parse", "--verify", "HEAD~1")
    return base and base.strip()


def new_sentences(root, paths):
    """Sentences that no changed file had before: moved and reflowed ones are not new."""
    base = base_of(root)
    changed = base and git(root, "diff", "--name-only", "--relative", base)
    if not changed:
        return
    names = [name for name in changed.split("\n") if name.endswith(SOURCES)]
    old = {sentence for name in names
           for _, sentence in sentences_of(git(root, "show", f"{base}:./{name}") or "")}
    for name in names:
        if root / name in paths:
            for line, sentence in sentences_of((root / name).read_text(encoding="utf-8")):
                if sentence not in old:
                    yield name, line, sentence


def faults_of_new(root, paths):
    for name, line, sentence in new_sentences(root, paths):
        n_words = sum(bool(re.search(r"\w", word)) for word in sentence.split())
        if n_words > MAX_WORDS:
            yield (f"{name}:{line}: a new sentence has {n_words} words, more than {MAX_WORDS}: "
                   f"{sentence[:60]!r}")
        refused = REFUSED.search(sentence)
        if refused:
            yield f"{name}:{line}: not a word of the glossary: {refused.group()!r}"


def faults_of_test(name, text):
    """A C test: names and comments.  Strings may be texts that a model reads."""
    code = COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    for found in NAMES.finditer(code):
        yield f"{name}:{line_of(text, found.start())}: a name speaks of a person: {found.group()!r}"
    for first, comment in comments_of(text):
        person = PERSONS.search(comment)
        if person:
            line = first + 1 + comment.count("\n", 0, person.start())
            yield f"{name}:{line}: speaks of a person: {person.group()!r}"


def faults_of_script(name, text):
    """A test in Python: comments, docstrings and names of functions."""
    said = [(token.start[0], token.string) for token in
            tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            said.append((getattr(node, "lineno", 1), ast.get_docstring(node) or ""))
        if isinstance(node, ast.FunctionDef):
            said.append((node.lineno, node.name.replace("_", " ")))
    for line, words in said:
        person = PERSONS.search(words)
        if person:
            yield f"{name}:{line}: speaks of a person: {person.group()!r}"


def faults_of(root, path):
    name, text = path.relative_to(root), path.read_text(encoding="utf-8")
    if path.suffix in PAGES:
        return faults_of_page(name, text)
    if path.suffix in SCRIPTS:
        return faults_of_script(name, text)
    check = faults_of_test if name.parts[0] == "tests" else faults_of_source
    return [*check(name, text), *wide_comments(name, text)]


def is_read(root, path):
    """Pages and tables below tests/ are data."""
    in_tests = path.relative_to(root).parts[0] == "tests"
    return path.suffix in SOURCES + (SCRIPTS if in_tests else PAGES)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    given = parser.parse_args()
    root = given.root.resolve()
    tops = [path.resolve() for path in given.paths] or [root / room for room in ROOMS]
    paths = sorted(path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))
                   if path.is_file() and is_read(root, path))
    faults = [fault for path in paths for fault in faults_of(root, path)]
    faults += faults_of_new(root, set(paths))
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(f"{len(faults)} comments and texts to mend in {len(paths)} files")


if __name__ == "__main__":
    main()
