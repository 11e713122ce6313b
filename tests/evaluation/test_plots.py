"""The plots: which there are, how large, and what their lines say."""
import struct

import pytest

from evaluation import plots, report
from evaluation.results import Results
from made_results import MadeResults, whole_run


def test_a_whole_run_has_every_plot_and_each_is_small(tmp_path):
    directory = whole_run().write(tmp_path / "run")
    report.write(directory)
    text = (directory / "table.md").read_text()
    names = {path.name for path in directory.glob("*.png")}
    assert names == {"accuracy.png", "budget.png", "perplexity.png", "speed.png",
                     "depth-passkey.png", "depth-lines.png", "depth-card-passkey.png"}
    for name in names:
        data = (directory / name).read_bytes()
        assert f"]({name})" in text
        assert struct.unpack(">I", data[16:20])[0] == 1000, name  # the width in a PNG's header
        assert len(data) < 150_000, name


def draw(made, directory):
    return plots.draw(report.Rows(Results(made.write(directory))), directory)


def test_only_plots_that_have_data_are_drawn(tmp_path):
    made = MadeResults()
    made.sample("passkey", 1024, 0, 1.0, ttft_s=None)
    assert draw(made, tmp_path / "a") == ["accuracy.png"]
    made = MadeResults()
    made.window(2048, 0, [3.0, 3.0])
    assert draw(made, tmp_path / "b") == ["perplexity.png"]
    made.window(4096, 0, [], error="HTTP 500: broken", nll=[], tokens=[])
    made.records.pop(1)
    assert draw(made, tmp_path / "c") == []


def figures_of(tmp_path):
    return dict(plots.figures(report.Rows(Results(whole_run().write(tmp_path / "run")))))


def test_the_accuracy_plot_shows_the_tables_averages(tmp_path):
    axes = figures_of(tmp_path)["accuracy.png"].axes[0]
    rows = report.Rows(Results(tmp_path / "run"))
    for line, config in zip(axes.lines, ("default", "streaming")):
        assert line.get_label() == config
        assert list(line.get_xdata()) == [1024, 4096, 16384]
        assert list(line.get_ydata()) == pytest.approx(
            [rows.values[config, f"average/{n}"].value for n in (1024, 4096, 16384)])


def test_streams_have_a_panel_of_their_own(tmp_path):
    axes = {one.get_title(): one for one in figures_of(tmp_path)["accuracy.png"].axes}
    assert set(axes) == {"average of 2 tasks", "card/average of 1 task", "streameval"}
    assert list(axes["streameval"].lines[0].get_xdata()) == [1024, 2048, 4096]


def test_the_heat_map_counts_failed_requests_as_wrong(tmp_path):
    made = MadeResults()
    made.sample("passkey", 1024, 0, 1.0, depth=0.0)
    made.failed("passkey", 1024, 1, depth=0.05)
    made.sample("passkey", 1024, 2, 1.0, depth=1.0)
    results = Results(made.write(tmp_path / "run"))
    figure = plots.depth_figure(results, "passkey", plots.depth_cells(results, "passkey"))
    texts = {text.get_position()[1]: text.get_text() for text in figure.axes[0].texts}
    assert texts == {0: "50", 9: "100"}


def test_the_budget_plot_has_a_point_a_budget_and_a_level_line_for_all(tmp_path):
    axes = figures_of(tmp_path)["budget.png"].axes[0]
    labels = axes.get_legend_handles_labels()[1]
    assert sorted(labels) == ["default", "streaming"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["512"]


def test_of_budgets_that_nearly_agree_one_is_named():
    assert plots.apart({516, 209, 106, 208}) == [106, 208, 516]


def test_every_configuration_can_be_told_apart():
    looks = {(colour, marker) for colour, marker in zip(plots.COLOURS, plots.MARKERS)}
    assert len(looks) == len(set(plots.COLOURS)) == len(set(plots.MARKERS)) == 8
