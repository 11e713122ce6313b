#!/usr/bin/env python3
"""Measures what speculation does to the rate of one stream, on a running server.

    build/quire serve
    scripts/load/speculation.py --tokens 4096 16384 --repeats 5

Each case is a prompt of about --tokens tokens, asked with speculation "off" and "suffix" in turns behind
a call that puts it into the prefix cache.  The rate is that of the tokens behind the first one, so the
prompt's time is no part of it.

    record      the prompt is a numbered list, and begins to repeat it
    book        a part of the held-out books twice; the second time it stops in the middle
    extract     numbers hidden in a book's text, asked for together
    quotes      a part of the held-out books, and the beginning of a summary that quotes it
    edit        this project's C code, and its beginning again with a name replaced
    chat        a part of the held-out books in a chat, and what the model thinks of it
    free        "book", answered at temperature 0.7: the answer leaves the text at once, and quotes nothing
    noise       random tokens, answered at temperature 1, where a small model soon repeats itself
    once_more   what "free" asks, with the same seed, once more: the text quotes nothing, but the first answer is there
    asked       "extract" where an earlier text has had the same numbers at other places, and the
                question other words

Before the last two, the first request is asked with speculation, so that its answer is a recent one.  Each case
of a run has a cache_salt of its own, so that it knows no other answers but its own ones.

With --streams each case is asked by that many clients at once, each with a prompt of its own, and the rate
is that of all their tokens, from the first request to the last answer.

On a machine that others use, too, --cpu-of PID measures the CPU time of the server with this process id in
place of the time that passes.

Needs nothing but Python.  Prints CSV: case, tokens of the prompt, tokens of the answer, share of the answer
that was guessed, accepted share of the guesses, median rates without and with, and their ratio with its
lowest and highest pair.  Exits 1 if a greedy answer differs, or a ratio is below --least.
"""
import argparse
import concurrent.futures
import dataclasses
import random
import re
import statistics
import sys

from serving import ROOT, Server, clock

HELD_OUT = ROOT / "models/quire-31m/eval/held_out.txt"
CHARS_PER_TOKEN = 3.6
CODE_CHARS_PER_TOKEN = 2.5


def record_of(n_tokens, seed):
    rng = random.Random(seed)
    lines = []
    while sum(map(len, lines)) < n_tokens * 1.9:
        lines.append(f"Line {len(lines) + 1}: the number is {rng.randrange(10**6)}.\n")
    return "".join(lines) + "\nThe same list again:\n" + "".join(lines[:4])


def part_of(text, n_chars, rng):
    begin = rng.randrange(len(text) - n_chars)
    return text[begin:begin + n_chars]


def part_of_books(n_tokens, rng, n_less):
    """So many tokens of the held-out books, less n_less characters."""
    return part_of(HELD_OUT.read_text(encoding="utf-8"), int(n_tokens * CHARS_PER_TOKEN) - n_less, rng)


def book_of(n_tokens, seed):
    part = part_of_books(n_tokens, random.Random(seed), 1200)
    return part + "\n\n" + part[:1200]


def chat_with(text, question):
    return f"<|im_start|>user\n{text}\n{question}<|im_end|>\n<|im_start|>assistant\n"


def chat_of(n_tokens, seed):
    part = part_of_books(n_tokens, random.Random(seed), 100)
    return chat_with(part + "\n", "What do you think of this text, and of the people in it?")


def quotes_of(n_tokens, seed):
    """The third quotation has begun; the answer goes on with it."""
    part = part_of_books(n_tokens, random.Random(seed), 1300)
    first, second, third = (part[len(part) * i // 4:][:300] for i in (1, 2, 3))
    return (f"{part}\n\nA summary of this text, with quotations.\n\nAt first we read: “{first}”\n\nThen it says: "
            f"“{second}”\n\nAnd near the end: “{third}")


def edit_of(n_tokens, seed):
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("engine/**/*.c")))
    part = part_of(code, int(n_tokens * CODE_CHARS_PER_TOKEN) - 1200, random.Random(seed))
    return part + "\n\n/* The same with n as count. */\n\n" + re.sub(r"\bn\b", "count", part[:1200])


def noise_of(n_tokens, seed):
    rng = random.Random(seed)
    return [rng.randrange(300, 7300) for _ in range(n_tokens)]


CITIES = ("Dakar", "Melbourne", "Portland", "Lahore", "Lisbon", "Nairobi", "Oslo", "Quito")
NUMBERS = "The special magic number for {} is {}."
QUESTIONS = ("What are the special magic numbers for {}?", "What are all the special magic numbers for {}, please?")


def asked_of(n_tokens, seed, place=0):
    """place: which of two texts it is; the numbers are the same."""
    rng = random.Random(seed)
    numbers = [(city, rng.randrange(10**6, 10**7)) for city in rng.sample(CITIES, 4)]
    rng = random.Random(f"{seed} {place}")
    lines = part_of_books(n_tokens, rng, 600).split("\n\n")
    for city, number in rng.sample(numbers, len(numbers)):
        lines.insert(rng.randrange(len(lines)), NUMBERS.format(city, number))
    cities = ", ".join(city for city, _ in numbers[:-1]) + " and " + numbers[-1][0]
    return chat_with("Some special magic numbers are hidden within the following text. Make sure to memorize "
                     "it. I will quiz you about the numbers afterwards.\n\n" + "\n\n".join(lines),
                     QUESTIONS[place].format(cities))


@dataclasses.dataclass
class Case:
    make: callable  # makes a prompt of so many tokens, by a seed
    temperature: float
    first: callable = None  # makes a prompt that is asked before
    n_answer: int = 10**9  # tokens of the answer, if it ends


CASES = {"record": Case(record_of, 0), "book": Case(book_of, 0), "extract": Case(asked_of, 0, n_answer=44),
         "quotes": Case(quotes_of, 0), "edit": Case(edit_of, 0), "chat": Case(chat_of, 0), "free": Case(book_of, 0.7),
         "noise": Case(noise_of, 1), "once_more": Case(book_of, 0.7, first=book_of),
         "asked": Case(lambda n, seed: asked_of(n, seed, 1), 0, first=asked_of, n_answer=44)}


class Answer:
    """One stream: its text, the rate of the tokens behind the first event, and the usage.  Events count their
    tokens and do not name them: the first one would name the prompt's, too, and a long list comes late."""

    def __init__(self, options, prompt, **parameters):
        body = {"prompt": prompt, "stream": True, "ignore_eos": True, "seed": 1,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True}, **parameters}
        self.text, begin, n_first = "", None, 0
        for event in Server(options.url).events(body):
            self.usage = event["usage"]
            self.text += "".join(choice["text"] for choice in event["choices"])
            if begin is None and self.n > 0:
                begin, n_first = clock(options.cpu_of), self.n
        self.rate = (self.n - n_first) / max(clock(options.cpu_of) - begin, 1e-9)

    @property
    def n(self):
        """The number of its tokens so far."""
        return self.usage["completion_tokens"]


def ask_all(options, prompts, **parameters):
    """An answer for each prompt, asked at once, and the rate of their tokens."""
    begin = clock(options.cpu_of)
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as threads:
        answers = list(threads.map(lambda prompt: Answer(options, prompt, **parameters), prompts))
    if len(prompts) == 1:
        return answers, answers[0].rate
    return answers, sum(one.n for one in answers) / max(clock(options.cpu_of) - begin, 1e-9)


def measure(options, name, n_tokens):
    """A row of the table; whether all is as it should be."""
    case = CASES[name]
    n_answer = min(options.answer, case.n_answer)
    parameters = {"temperature": case.temperature, "cache_salt": f"{options.salt} {name} {n_tokens}"}
    pairs, drafted, accepted, n, same = [], 0, 0, 0, True
    for i in range(options.repeats):
        seeds = [options.seed + i * options.streams + k for k in range(options.streams)]
        prompts = [case.make(n_tokens, seed) for seed in seeds]
        for seed in seeds if case.first else ():
            Answer(options, case.first(n_tokens, seed), max_tokens=n_answer, speculation="suffix", **parameters)
        for prompt in prompts:
            Answer(options, prompt, max_tokens=1, **parameters)
        one, rates = {}, {}
        for mode in ("off", "suffix") if i % 2 == 0 else ("suffix", "off"):
            one[mode], rates[mode] = ask_all(options, prompts, max_tokens=n_answer,
                                             speculation=mode, **parameters)
        pairs.append((rates["off"], rates["suffix"]))
        for before, after in zip(one["off"], one["suffix"]):
            same &= before.text == after.text
            spent = after.usage["speculation"]
            drafted, accepted = drafted + spent["drafted"], accepted + spent["accepted"]
            n += after.n
    ratios = [after / before for before, after in pairs]
    ratio = statistics.median(ratios)
    print(f"{name},{one['off'][0].usage['prompt_tokens']},{n // options.repeats},{accepted / n:.2f},"
          f"{accepted / max(1, drafted):.2f},{statistics.median(a for a, _ in pairs):.1f},"
          f"{statistics.median(b for _, b in pairs):.1f},{ratio:.2f},{min(ratios):.2f},{max(ratios):.2f},"
          f"{'same' if same else 'DIFFERENT'}", flush=True)
    return same and ratio >= options.least


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--answer", type=int, default=256, help="tokens of each answer")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu-of", type=int)
    parser.add_argument("--least", type=float, default=0, help="the lowest median ratio that will do")
    options = parser.parse_args()
    options.salt = f"speculation {random.SystemRandom().getrandbits(64)}"
    print("case,prompt,answer,guessed,accepted,off,suffix,ratio,lowest,highest,answers")
    good = [measure(options, name, n) for n in options.tokens for name in options.cases]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
