"""Results of evaluations that never ran, for the tests of what is made from results."""
import json

import numpy


class MadeResults:
    """Builds a results.jsonl record by record."""

    def __init__(self, configs=None, **run):
        self.configs = configs or {"default": {}}
        header = {"kind": "run", "version": 1, "seed": 1, "model": "made", "template": "raw",
                  "tokens_by": "server", "server": {"version": "1"}, "configs": self.configs}
        self.records = [{**header, **run}]

    def sample(self, task, length, index, score, config="default", question=0, **rest):
        record = {"kind": "sample", "config": config, "task": task, "length": length,
                  "index": index, "question": question, "depth": None, "score": score,
                  "exact": score == 1, "answer": "", "references": [], "prompt_tokens": length,
                  "completion_tokens": 9, "ttft_s": length / 8192,
                  "duration_s": length / 8192 + 0.4, "finish_reason": "stop", "usage": {},
                  "cached": question > 0, "error": None}
        self.records.append({**record, **rest})

    def failed(self, task, length, index, config="default", **rest):
        self.sample(task, length, index, None, config, error="HTTP 500: broken", ttft_s=None,
                    duration_s=None, completion_tokens=None, cached=None, usage=None, **rest)

    def stream(self, index, question, length, score, config="default"):
        self.sample("streameval", length, index, score, config, question, kind="stream")

    def window(self, length, index, nll_per_token, config="default", bucket_tokens=1024, **rest):
        """nll_per_token: one number a bucket."""
        tokens = [bucket_tokens] * (length // bucket_tokens)
        tokens[0] -= 1
        nll = [n * mean for n, mean in zip(tokens, nll_per_token)]
        record = {"kind": "perplexity", "config": config, "task": "perplexity", "length": length,
                  "index": index, "question": 0, "bucket_tokens": bucket_tokens, "nll": nll,
                  "tokens": tokens, "first_token": index * length, "usage": {}, "error": None}
        self.records.append({**record, **rest})

    def verdict(self, config, verdict, why, fields=()):
        self.records.append({"kind": "ignored", "config": config, "fields": list(fields),
                             "verdict": verdict, "why": why})

    def write(self, directory):
        directory.mkdir(exist_ok=True)
        lines = "".join(json.dumps(record) + "\n" for record in self.records)
        (directory / "results.jsonl").write_text(lines, encoding="utf-8")
        return directory


def whole_run(contexts=12):
    """Something of everything: two configurations, tasks, depths, streams, windows, failures."""
    made = MadeResults({"default": {}, "streaming": {"kv_policy": {
        "type": "streaming", "sink": 4, "recent": 508}}})
    generator = numpy.random.default_rng(3)
    for config, loss in (("default", 0.02), ("streaming", 0.3)):
        for task in ("passkey", "lines", "card/passkey"):
            for length in (1024, 4096, 16384):
                for index in range(contexts):
                    for question in range(4 if task == "lines" else 1):
                        made.sample(task, length, index, float(generator.random() > loss), config,
                                    question, depth=index / (contexts - 1))
        for index in range(4):
            for question in range(20):
                made.stream(index, question, 200 * (question + 1), float(question < 9), config)
            made.window(4096, index, 3.4 + loss * numpy.arange(4) / 10 + index / 50, config)
    made.failed("passkey", 1024, contexts, "default")
    made.verdict("streaming", "confirmed", "the usage says so", ["kv_policy"])
    return made
