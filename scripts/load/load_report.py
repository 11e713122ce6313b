"""What a load test prints: one object of results, a table of it, and a picture."""
from client import percentiles, rank

ROWS = (("first token", "first_token_ms"), ("between tokens", "between_tokens_ms"),
        ("per token", "per_token_ms"), ("whole request", "whole_request_ms"))


def meets(options, sample):
    """Whether an answer came within the limits that goodput counts."""
    if options.goodput_ttft and not (sample.first or 0) * 1000 <= options.goodput_ttft:
        return False
    return not options.goodput_itl or (sample.per_token or 0) * 1000 <= options.goodput_itl


def summarise(options, samples, seconds, late):
    good = [sample for sample in samples if not sample.error]
    n_tokens = sum(sample.n_tokens for sample in good)
    n_prompt = sum(sample.n_prompt for sample in good)
    result = {
        "mix": options.mix, "api": options.api, "loop": "open" if options.rate else "closed",
        "clients": options.clients, "requests": len(samples), "failed": len(samples) - len(good),
        "prompt_tokens": options.prompt_tokens, "max_tokens": options.max_tokens,
        "seconds": round(seconds, 3), "requests_per_s": round(len(good) / seconds, 2),
        "generated_tokens_per_s": round(n_tokens / seconds, 1),
        "prompt_tokens_per_s": round(n_prompt / seconds, 1),
        "cached_share": round(sum(s.n_cached for s in good) / n_prompt, 4) if n_prompt else 0,
        "first_token_ms": percentiles([s.first for s in good if s.first is not None]),
        "between_tokens_ms": percentiles([gap for s in good for gap in s.gaps]),
        "per_token_ms": percentiles([s.per_token for s in good if s.per_token is not None]),
        "whole_request_ms": percentiles([s.total for s in good]),
        "tokens_per_s_per_client": round(n_tokens / sum(s.total for s in good), 2) if good else 0,
    }
    if options.rate:
        result |= {"offered_requests_per_s": options.rate, "latest_send_ms": round(1000 * late, 3)}
    refused = [sample.refused for sample in samples if sample.refused is not None]
    if refused:
        result["refused"] = {"requests": len(refused), "ms": percentiles(refused)}
    if options.goodput_ttft or options.goodput_itl:
        n_met = sum(meets(options, sample) for sample in good)
        result["goodput"] = {
            "ttft_ms": options.goodput_ttft, "itl_ms": options.goodput_itl,
            "requests_per_s": round(n_met / seconds, 2), "share": round(n_met / len(samples), 4)}
    return result


def print_table(result, out):
    print(f"{result['requests']} requests, {result['failed']} failed, {result['seconds']} s: "
          f"{result['requests_per_s']} requests/s, "
          f"{result['generated_tokens_per_s']} generated tokens/s, "
          f"{result['prompt_tokens_per_s']} prompt tokens/s, "
          f"{100 * result['cached_share']:.1f} % of them cached", file=out)
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    print(f"{'milliseconds':<16}" + "".join(f"{column:>11}" for column in columns), file=out)
    for label, name in ROWS:
        if result[name]:
            print(f"{label:<16}" + "".join(f"{result[name][column]:>11.2f}" for column in columns),
                  file=out)
    if result["loop"] == "open":
        print(f"offered: {result['offered_requests_per_s']} requests/s; sent at most "
              f"{result['latest_send_ms']:.1f} ms late", file=out)
    if "refused" in result:
        times = result["refused"]["ms"]
        print(f"refused with 429: {result['refused']['requests']} requests; the answer took "
              f"{times['p50']:.2f} ms (median), {times['p99']:.2f} (99th percentile), "
              f"{times['max']:.2f} (most)", file=out)
    if "goodput" in result:
        goodput = result["goodput"]
        limits = [f"{name} {goodput[key]:g} ms" for name, key in
                  (("first token", "ttft_ms"), ("per token", "itl_ms")) if goodput[key]]
        print(f"goodput: {goodput['requests_per_s']} requests/s, {100 * goodput['share']:.1f} % within "
              f"{', '.join(limits)}", file=out)


def cumulative(axes, values, title):
    """The share of values up to each, with the median and the 99th percentile marked."""
    ordered = sorted(1000 * value for value in values)
    axes.set_title(title)
    axes.set_xlabel("ms")
    if not ordered:
        return
    axes.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))])
    for percent in (50, 99):
        axes.axvline(rank(ordered, percent), color="gray", linewidth=0.8, linestyle=":")
        axes.annotate(f"p{percent} {rank(ordered, percent):.1f}", (rank(ordered, percent), 0.05),
                      rotation=90, fontsize=8)
    axes.set_ylim(0, 1)


def running_over_time(samples):
    """Seconds and the number of requests without their whole answer, at each change."""
    changes = sorted([(s.due, 1) for s in samples] + [(s.ended, -1) for s in samples])
    times, counts, n = [], [], 0
    for when, change in changes:
        n += change
        times.append(when - changes[0][0])
        counts.append(n)
    return times, counts


def draw(options, result, samples, path):
    """Writes the picture: how the times are spread, and the run over time."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    good = [sample for sample in samples if not sample.error]
    figure, ((first, gap), (tokens, running)) = pyplot.subplots(2, 2, figsize=(11, 7))
    cumulative(first, [s.first for s in good if s.first is not None], "first token")
    cumulative(gap, [g for s in good for g in s.gaps], "between tokens")
    begun = min(s.due for s in samples)
    arrivals = [when - begun for s in good for when in s.arrivals]
    n_bins = max(1, min(120, round(result["seconds"])))
    tokens.hist(arrivals, bins=n_bins,
                weights=[n_bins / result["seconds"]] * len(arrivals), histtype="step")
    tokens.set_title("pieces of answers a second")
    tokens.set_xlabel("s")
    if good:
        running.step(*running_over_time(good), where="post")
    running.set_title("requests without their whole answer")
    running.set_xlabel("s")
    loop = f"{options.rate:g} requests/s, Poisson" if options.rate else f"{options.clients} clients"
    figure.suptitle(f"{options.mix}, {loop}: {result['requests_per_s']} requests/s, "
                    f"{result['generated_tokens_per_s']} tokens/s, {result['failed']} failed")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
