"""Batches of training rows, made by worker processes while the device computes.

A row is one document, and a batch has rows of one length: nothing is packed, and no mask is needed.

    <bos> text of one document ....................... (cut at the row's end)
    <bos> <im_start> user ... an exercise ... <im_end> <pad> <pad>

So every token of every row sees exactly one BOS, at position 0, and full causal attention is right:
the fastest kernels serve, and there is always a place to put unneeded attention (a sink).
What is in a batch depends on the seed, the process, the step and the micro-batch alone, not on
which worker made it.
"""
import multiprocessing
import os
import random
import traceback

import numpy as np
from tokenizers import Tokenizer

from tasks import families
from tasks.library import Libraries
from tasks.sample import BOS, EOT, PAD, Loss

BYTES_PER_TOKEN = 5.2  # more than text has, so that a row is full
LONGEST_CHAT = families.LONGEST_CHAT
STOP = None


class Maker:
    """Makes rows; one in each worker."""

    def __init__(self, plan, corpus, tokenizer_path):
        self.plan = plan
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.libraries = Libraries(corpus, plan["documents_share"])
        self.bos, self.eot, self.pad = map(self.tokenizer.token_to_id, (BOS, EOT, PAD))

    def text_row(self, rng, n):
        """n tokens of one document.  The vanilla twin's rows have no BOS."""
        opening = rng.random() < self.plan["openings_share"]
        text, is_end = self.libraries.passage(rng, int(n * BYTES_PER_TOKEN), opening)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        ids = ([self.bos] if self.plan["begin"] == "bos" else []) + ids + [self.eot] * is_end
        return np.array(ids[:n], dtype=np.uint16), np.full(min(n, len(ids)), Loss.TEXT, np.uint8)

    def row(self, rng, phase, n):
        shares = self.plan.phases[phase]
        if rng.random() < shares["text"]:
            return self.text_row(rng, n)
        chats = n <= LONGEST_CHAT + 1 and rng.random() < shares["chat"]
        _, ids, losses = families.draw(rng, n, self.libraries, self.tokenizer, chats)
        return ids, losses

    def batch(self, rank, step, micro_batch, phase, length):
        """(ids u16 [rows, length + 1], losses u8 of the same shape)."""
        rng = random.Random(f"{self.plan.seed}/{rank}/{step}/{micro_batch}")
        n_rows = max(1, self.plan["tokens_per_micro_batch"] // length)
        ids = np.full((n_rows, length + 1), self.pad, dtype=np.uint16)
        losses = np.zeros((n_rows, length + 1), dtype=np.uint8)
        for i in range(n_rows):
            row, row_losses = self.row(rng, phase, length + 1)
            ids[i, :len(row)], losses[i, :len(row)] = row, row_losses
        return ids, losses


def work(plan, corpus, tokenizer_path, rank, orders, made):
    """A worker's life: an order in, a batch out."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.nice(5)
    try:
        maker = Maker(plan, corpus, tokenizer_path)
        while (order := orders.get()) is not STOP:
            made.put((order[:2], maker.batch(rank, *order)))
    except Exception:  # the trainer must hear of it, whatever it was
        made.put((None, traceback.format_exc()))


class Feeder:
    """Orders batches ahead of their use and hands them out in order."""

    def __init__(self, plan, corpus, tokenizer_path, rank, n_micro_batches, n_workers):
        self.plan, self.n_micro_batches = plan, n_micro_batches
        context = multiprocessing.get_context("spawn")  # forked threads of a framework may hang
        self.orders, self.made = context.Queue(), context.Queue()
        self.ahead = max(2, -(-3 * n_workers // n_micro_batches))  # steps
        self.waiting, self.next_step = {}, None
        arguments = (plan, corpus, tokenizer_path, rank, self.orders, self.made)
        self.workers = [context.Process(target=work, args=arguments, daemon=True)
                        for _ in range(n_workers)]
        for worker in self.workers:
            worker.start()

    def order(self, step, progress):
        """Orders what is missing up to `ahead` steps from now, in the phase of the progress."""
        phase = self.plan.phase(progress)
        first = step if self.next_step is None else self.next_step
        for s in range(first, step + self.ahead):
            for m in range(self.n_micro_batches):
                self.orders.put((s, m, phase, self.plan.length(phase, s, m)))
        self.next_step = max(first, step + self.ahead)

    def take(self, step, micro_batch):
        while (step, micro_batch) not in self.waiting:
            key, batch = self.made.get(timeout=300)
            if key is None:
                raise RuntimeError(f"a worker failed:\n{batch}")
            self.waiting[key] = batch
        return self.waiting.pop((step, micro_batch))

    def stop(self):
        for worker in self.workers:
            worker.terminate()
