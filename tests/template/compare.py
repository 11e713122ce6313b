#!/usr/bin/env python3
"""Compares engine/template/ with jinja2 on published templates and on generated ones.

    tests/template/compare.py RENDER_LINES [--templates FOLDER] [--cases FROM:TO]

RENDER_LINES is the program that a build has in tests/template/.  FOLDER has *.jinja files, each of
which renders every conversation of conversations.py; CHAT_TEMPLATES names it, too.  FROM:TO are the
seeds of generate.py.  Both must make the same text, or both fail.  What render_lines refuses because
it is not supported is counted apart.  Exits 1 when a case differs."""
import argparse
import collections
import os
import pathlib
import sys

import conversations
import generate
from jinja_oracle import Oracle, Renderer

UNSUPPORTED = -6


def outcome(expected, why, answer):
    """What came of a case: equal, failed, unsupported, or differs."""
    if expected is None and "error" in answer:
        return "failed"
    if answer.get("code") == UNSUPPORTED:
        return "unsupported"
    if expected is None and "object at 0x" in why:
        return "unsupported"  # it depends on an address
    if expected is not None and "has no slices" in answer.get("error", ""):
        return "folded"  # jinja2 makes (none)[1:] undefined among constants, and elsewhere an error
    return "equal" if expected is not None and expected == answer.get("text") else "differs"


def compare(renderer, oracle, source, variables, trusted, counts):
    expected, why = oracle.render({**variables, **trusted})
    answer = renderer.render(source, variables, trusted)
    found = outcome(expected, why, answer)
    counts[found] += 1
    if found == "differs":
        print(f"jinja2: {why or expected!r}\nhere:   {answer.get('error') or answer['text']!r}\n"
              f"of:     {source[:2000]!r}\n", file=sys.stderr)


def published(renderer, folder):
    total = collections.Counter()
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        source, counts = path.read_text(), collections.Counter()
        oracle = Oracle(source)
        for variables in conversations.all_variables():
            compare(renderer, oracle, source, variables, conversations.TRUSTED, counts)
        print(f"{path.stem}: {dict(counts)}", flush=True)
        total += counts
    return total


def generated(renderer, first, last):
    counts = collections.Counter()
    for seed in range(first, last):
        source, variables, trusted = generate.case(seed)
        before = counts["differs"]
        compare(renderer, Oracle(source), source, variables, trusted, counts)
        if counts["differs"] > before:
            print(f"seed {seed}\n", file=sys.stderr)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("render_lines")
    parser.add_argument("--templates", default=os.environ.get("CHAT_TEMPLATES"))
    parser.add_argument("--cases", default="0:10000")
    arguments = parser.parse_args()
    renderer = Renderer(arguments.render_lines)
    total = collections.Counter()
    if arguments.templates:
        total += published(renderer, arguments.templates)
    counts = generated(renderer, *map(int, arguments.cases.split(":")))
    print(f"generated: {dict(counts)}")
    total += counts
    renderer.close()
    sys.exit(total["differs"] > 0)


if __name__ == "__main__":
    main()
