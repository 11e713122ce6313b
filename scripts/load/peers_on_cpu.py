#!/usr/bin/env python3
"""Measures decode and prefill on the CPU beside llama.cpp and its relatives, in turns, with the same
files and as many threads.

    scripts/load/peers_on_cpu.py model-q4_0.gguf model-q8_0.gguf --threads 1 --turns 7 \\
        --peer 'llama.cpp=llama.cpp/build/bin/llama-bench -fa 0' \\
        --peer 'ik_llama.cpp=ik_llama.cpp/build/bin/llama-bench -fa 0 -rtr 1'

A turn runs each program once with each file: a prompt of --prompt tokens, and --generate tokens.
Programs take turns because other work on a machine comes and goes: their medians have seen the same
load.  A relative is named by its llama-bench with any options; the same one may be there several
times.  Other quire binaries, say of before a change, are named by --before.

Needs nothing but Python.  Prints a row for each file and kind of work: medians, with the least and
the greatest, and how many times as fast as the fastest peer quire is, by medians and by each one's
greatest rate.  Other work only ever slows a program down, so beside much of it the second says more.
--csv FILE gets all runs.
"""
import argparse
import csv
import os
import shlex
import statistics
import subprocess
import sys

KINDS = ("decode", "prefill")


def rows_of(command, timeout):
    run = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if run.returncode:
        sys.exit(f"{shlex.join(command)} failed: {run.stderr[-500:]}")
    lines = [line for line in run.stdout.splitlines() if "," in line and not line.startswith("#")]
    return list(csv.DictReader(lines))


def quire_rates(binary, model, options):
    """Decode and prefill in tokens/s.  Decode is behind 16 tokens, which are prefilled, too.  None where
    quire says that it measured nothing."""
    rows = rows_of([binary, "bench", model, "--device", "cpu", "--threads", str(options.threads),
                    "--prompts", f"16,{options.prompt}" if options.prompt else "16", "--batches", "1", "--generate",
                    str(options.generate), "--runs", "1"], options.timeout)
    rates = {(row["phase"], row["prompt_tokens"]): float(row["tokens_per_s"]) for row in rows}
    return rates.get(("decode", "16")), rates.get(("prefill", str(options.prompt)))


def peer_rates(command, model, options):
    rows = rows_of([*command, "-m", model, "-t", str(options.threads), "-p", str(options.prompt),
                    "-n", str(options.generate), "-r", "1", "-o", "csv"], options.timeout)
    rates = {row["n_gen"] != "0": float(row["avg_ts"]) for row in rows}
    return rates[True], rates.get(False)


def told(rates):
    return f"{statistics.median(rates):.4g} ({min(rates):.4g}–{max(rates):.4g})"


def print_table(runs, options, names):
    print("| | | " + " | ".join(names) + " | of the fastest peer: medians | greatest |")
    print("| --- | --- |" + " ---: |" * (len(names) + 2))
    peers = [name for name, _ in options.peer]
    for model in options.models:
        for kind in KINDS if options.prompt else KINDS[:1]:
            rates = {name: runs[model, kind, name] for name in names}
            shares = [of(rates["quire"]) / max(of(rates[name]) for name in peers) if peers else 0
                      for of in (statistics.median, max)]
            work = kind if kind == "decode" else f"prefill of {options.prompt}"
            print(f"| {os.path.basename(model)} | {work} | "
                  + " | ".join(told(rates[name]) for name in names)
                  + " | " + " | ".join(f"{share:.2f}" for share in shares) + " |")


def named(text):
    name, equals, rest = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("NAME=COMMAND is expected")
    return name, shlex.split(rest)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="GGUF files")
    parser.add_argument("--binary", default="build/quire")
    parser.add_argument("--before", type=named, action="append", default=[], metavar="NAME=BINARY")
    parser.add_argument("--peer", type=named, action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512, help="tokens; 0: decode alone")
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=120, help="seconds a run may take")
    parser.add_argument("--csv")
    options = parser.parse_args()
    programs = [("quire", lambda model: quire_rates(options.binary, model, options))]
    for name, command in options.before:
        programs.append((name, lambda model, c=command: quire_rates(c[0], model, options)))
    for name, command in options.peer:
        programs.append((name, lambda model, c=command: peer_rates(c, model, options)))
    runs = {}
    for _ in range(options.turns):
        for model in options.models:
            for name, rates_of in programs:
                for kind, rate in zip(KINDS, rates_of(model)):
                    if rate is not None:
                        runs.setdefault((model, kind, name), []).append(rate)
    print_table(runs, options, [name for name, _ in programs])
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            out = csv.writer(file)
            for (model, kind, name), rates in runs.items():
                out.writerow([os.path.basename(model), kind, name, *rates])


if __name__ == "__main__":
    main()
