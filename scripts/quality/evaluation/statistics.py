"""statistics.py - intervals for scores and perplexities of few, clustered samples.

The unit that is drawn is the cluster: one context (task, length, index), whose questions stand and
fall together.  Drawing questions would call twelve questions about one text twelve observations.

Every interval is a 95 % one:

- A score is a sum over questions divided by their number. Its interval comes from RESAMPLES
  bootstrap draws of the clusters, percentiles of the ratio of sums.
- A difference between two configurations is drawn in pairs: a cluster's score in the one minus its
  score in the other, on questions that both answered. What makes a context hard is the same on both
  sides and cancels.
- Percentiles of few clusters are too narrow, for a draw has the variance of a population and not of
  a sample, and knows that variance no better than Student's t. Both are made up for by stretching
  the distances from the estimate by t(n - 1) / z * sqrt(n / (n - 1)) (after the expanded percentile
  interval of T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American
  Statistician 69, 2015).
- Near 0 % and 100 % few draws, or none, differ from the estimate, and ten right answers out of ten
  would be 100 +- 0. So each end of a score's interval is the wider one of the bootstrap's and of
  Wilson's score interval (E. B. Wilson, JASA 22, 1927; recommended for small n by Brown, Cai and
  DasGupta, Statistical Science 16, 2001) at the effective number of answers p (1 - p) / variance,
  lessened by (z / t)^2 (E. L. Korn and B. I. Graubard, Survey Methodology 24, 1998). Where nothing
  varies the effective number is that of the clusters, as L. Kish counts clusters of unequal size.
- Differences have the same edge at 0, where most clusters do not change. There a difference is the
  share gained less the share lost, each with Wilson's interval, whose distances add in squares (R.
  G. Newcombe, Statistics in Medicine 17, 1998); again the wider one of this and the bootstrap's
  counts. If nothing at all was gained, the effective number is that of the losses, and the other
  way round.
- An average over tasks weighs each task alike. Tasks share no cluster, so the distances of their
  ends from their estimates add in squares (G. Y. Zou and A. Donner, Statistics in Medicine 27,
  2008); t has Satterthwaite's degrees of freedom.
- Perplexity is exp(sum of -log p / tokens), drawn by windows and on the logarithmic scale.

Draws are seeded with the name of what is drawn, so the same results give the same table."""
import dataclasses
import functools
import math
import zlib

import numpy

from .wilson import Z, wilson

RESAMPLES = 10_000
SEED = 20_240_607
EFFECTIVE_AVERAGE = 85.0  # RULER's threshold for a length that a model really has

# Student's t at 97.5 % for 1 to 9 degrees of freedom; from 10 on a series is exact to four digits.
T_TABLE = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval; the ends are NaN where one cluster cannot tell."""
    value: float
    low: float
    high: float
    clusters: int
    questions: int


@dataclasses.dataclass(frozen=True)
class Spread:
    """What is known of one task's score or difference, before t is chosen."""
    value: float
    below: float  # distances of the bootstrap's percentiles, for a known variance
    above: float
    variance: float
    effective: float  # number of answers that the score counts for
    clusters: int
    questions: int
    parts: tuple = ()  # a difference: what was gained and what was lost, as scores


def quantile_t(freedom):
    """t at 97.5 %; whole degrees of freedom below 10 are exact, others take the next lower."""
    if freedom < 10:
        return T_TABLE[max(int(freedom), 1) - 1]
    return (Z + (Z**3 + Z) / 4 / freedom + (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96 / freedom**2
            + (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384 / freedom**3)


@functools.lru_cache(maxsize=8)
def draws(clusters, name):
    """How often each draw takes each cluster: RESAMPLES rows that sum up to `clusters`."""
    generator = numpy.random.default_rng([SEED, zlib.crc32(name.encode())])
    # Counting drawn clusters is the multinomial distribution, ten times as fast as numpy's.
    drawn = generator.integers(clusters, size=(RESAMPLES, clusters))
    drawn += numpy.arange(RESAMPLES)[:, None] * clusters
    counts = numpy.bincount(drawn.ravel(), minlength=RESAMPLES * clusters)
    return counts.reshape(RESAMPLES, clusters).astype(numpy.float64)


def drawn_ratios(sums, counts, name):
    """sum(sums) / sum(counts) of every draw.  Not by BLAS, whose threads wait for one another on
    busy cores longer than these small products take."""
    weights = draws(len(sums), name)
    return numpy.einsum("ij,j", weights, sums) / numpy.einsum("ij,j", weights, counts)


def ratio_spread(sums, counts, name):
    """(estimate, distance below, distance above, variance) of sum(sums) / sum(counts)."""
    sums, counts = numpy.asarray(sums, float), numpy.asarray(counts, float)
    n = len(sums)
    value = sums.sum() / counts.sum()
    if n == 1:
        return value, 0.0, 0.0, 0.0
    return (value, *distances(drawn_ratios(sums, counts, name), value, n))


def distances(replicates, value, clusters):
    """Below, above and variance of draws around the estimate, as of a sample of clusters."""
    stretch = math.sqrt(clusters / (clusters - 1))
    low, high = numpy.percentile(replicates, [2.5, 97.5])
    variance = float(numpy.var(replicates)) * stretch**2
    if variance < 1e-24:  # the rounding of sums that are all equal
        return 0.0, 0.0, 0.0
    return max(value - low, 0.0) * stretch, max(high - value, 0.0) * stretch, variance


def score_spread(sums, counts, name):
    """A task's score: sums of its clusters' scores (0..1 a question), numbers of questions."""
    value, below, above, variance = ratio_spread(sums, counts, name)
    value = min(max(float(value), 0.0), 1.0)
    counts = numpy.asarray(counts, float)
    if variance > 0:
        effective = max(value * (1 - value) / variance, 1e-9)
    else:
        effective = counts.sum() ** 2 / (counts**2).sum()
    return Spread(value, below, above, variance, float(effective), len(counts), int(counts.sum()))


def difference_spread(sums, counts, name):
    """A paired difference: sums of (score - baseline's score) over the clusters' questions."""
    value, below, above, variance = ratio_spread(sums, counts, name)
    sums = numpy.asarray(sums, float)
    gain, loss = (score_spread(numpy.maximum(part, 0), counts, name) for part in (sums, -sums))
    if gain.variance == 0 < loss.variance:
        gain = dataclasses.replace(gain, effective=loss.effective)
    if loss.variance == 0 < gain.variance:
        loss = dataclasses.replace(loss, effective=gain.effective)
    return Spread(float(value), below, above, variance, 0.0, len(sums), int(numpy.sum(counts)),
                  (gain, loss))


def margins(spread, t):
    """Distances of the interval's ends, given Student's t."""
    below, above = edge_margins(spread, t)
    return max(below, spread.below * t / Z), max(above, spread.above * t / Z)


def edge_margins(spread, t):
    """Wilson's part of the margins."""
    if spread.parts:
        (gain_below, gain_above), (loss_below, loss_above) = (
            edge_margins(part, t) for part in spread.parts)
        return math.hypot(gain_below, loss_above), math.hypot(gain_above, loss_below)
    lessened = (Z / t) ** 2 if spread.variance else 1.0
    low, high = wilson(spread.value, spread.effective * lessened)
    return spread.value - low, high - spread.value


def freedom_of(spreads):
    """Satterthwaite's degrees of freedom of a sum; tasks that do not vary add none."""
    varying = [s for s in spreads if s.variance > 0]
    if not varying:
        return math.inf
    total = sum(s.variance for s in varying)
    return total**2 / sum(s.variance**2 / (s.clusters - 1) for s in varying)


def average(spreads):
    """The macro average in percent (points for differences); of one spread: its own interval."""
    t = quantile_t(freedom_of(spreads))
    ends = [margins(s, t) for s in spreads]
    value = sum(s.value for s in spreads) / len(spreads)
    below = math.sqrt(sum(b * b for b, _ in ends)) / len(spreads)
    above = math.sqrt(sum(a * a for _, a in ends)) / len(spreads)
    least = -1.0 if spreads[0].parts else 0.0
    return Interval(100 * value, 100 * max(value - below, least), 100 * min(value + above, 1.0),
                    sum(s.clusters for s in spreads), sum(s.questions for s in spreads))


def perplexity(nll, tokens, name):
    """exp of the mean -log p; nll and tokens are sums of the windows."""
    value, below, above, _ = ratio_spread(nll, tokens, name)
    low, high = stretched(value, below, above, len(nll))
    return Interval(math.exp(value), math.exp(low), math.exp(high), len(nll),
                    int(numpy.sum(tokens)))


def perplexity_change(nll, tokens, other_nll, other_tokens, name):
    """Percent by which the perplexity of the first differs from the other's, paired by window."""
    nll, tokens, other_nll, other_tokens = (
        numpy.asarray(a, float) for a in (nll, tokens, other_nll, other_tokens))
    n = len(nll)
    value = nll.sum() / tokens.sum() - other_nll.sum() / other_tokens.sum()
    below = above = 0.0
    if n > 1:
        apart = drawn_ratios(nll, tokens, name) - drawn_ratios(other_nll, other_tokens, name)
        below, above, _ = distances(apart, value, n)
    low, high = stretched(value, below, above, n)
    return Interval(*(100 * math.expm1(x) for x in (value, low, high)), n, int(tokens.sum()))


def stretched(value, below, above, clusters):
    """Ends by Student's t; a single window knows nothing of its spread."""
    if clusters == 1:
        return math.nan, math.nan
    stretch = quantile_t(clusters - 1) / Z
    return value - below * stretch, value + above * stretch


def effective_length(averages):
    """RULER's: the longest length whose average reaches the threshold; None if none does."""
    return max((length for length, value in averages.items() if value >= EFFECTIVE_AVERAGE),
               default=None)


def worst_change(changes):
    """(name, interval) of the largest rise among a table's buckets."""
    return max(changes.items(), key=lambda item: item[1].value)
