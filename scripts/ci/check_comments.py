#!/usr/bin/env python3
"""Checks that comments and texts read as plain English, as CONTRIBUTING.md describes.

    scripts/ci/check_comments.py [PATH ...]

The comment above a function begins with a verb in the third person ("Returns how many pages the
layer's list lacks."), and no comment speaks of data as of persons.  Nor does a text that users see:
a string of the program, a page of docs/, or an explanation in config/quire.json.  PATH limits the
check to files below it; by default it covers engine/, server/, cuda/, docs/ and config/.  Exits 1
when a comment or a text breaks a rule."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = "engine", "server", "cuda", "docs", "config"
SOURCES = ".c", ".h", ".cc", ".cu", ".cuh"
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
# In texts also "whose": "a prompt with more pages", not "a prompt whose pages".
TEXT_PERSONS = re.compile(PERSONS.pattern.replace("who|", "who|whose|", 1), re.IGNORECASE)
# Texts that mean a person, by file.
ALLOWED = {"server/tune/tune_prompts.c": {"though nobody had asked"}}  # prose that a model reads
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


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


def faults_of(path):
    name, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
    return (faults_of_page if path.suffix in PAGES else faults_of_source)(name, text)


def main():
    tops = [pathlib.Path(argument).resolve() for argument in sys.argv[1:]] or [
        ROOT / room for room in ROOMS]
    paths = sorted(path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))
                   if path.suffix in SOURCES + PAGES)
    faults = [fault for path in paths for fault in faults_of(path)]
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(f"{len(faults)} comments and texts to mend in {len(paths)} files")


if __name__ == "__main__":
    main()
