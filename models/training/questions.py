"""What a checkpoint is asked: rows with known answers, hidden in held-out books.

Two sorts: the samples of scripts/quality/evaluation in the words that it uses, and fresh exercises
of every family of tasks/.  A row is (name, ids, losses, values).  Its answers are the runs of
Loss.ANSWER; values are the places in them, (start, end), that the evaluation's score looks for: one
number of four, say.  Families have none.
"""
import random

import numpy as np
from tokenizers import Tokenizer

from repository import CHATML, TASKS, Books, generate
from tasks import families
from tasks.library import HeldOut
from tasks.sample import BOS, TURN_END, Loss, Sample

SEED = 20260
SHORT = 2048  # rows up to this are asked the chats, too


def tokens_between(encoding, first, n_characters):
    """(start, end) of the tokens that have some of these characters of the text."""
    starts, ends = np.array(encoding.offsets).T
    return (int(np.searchsorted(ends, first, side="right")),
            int(np.searchsorted(starts, first + n_characters)))


class Asker:
    """Makes rows; one in each worker process."""

    def __init__(self, corpus, tokenizer_path, n_questions):
        self.n_questions = n_questions  # of a context, from the evaluation's tasks
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.held_out = HeldOut(corpus / "held_out.txt")
        self.books = Books((corpus / "held_out.txt").read_text().replace("\0", "\n\n"))

    def count(self, text):
        return 1 + len(self.tokenizer.encode(CHATML.apply(text), add_special_tokens=False).ids)

    def evaluation_rows(self, task, length, index):
        sample = generate(task, length, index, SEED, self.count, self.books)
        rows = []
        for question in sample.questions[:self.n_questions]:
            prompt = BOS + CHATML.apply(sample.context + question.text)
            row = Sample().add(prompt, Loss.PROMPT)
            row.add(question.expected + TURN_END, Loss.ANSWER)
            ids, losses = row.encode(self.tokenizer)
            if len(ids) <= length:
                values = self.places(prompt, question)
                rows.append((f"eval/{task}", ids, losses, values))
        return rows

    def places(self, prompt, question):
        """Where the tokens of each reference are in the prompt with its expected answer."""
        encoding = self.tokenizer.encode(prompt + question.expected, add_special_tokens=False)
        answer = question.expected.lower()
        return [tokens_between(encoding, len(prompt) + answer.index(reference.lower()), len(reference))
                for reference in question.references]

    def family_rows(self, name, length, index):
        rng = random.Random(f"{SEED}/{name}/{length}/{index}")
        sample = families.encoded(name, rng, length, self.held_out, self.tokenizer)
        return [] if sample is None else [(f"family/{name}", *sample, [])]

    def rows(self, order):
        sort, name, length, index = order
        make = self.evaluation_rows if sort == "eval" else self.family_rows
        return length, make(name, length, index)


ASKER = None  # of this worker process


def start_worker(corpus, tokenizer_path, n_questions):
    global ASKER
    ASKER = Asker(corpus, tokenizer_path, n_questions)


def ask(order):
    return ASKER.rows(order)


def orders(lengths, contexts, n_family_contexts):
    """Every (sort, name, length, index) to be asked; contexts: the indices of the tasks'."""
    found = []
    for length in lengths:
        names = [name for name in [*families.FAMILIES, *(families.CHATS if length <= SHORT else [])]
                 if families.SHORTEST.get(name, 0) <= length <= families.LONGEST.get(name, length)]
        found += [("eval", task, length, i) for i in contexts for task in TASKS]
        found += [("family", name, length, i) for i in range(n_family_contexts) for name in names]
    return found


def answers(losses):
    """(start, end) of each run of answer tokens."""
    is_answer = np.concatenate([[False], losses == Loss.ANSWER, [False]])
    edges = np.flatnonzero(is_answer[1:] != is_answer[:-1])
    return list(zip(edges[::2], edges[1::2]))
