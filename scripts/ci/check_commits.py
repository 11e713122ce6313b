#!/usr/bin/env python3
"""Checks the messages of commits: `room: imperative`, at most 72 columns, and the body.

    scripts/ci/check_commits.py [--root DIR] [--since COMMIT]

A commit that adds and removes more than 50 lines says in its body why, and what was rejected.
No file has the marks that git leaves where two changes of a line meet.
Checked is what came after SINCE, or, where the history does not reach back to it, the last commit
alone.  Exits 77 without git or a history."""
import argparse
import pathlib
import re
import sys

from history import git

ROOT = pathlib.Path(__file__).resolve().parents[2]
SINCE = "dc86bbaa726268ecf3d13e23159031e71dd433ed"  # older messages stay as they are
SUBJECT = re.compile(r"[\w./-]+(, [\w./-]+)*: \S")
MAX_COLUMNS, MAX_LINES = 72, 50


def commits_of(root, since):
    """The commits to check, oldest last; None without a history."""
    if git(root, "merge-base", "--is-ancestor", since, "HEAD") is not None:
        listed = git(root, "rev-list", "--no-merges", f"{since}..HEAD")
    else:
        listed = git(root, "rev-list", "--no-merges", "-1", "HEAD")
    return None if listed is None else listed.split()


def n_lines(root, commit):
    """Added and removed lines; a moved file counts for what changed in it."""
    counts = git(root, "show", "--numstat", "-M", "--format=", commit) or ""
    return sum(int(n) for line in counts.splitlines() for n in line.split("\t")[:2] if n.isdigit())


def faults_of(root, commit):
    subject, _, body = git(root, "show", "-s", "--format=%B", commit).strip().partition("\n")
    name = f"{commit[:8]} {subject[:50]!r}"
    if not SUBJECT.match(subject):
        yield f"{name}: the subject does not begin with a room and a colon"
    if len(subject) > MAX_COLUMNS:
        yield f"{name}: the subject has {len(subject)} columns, more than {MAX_COLUMNS}"
    n = n_lines(root, commit)
    if n > MAX_LINES and not body.strip():
        yield f"{name}: changes {n} lines, more than {MAX_LINES}, and has no body"


def marks_of(root):
    """The places of git's marks in files of the last commit."""
    found = git(root, "grep", "-nIE", "^(<{7}|>{7})( |$)", "HEAD", "--", ".")
    return [f"{place}: a mark of an unfinished merge" for place in (found or "").splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--since", default=SINCE)
    given = parser.parse_args()
    commits = commits_of(given.root, given.since)
    if commits is None:
        print("skipped: no git, or no history", file=sys.stderr)
        sys.exit(77)
    faults = [fault for commit in commits for fault in faults_of(given.root, commit)]
    faults += marks_of(given.root)
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(f"{len(faults)} faults in {len(commits)} commits")


if __name__ == "__main__":
    main()
