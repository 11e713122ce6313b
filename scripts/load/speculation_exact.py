#!/usr/bin/env python3
"""Checks that speculation changes no answer, on a running server: greedy answers one by one, sampled ones
by their distribution.

    build/quire serve
    scripts/load/speculation_exact.py --requests 2000 --samples 4000

Answers.  --requests prompts of five kinds are asked greedily, with speculation "off" and "suffix" in turns:
lists to be repeated, a book's text and its beginning again, few-shot patterns, JSON records, chats.  A
fourth of them ask again for what an earlier one asked.  Texts, tokens and log-probabilities must be equal.  On a GPU
kernels sum in another order: with --tolerance D log-probabilities may differ by D, and a text may turn at
two tokens that are no further apart.

Samples.  The model goes on with a row of words in no order at temperature 1: each answer is short, has a
seed of its own, and the same prompt.  Three arms of --samples answers have no seed in common:

    off       without speculation
    suffix    with it: guesses are made, and some are rejected
    control   without it, at --control as temperature: what a wrong distribution looks like

A two-sample chi-square test over whole answers compares the second arm with the first, which must not
differ, and the third one with the first, which must.  Rare answers count by their first tokens.

Needs nothing but Python.  Prints CSV.  Exits 1 if an answer differs, p is below --least-p, the control is
not told apart, or guesses of one kind, right or rejected, have not been made.
"""
import argparse
import collections
import concurrent.futures
import functools
import itertools
import json
import math
import random
import sys

from serving import Server
from speculation import HELD_OUT, record_of

RARE = 20  # a cell of the table has so many answers of both arms, or is one with others


# ---- greedy answers ----

@functools.cache
def held_out():
    return HELD_OUT.read_text(encoding="utf-8")


def list_of(rng):
    return {"prompt": record_of(rng.randrange(40, 160), rng.random())}


def part_of_a_book(rng, n_chars):
    text = held_out()
    begin = rng.randrange(len(text) - n_chars)
    return text[begin:begin + n_chars]


def book_of(rng):
    n = rng.randrange(200, 800)
    part = part_of_a_book(rng, n)
    return {"prompt": part + "\n\n" + part[:rng.randrange(20, n // 2)]}


def pattern_of(rng):
    """Questions of one form and their answers; the last one may have been asked before."""
    names = rng.sample(("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry"), 5)
    asked = [(rng.choice(names), rng.randrange(10, 99)) for _ in range(rng.randrange(3, 8))]
    shots = "".join(f"Question: How old is {name}?\nAnswer: {name} is {age} years old.\n\n" for name, age in asked)
    return {"prompt": shots + f"Question: How old is {rng.choice(names)}?\nAnswer:"}


def json_of(rng):
    rows = [{"id": i, "name": rng.choice(("lamp", "chair", "table", "shelf")), "price": rng.randrange(10, 500),
             "in_stock": rng.random() < 0.7} for i in range(rng.randrange(3, 10))]
    whole = json.dumps(rows, indent=rng.choice((None, 1)))
    return {"prompt": whole + "\n\n" + whole[:rng.randrange(2, len(whole) // 2)]}


def chat_of(rng):
    part = part_of_a_book(rng, rng.randrange(100, 500))
    turns = [{"role": "user", "content": f"Repeat this text word by word: {part}"}]
    if rng.random() < 0.5:
        turns += [{"role": "assistant", "content": part}, {"role": "user", "content": "Once more, please."}]
    return {"messages": turns}


KINDS = {"list": list_of, "book": book_of, "pattern": pattern_of, "json": json_of, "chat": chat_of}


def make_requests(n, seed):
    """Pairs of a kind and a body.  Every fourth of a kind asks as an earlier one did, behind other words."""
    rng, made = random.Random(seed), collections.defaultdict(list)
    requests = []
    for kind in itertools.islice(itertools.cycle(KINDS), n):
        if made[kind] and len(made[kind]) % 4 == 3:
            earlier = rng.choice(made[kind])
            what = {"prompt": "Again.\n" + earlier["prompt"]} if "prompt" in earlier else \
                {"messages": [{"role": "system", "content": "Be exact."}] + earlier["messages"]}
        else:
            what = KINDS[kind](rng)
        made[kind].append(what)
        requests.append((kind, {**what, "max_tokens": rng.randrange(12, 41)}))
    return requests


def tokens_of(choice):
    """The tokens of a choice, with the log-probabilities that each comes with."""
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        return [(one["token"], one["logprob"], [(top["token"], top["logprob"]) for top in one["top_logprobs"]])
                for one in logprobs["content"]]
    return [(token, logprob, list(top.items())) for token, logprob, top in
            zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])]


def difference(before, after, tolerance):
    """None, or how two choices differ; "turn" where they do behind a near tie."""
    if before == after:
        return None
    pairs = list(zip(tokens_of(before), tokens_of(after)))
    for at, (one, other) in enumerate(pairs):
        near = abs(one[1] - other[1]) <= tolerance
        if one[0] != other[0]:
            return "turn" if tolerance > 0 and near else f"token {at}: {one[:2]} and {other[:2]}"
        if not near:
            return f"log-probability {at}: {one} and {other}"
    return None if tolerance > 0 else f"{json.dumps(before)} and {json.dumps(after)}"


class Tally:
    """What came of one kind of prompt."""

    def __init__(self):
        self.n_requests = self.n_tokens = self.n_drafted = self.n_accepted = self.n_turns = self.n_different = 0


def ask_both(client, options, number, body):
    """The two answers, asked in turns as the first one."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    logprobs = {"logprobs": True, "top_logprobs": 2} if "messages" in body else {"logprobs": 2}
    one = {}
    for mode in ("off", "suffix") if number % 2 == 0 else ("suffix", "off"):
        one[mode] = client.post(path, {"temperature": 0, "ignore_eos": True, **logprobs, **body,
                                       "speculation": mode, "cache_salt": options.salt})
    return one["off"], one["suffix"]


def check_answers(client, options):
    """Whether all answers are the same, and all kinds had right and rejected guesses.

    With a tolerance, on a GPU, prices are measured: there a short run may have rejected ones of some kinds only."""
    requests, tallies = make_requests(options.requests, options.seed), collections.defaultdict(Tally)
    with concurrent.futures.ThreadPoolExecutor(options.streams) as threads:
        pairs = threads.map(lambda i: ask_both(client, options, i, requests[i][1]), range(len(requests)))
        for (kind, body), (before, after) in zip(requests, pairs):
            tally, spent = tallies[kind], after["usage"]["speculation"]
            tally.n_requests += 1
            tally.n_tokens += after["usage"]["completion_tokens"]
            tally.n_drafted += spent["drafted"]
            tally.n_accepted += spent["accepted"]
            what = difference(before["choices"][0], after["choices"][0], options.tolerance)
            if what == "turn":
                tally.n_turns += 1
            elif what:
                tally.n_different += 1
                print(f"{kind}: {what}; asked {json.dumps(body)[:400]}", file=sys.stderr)
    print("kind,requests,tokens,guessed,accepted,turned,different")
    for kind, tally in tallies.items():
        print(f"{kind},{tally.n_requests},{tally.n_tokens},{tally.n_drafted},{tally.n_accepted},"
              f"{tally.n_turns},{tally.n_different}", flush=True)
    enough = any if options.tolerance > 0 else all
    return (all(one.n_accepted > 0 and one.n_different == 0 for one in tallies.values()) and
            enough(one.n_accepted < one.n_drafted for one in tallies.values()))


# ---- sampled answers ----

def upper_gamma(a, x):
    """The regularised upper incomplete gamma function Q(a, x): by its series below a + 1, by its continued
    fraction (modified Lentz) above."""
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, 10000):
            term *= x / (a + n)
            total += term
            if term < total * 1e-15:
                break
        return max(0.0, 1 - total * scale)
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    result = d
    for n in range(1, 10000):
        step = -n * (n - a)
        b += 2
        d = 1 / (step * d + b or tiny)
        c = b + step / c or tiny
        result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return min(1.0, result * scale)


def cells_of(one, other):
    """The counts of both arms, cell by cell.  A cell is an answer, or all with the same first tokens that
    are rare by themselves.  Both arms together decide, so that a cell says nothing of one of them."""
    both = one + other
    counts = collections.Counter(answer[:n] for answer in both for n in range(len(answer) + 1))

    def cell(answer):
        n = len(answer)
        while n > 0 and counts[answer[:n]] < RARE:
            n -= 1
        return answer[:n], n < len(answer)

    table = {}
    for arm, answers in enumerate((one, other)):
        for answer in answers:
            table.setdefault(cell(answer), [0, 0])[arm] += 1
    rare = [0, 0]
    for key in [key for key, pair in table.items() if sum(pair) < RARE]:
        pair = table.pop(key)
        rare = [rare[0] + pair[0], rare[1] + pair[1]]
    return list(table.values()) + ([rare] if sum(rare) > 0 else [])


def chi_square(one, other):
    """Of two samples: the statistic, its degrees of freedom, and how probable one as large is by chance."""
    cells = cells_of(one, other)
    n, m = len(one), len(other)
    statistic = sum((a * math.sqrt(m / n) - b * math.sqrt(n / m)) ** 2 / (a + b) for a, b in cells)
    freedom = len(cells) - 1
    return statistic, freedom, upper_gamma(freedom / 2, statistic / 2)


def words_of(seed):
    """A row of words in no order: what comes next can be guessed, and is often another one."""
    rng = random.Random(seed)
    return "The balls that came: " + " ".join(rng.choice(("red", "blue", "green", "white")) + ","
                                              for _ in range(31))


def sample(client, options, prompt, first_seed, speculation, temperature):
    """Answers with their guesses, of as many seeds from the first one on."""
    answers, drafted, accepted = [], 0, 0
    # Choice i of seed s has the seed s + i.
    for seed in range(first_seed, first_seed + options.samples, options.choices):
        one = client.post("/v1/completions", {
            "prompt": prompt, "max_tokens": options.length, "ignore_eos": True, "return_token_ids": True, "n": options.choices,
            "seed": seed, "temperature": temperature, "speculation": speculation, "cache_salt": options.salt})
        answers += [tuple(choice["token_ids"]) for choice in one["choices"]]
        spent = one["usage"]["speculation"] or {"drafted": 0, "accepted": 0}
        drafted, accepted = drafted + spent["drafted"], accepted + spent["accepted"]
    return answers, drafted, accepted


def check_samples(client, options):
    """Whether the arms are distributed as they should be.  Prompts are tested by themselves and, as sums
    over all of them, together."""
    print("prompt,arm,samples,guessed,accepted,chi_square,freedom,p")
    good, sums = True, {"suffix": [0.0, 0], "control": [0.0, 0]}
    seeds = itertools.count(options.seed * 10**9, options.samples)
    for number in range(options.prompts):
        prompt = words_of(options.seed + number)
        base, _, _ = sample(client, options, prompt, next(seeds), "off", 1)
        for arm, mode, temperature in (("suffix", "suffix", 1), ("control", "off", options.control)):
            answers, drafted, accepted = sample(client, options, prompt, next(seeds), mode, temperature)
            statistic, freedom, p = chi_square(base, answers)
            sums[arm] = [sums[arm][0] + statistic, sums[arm][1] + freedom]
            print(f"{number},{arm},{len(answers)},{drafted},{accepted},{statistic:.1f},{freedom},{p:.3g}", flush=True)
            if arm == "suffix":
                good &= 0 < accepted < drafted and p >= options.least_p
    for arm, (statistic, freedom) in sums.items():
        p = upper_gamma(freedom / 2, statistic / 2)
        print(f"all,{arm},{options.prompts * options.samples},,,{statistic:.1f},{freedom},{p:.3g}", flush=True)
        good &= (p >= options.least_p) == (arm == "suffix")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--tolerance", type=float, default=0, help="of log-probabilities; 0: the same bits")
    parser.add_argument("--samples", type=int, default=4000, help="of each arm and prompt; 0: none")
    parser.add_argument("--prompts", type=int, default=3, help="that samples are taken of")
    parser.add_argument("--length", type=int, default=5, help="tokens of each sample")
    parser.add_argument("--control", type=float, default=1.1, help="temperature of the control")
    parser.add_argument("--least-p", type=float, default=1e-3)
    parser.add_argument("--streams", type=int, default=4, help="requests at once, of greedy ones; a backend "
                        "that runs ahead guesses less beside other sequences")
    parser.add_argument("--choices", type=int, default=4, help="of a sampled request, which run at once")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Nothing of an earlier run serves this one.
    options.salt = f"speculation_exact {random.SystemRandom().getrandbits(64)}"
    client = Server(options.url)
    good = [options.requests == 0 or check_answers(client, options),
            options.samples == 0 or check_samples(client, options)]
    print("exact" if all(good) else "FAILED")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
