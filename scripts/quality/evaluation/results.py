"""results.py - what results.jsonl holds, arranged by configuration, task and length.

Nothing is chosen here: every record counts.  A request that failed scores 0; a window that failed
has no perplexity and is counted.  Of two records of the same question the later one counts, for a
run that is resumed may ask again.

A stream's questions have lengths of their own; they are put together by doubling lengths, under the
upper end.  Memory: all of the file."""
import dataclasses
import pathlib
from collections import Counter, defaultdict

import numpy

from . import effects, statistics
from .records import read_lines

AVERAGE, CARD = "average", "card/"
STREAM_BINS_FROM = 1024


@dataclasses.dataclass
class Window:
    """Sums of -log p and counts of tokens, by position."""
    nll: numpy.ndarray
    tokens: numpy.ndarray


def count(number, noun):
    """"1 window", "2 windows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def stream_bin(length):
    end = STREAM_BINS_FROM
    while end < length:
        end *= 2
    return end


def speed_of(record):
    """(seconds to the first token, tokens/s after it), either None where it was not measured."""
    first, total = record.get("ttft_s"), record.get("duration_s")
    n_tokens = record.get("completion_tokens") or 0
    if first is None or total is None or total <= first or n_tokens < 2:
        return first, None
    return first, (n_tokens - 1) / (total - first)


def budgets_of(fields, usages):
    """Tokens that a configuration keeps: what the server says (a policy in fractions keeps more of
    a longer prompt), else the sum of the policy's parts; empty: all."""
    reported = {((usage or {}).get("kv") or {}).get("budget_tokens") for usage in usages} - {None}
    if reported:
        return sorted(reported)
    policy = fields.get("kv_policy")
    parts = [policy.get(name) for name in ("sink", "recent", "heavy", "selected")] \
        if isinstance(policy, dict) else []
    total = sum(p for p in parts if type(p) is int)
    return [total] if total else []


class Results:
    """One run.  Raises ValueError where a file is none, OSError where it cannot be read."""

    def __init__(self, directory):
        self.records, _ = read_lines((pathlib.Path(directory) / "results.jsonl").read_bytes())
        self.runs = [r for r in self.records if r["kind"] == "run"]
        if not self.runs:
            raise ValueError(f"{directory}/results.jsonl has no line that says what was run")
        self.configs = {n: f for run in self.runs for n, f in run["configs"].items()}
        self.verdicts = {}
        self.failures = defaultdict(Counter)  # configuration -> error -> how often
        self.requests = Counter()
        self.answers = defaultdict(lambda: defaultdict(dict))  # (config, task, length) -> cluster
        self.windows = defaultdict(dict)  # (config, length) -> index -> Window
        self.failed_windows = Counter()  # (config, length)
        self.bucket_tokens = {}
        self.effects = defaultdict(lambda: defaultdict(list))  # (config, row) -> field -> effects
        self._keep_last()

    def _keep_last(self):
        last = {}
        for record in self.records:
            if record["kind"] == "ignored":
                self.verdicts[record["config"]] = record
            elif record["kind"] != "run":
                last[tuple(record[k] for k in ("kind", "config", "task", "length", "index",
                                               "question"))] = record
        # Sorted: tasks may run side by side, and the table must not depend on who came first.
        for _, record in sorted(last.items(), key=lambda item: item[0]):
            self._add(record)

    def _add(self, record):
        config, length = record["config"], record["length"]
        self.configs.setdefault(config, {})
        self.requests[config] += 1
        if record["error"] is not None:
            self.failures[config][str(record["error"])] += 1
        # A stream's bins are parts of one text, which is judged as a whole.
        row = record["task"] if record["kind"] == "stream" else f"{record['task']}/{length}"
        for field, effect in record.get("effect", {}).items():
            self.effects[config, row][field].append(effect)
        if record["kind"] == "perplexity":
            self._add_window(record)
            return
        if record["kind"] == "stream":
            length = stream_bin(length)
        self.answers[config, record["task"], length][record["index"]][record["question"]] = record

    def _add_window(self, record):
        key = record["config"], record["length"]
        self.windows[key]  # a row is there even when all of its windows failed
        if record["error"] is not None:
            self.failed_windows[key] += 1
            return
        self.bucket_tokens[record["length"]] = record["bucket_tokens"]
        self.windows[key][record["index"]] = Window(numpy.array(record["nll"], float),
                                                    numpy.array(record["tokens"], float))

    # What there is.

    @property
    def first(self):
        return next(iter(self.configs))

    def tasks(self, config=None):
        """Generated tasks first, then those of the card."""
        return sorted({t for c, t, _ in self.answers if config in (None, c)},
                      key=lambda task: (task.startswith(CARD), task))

    def lengths(self, config=None, tasks=None):
        return sorted({n for c, t, n in self.answers
                       if config in (None, c) and (tasks is None or t in tasks)})

    def window_lengths(self):
        return sorted({length for _, length in self.windows})

    def streams(self):
        return sorted({r["task"] for r in self.records if r["kind"] == "stream"})

    def groups(self):
        """The averages' names and their tasks.  Streams stay out: their lengths are others."""
        streams = self.streams()
        tasks = [t for t in self.tasks() if t not in streams]
        groups = {AVERAGE: [t for t in tasks if not t.startswith(CARD)],
                  CARD + AVERAGE: [t for t in tasks if t.startswith(CARD)]}
        return {name: members for name, members in groups.items() if members}

    def samples(self, config=None):
        """The records of single questions, failed ones too."""
        for (c, _, _), clusters in self.answers.items():
            if config in (None, c):
                for questions in clusters.values():
                    yield from (r for r in questions.values() if r["kind"] == "sample")

    def budgets(self, config, length=None):
        usages = (r.get("usage") for r in self.records
                  if r.get("config") == config and length in (None, r.get("length")))
        return budgets_of(self.configs[config], usages)

    def findings(self):
        """{(configuration, row): Finding} of rows that do not measure what was asked for."""
        streams, found = self.streams(), {}
        for key, by_field in self.effects.items():
            judge = effects.judge_stream if key[1] in streams else effects.judge
            said = [finding for one in by_field.values() if (finding := judge(one))]
            if said:
                found[key] = max(said, key=lambda finding: finding.is_void)
            elif self._equals_first(*key):
                found[key] = effects.Finding(True, "the server reports an effect, but every window "
                                             f"is as likely as under {self.first}, to the last bit")
        return found

    def _equals_first(self, config, row):
        """Whether all windows of a row have the sums that they have under the first configuration:
        whatever a server says that it left out, it was not left out of these."""
        task, _, length = row.rpartition("/")
        if task != "perplexity" or config == self.first:
            return False
        ours = self.windows.get((config, int(length)), {})
        theirs = self.windows.get((self.first, int(length)), {})
        both = ours.keys() & theirs.keys()
        return bool(both) and all(numpy.array_equal(ours[i].nll, theirs[i].nll) for i in both)

    def missing(self, config):
        """(how many contexts were planned, how many of them have no record)."""
        planned = {}
        for run in self.runs:
            for task, length, n in run.get("plan", ()) if config in run["configs"] else ():
                planned[task, length] = max(n, planned.get((task, length), 0))
        there = {name: min(n, self._n_asked(config, *name)) for name, n in planned.items()}
        return sum(planned.values()), sum(planned.values()) - sum(there.values())

    def _n_asked(self, config, task, length):
        key = config, length
        if task == "perplexity":
            return len(self.windows.get(key, ())) + self.failed_windows[key]
        if task in self.streams():
            return len({index for (c, t, _), clusters in self.answers.items()
                        if (c, t) == (config, task) for index in clusters})
        return len(self.answers.get((config, task, length), ()))

    # Scores.

    def score(self, config, task, length):
        """A Spread; None where the configuration has no such row."""
        clusters = self.answers.get((config, task, length))
        if not clusters:
            return None
        sums = [sum(score_of(r) for r in q.values()) for q in clusters.values()]
        counts = [len(q) for q in clusters.values()]
        return statistics.score_spread(sums, counts, f"{task}/{length}")

    def difference(self, config, task, length, other, other_config):
        """A Spread of this run's configuration less another's, on questions that both have."""
        ours = self.answers.get((config, task, length), {})
        theirs = other.answers.get((other_config, task, length), {})
        sums, counts = [], []
        for index, questions in ours.items():
            both = pairs(questions, theirs.get(index, {}))
            if both:
                sums.append(sum(score_of(questions[q]) - score_of(theirs[index][q])
                                for q in both))
                counts.append(len(both))
        return statistics.difference_spread(sums, counts, f"{task}/{length}") if sums else None

    # Perplexity; bucket None is the whole window.

    def perplexity(self, config, length, bucket=None):
        nll, tokens = sums_of(self.windows.get((config, length), {}).values(), bucket)
        return statistics.perplexity(nll, tokens, f"perplexity/{length}") if nll else None

    def perplexity_change(self, config, length, other, other_config, bucket=None):
        ours = self.windows.get((config, length), {})
        theirs = other.windows.get((other_config, length), {})
        both = [i for i in ours if i in theirs and len(ours[i].nll) == len(theirs[i].nll)]
        nll, tokens = sums_of([ours[i] for i in both], bucket)
        others = sums_of([theirs[i] for i in both], bucket)
        return statistics.perplexity_change(nll, tokens, *others,
                                            f"perplexity/{length}") if nll else None

    def buckets(self, length):
        return range(max((len(w.nll) for (_, n), windows in self.windows.items() if n == length
                          for w in windows.values()), default=0))

    def window_row(self, length, bucket=None):
        """What the table and floors call it."""
        name = f"perplexity/{length}"
        return name if bucket is None else f"{name}/{self.bucket_start(length, bucket)}"

    def bucket_start(self, length, bucket):
        return bucket * self.bucket_tokens[length]

    def speed(self, config, length):
        """(seconds to the first token, tokens/s) of the requests that found nothing cached."""
        pairs = [speed_of(r) for r in self.samples(config)
                 if r["length"] == length and r["error"] is None and not r.get("cached")]
        return tuple([p[k] for p in pairs if p[k] is not None] for k in (0, 1))

    def is_all_cached(self, config, length):
        """Whether the prompts of all answers had been read before."""
        found = [r.get("cached") for r in self.samples(config)
                 if r["length"] == length and r["error"] is None]
        return bool(found) and all(found)


def pairs(ours, theirs):
    """The questions of a context that both were asked.  With another template a context may be
    shorter, and other things of it asked for."""
    return [q for q in sorted(ours.keys() & theirs.keys())
            if ours[q]["references"] == theirs[q]["references"]]


def score_of(record):
    return 0.0 if record["error"] is not None else float(record["score"])


def sums_of(windows, bucket):
    """Each window's sum of -log p and count of tokens, in one bucket or in all."""
    if bucket is None:
        return [w.nll.sum() for w in windows], [w.tokens.sum() for w in windows]
    # A short last window may not reach a bucket.
    reach = [w for w in windows if len(w.nll) > bucket]
    return [w.nll[bucket] for w in reach], [w.tokens[bucket] for w in reach]
