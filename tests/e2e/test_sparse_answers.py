"""Answers tell patterns that find what a prompt asks for from patterns that do not.

With nothing dense behind them, not even the prompt's last token, and an answer whose first token is
the first digit of a number hidden in the prompt, only a choice of keys that looked at the prompt
can be right: drawn lines, or the nearest tokens, must fail with as much to visit.  (An answer's
further tokens see everything, and so would its first one, had the prompt gone layer by layer.)

What counts as much is the share of pairs that was visited, not the numbers that a pattern names:
lines that were found lie in other groups of slots than drawn ones, which often coincide."""
import random

import pytest

from server import LONG, Server

SETTINGS = ("--max-long-tokens", 1, "--max-num-batched-tokens", 8192,
            "--dense-tail", 0, "--enable-prefix-caching", "false", "--max-model-len", 8192)
FOUND = {"mode": "sparse", "pattern": {"type": "vertical_slash", "columns": 60, "diagonals": 130}}
DRAWN = {"mode": "sparse",
         "pattern": {"type": "vertical_slash", "columns": 100, "diagonals": 200}}
NEAREST = {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 100, "recent": 450}}
N_PROMPTS = 8 if LONG else 2
MOST_LUCKY = N_PROMPTS * 3 // 4  # of so many, by digits in ten and what little the tokens around it know


def prompt_of(rng):
    """(prompt, the number that it asks for)"""
    key = rng.randrange(10000, 99999)
    lines = ["The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
             "again. "] * 160
    lines.insert(rng.randrange(8, 140), f"The pass key is {key}. Remember it. {key} is the pass "
                 "key. ")
    return ("<|im_start|>user\nThere is an important info hidden inside a lot of irrelevant text. "
            f"Find it and memorize it.\n{''.join(lines)}\nWhat is the pass key?<|im_end|>\n"
            "<|im_start|>assistant\nThe pass key is ", str(key))


def answered(server, prefill):
    """(how many of the prompts, the share of pairs that they visited)"""
    rng, n, density = random.Random(5), 0, 0
    for _ in range(N_PROMPTS):
        prompt, key = prompt_of(rng)
        answer = server.complete(prompt, prefill=prefill, max_tokens=len(key), temperature=0)
        n += answer["choices"][0]["text"] == key
        density += answer["usage"]["prefill"]["density"] / N_PROMPTS
    return n, density


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("found"), *SETTINGS) as server:
        yield server


def test_lines_that_are_looked_for_answer(found):
    n, density = answered(found, FOUND)
    assert n == N_PROMPTS and density < 0.21


def test_the_nearest_tokens_do_not(found):
    n, density = answered(found, NEAREST)
    assert n <= MOST_LUCKY and density > 0.21


def test_lines_that_are_drawn_do_not(tmp_path):
    with Server(tmp_path, *SETTINGS, "--synthetic-lines", 7) as drawn:
        n, density = answered(drawn, DRAWN)
    assert n <= MOST_LUCKY and density > 0.15
