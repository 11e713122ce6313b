"""budgets.py - bounded KV caches at true budgets: which configurations are asked, and their tables.

A row is a policy without its sizes, a column a budget with the chunk that prompts are read in; the
configuration of both has the sizes filled in.  A part is one run of scripts/quality/eval.py: windows of one
length for perplexity, or questions behind prompts of one length.

    part        perplexity of          columns
    budgets     windows of 8,192       256 to 2,048 tokens, chunk a 16th of them
    streaming   windows of 5,000       128 to 2,048 tokens, chunk 16
    answers     (14 tasks at 4,096)    a tenth to a half of the prompt, chunk 64

Windows are far longer than budgets, and chunks far smaller, or the figure would not be of the
budget: see effects.py, whose account of each column stands below it."""
import dataclasses

from . import effects
from .report import plain, signed, table
from .results import AVERAGE, count
from .runner import PERPLEXITY

FULL = "full"
SINK = 4
ROWS = {
    "streaming": {"type": "streaming"},
    "heavy_hitter sum": {"type": "heavy_hitter", "score": "sum"},
    "heavy_hitter mean": {"type": "heavy_hitter", "score": "mean"},
    "heavy_hitter decay": {"type": "heavy_hitter", "score": "decay"},
    "heavy_hitter window": {"type": "heavy_hitter", "score": "window"},
}
COMPARED_WITH = "streaming"  # whether scores are worth keeping
TASKS = ("passkey", "niah", "multikey", "multiquery", "multivalue", "number", "kv", "lines",
         "people", "twostage", "vt", "cwe", "fwe", "seam")


@dataclasses.dataclass(frozen=True)
class Part:
    """n: windows, or contexts of each task; columns: (budget, chunk), budgets being tokens or
    fractions of the prompt."""
    title: str
    tasks: tuple
    length: int
    n: int
    columns: tuple

    @property
    def is_perplexity(self):
        return self.tasks == (PERPLEXITY,)


PARTS = {
    "budgets": Part("Perplexity of windows of 8,192 tokens", (PERPLEXITY,), 8192, 32,
                    tuple((budget, budget // 16) for budget in (256, 512, 1024, 2048))),
    "streaming": Part("Perplexity of windows of 5,000 tokens", (PERPLEXITY,), 5000, 52,
                      tuple((budget, 16) for budget in (128, 256, 512, 1024, 2048))),
    "answers": Part("Answers behind prompts of 4,096 tokens", TASKS, 4096, 16,
                    tuple((share, 64) for share in (0.1, 0.2, 0.5))),
}


def filled(policy, budget, chunk):
    """The policy with its sizes.  Of heavy hitters half of what is not a sink is recent; a fraction
    leaves the sinks out."""
    sink = policy.get("sink", SINK)
    rest = budget - sink if isinstance(budget, int) else budget
    policy = {**policy, "sink": sink, "recent": rest}
    if policy["type"] == "heavy_hitter":
        heavy = rest // 2 if isinstance(rest, int) else rest / 2
        policy.update(recent=rest - heavy, heavy=heavy)
    # A prompt that is pruned once, at its end, has no chunks.
    return policy if is_whole(policy) else {**policy, "chunk": chunk}


def is_whole(policy):
    return policy.get("prompt") == effects.WHOLE


def is_asked(part, policy):
    """While a window is scored nothing is evicted from a prompt that is read whole."""
    return not part.is_perplexity or not is_whole(policy)


def name_of(row, budget):
    return f"{row} {budget_name(budget)}"


def budget_name(budget):
    return f"{budget:,}" if isinstance(budget, int) else f"{100 * budget:g} %"


def configurations(part, rows):
    """{name: request fields}, the full cache first; rows: {name: policy without sizes}."""
    configs = {FULL: {}}
    for row, policy in rows.items():
        if is_asked(part, policy):
            for budget, chunk in part.columns:
                configs[name_of(row, budget)] = {"kv_policy": filled(policy, budget, chunk)}
    return configs


# Tables.

def section(part, rows, numbers):
    """Markdown of a part; numbers: report.Rows of its run."""
    write = perplexity_tables if part.is_perplexity else answers_tables
    asked = {row: policy for row, policy in rows.items() if is_asked(part, policy)}
    return f"## {part.title}\n\n" + "\n".join(write(part, asked, numbers))


def grid(part, rows, cell, last=()):
    """A line a row and a column a budget; cell(row, budget) is a text."""
    head = ["kept", *(f"{budget_name(budget)}, chunk {chunk}" for budget, chunk in part.columns)]
    lines = [[row_text(row), *(cell(row, budget) for budget, _ in part.columns)] for row in rows]
    return table(head, [*lines, *last])


def row_text(row):
    kind, _, rest = row.partition(" ")
    return f"`{kind}` {rest}".rstrip()


def reader(numbers, values, name, text):
    """cell(row, budget) of values[configuration, name]."""
    def cell(row, budget):
        key = name_of(row, budget), name
        return numbers.cell(*key, text(values[key])) if key in values else ""
    return cell


def account(part, rows, numbers):
    """The last lines of a table: how much of what a column scored came behind an eviction, and how
    many tokens that saw over the budget, least and most of all rows."""
    shares, ratios = ["behind an eviction"], ["tokens seen / budget"]
    for budget, _ in part.columns:
        found = [known_effects(numbers, name_of(row, budget)) for row in rows]
        found = [known for known in found if known]
        shares.append(span([100 * effects.behind_share(known) for known in found], ".0f", " %"))
        seen = [ratio for known in found if (ratio := effects.visible_ratio(known))]
        ratios.append(span(seen, ".2f", ""))
    return [shares, ratios]


def known_effects(numbers, config):
    return [e for (name, _), fields in numbers.results.effects.items() if name == config
            for e in fields.get("kv_policy", ()) if e["behind"] is not None]


def span(values, form, unit):
    if not values:
        return "-"
    return " to ".join(dict.fromkeys(f"{v:{form}}" for v in (min(values), max(values)))) + unit


def perplexity_tables(part, rows, numbers):
    name = f"{PERPLEXITY}/{part.length}"
    full = numbers.values.get((FULL, name))
    if not full:
        return ["Not finished.\n"]

    def number(interval):
        return plain(interval, True)

    def change(interval):
        return signed(interval, True)

    others = [row for row in rows if row != COMPARED_WITH]
    n_windows = count(full.clusters, "window")
    texts = [f"{n_windows}, {full.questions:,} tokens. `full`: {number(full)}.\n",
             grid(part, rows, reader(numbers, numbers.values, name, number),
                  account(part, rows, numbers)),
             "Change from `full`, paired by windows:\n",
             grid(part, rows, reader(numbers, numbers.changes, name, change))]
    if COMPARED_WITH in rows and others:
        texts += [f"Change from `{COMPARED_WITH}` of the same budget, below 0 where scores are "
                  "worth keeping:\n",
                  grid(part, others, reader(numbers, from_streaming(part, others, numbers), name,
                                            change))]
    return texts


def from_streaming(part, rows, numbers):
    """{(configuration, name): Interval} of the change from the streaming cache of the same
    budget."""
    name, changes = f"{PERPLEXITY}/{part.length}", {}
    for row in rows:
        for budget, _ in part.columns:
            config, twin = name_of(row, budget), name_of(COMPARED_WITH, budget)
            if (twin, name) in numbers.values and not numbers.is_void(twin, name):
                change = numbers.results.perplexity_change(config, part.length, numbers.results,
                                                           twin)
                if change:
                    changes[config, name] = change
    return changes


def answers_tables(part, rows, numbers):
    name = f"{AVERAGE}/{part.length}"
    full = numbers.values.get((FULL, name))
    if not full:
        return ["Not finished.\n"]
    texts = [f"{full.clusters} contexts and {full.questions:,} questions for each configuration, "
             f"the same for all. Average of {len(part.tasks)} tasks; `full`: {plain(full)}.\n",
             grid(part, rows, reader(numbers, numbers.values, name, plain),
                  account(part, rows, numbers))]
    if whole := [row_text(row) for row, policy in rows.items() if is_whole(policy)]:
        texts.append(f"{', '.join(whole)}: no chunks, the prompt is read with everything visible "
                     "and pruned once, at its end.\n")
    for row in rows:
        texts += [f"### {row_text(row)}\n", task_table(part, row, numbers)]
    return texts


def task_table(part, row, numbers):
    lines = []
    for task in (*part.tasks, AVERAGE):
        line = [f"**{task}**" if task == AVERAGE else task]
        for config in (FULL, *(name_of(row, budget) for budget, _ in part.columns)):
            key = config, f"{task}/{part.length}"
            value = numbers.values.get(key)
            line.append(numbers.cell(*key, plain(value)) if value else "")
        lines.append(line)
    return table(["", FULL, *(budget_name(budget) for budget, _ in part.columns)], lines)
