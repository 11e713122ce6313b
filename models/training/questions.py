"""What a checkpoint is asked: rows with known answers, hidden in held-out books.

Two sorts: the samples of scripts/quality/evaluation in the words that it uses, and fresh exercises
of every family of tasks/.  A row is (name, ids, losses); its answers are the runs of Loss.ANSWER.
"""
import random

import numpy as np
from tokenizers import Tokenizer

from repository import CHATML, TASKS, Books, generate
from tasks import families
from tasks.library import HeldOut
from tasks.sample import BOS, TURN_END, Loss, Sample

SEED = 20260
MOST_QUESTIONS = 2  # of a context, from the evaluation's tasks
SHORT = 2048  # rows up to this are asked the chats, too


class Asker:
    """Makes rows; one in each worker process."""

    def __init__(self, corpus, tokenizer_path):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.held_out = HeldOut(corpus / "held_out.txt")
        self.books = Books((corpus / "held_out.txt").read_text().replace("\0", "\n\n"))

    def count(self, text):
        return 1 + len(self.tokenizer.encode(CHATML.apply(text), add_special_tokens=False).ids)

    def evaluation_rows(self, task, length, index):
        sample = generate(task, length, index, SEED, self.count, self.books)
        rows = []
        for question in [q for q in sample.questions if q.expected][:MOST_QUESTIONS]:
            prompt = CHATML.apply(sample.context + question.text)
            row = Sample().add(BOS + prompt, Loss.PROMPT)
            row.add(question.expected + TURN_END, Loss.ANSWER)
            ids, losses = row.encode(self.tokenizer)
            if len(ids) <= length:
                rows.append((f"eval/{task}", ids, losses))
        return rows

    def family_rows(self, name, length, index):
        rng = random.Random(f"{SEED}/{name}/{length}/{index}")
        sample = families.encoded(name, rng, length, self.held_out, self.tokenizer)
        return [] if sample is None else [(f"family/{name}", *sample)]

    def rows(self, order):
        sort, name, length, index = order
        make = self.evaluation_rows if sort == "eval" else self.family_rows
        return length, make(name, length, index)


ASKER = None  # of this worker process


def start_worker(corpus, tokenizer_path):
    global ASKER
    ASKER = Asker(corpus, tokenizer_path)


def ask(order):
    return ASKER.rows(order)


def orders(lengths, n_contexts):
    """Every (sort, name, length, index) to be asked."""
    found = []
    for length in lengths:
        names = [name for name in [*families.FAMILIES, *(families.CHATS if length <= SHORT else [])]
                 if families.SHORTEST.get(name, 0) <= length <= families.LONGEST.get(name, length)]
        for index in range(n_contexts):
            found += [("eval", task, length, index) for task in TASKS]
            found += [("family", name, length, index) for name in names]
    return found


def answers(losses):
    """(start, end) of each run of answer tokens."""
    is_answer = np.concatenate([[False], losses == Loss.ANSWER, [False]])
    edges = np.flatnonzero(is_answer[1:] != is_answer[:-1])
    return list(zip(edges[::2], edges[1::2]))
