#!/usr/bin/env python3
"""What bounded KV caches cost at true budgets: the tables of docs/benchmarks/quire-31m/kv_policies.md.

    scripts/quality/kv_policies.py --serve 'build/quire serve' --on 'one H100' --out /tmp/kv \\
        --table docs/benchmarks/quire-31m/kv_policies.md
    scripts/quality/kv_policies.py --url http://127.0.0.1:8000 --out /tmp/kv --parts budgets \\
        --row 'heavy_hitter sum text={"type": "heavy_hitter", "score": "sum", "positions": "text"}'

Runs scripts/quality/eval.py once a part, which see for what is asked (the commands are printed):

    budgets     perplexity of windows of 8,192 tokens; 256 to 2,048 kept, chunk a 16th of them
    streaming   perplexity of windows of 5,000 tokens; 128 to 2,048 kept, chunk 16
    answers     14 tasks behind prompts of 4,096 tokens; a tenth to a half kept, chunk 64

The rows are streaming and heavy_hitter by each score; --row adds another policy, whose sizes are
filled in.  The same command again goes on where the last one was stopped; --report-only makes the
tables anew.  The exit status is that of eval.py: 4 when a number does not measure its budget.
"""
import argparse
import contextlib
import json
import pathlib
import shlex
import shutil
import subprocess
import sys

try:
    from evaluation import budgets, report
    from evaluation.configurations import parse
    from evaluation.results import Results
    from evaluation.serving import NotServing, served
except ModuleNotFoundError as missing:
    sys.exit(f"kv_policies: there is no Python module {missing.name}: use build/venv/bin/python, "
             "which scripts/test makes")

EVAL = pathlib.Path(__file__).with_name("eval.py")
HEAD = """# Bounded KV caches at true budgets

`scripts/quality/kv_policies.py`{on}. A budget is what every KV head of every layer keeps, with its {sink}
sinks: of `streaming` the others are the newest, of `heavy_hitter` half are the newest and half are
chosen by a score. Prompts are read in chunks and cut down to the budget after each, so a token sees
the budget and half a chunk on average. The last lines of a table say how much of what was scored
came behind an eviction, and how many tokens that saw over the budget. Brackets hold 95 % intervals.

"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=__doc__.split("\n\n", 1)[1])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="URL of a running server")
    where.add_argument("--serve", metavar="COMMAND", help="start this one; --port N is added")
    where.add_argument("--report-only", action="store_true", help="make the tables from --out")
    parser.add_argument("--parts", default=",".join(budgets.PARTS),
                        help="tables to make (%(default)s)")
    parser.add_argument("--row", action="append", default=[], metavar="NAME={JSON}",
                        help="another policy to ask, without its sizes")
    parser.add_argument("--only", metavar="A,B", help="ask only these rows")
    parser.add_argument("--windows", type=int, metavar="N", help="most windows of each perplexity")
    parser.add_argument("--contexts", type=int, metavar="N", help="most contexts of each task")
    parser.add_argument("--concurrency", type=int, default=64,
                        help="contexts asked at once (%(default)s)")
    parser.add_argument("--tokenizer", metavar="PATH", help="see eval.py")
    parser.add_argument("--allow-void", action="store_true", help="see eval.py")
    parser.add_argument("--on", metavar="DEVICE", help="device that the table's first line names")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE",
                        help="(OUT/kv_policies.md); the plot of answers goes beside it")
    options = parser.parse_args()
    try:
        options.rows = rows_of(options)
        options.parts = parts_of(options)
    except ValueError as error:
        parser.error(str(error))
    options.table = options.table or options.out / "kv_policies.md"
    return options


def rows_of(options):
    """{name: policy without sizes} of the command's rows."""
    rows = {**budgets.ROWS, **dict(parse(text) for text in options.row)}
    names = options.only.split(",") if options.only else list(rows)
    for name in names:
        if name not in rows:
            raise ValueError(f"there is no row {name}, only {', '.join(rows)}")
        if rows[name].get("type") not in ("streaming", "heavy_hitter"):
            raise ValueError(f"{name} is neither streaming nor heavy_hitter: it has no budget")
    return {name: rows[name] for name in names}


def parts_of(options):
    names = options.parts.split(",")
    for name in names:
        if name not in budgets.PARTS:
            raise ValueError(f"there is no part {name}, only {', '.join(budgets.PARTS)}")
    return {name: budgets.PARTS[name] for name in names}


def command_of(options, name, part):
    """scripts/quality/eval.py with all that it must be told."""
    most = options.windows if part.is_perplexity else options.contexts
    command = [sys.executable, str(EVAL), "--tasks", ",".join(part.tasks),
               "--lengths", str(part.length), "--out", str(options.out / name),
               "--windows" if part.is_perplexity else "--samples", str(min(part.n, most or part.n)),
               "--concurrency", str(options.concurrency)]
    for config, fields in budgets.configurations(part, options.rows).items():
        command += ["--config", f"{config}={json.dumps(fields)}"]
    if options.tokenizer:
        command += ["--tokenizer", options.tokenizer]
    return command + (["--allow-void"] if options.allow_void else [])


def ask(options):
    """Runs the parts; returns the worst exit status."""
    worst = 0
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(served(options.serve)) if options.serve else options.url
        where = ["--report-only"] if options.report_only else ["--url", url]
        for name, part in options.parts.items():
            command = command_of(options, name, part) + where
            print(f"kv_policies: {shlex.join(command)}", file=sys.stderr, flush=True)
            status = subprocess.run(command, check=False).returncode
            worst = worst or status
    return worst


def write_table(options):
    text = HEAD.format(on=f" on {options.on}" if options.on else "", sink=budgets.SINK)
    for name, part in options.parts.items():
        rows = report.Rows(Results(options.out / name))
        text += budgets.section(part, options.rows, rows) + "\n"
        if (plot := options.out / name / "budget.png").exists():
            picture = options.table.with_suffix(".png")
            shutil.copyfile(plot, picture)
            text += f"![average score against budget]({picture.name})\n\n"
    options.table.write_text(text.rstrip() + "\n", encoding="utf-8")
    print(f"kv_policies: {options.table}", file=sys.stderr)


def main():
    options = parse_arguments()
    try:
        status = ask(options)
        write_table(options)
    except (NotServing, OSError, ValueError) as error:
        sys.exit(f"kv_policies: {error}")
    return status


if __name__ == "__main__":
    sys.exit(main())
