"""plots.py - the pictures of one run, each drawn only when there is something to show in it.

    depth-TASK.png    score by length and depth, a panel a configuration
    accuracy.png      average score against length, a panel for streams; bands: 95 % intervals
    budget.png        average score against the tokens that a sequence keeps, a panel a length
    perplexity.png    perplexity against position, a panel a window length
    speed.png         time to the first token and tokens/s against length, bands: quartiles

Colours are those of Okabe and Ito, which people with any colour vision tell apart, and every line
has a marker of its own; heat maps are cividis, whose lightness rises evenly.  A caption counts what
was measured, and how many rows are not drawn because they are void; points of those that are loose
(see report.py) are crossed out in red.  Importing this needs matplotlib (and Pillow, which comes
with it)."""
import collections
import io
import math
import pathlib

import matplotlib
import numpy
from matplotlib.figure import Figure
from PIL import Image

from .results import count, score_of

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = "osD^vPX*"
STYLE = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
         "axes.spines.right": False, "axes.axisbelow": True}
WIDTH, DPI = 10.0, 100  # inches: 1000 pixels
COLOURS_IN_FILE = 128
PANELS_A_ROW = 3
DEPTH_BINS = 10
LOOSE = "does not measure its budget: see the table"
SIZES = ("sink", "recent", "heavy", "selected", "tail", "chunk")
TICKS_APART = 1.1  # of one budget to the next, where their axis is logarithmic


def draw(rows, directory):
    """Writes the plots of report.Rows; returns their file names, in the order of the list above."""
    names = []
    with matplotlib.rc_context(STYLE):
        for name, figure in figures(rows):
            save(figure, pathlib.Path(directory) / name)
            names.append(name)
    return names


def save(figure, path):
    """With a palette: a third of the size, and nobody sees the difference."""
    data = io.BytesIO()
    figure.savefig(data, dpi=DPI)
    Image.open(data).convert("RGB").quantize(COLOURS_IN_FILE).save(path, optimize=True)


def figures(rows):
    """(file name, Figure) of every plot that has data.  What the table says is drawn, not computed
    once more."""
    results = rows.results
    for task in results.tasks():
        if cells := depth_cells(results, task):
            yield f"depth-{task.replace('/', '-')}.png", depth_figure(results, task, cells)
    groups = results.groups()
    if lines := {**groups, **{task: [task] for task in results.streams()}}:
        yield "accuracy.png", accuracy_figure(rows, lines)
    group = next(iter(groups), None)
    if group and any(results.budgets(config) for config in results.configs):
        yield "budget.png", budget_figure(rows, group)
    if any(results.windows.values()):
        yield "perplexity.png", perplexity_figure(rows)
    if any(results.speed(c, n)[0] for c in results.configs for n in results.lengths(c)):
        yield "speed.png", speed_figure(results)


# What all figures share.

def panels(number, height=3.6):
    """(figure, list of axes) in rows of PANELS_A_ROW."""
    n_rows = math.ceil(number / PANELS_A_ROW)
    n_columns = min(number, PANELS_A_ROW)
    figure = Figure(figsize=(WIDTH, height * n_rows + 0.6), layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False).flatten()
    for unused in axes[number:]:
        unused.set_visible(False)
    return figure, list(axes[:number])


def look(results, config):
    place = list(results.configs).index(config)
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)],
            "markersize": 5, "linewidth": 1.6}


def line(axes, points, style, label):
    """points: (x, middle, low, high), NaN where there is no interval; or with whether the point is
    loose behind these."""
    if not points:
        return
    x, middle, low, high = numpy.array([p[:4] for p in sorted(points)], float).T
    axes.plot(x, middle, label=label, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    cross_out(axes, [p for p in points if len(p) > 4 and p[4]])


def cross_out(axes, points):
    """Marks points that do not measure what their configuration asks for."""
    if points:
        is_new = LOOSE not in axes.get_legend_handles_labels()[1]
        axes.plot([p[0] for p in points], [p[1] for p in points], linestyle="", marker="x",
                  markersize=11, markeredgewidth=2.5, color="red", label=LOOSE if is_new else None)


def point(rows, config, row, x):
    """[(x, middle, low, high, is loose)] of a row, or nothing where there is none or it is void."""
    value, finding = rows.values.get((config, row)), rows.finding(config, row)
    if not value or (finding and finding.is_void):
        return []
    return [(x, value.value, value.low, value.high, finding is not None)]


def void_caption(rows):
    n = sum(finding.is_void for finding in rows.findings.values())
    return f"; {count(n, 'void row')} not drawn" if n else ""


def length_axis(axes, lengths):
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [short(n) for n in lengths])
    axes.minorticks_off()
    axes.set_xlabel("length (tokens)")


def short(tokens):
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def finish(figure, title, caption, axes=None):
    figure.suptitle(title, fontsize=12)
    figure.supxlabel(caption, fontsize=8, color="#444444")
    if axes is not None:
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            axes.legend(frameon=False, fontsize=9)
    return figure


# Depth and length.

def depth_cells(results, task):
    """{config: {(length, bin): scores}}; empty where the task has no depths."""
    cells = collections.defaultdict(lambda: collections.defaultdict(list))
    for record in results.samples():
        if record["task"] == task and record.get("depth") is not None:
            place = min(int(record["depth"] * DEPTH_BINS), DEPTH_BINS - 1)
            cells[record["config"]][record["length"], place].append(score_of(record))
    return cells


def depth_figure(results, task, cells):
    configs = [c for c in results.configs if c in cells]
    lengths = results.lengths(tasks=[task])
    figure, axes = panels(len(configs))
    for one, config in zip(axes, configs):
        grid = numpy.full((DEPTH_BINS, len(lengths)), math.nan)
        for (length, place), scores in cells[config].items():
            grid[place, lengths.index(length)] = 100 * sum(scores) / len(scores)
        image = heat_map(one, grid, lengths)
        one.set_title(config, fontsize=10)
    figure.colorbar(image, ax=axes, label="score", shrink=0.9)
    n = sum(len(scores) for one in cells.values() for scores in one.values())
    return finish(figure, f"{task}: score by length and depth",
                  f"{count(n, 'question')} in all; grey: none was asked there")


def heat_map(axes, grid, lengths):
    axes.set_facecolor("#BBBBBB")
    image = axes.imshow(grid, aspect="auto", cmap="cividis", vmin=0, vmax=100)
    axes.grid(False)
    axes.set_xticks(range(len(lengths)), [short(n) for n in lengths])
    axes.set_yticks([-0.5, DEPTH_BINS / 2 - 0.5, DEPTH_BINS - 0.5], ["0 %", "50 %", "100 %"])
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("depth")
    for (row, column), value in numpy.ndenumerate(grid):
        if not math.isnan(value):
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8,
                      color="white" if value < 55 else "black")
    return image


# Averages.

def accuracy_figure(rows, groups):
    results = rows.results
    figure, axes = panels(len(groups), 4.6)
    captions = []
    for one, (group, tasks) in zip(axes, groups.items()):
        for config in results.configs:
            points = [p for n in results.lengths(config, tasks)
                      for p in point(rows, config, f"{group}/{n}", n)]
            line(one, points, look(results, config), config)
        length_axis(one, results.lengths(tasks=tasks))
        one.set(title=group if group in tasks else f"{group} of {count(len(tasks), 'task')}",
                ylabel="score", ylim=(-2, 102))
        captions.append(f"{group}: {contexts_of(results, tasks)} contexts by length")
    return finish(figure, "Accuracy against length (bands: 95 % intervals)",
                  "; ".join(captions) + void_caption(rows), axes[0])


def contexts_of(results, tasks):
    """How many contexts the averages stand on, by length, of the configuration that has most."""
    counts = []
    for length in results.lengths(tasks=tasks):
        counts.append(max(sum(len(results.answers[c, t, length]) for t in tasks
                              if (c, t, length) in results.answers) for c in results.configs))
    return ", ".join(f"{n:,}" for n in counts)


def policy_of(fields):
    """What budgets are compared within: a policy without its sizes."""
    policy = fields.get("kv_policy")
    if not isinstance(policy, dict):
        return "kv_policy"
    rest = (str(value) for name, value in sorted(policy.items()) if name not in (*SIZES, "type"))
    return " ".join([str(policy.get("type", "kv_policy")), *rest])


def budget_figure(rows, group):
    results = rows.results
    tasks = results.groups()[group]
    lengths = results.lengths(tasks=tasks)
    figure, axes = panels(len(lengths))
    for one, length in zip(axes, lengths):
        budget_panel(one, rows, group, length)
    return finish(figure, f"{group.capitalize()} score against budget (bars: 95 % intervals)",
                  f"{contexts_of(results, tasks)} contexts by length{void_caption(rows)}", axes[0])


def budget_panel(axes, rows, group, length):
    """A line a policy; configurations that keep everything are level lines."""
    lines, results = collections.defaultdict(list), rows.results
    for config, fields in results.configs.items():
        budgets = results.budgets(config, length)
        for found in point(rows, config, f"{group}/{length}", budgets[-1] if budgets else 0):
            if budgets:
                lines[policy_of(fields)].append(found)
            else:
                axes.axhline(found[1], color=look(results, config)["color"], linestyle="--",
                             label=config)
    for place, (policy, points) in enumerate(sorted(lines.items()), start=1):
        x, middle, low, high = numpy.array([p[:4] for p in sorted(points)], float).T
        axes.errorbar(x, middle, (middle - low, high - middle), label=policy, capsize=3,
                      color=COLOURS[place % len(COLOURS)], marker=MARKERS[place % len(MARKERS)])
        cross_out(axes, [p for p in points if p[4]])
    axes.set(title=f"length {short(length)}", xlabel="budget (tokens)", ylabel="score",
             ylim=(-2, 102))
    axes.set_xscale("log", base=2)
    ticks = apart({p[0] for points in lines.values() for p in points})
    axes.set_xticks(ticks, [short(n) for n in ticks])
    axes.minorticks_off()


def apart(budgets):
    """Those whose labels have room beside each other: policies round a budget up differently, and
    of neighbours the first stands for all."""
    ticks = []
    for budget in sorted(budgets):
        if not ticks or budget > TICKS_APART * ticks[-1]:
            ticks.append(budget)
    return ticks


# Perplexity and speed.

def perplexity_figure(rows):
    results = rows.results
    lengths = [n for n in results.window_lengths() if results.buckets(n)]
    figure, axes = panels(len(lengths), 4.2)
    captions = []
    for one, length in zip(axes, lengths):
        for config in results.configs:
            line(one, bucket_points(rows, config, length), look(results, config), config)
        one.set(title=f"windows of {short(length)}", xlabel="position", ylabel="perplexity")
        windows = max(len(results.windows.get((c, length), ())) for c in results.configs)
        captions.append(f"{count(windows, 'window')} of {short(length)}")
    return finish(figure, "Perplexity against position (bands: 95 % intervals)",
                  ", ".join(captions) + void_caption(rows), axes[0])


def bucket_points(rows, config, length):
    """Points stand in the middle of their buckets."""
    points, results = [], rows.results
    for bucket in results.buckets(length):
        middle = results.bucket_start(length, bucket) + results.bucket_tokens[length] / 2
        points += point(rows, config, results.window_row(length, bucket), middle)
    return points


def speed_figure(results):
    figure, axes = panels(2, 4.6)
    n_measured, lengths = 0, set()
    for config in results.configs:
        for place, one in enumerate(axes):
            points = []
            for length in results.lengths(config):
                if values := results.speed(config, length)[place]:
                    low, middle, high = numpy.percentile(values, [25, 50, 75])
                    points.append((length, middle, low, high))
                    n_measured += len(values) * (place == 0)
                    lengths.add(length)
            line(one, points, look(results, config), config)
    for one, label in zip(axes, ("seconds to the first token", "tokens/s after the first")):
        length_axis(one, sorted(lengths))
        one.set_ylabel(label)
        one.set_ylim(bottom=0)
    return finish(figure, "Speed against length (medians, bands: quartiles)",
                  f"{count(n_measured, 'request')} that found nothing cached", axes[0])
