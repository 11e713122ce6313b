"""Runs the programs of the Meson suite `cuda` under compute-sanitizer, each under each tool.

    sanitize_cuda.py [--timeout SECONDS] [--jobs N] [--tool NAME]... [--program NAME]... BUILD_DIR

Every program gets --small.  Some run at once; those that Meson would not run beside others, because
they count the device's free memory, come last and alone.

Writes BUILD_DIR/cuda-sanitizer.xml (JUnit: one test for each tool and program) and exits 1 when a
program failed, was skipped or ran out of time under any tool.  Needs a device and
compute-sanitizer, which comes with the CUDA toolkit.  The programs and their arguments are read
from what Meson left in the build directory, which may have been moved together with its sources.
"""
import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
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
# racecheck does not see how cuBLASLt's kernels wait for each other: hazards between their accesses
# are not ours.  (Its own filter cannot be used: a kernel of theirs that it leaves out faults.)
HAZARD = re.compile(r"Race reported between .*")
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
VENDOR = "nvjet"
# A tool makes a kernel slower by a factor of ten to a thousand.
SMALLER = "--small"
SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
FOUND = 86  # the exit status of a program in which the tool found something
SKIPPED = 77
N_LINES = 40  # of a failure's output


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    command: list
    alone: bool


@dataclasses.dataclass(frozen=True)
class Result:
    tool: str
    name: str
    wrong: str | None
    output: str
    seconds: float


def moved(word, old, new):
    """A word of a command line, seen from where the tree is now."""
    path = pathlib.Path(word)
    return str(new / path.relative_to(old)) if path.is_relative_to(old) else word


def suite_programs(build):
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
        words = [moved(word, old_source, build.parent) for word in words]
        yield Program(test["name"], [*words, SMALLER], not test["is_parallel"])


async def run_command(command, timeout, output):
    """The exit status, or None if it was not done in time.  Nothing of it is left behind: the
    sanitizer starts the program as a process of its own, so the whole group is ended."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=output, stderr=asyncio.subprocess.STDOUT, start_new_session=True)
    try:
        return await asyncio.wait_for(process.wait(), timeout)
    except asyncio.TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def is_vendors(text):
    """True: all that racecheck found lies in the vendor's kernels, and the program passed."""
    hazards, summary = HAZARD.findall(text), SUMMARY.search(text)
    return (bool(hazards) and summary is not None and int(summary[1]) == len(hazards)
            and all(VENDOR in hazard for hazard in hazards)
            and "Target application returned an error" not in text)


async def run_one(tool, program, timeout):
    wrapped = [SANITIZER, "--tool", tool, *TOOLS[tool], f"--error-exitcode={FOUND}",
               *program.command]
    reasons = {0: None, FOUND: f"{tool} found errors, or the program failed",
               SKIPPED: "skipped: nothing was tested", None: f"not done after {timeout:g} s"}
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        status = await run_command(wrapped, timeout, output)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if status == FOUND and is_vendors(text):
        status = 0
    return Result(tool, program.name, reasons.get(status, f"exit status {status}"), text,
                  time.monotonic() - start)


def report(result, suite):
    case = ElementTree.SubElement(suite, "testcase", classname=result.tool, name=result.name,
                                  time=f"{result.seconds:.1f}")
    print(f"{result.tool} {result.name}: {result.wrong or 'clean'} ({result.seconds:.1f} s)",
          flush=True)
    if result.wrong:
        print("\n".join(result.output.splitlines()[-N_LINES:]), flush=True)
        ElementTree.SubElement(case, "failure", message=result.wrong)


async def run_runs(runs, n_jobs, timeout, suite):
    """At most n_jobs of [(tool, program)] at once.  Returns how many failed."""
    free = asyncio.Semaphore(n_jobs)

    async def run_when_free(tool, program):
        async with free:
            return await run_one(tool, program, timeout)

    tasks = [asyncio.create_task(run_when_free(*run)) for run in runs]
    n_failed = 0
    for done in asyncio.as_completed(tasks):
        result = await done
        report(result, suite)
        n_failed += result.wrong is not None
    return n_failed


async def run_all(programs, arguments, suite):
    runs = [(tool, program) for program in programs for tool in arguments.tool or TOOLS]
    together = [run for run in runs if not run[1].alone]
    alone = [run for run in runs if run[1].alone]
    n_failed = await run_runs(together, arguments.jobs, arguments.timeout, suite)
    n_failed += await run_runs(alone, 1, arguments.timeout, suite)
    suite.set("tests", str(len(runs)))
    suite.set("failures", str(n_failed))
    return n_failed


def main():
    parser = argparse.ArgumentParser(description="the CUDA suite under compute-sanitizer")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of each run")
    parser.add_argument("--jobs", type=int, default=4, help="runs at once")
    parser.add_argument("--tool", action="append", choices=TOOLS)
    parser.add_argument("--program", action="append", help="as Meson names the test")
    parser.add_argument("build", type=pathlib.Path)
    arguments = parser.parse_args()
    if not pathlib.Path(SANITIZER).exists():
        sys.exit("sanitize_cuda: there is no compute-sanitizer")
    build = arguments.build.resolve()
    programs = list(suite_programs(build))
    if not programs:
        sys.exit(f"sanitize_cuda: {arguments.build} has no suite 'cuda': was there an nvcc?")
    unknown = set(arguments.program or ()) - {program.name for program in programs}
    if unknown:
        sys.exit(f"sanitize_cuda: the suite 'cuda' has no {', '.join(sorted(unknown))}")
    if arguments.program:
        programs = [program for program in programs if program.name in arguments.program]
    suite = ElementTree.Element("testsuite", name="compute-sanitizer")
    n_failed = asyncio.run(run_all(programs, arguments, suite))
    ElementTree.ElementTree(suite).write(build / "cuda-sanitizer.xml")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
