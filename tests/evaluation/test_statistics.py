"""Intervals: what they are at the edges, and how often they hold the truth in simulations."""
import math

import numpy
import pytest

from evaluation import statistics


def score(sums, counts, name):
    return statistics.average([statistics.score_spread(sums, counts, name)])


def difference(sums, counts, name):
    return statistics.average([statistics.difference_spread(sums, counts, name)])


def clustered(generator, clusters, questions, share, correlation):
    """Right answers of each cluster, whose chances vary: a beta-binomial."""
    spread = (1 - correlation) / correlation
    chances = generator.beta(share * spread, (1 - share) * spread, clusters)
    return generator.binomial(questions, chances).astype(float)


def test_quantiles_of_t_are_those_of_its_density():
    for freedom in (1, 2, 4, 9, 10, 17, 60, 1000):
        edge = statistics.quantile_t(freedom)
        grid = numpy.linspace(0, edge, 200_001)
        scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
        density = (scale / math.sqrt(freedom * math.pi)
                   * (1 + grid**2 / freedom) ** (-(freedom + 1) / 2))
        half = float(((density[1:] + density[:-1]) / 2).sum() * grid[1])
        assert half == pytest.approx(0.475, abs=2e-5)


def test_ten_of_ten_is_not_certain():
    row = score([1] * 10, [1] * 10, "passkey")
    assert (row.value, row.high) == (100, 100)
    assert row.low == pytest.approx(72.25, abs=0.01)  # Wilson's, as tables give it
    none = score([0] * 10, [1] * 10, "passkey")
    assert (none.low, none.high) == pytest.approx((0, 27.75), abs=0.01)


def test_questions_of_one_context_do_not_count_as_contexts():
    few = score([12] * 4, [12] * 4, "lines")
    many = score([1] * 48, [1] * 48, "lines")
    assert few.questions == many.questions == 48
    assert few.low == pytest.approx(51.01, abs=0.01)  # four of four
    assert many.low == pytest.approx(92.59, abs=0.01)


def test_one_context_gives_a_wide_interval():
    row = score([3], [4], "lines")
    assert row.value == 75
    assert row.low < 25 and row.high > 95


def test_the_same_results_give_the_same_interval():
    sums = [3, 1, 4, 1, 4, 2, 0, 3]
    first = score(sums, [4] * 8, "kv/1024")
    statistics.draws.cache_clear()
    assert score(sums, [4] * 8, "kv/1024") == first
    assert score(sums, [4] * 8, "kv/4096") != first


def test_intervals_of_scores_hold_the_truth():
    """95 % of them, within what 400 simulations can tell; few clusters may only be wider."""
    generator = numpy.random.default_rng(7)
    for clusters, share in ((10, 0.8), (20, 0.95), (40, 0.5), (40, 0.98)):
        held = 0
        for _ in range(400):
            sums = clustered(generator, clusters, 4, share, 0.3)
            row = score(sums, [4] * clusters, "simulated")
            held += row.low <= 100 * share <= row.high
        assert held / 400 >= 0.92, (clusters, share)
        if share == 0.5:
            assert held / 400 <= 0.98


def test_intervals_of_averages_hold_the_truth():
    generator = numpy.random.default_rng(8)
    shares = (0.5, 0.7, 0.8, 0.9, 0.97)
    held = 0
    for _ in range(200):
        rows = [statistics.score_spread(clustered(generator, 12, 4, share, 0.3), [4] * 12, str(k))
                for k, share in enumerate(shares)]
        row = statistics.average(rows)
        held += row.low <= 100 * sum(shares) / len(shares) <= row.high
    assert held / 200 >= 0.91


def paired_outcomes(generator, clusters):
    """Two configurations on the same contexts: the second is wrong where the first is, and in a
    tenth of the rest."""
    first = clustered(generator, clusters, 4, 0.7, 0.4)
    return first, generator.binomial(first.astype(int), 0.9).astype(float)


def test_paired_intervals_are_narrower_and_hold_the_truth():
    generator = numpy.random.default_rng(9)
    held = narrower = 0
    for _ in range(300):
        first, second = paired_outcomes(generator, 30)
        counts = [4] * 30
        row = difference(second - first, counts, "simulated")
        held += row.low <= 100 * (0.63 - 0.7) <= row.high
        apart = [score(x, counts, "simulated") for x in (first, second)]
        unpaired = math.hypot(*(x.high - x.low for x in apart))
        narrower += row.high - row.low < 0.7 * unpaired
    assert 0.91 <= held / 300 <= 0.985
    assert narrower == 300


def test_equal_answers_do_not_prove_equal_configurations():
    row = difference([0] * 10, [1] * 10, "same")
    assert row.value == 0
    assert (row.low, row.high) == pytest.approx((-27.75, 27.75), abs=0.01)
    lost = difference([-1] * 10, [1] * 10, "lost")
    assert lost.low == lost.value == -100
    assert lost.high < 0


def test_averages_weigh_tasks_alike():
    easy = statistics.score_spread([1] * 100, [1] * 100, "easy")
    hard = statistics.score_spread([0] * 4, [1] * 4, "hard")
    row = statistics.average([easy, hard])
    assert (row.value, row.clusters) == (50, 104)
    assert row.high - 50 == pytest.approx(statistics.average([hard]).high / 2)


def test_perplexity_is_weighed_by_tokens():
    row = statistics.perplexity([30.0, 5.0], [10, 5], "windows")
    assert row.value == pytest.approx(math.exp(35 / 15))
    assert row.low < row.value < row.high
    assert math.isnan(statistics.perplexity([30.0], [10], "windows").low)


def test_changes_of_perplexity_are_paired():
    generator = numpy.random.default_rng(10)
    nll = generator.normal(3.4, 0.3, 8) * 1000
    tokens = numpy.full(8, 1000)
    raised = nll + generator.normal(0.002, 0.0004, 8) * 1000
    change = statistics.perplexity_change(raised, tokens, nll, tokens, "windows")
    assert 0.1 < change.low < change.value < change.high < 0.3  # percent
    alone = statistics.perplexity(nll, tokens, "windows")
    assert (alone.high - alone.low) / alone.value > 0.1
    same = statistics.perplexity_change(nll, tokens, nll, tokens, "windows")
    assert (same.low, same.value, same.high) == (0, 0, 0)


def test_intervals_of_perplexity_changes_hold_the_truth():
    generator = numpy.random.default_rng(11)
    held = 0
    for _ in range(300):
        nll = generator.normal(3.4, 0.3, 6) * 1000
        raised = nll + generator.normal(0.01, 0.01, 6) * 1000
        row = statistics.perplexity_change(raised, [1000] * 6, nll, [1000] * 6, "windows")
        held += row.low <= 100 * math.expm1(0.01) <= row.high
    assert 0.92 <= held / 300 <= 0.985


def test_effective_length_is_the_longest_at_the_threshold():
    assert statistics.effective_length({1024: 99, 4096: 85.0, 8192: 84.9}) == 4096
    assert statistics.effective_length({1024: 60}) is None


def test_the_worst_bucket_is_the_one_that_rose_most():
    rows = {start: statistics.Interval(value, 0, 0, 1, 1) for start, value in
            ((0, -5.0), (1024, 2.0), (2048, 1.0))}
    assert statistics.worst_change(rows)[0] == 1024
