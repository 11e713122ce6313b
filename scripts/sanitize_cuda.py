"""Runs the programs of the Meson suite `cuda` under compute-sanitizer, each under each tool.

    sanitize_cuda.py [--timeout SECONDS] [--tool NAME]... BUILD_DIR

Writes BUILD_DIR/cuda-sanitizer.xml (JUnit: one test for each tool and program) and exits 1 when a
program failed, was skipped or ran out of time under any tool.  Needs a device and
compute-sanitizer, which comes with the CUDA toolkit.  The programs and their arguments are read
from what Meson left in the build directory, which may have been moved together with its sources.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

# What the compiler tells the tools of barriers is too few for kernels that make their own; one that
# counts past it breaks the launch.
BARRIERS = ("--num-cuda-barriers", "256")
TOOLS = {
    # A program's own check of what it cannot have calls the runtime wrongly on purpose, and every
    # call is checked where it is made.
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": BARRIERS,
    "initcheck": (),
    "synccheck": BARRIERS,
}
# A tool makes a kernel slower by a factor of ten to a hundred.
SMALLER = {"attn_decode_test": "--small", "attn_prefill_test": "--small"}
SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
FOUND = 86  # the exit status of a program in which the tool found something
SKIPPED = 77
N_LINES = 40  # of a failure's output


def moved(word, old, new):
    """A word of a command line, seen from where the tree is now."""
    path = pathlib.Path(word)
    return str(new / path.relative_to(old)) if path.is_relative_to(old) else word


def suite_commands(build):
    info = build / "meson-info"
    directories = json.loads((info / "meson-info.json").read_text())["directories"]
    old_build, old_source = map(pathlib.Path, (directories["build"], directories["source"]))
    for test in json.loads((info / "intro-tests.json").read_text()):
        if not any(suite.split(":")[-1] == "cuda" for suite in test["suite"]):
            continue
        words = test["cmd"]
        if words[0].endswith("/env"):  # how the suite starts what Meson did not link itself
            words = [str(build / words[1]), *words[2:]]
        words = [moved(word, old_build, build) for word in words]
        words += [SMALLER[test["name"]]] if test["name"] in SMALLER else []
        yield test["name"], [moved(word, old_source, build.parent) for word in words]


def run_one(tool, command, timeout):
    """(what was wrong or None, the output)"""
    wrapped = [SANITIZER, "--tool", tool, *TOOLS[tool], f"--error-exitcode={FOUND}", *command]
    try:
        done = subprocess.run(wrapped, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        return f"not done after {timeout} s", (late.stdout or b"").decode(errors="replace")
    output = done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return None, output
    reasons = {FOUND: f"{tool} found errors, or the program failed",
               SKIPPED: "skipped: nothing was tested"}
    return reasons.get(done.returncode, f"exit status {done.returncode}"), output


def run_all(build, tools, timeout):
    suite = ElementTree.Element("testsuite", name="compute-sanitizer")
    n_failed = 0
    commands = list(suite_commands(build))
    for tool in tools:
        for name, command in commands:
            start = time.monotonic()
            wrong, output = run_one(tool, command, timeout)
            seconds = time.monotonic() - start
            case = ElementTree.SubElement(suite, "testcase", classname=tool, name=name,
                                          time=f"{seconds:.1f}")
            print(f"{tool} {name}: {wrong or 'clean'} ({seconds:.1f} s)", flush=True)
            if wrong:
                n_failed += 1
                tail = "\n".join(output.splitlines()[-N_LINES:])
                print(tail, flush=True)
                ElementTree.SubElement(case, "failure", message=wrong)
    suite.set("tests", str(len(commands) * len(tools)))
    suite.set("failures", str(n_failed))
    ElementTree.ElementTree(suite).write(build / "cuda-sanitizer.xml")
    return n_failed, len(commands)


def main():
    parser = argparse.ArgumentParser(description="the CUDA suite under compute-sanitizer")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--tool", action="append", choices=TOOLS)
    parser.add_argument("build", type=pathlib.Path)
    arguments = parser.parse_args()
    if not pathlib.Path(SANITIZER).exists():
        sys.exit("sanitize_cuda: there is no compute-sanitizer")
    n_failed, n_programs = run_all(arguments.build.resolve(), arguments.tool or TOOLS,
                                   arguments.timeout)
    if not n_programs:
        sys.exit(f"sanitize_cuda: {arguments.build} has no suite 'cuda': was there an nvcc?")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
