"""Adds up test reports and prints `N passed, M failed`, and before it the twenty longest tests and,
loudly, what was skipped for want of a device; exits 1 when anything failed or nothing ran.

    count_tests.py [--durations FILE.csv] REPORT...

FILE.csv gets a line `seconds,test` for each test, the longest first.
A report is meson's testlog.json (one JSON object a line, with the output of a test executable) or
pytest's JUnit XML.  cmocka prints TAP when asked, so each of its test functions counts; an
executable that prints none counts as one test, and one that dies without naming a failed function
as one failure.
"""
import csv
import json
import re
import sys
import xml.etree.ElementTree as ElementTree

N_LONGEST = 20
TAP_LINE = re.compile(r"^\s*(not ok|ok)\b(.*)$", re.MULTILINE)


def count_meson(path, durations):
    passed = failed = 0
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            test = json.loads(line)
            if test["result"] == "SKIP":
                print(f"SKIPPED, NOT TESTED: {test['name']}")
                continue
            durations.append((test["duration"], test["name"]))
            lines = TAP_LINE.findall(test.get("stdout") or "")
            n_ok = sum(word == "ok" for word, _ in lines)
            n_not_ok = len(lines) - n_ok
            good = test["result"] in ("OK", "EXPECTEDFAIL")
            passed += n_ok if lines else int(good)
            failed += n_not_ok if n_not_ok else int(not good)
    return passed, failed


def count_junit(path, durations):
    passed = failed = 0
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        durations += [(float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}")
                      for case in suite.iter("testcase")]
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        passed += max(0, int(suite.get("tests", 0)) - bad - skipped)
        failed += bad
    return passed, failed


def write_durations(path, durations):
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("seconds", "test"))
        rows.writerows((f"{seconds:.3f}", name) for seconds, name in durations)
    print(f"The {N_LONGEST} longest of {len(durations)} tests ({path}):")
    for seconds, name in durations[:N_LONGEST]:
        print(f"{seconds:8.1f} s  {name}")


def main():
    paths, passed, failed, durations, written = sys.argv[1:], 0, 0, [], None
    if paths[:1] == ["--durations"]:
        written, paths = paths[1], paths[2:]
    for path in paths:
        try:
            count = count_junit if path.endswith(".xml") else count_meson
            more = count(path, durations)
        except (OSError, ValueError, ElementTree.ParseError) as error:
            print(f"count_tests: {path}: {error}", file=sys.stderr)
            more = (0, 1)  # a run that left no report did not pass
        passed += more[0]
        failed += more[1]
    if written and durations:
        write_durations(written, sorted(durations, reverse=True))
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
