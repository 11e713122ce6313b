#!/usr/bin/env python3
"""Measures a running server with loadtest.py and with guidellm in turn, and compares each pair of runs.

    python3 -m venv VENV && VENV/bin/pip install guidellm
    scripts/load/guidellm_agrees.py --url http://127.0.0.1:8000 --guidellm VENV/bin/guidellm

Both keep --clients requests going, with prompts of --prompt-tokens and answers of --max-tokens.  The two
runs of a pair follow each other, and take turns in being first, so that a machine that gets slower is
slower for both; the first pair is not counted.  The rate of tokens is taken from guidellm's records of
requests: all tokens over the time from the first start to the last end, as loadtest.py does.  Prints CSV:
medians of both, the median of the pairs' differences with its quartiles, and the spread of each program's
runs.  Exits 1 when such a median is more than --within."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def with_loadtest(options, seed):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/load/loadtest.py", "--url", options.url, "--json",
         "--clients", str(options.clients), "--requests", str(options.requests),
         "--prompt-tokens", str(options.prompt_tokens), "--max-tokens", str(options.max_tokens),
         "--seed", str(seed), *(["--words"] if options.words else []),
         *(["--model", options.model] if options.model else [])], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    result = json.loads(done.stdout)
    return {"generated_tokens_per_s": result["generated_tokens_per_s"],
            "first_token_ms": result["first_token_ms"]["mean"],
            "per_token_ms": result["per_token_ms"]["mean"],
            "whole_request_ms": result["whole_request_ms"]["mean"]}


def with_guidellm(options, seed):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        subprocess.run(
            [options.guidellm, "run", "--disable-console",
             "--backend", f"kind=openai_http,target={options.url},request_format=/v1/completions",
             "--profile", f"kind=concurrent,streams={options.clients}",
             "--constraint", f"kind=max_requests,count={options.requests}",
             "--tokenizer", f"kind=huggingface_auto,model={options.tokenizer}",
             "--data", f"kind=synthetic_text,prompt_tokens={options.prompt_tokens},"
             f"output_tokens={options.max_tokens}", "--seed", f"kind=static,value={seed}",
             "--output", f"kind=json,path={path}"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HF_HUB_OFFLINE": "1"})
        benchmark = json.loads(path.read_text())["benchmarks"][0]
    requests = benchmark["requests"]["successful"]
    if len(requests) != options.requests:
        raise RuntimeError(f"guidellm had {len(requests)} answers of {options.requests}")
    seconds = (max(one["request_end_time"] for one in requests) -
               min(one["request_start_time"] for one in requests))

    def mean(name):
        return benchmark["metrics"][name]["successful"]["mean"]

    return {"generated_tokens_per_s": sum(one["output_tokens"] for one in requests) / seconds,
            "first_token_ms": mean("time_to_first_token_ms"),
            "per_token_ms": mean("inter_token_latency_ms"),
            "whole_request_ms": 1000 * mean("request_latency")}


def parse_arguments():
    parser = argparse.ArgumentParser(description="Compares loadtest.py with guidellm.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--guidellm", required=True, help="its program")
    parser.add_argument("--tokenizer", default=ROOT / "models" / "quire-31m",
                        help="folder of the served model's tokenizer")
    parser.add_argument("--runs", type=int, default=5, help="of each, at least 2 (default %(default)s)")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--words", action="store_true", help="as of loadtest.py")
    parser.add_argument("--model", help="as of loadtest.py")
    parser.add_argument("--within", type=float, default=0.03)
    return parser.parse_args()


def measure_pairs(options):
    """[(loadtest's figures, guidellm's)]"""
    pairs = []
    for run in range(options.runs + 1):
        first, second = with_loadtest, with_guidellm
        if run % 2:
            first, second = second, first
        figures = {program: program(options, 1000 + run) for program in (first, second)}
        pairs.append((figures[with_loadtest], figures[with_guidellm]))
    return pairs[1:]


def spread(values):
    return 100 * (max(values) - min(values)) / statistics.median(values)


def main():
    options = parse_arguments()
    pairs = measure_pairs(options)
    good = True
    print("figure,loadtest,guidellm,difference_percent,lower_quartile,upper_quartile,"
          "spread_loadtest_percent,spread_guidellm_percent")
    for name in pairs[0][0]:
        ours, theirs = ([pair[i][name] for pair in pairs] for i in (0, 1))
        differences = [100 * (mine / other - 1) for mine, other in zip(ours, theirs)]
        low, median, high = statistics.quantiles(differences, n=4)
        good = good and abs(median) <= 100 * options.within
        print(f"{name},{statistics.median(ours):.2f},{statistics.median(theirs):.2f},{median:.2f},"
              f"{low:.2f},{high:.2f},{spread(ours):.1f},{spread(theirs):.1f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
