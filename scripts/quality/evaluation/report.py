"""report.py - table.md and the plots of one run, and whether it is red.

A row is one number of the table, named as floors name it: `task/length`, `average/length`,
`card/average/length`, `perplexity/window`, `perplexity/window/first position of a bucket`.  It is
red when it breaks a floor, or when the whole 95 % interval of its difference from a baseline run
lies on the worse side.

Floors are JSON: {"passkey/1024": {"min": 90}, "streaming:perplexity/8192": {"max": 34.0}}.  A name
without a configuration means the run's first.  A value that is a text is a comment.

A number that does not measure what its configuration asks for (effects.py) is VOID and not printed,
or marked LOOSE where it does so in part."""
import collections
import dataclasses
import json
import math
import pathlib
import sys

import numpy

from . import effects, statistics
from .results import CARD, Results, count

RED, VOID, LOOSE = "**RED** ", "**VOID**", "**LOOSE** "

METHOD = """## How to read this

Scores are percentages, averages weigh every task alike, and brackets hold 95 % intervals:
percentile bootstrap over contexts ({resamples:,} draws; the questions of one context are drawn
together), stretched by Student's t and never narrower than Wilson's interval, so that ten of ten is
not certain. Differences are paired: the same questions in both. Perplexity is
exp(-sum of log-probabilities / tokens), paired by windows. Failed requests score 0. Everything that
ran is here: no task, length or sample was left out.
`scripts/quality/evaluation/statistics.py` names the sources of these choices.
"""


class Rows:
    """Every number of a run, computed once: {(configuration, row): Interval}."""

    def __init__(self, results, other=None):
        self.results = results
        self.values = {}
        self.averages = {f"{group}/{length}": tasks for group, tasks in results.groups().items()
                         for length in results.lengths()}
        self.changes = {}  # from the run's first configuration
        self.regressions = {}  # from the baseline run
        self.red = collections.defaultdict(list)  # (configuration, row) -> reasons
        self.findings = results.findings()  # (configuration, row) -> effects.Finding
        for config in results.configs:
            self._fill(self.values, config)
            if config != results.first:
                self._fill(self.changes, config, results, results.first)
            if other and (twin := twin_of(config, results, other)):
                self._fill(self.regressions, config, other, twin)

    def _fill(self, table, config, other=None, twin=None):
        """Values, or where another run is given the differences from its configuration twin."""
        for rows in (self._scores, self._perplexities):
            for row, interval in rows(config, other, twin):
                table[config, row] = interval

    def _scores(self, config, other, twin):
        def spread(task, length):
            if other:
                return self.results.difference(config, task, length, other, twin)
            return self.results.score(config, task, length)

        groups = self.results.groups()
        for length in self.results.lengths(config):
            spreads = {t: s for t in self.results.tasks(config) if (s := spread(t, length))}
            for task, one in spreads.items():
                yield f"{task}/{length}", statistics.average([one])
            for group, tasks in groups.items():
                if members := [spreads[t] for t in tasks if t in spreads]:
                    yield f"{group}/{length}", statistics.average(members)

    def _perplexities(self, config, other, twin):
        for length in self.results.window_lengths():
            for bucket in (None, *self.results.buckets(length)):
                if other:
                    row = self.results.perplexity_change(config, length, other, twin, bucket)
                else:
                    row = self.results.perplexity(config, length, bucket)
                if row:
                    yield self.results.window_row(length, bucket), row

    def finding(self, config, row):
        """Why a row does not measure what was asked for; None if it does.  A bucket shares its
        window's, a stream's length the stream's, and an average the worst of its tasks'."""
        task, _, length = row.rpartition("/")
        if row in self.averages:
            names = [f"{member}/{length}" for member in self.averages[row]]
        else:
            names = [row, task]
        found = [self.findings[config, name] for name in names if (config, name) in self.findings]
        return max(found, key=lambda finding: finding.is_void, default=None)

    def is_void(self, config, row):
        finding = self.finding(config, row)
        return bool(finding and finding.is_void)

    def cell(self, config, row, text):
        """A row's number as the table shows it."""
        finding = self.finding(config, row)
        if finding and finding.is_void:
            return VOID
        return (RED if (config, row) in self.red else "") + (LOOSE if finding else "") + text


def twin_of(config, results, other):
    """The baseline run's configuration of the same name; for the first one: else its first."""
    if config in other.configs:
        return config
    return other.first if config == results.first else None


def is_perplexity(row):
    return row.startswith("perplexity/")


def read_floors(path):
    """{name: {"min" or "max": number}}.  ValueError when the file says something else."""
    floors = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    floors = {name: bounds for name, bounds in floors.items() if not isinstance(bounds, str)}
    for name, bounds in floors.items():
        if not is_bounds(bounds):
            raise ValueError(f'{path}: {name} is not {{"min": number}} or {{"max": number}}')
    return floors


def is_bounds(bounds):
    return (isinstance(bounds, dict) and bounds and bounds.keys() <= {"min", "max"}
            and all(type(b) in (int, float) for b in bounds.values()))


def check_floors(rows, floors):
    """Marks what is broken; returns (how many floors were compared, names of those without row)."""
    absent = []
    for name, bounds in floors.items():
        config, _, row = name.rpartition(":")
        key = config or rows.results.first, row
        if is_perplexity(row):
            length = int(row.split("/")[1])
            if n_failed := rows.results.failed_windows[key[0], length]:
                rows.red[key].append(f"{count(n_failed, 'window')} failed")
        if key in rows.values:
            rows.red[key] += broken(rows.values[key].value, bounds)
        elif key not in rows.red:
            absent.append(name)
        if not rows.red[key]:
            del rows.red[key]
    return len(floors) - len(absent), absent


def broken(value, bounds):
    reasons = []
    if "min" in bounds and not value >= bounds["min"]:
        reasons.append(f"{value:.2f} is below the floor {bounds['min']}")
    if "max" in bounds and not value <= bounds["max"]:
        reasons.append(f"{value:.2f} is above the bound {bounds['max']}")
    return reasons


def check_baseline(rows):
    for key, change in rows.regressions.items():
        is_ppl = is_perplexity(key[1])
        if change.low > 0 if is_ppl else change.high < 0:
            rows.red[key].append(f"{signed(change, is_ppl)} against the baseline run")


def check_same_samples(results, other):
    """A baseline run made from other samples, or filled and cut by another tokenizer's count, has
    nothing that could be paired."""
    for name in ("seed", "books", "book_tokens"):
        ours, theirs = results.runs[-1].get(name), other.runs[-1].get(name)
        if ours != theirs:
            raise ValueError(f"the baseline run has {name} {theirs!r}, this one {ours!r}: "
                             "their samples differ")


# Texts of numbers.

def bracket(low, high, form):
    return "" if math.isnan(low) else f" [{low:{form}}, {high:{form}}]"


def plain(interval, is_ppl=False):
    form = ".2f" if is_ppl else ".1f"
    return f"{interval.value:{form}}{bracket(interval.low, interval.high, form)}"


def signed(interval, is_ppl=False):
    form = "+.2f" if is_ppl else "+.1f"
    unit = " %" if is_ppl else ""
    return f"{interval.value:{form}}{unit}{bracket(interval.low, interval.high, form)}"


def quartiles(values, form):
    if not values:
        return "-"
    low, middle, high = numpy.percentile(values, [25, 50, 75])
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


def table(head, lines, n_names=1):
    """Markdown; the first columns hold names, the others numbers."""
    rule = ["---"] * n_names + ["---:"] * (len(head) - n_names)
    return "\n".join("| " + " | ".join(cells(line)) + " |" for line in (head, rule, *lines)) + "\n"


def cells(line):
    return [str(cell).replace("|", "\\|").replace("\n", " ") for cell in line]


# Sections.

def verdict_section(rows, compared, absent, has_baseline):
    n_red = len(rows.red)
    lines = [f"# Evaluation of {rows.results.runs[-1].get('model')}", ""]
    lines.append(f"**RED: {count(n_red, 'row')}.**" if n_red else "No row is red.")
    if compared or absent:
        lines.append(f"{count(compared, 'floor')} compared.")
    if has_baseline:
        lines.append(f"{count(len(rows.regressions), 'row')} compared with the baseline run, each "
                     "at 95 %: about one in forty of them would be red by chance where noise is "
                     "all there is.")
    if not (compared or absent or has_baseline):
        lines.append("(There were neither floors nor a baseline run to be red against.)")
    lines += ["", *void_lines(rows), *unfinished(rows.results)]
    lines += [f"- {RED}{config}: {row}: {'; '.join(why)}" for (config, row), why in
              sorted(rows.red.items())]
    if absent:
        lines.append(f"- Not compared, for these rows were not run: {', '.join(absent)}")
    return "\n".join(lines).rstrip() + "\n"


def void_lines(rows):
    """How many rows do not measure what was asked for, at the top of the table."""
    n_void = sum(finding.is_void for finding in rows.findings.values())
    for mark, n in ((VOID, n_void), (LOOSE.strip(), len(rows.findings) - n_void)):
        if n:
            yield f"- {mark}: {count(n, 'row')}; \"What was left out\" says why"


def unfinished(results):
    """A line for each configuration that lacks a part of what was planned."""
    for config in results.configs:
        n_planned, n_missing = results.missing(config)
        if n_missing and results.verdicts.get(config, {}).get("verdict") != "refused":
            yield (f"- **Unfinished**: {config} lacks {n_missing:,} of "
                   f"{count(n_planned, 'planned context')}")


def run_section(results):
    """Whatever the header says, configurations apart."""
    run = results.runs[-1]
    lines = ["## What was run", ""]
    for name, value in run.items():
        if name not in ("kind", "configs"):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append(f"- {name}: `{text}`")
    lines.append(f"- {count(len(results.runs), 'invocation')}, "
                 f"{count(sum(results.requests.values()), 'request')}, "
                 f"of which {sum(map(sum_of, results.failures.values()))} failed")
    return "\n".join(lines) + "\n"


def sum_of(counter):
    return sum(counter.values())


def configuration_section(rows):
    results = rows.results
    head = ["configuration", "request fields", "what the server made of them", "requests", "failed",
            "budget", "effective length"]
    lines = []
    for config, fields in results.configs.items():
        lines.append([config, f"`{json.dumps(fields, ensure_ascii=False)}`",
                      verdict(results, config), results.requests[config],
                      sum_of(results.failures[config]), budget_text(results.budgets(config)),
                      effective(rows, config)])
    text = "## Configurations\n\n" + table(head, lines, n_names=3)
    text += (f"\nEffective length: the longest whose average is at least "
             f"{statistics.EFFECTIVE_AVERAGE:.0f}, as RULER has it. Budget: tokens that a sequence "
             "keeps.\n")
    for config, errors in results.failures.items():
        for error, n in errors.most_common():
            text += f"\n- {config}: {count(n, 'request')} failed: {' '.join(error.split())}"
    return text.rstrip() + "\n"


def budget_text(budgets):
    ends = dict.fromkeys(f"{n:,}" for n in budgets[:1] + budgets[-1:])
    return " to ".join(ends) or "-"


def verdict(results, config):
    said = results.verdicts.get(config)
    if said:
        return f"{said['verdict']}: {said.get('why', '')}"
    return "not judged" if results.configs[config] else "no fields"


def effective(rows, config):
    texts = []
    for group in rows.results.groups():
        keys = {n: (config, f"{group}/{n}") for n in rows.results.lengths(config)}
        averages = {n: rows.values[key].value for n, key in keys.items()
                    if key in rows.values and not rows.is_void(*key)}
        length = statistics.effective_length(averages)
        of_card = " (card)" if group.startswith(CARD) else ""
        texts.append((f"{length:,}" if length else "none") + of_card)
    return ", ".join(texts) or "-"


def effect_section(rows):
    """What bounded configurations were tried on, and which numbers do not measure their budget."""
    if not rows.results.effects:
        return []
    head = ["configuration", "row", "field", "budget", "chunk", "scored", "behind an eviction, or "
            "with something left out", "tokens seen / budget"]
    lines = [effect_line(config, row, field, found)
             for (config, row), fields in sorted(rows.results.effects.items(), key=by_length)
             for field, found in fields.items()]
    text = "## What was left out\n\n" + table(head, lines, n_names=3)
    text += (f"\nA row is VOID, and its number not printed, where nothing was left out of what was "
             f"scored; it is LOOSE where less than {effects.LEAST_BEHIND:.0%} came behind an "
             f"eviction, or saw more than {effects.LARGEST_VISIBLE} times the budget on average.\n")
    for (config, row), finding in sorted(rows.findings.items(), key=by_length):
        mark = VOID if finding.is_void else LOOSE.strip()
        text += f"\n- {mark} {config}: {row}: {finding.why}"
    return [text.rstrip() + "\n"]


def by_length(item):
    (config, row), _ = item
    task, _, length = row.rpartition("/")
    return config, int(length) if length.isdigit() else 0, task


def effect_line(config, row, field, found):
    budgets = [e["budget"] for e in found if e["budget"]]
    chunks = dict.fromkeys(e["chunk"] for e in found if e["chunk"] is not None)
    known = [e for e in found if e["behind"] is not None]
    ratio = effects.visible_ratio(known)
    return [config, row, field, effects.ends(budgets) if budgets else "-",
            ", ".join(map(str, chunks)) or "-", f"{sum(e['scored'] for e in found):,}",
            f"{effects.behind_share(known):.1%}" if known else "not known",
            f"{ratio:.2f}" if ratio else "-"]


def score_sections(rows):
    streams = rows.results.streams()
    tasks = [t for t in rows.results.tasks() if t not in streams]
    texts = []
    for config in rows.results.configs:
        texts += score_tables(rows, config, "Scores", (*tasks, *rows.results.groups()),
                              rows.results.lengths(config, tasks))
        texts += score_tables(rows, config, "Along a stream, up to a length", streams,
                              rows.results.lengths(config, streams))
    return texts


def score_tables(rows, config, title, names, lengths):
    """A configuration's scores and what they are compared with."""
    if not lengths:
        return []
    texts = [f"## {title}: {config}\n\n{score_table(rows, config, rows.values, names, lengths)}"]
    for values, other in ((rows.changes, rows.results.first),
                          (rows.regressions, "the baseline run")):
        if any((config, f"{name}/{n}") in values for name in names for n in lengths):
            texts.append(f"Difference from {other}, in points:\n\n"
                         f"{score_table(rows, config, values, names, lengths)}")
    return texts


def score_table(rows, config, values, names, lengths):
    results = rows.results
    text = plain if values is rows.values else signed
    lines = []
    for name in names:
        line = [f"**{name}**" if name in results.groups() else name]
        ns = []
        for length in lengths:
            key = config, f"{name}/{length}"
            interval = values.get(key)
            line.append(rows.cell(*key, text(interval)) if interval else "")
            ns.append(f"{interval.clusters}/{interval.questions}" if interval else "-")
        lines.append(line + [ns[0] if len(set(ns)) == 1 else ", ".join(ns)])
    return table(["task", *(f"{n:,}" for n in lengths), "contexts/questions"], lines)


def perplexity_sections(rows):
    if not rows.results.window_lengths():
        return []
    texts = ["## Perplexity\n\n" + window_table(rows)]
    for length in rows.results.window_lengths():
        buckets = rows.results.buckets(length)
        names = [rows.results.window_row(length, b) for b in buckets]
        if len(names) > 1:
            texts.append(f"By position in windows of {length:,}:\n\n"
                         + perplexity_table(rows, names, "from position"))
    return texts


def window_table(rows):
    names = [rows.results.window_row(n) for n in rows.results.window_lengths()]
    text = perplexity_table(rows, names, "window")
    for config in rows.results.configs:
        for name in names:
            text += worst_line(rows, config, name, rows.changes, rows.results.first)
            text += worst_line(rows, config, name, rows.regressions, "the baseline run")
            length = int(name.rpartition("/")[2])
            if n := rows.results.failed_windows[config, length]:
                text += f"\n- {config}, windows of {length:,}: {n} failed and have no perplexity"
    return text.rstrip() + "\n"


def worst_line(rows, config, name, changes, against):
    buckets = {row: change for (c, row), change in changes.items()
               if c == config and row.startswith(name + "/")}
    if len(buckets) < 2 or rows.is_void(config, name):
        return ""
    row, change = statistics.worst_change(buckets)
    return (f"\n- {config}, windows of {int(name.rpartition('/')[2]):,}: the worst change of "
            f"{len(buckets)} buckets against {against} is {signed(change, True)}, "
            f"from position {int(row.rpartition('/')[2]):,}")


def perplexity_table(rows, names, what):
    """One line a row, a column a configuration and difference."""
    columns = [(c, rows.values, plain, c) for c in rows.results.configs]
    columns += [(c, rows.changes, signed, f"{c} against {rows.results.first}")
                for c in list(rows.results.configs)[1:]]
    if rows.regressions:
        columns += [(c, rows.regressions, signed, f"{c} against the baseline run")
                    for c in rows.results.configs]
    lines = []
    for name in names:
        line, ns = [f"{int(name.rpartition('/')[2]):,}"], []
        for config, values, text, _ in columns:
            interval = values.get((config, name))
            line.append(rows.cell(config, name, text(interval, True)) if interval else "")
            if values is rows.values:
                ns.append(f"{interval.clusters}/{interval.questions:,}" if interval else "-")
        lines.append(line + [ns[0] if len(set(ns)) == 1 else ", ".join(ns)])
    return table([what, *(c[3] for c in columns), "windows/tokens"], lines)


def speed_section(results):
    """Requests that found nothing cached: medians and quartiles."""
    lines, cached = [], ""
    for config in results.configs:
        for length in results.lengths(config):
            first, rate = results.speed(config, length)
            if first:
                lines.append([config, f"{length:,}", len(first), quartiles(first, ".3f"),
                              len(rate), quartiles(rate, ".1f")])
            elif results.is_all_cached(config, length):
                lines.append([config, f"{length:,}", 0, VOID, 0, VOID])
                cached += (f"\n- {VOID} {config}: {length:,}: every prompt was found in the prefix "
                           "cache, so no time is that of reading one")
    if not lines:
        return []
    head = ["configuration", "length", "requests", "s to the first token", "answers",
            "tokens/s after it"]
    return ["## Speed\n\nMedians [quartiles] as the client saw them, of requests that found "
            f"nothing cached. {how_busy(results)}\n\n" + table(head, lines) + cached]


def how_busy(results):
    """What a reader must know of the load under which times were taken."""
    most = max(run.get("concurrency", 1) for run in results.runs)
    if most == 1:
        return "Requests ran one at a time."
    return f"Up to {most} requests ran side by side, so these are not the server's best."


def draw(rows, directory):
    """File names of the plots; none, with a loud sentence, where matplotlib is missing."""
    try:
        from . import plots
        return plots.draw(rows, directory)
    except ImportError as error:
        print(f"NO PLOTS: {error}. The table is whole; install matplotlib for the plots.",
              file=sys.stderr)
        return []


def plot_section(names):
    images = "\n\n".join(f"![{name.removesuffix('.png')}]({name})" for name in names)
    return [f"## Plots\n\n{images}\n"] if names else []


@dataclasses.dataclass(frozen=True)
class Outcome:
    red: bool  # a floor is broken, or the run is worse than the baseline run
    marked: bool  # numbers are VOID or LOOSE


def write(directory, floors=None, baseline=None):
    """Renders table.md and the plots of directory/results.jsonl; floors: a file; baseline: another
    run's directory.  Returns an Outcome.  ValueError: they cannot be compared."""
    directory = pathlib.Path(directory)
    results = Results(directory)
    other = Results(baseline) if baseline else None
    if other:
        check_same_samples(results, other)
    rows = Rows(results, other)
    compared, absent = check_floors(rows, read_floors(floors)) if floors else (0, [])
    check_baseline(rows)
    if floors and not compared:
        rows.red[results.first, "floors"].append("none of the file's floors has a row in this run")
    if other and not rows.regressions:
        rows.red[results.first, "baseline"].append("no question of this run is in the baseline run")
    sections = [verdict_section(rows, compared, absent, other is not None), run_section(results),
                configuration_section(rows), *effect_section(rows), *score_sections(rows),
                *perplexity_sections(rows),
                *speed_section(results), *plot_section(draw(rows, directory)),
                METHOD.format(resamples=statistics.RESAMPLES)]
    (directory / "table.md").write_text("\n".join(sections), encoding="utf-8")
    return Outcome(bool(rows.red), bool(rows.findings))
