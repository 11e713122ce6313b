#!/usr/bin/env python3
"""Runs every fuzz target under libFuzzer, with the address and undefined sanitizers.

    scripts/load/fuzz.py [--seconds 60] [--executions 0] [--jobs 1] [--build build-fuzz] [NAME ...]

Builds the targets with clang (Debian: apt-get install clang) in a folder of their own.  Each begins
with the seeds that the tests replay, and keeps what it finds in BUILD/corpora/NAME, so that a later
run goes on from there.  A target runs for --seconds, or until --executions, whatever comes first.

Prints a table: target, executions, executions per second, coverage (edges and features as libFuzzer
counts them) and inputs kept.  Inputs that crash, hang (10 s) or take more than 2 GB are left in
BUILD/findings, and make the exit status 1.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETUP = ("-Dfuzzers=true", "-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dcuda=disabled",
         "-Dbuildtype=debugoptimized", "-Dwarning_level=0", "-Dwerror=false")
LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1")
PROGRESS = re.compile(r"cov: (\d+) ft: (\d+)")
EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")
RATE = re.compile(r"stat::average_exec_per_sec: +(\d+)")


def configure(build):
    if not (build / "build.ninja").exists():
        environment = {**os.environ, "CC": os.environ.get("CC", "clang"),
                       "CXX": os.environ.get("CXX", "clang++")}
        subprocess.run(["meson", "setup", build, *SETUP], cwd=ROOT, env=environment, check=True,
                       stdout=sys.stderr)


def find_targets(build):
    """Name, binary and seeds of each target: the tests that replay files."""
    shown = subprocess.run(["meson", "introspect", build, "--tests"], check=True,
                           capture_output=True, text=True).stdout
    for test in json.loads(shown):
        binary, *seeds = test["cmd"]
        name = pathlib.Path(binary).name
        if "fuzz" in name and seeds and all(pathlib.Path(seed).is_file() for seed in seeds):
            yield name, pathlib.Path(binary), seeds


def prepare(build, name, seeds):
    corpus, findings = build / "corpora" / name, build / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    for i, seed in enumerate(seeds):
        shutil.copyfile(seed, corpus / f"seed{i}")
    return corpus, findings


def last(pattern, text):
    found = pattern.findall(text)
    return found[-1] if found else None


def fuzz(build, target, options):
    name, binary, seeds = target
    corpus, findings = prepare(build, name, seeds)
    done = subprocess.run(
        [binary, corpus, *LIMITS, f"-max_total_time={options.seconds}",
         *([f"-runs={options.executions}"] if options.executions else []),
         f"-artifact_prefix={findings}/{name}-"],
        capture_output=True, check=False)
    report = done.stderr.decode(errors="replace")
    edges, features = last(PROGRESS, report) or ("?", "?")
    print(f"{name:32} {last(EXECUTED, report) or '?':>12} {last(RATE, report) or '?':>9} {edges:>7} "
          f"{features:>8} {sum(1 for _ in corpus.iterdir()):>7}", flush=True)
    if done.returncode:
        print(f"{name}: exit status {done.returncode}\n{report[-4000:]}", file=sys.stderr)
    return done.returncode == 0, int(last(EXECUTED, report) or 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--executions", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-fuzz")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    build = options.build.resolve()
    configure(build)
    targets = [target for target in find_targets(build)
               if not options.names or target[0] in options.names]
    if not targets:
        sys.exit("no such target")
    subprocess.run(["ninja", "-C", build, *(os.path.relpath(target[1], build) for target in targets)],
                   check=True, stdout=sys.stderr)
    print(f"{'target':32} {'executions':>12} {'per s':>9} {'edges':>7} {'features':>8} {'inputs':>7}")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
        results = list(threads.map(lambda target: fuzz(build, target, options), targets))
    print(f"{sum(n for _, n in results)} executions in all")
    sys.exit(any(not good for good, _ in results))


if __name__ == "__main__":
    main()
