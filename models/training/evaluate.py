#!/usr/bin/env python3
"""Measures a checkpoint: answers by length, perplexity of the held-out books, attention sinks, and
perplexity through a window with 0, 1, 2 and 4 of them.

    python evaluate.py --checkpoint FILE --corpus DIR --out results.json [--contexts 40]

An answer counts if it is the one that greedy decoding would give, to the letter: every token of it
is the most likely one behind the right ones before it.  "values" counts what the scores of
scripts/quality/eval look for in the answer, each by itself, behind the right words before it: one
of four numbers that is wrong costs a quarter.  The scores themselves come from a server, and are
what tables quote; this is the look after a training, on the same device, with nothing to install.
"""
import argparse
import json
import math
import multiprocessing
import os
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import attention
import checkpoint
import questions
import window
from network import Network
from tasks.sample import BOS, PAD

LENGTHS = (1024, 4096, 16384, 32768)
TOKENS_AT_ONCE = {"cuda": 131072, "cpu": 8192}
N_PROBED = 64  # last queries whose attention is looked at
N_FIRST = 4
SINKS = (0, 1, 2, 4)


def perplexity(losses):
    return math.exp(losses.mean())


class Evaluation:
    def __init__(self, options):
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        shape, self.settings, weights, self.place = checkpoint.load_for_evaluation(
            options.checkpoint, self.device)
        kind = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.network = Network(weights, shape, kind, compiled=False)
        self.tokenizer = Tokenizer.from_file(str(options.tokenizer))
        self.bos, self.pad = map(self.tokenizer.token_to_id, (BOS, PAD))
        self.begins = self.settings["begin"] == "bos"
        self.lengths = [n for n in options.lengths if n <= shape.context]
        books = (options.corpus / "held_out.txt").read_text().split("\0")
        self.books = [book[:options.book_characters] for book in books]
        self.results = {"name": self.settings["name"], "place": self.place}

    def batches(self, rows, length):
        size = max(1, TOKENS_AT_ONCE[self.device.type] // length)
        return [rows[i:i + size] for i in range(0, len(rows), size)]

    def hidden(self, rows, length, attend=None):
        """rows: lists of ids, padded behind -> [rows, length, hidden]."""
        ids = np.full((len(rows), length), self.pad, dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, :len(row)] = row
        hidden = self.network.hidden(torch.from_numpy(ids).to(self.device), attend)
        return hidden.view(len(rows), length, -1)

    # ------------------------------------------------------------------ answers
    def make_rows(self):
        options = self.options
        lengths = [n for n in options.answer_lengths or self.lengths if n in self.lengths]
        contexts = range(options.first_context, options.first_context + options.contexts)
        orders = questions.orders(lengths, contexts, options.family_contexts)
        arguments = (options.corpus, options.tokenizer, options.questions)
        rows = {length: [] for length in lengths}
        with multiprocessing.get_context("spawn").Pool(
                self.options.workers, questions.start_worker, arguments) as pool:
            for length, made in pool.imap_unordered(questions.ask, orders, chunksize=4):
                rows[length] += made
        return rows

    @torch.no_grad()
    def answers(self):
        self.results |= {"answers": {}, "values": {}}
        for length, rows in self.make_rows().items():
            rows.sort(key=lambda row: row[0])
            for some in self.batches(rows, length):
                hidden = self.hidden([row[1] for row in some], length)
                for (name, ids, losses, values), one in zip(some, hidden):
                    spans = questions.answers(losses)
                    right = self.right(one, ids, spans + values)
                    self.count("answers", name, length, right[:len(spans)])
                    if values:
                        self.count("values", name, length, right[len(spans):])

    def count(self, sort, name, length, right):
        total = self.results[sort].setdefault(name, {}).setdefault(str(length), [0, 0])
        total[0], total[1] = total[0] + sum(right), total[1] + len(right)

    def right(self, hidden, ids, spans):
        """Whether each span of tokens is what would be decoded greedily behind what is before."""
        places = np.concatenate([np.arange(a, z) for a, z in spans])
        best = self.network.logits(hidden[places - 1]).argmax(dim=-1).cpu().numpy()
        good = dict(zip(places.tolist(), best == ids[places]))
        return [all(good[p] for p in range(a, z)) for a, z in spans]

    # ------------------------------------------------------------------ perplexity
    def encoded_books(self):
        return [np.array(self.tokenizer.encode(text, add_special_tokens=False).ids)
                for text in self.books]

    def windows(self, books, length, longest):
        """BOS and length - 1 tokens of a book.  Every length covers the same text: as much of each
        book as whole windows of the longest length do."""
        head = [self.bos] if self.begins else []
        step = length - len(head)
        rows = []
        for book in books:
            covered = len(book) // (longest - len(head)) * (longest - len(head))
            rows += [np.concatenate([head, book[a:min(a + step, covered)]]).astype(np.int64)
                     for a in range(0, covered, step)]
        return rows

    @torch.no_grad()
    def perplexity(self):
        books = self.encoded_books()
        n_bytes = sum(len(text.encode()) for text in self.books)
        bytes_per_token = n_bytes / sum(map(len, books))
        self.results["bytes_per_token"] = bytes_per_token
        for length in sorted({2048, 8192, *self.lengths}):
            rows = self.windows(books, length, max(2048, *self.lengths))
            if length > self.network.shape.context or not rows:
                continue
            total, n = 0.0, 0
            for some in self.batches(rows, length):
                for row, hidden in zip(some, self.hidden(some, length)):
                    targets = torch.from_numpy(row[1:]).to(self.device)
                    logits = self.network.logits(hidden[:len(row) - 1]).float()
                    total += float(F.cross_entropy(logits, targets, reduction="sum"))
                    n += len(targets)
            self.results.setdefault("perplexity", {})[str(length)] = {
                "perplexity": math.exp(total / n), "tokens": n,
                "bits_per_byte": total / n / math.log(2) / bytes_per_token}

    # ------------------------------------------------------------------ sinks
    @torch.no_grad()
    def sinks(self):
        """The share of attention of the last tokens of a text that its first four get."""
        book = np.concatenate(self.encoded_books())
        for length in self.lengths:
            row, shares = self.windows([book], length, length)[0], []

            def attend(layer, q, k, v, n_rows):
                keys = attention.rows_of(k, 1)[0].float()
                keys = keys.repeat_interleave(q.shape[1] // k.shape[1], dim=0)
                last = q[-N_PROBED:].transpose(0, 1).float()
                scores = last @ keys.mT / math.sqrt(q.shape[-1])
                ahead = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
                scores = scores.masked_fill(ahead.triu(length - N_PROBED + 1), float("-inf"))
                if self.network.shape.sink == "zero":
                    scores = F.pad(scores, (0, 1))
                first = scores.softmax(dim=-1)[..., :N_FIRST].sum(dim=-1)
                shares.append([round(float(share), 4) for share in first.mean(dim=1)])
                return self.network.attend(q, k, v, n_rows)

            self.hidden([row], length, attend)
            deep = np.mean(shares[2:]) if len(shares) > 2 else np.mean(shares)
            self.results.setdefault("sinks", {})[str(length)] = {
                "mean_behind_second_layer": float(deep), "by_layer_and_head": shares}

    def through_windows(self):
        """The books as one endless text, through a window; and the same window computed anew."""
        size = self.options.window
        text = np.concatenate([[self.bos] * self.begins, *self.encoded_books()])
        ids = torch.from_numpy(text[:self.options.window_tokens].astype(np.int64)).to(self.device)
        bos = self.bos if self.begins else None
        rows_at_once = max(1, TOKENS_AT_ONCE[self.device.type] // size)
        losses = {n: window.streamed(self.network, ids, size, n) for n in SINKS}
        positions = window.spread(ids, size, self.options.window_positions)
        anew = window.recomputed(self.network, ids, size, positions, rows_at_once, bos)
        there = losses[N_FIRST][positions - size]
        self.results["window"] = {
            "size": size, "tokens": len(ids),
            "sinks": {str(n): perplexity(some) for n, some in losses.items()},
            "spread": {"positions": len(positions), "streamed": perplexity(there),
                       "recomputed": perplexity(anew)}}

    def run(self):
        for part in self.options.parts:
            getattr(self, part)()
            self.options.out.write_text(json.dumps(self.results, indent=1) + "\n")
            print(f"evaluate: {part} done", flush=True)


PARTS = ("perplexity", "sinks", "through_windows", "answers")


def print_summary(results):
    for length, row in results.get("perplexity", {}).items():
        print(f"perplexity {length}: {row['perplexity']:.2f}, "
              f"{row['bits_per_byte']:.4f} bits a byte")
    for length, row in results.get("sinks", {}).items():
        share = row["mean_behind_second_layer"]
        print(f"attention to the first {N_FIRST} at {length}: {share:.3f}")
    if "window" in results:
        print(f"window: {results['window']}")
    for sort in ("answers", "values"):
        for name, by_length in sorted(results.get(sort, {}).items()):
            cells = [f"{length}: {100 * right / n:.1f} ({n})"
                     for length, (right, n) in by_length.items()]
            print(f"{sort} {name}: {', '.join(cells)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--checkpoint", required=True, type=pathlib.Path)
    parser.add_argument("--corpus", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="(CORPUS/tokenizer/tokenizer.json)")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--answer-lengths", nargs="+", type=int, help="of the answers (all)")
    parser.add_argument("--contexts", type=int, default=40, help="of each task and length")
    parser.add_argument("--first-context", type=int, default=0,
                        help="that several devices may each ask some of them")
    parser.add_argument("--questions", type=int, default=2, help="of each context of a task")
    parser.add_argument("--family-contexts", type=int, default=12, help="of each family and length")
    parser.add_argument("--book-characters", type=int, help="of each held-out book (all)")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--window-tokens", type=int, default=420_000)
    parser.add_argument("--window-positions", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    options.tokenizer = options.tokenizer or options.corpus / "tokenizer" / "tokenizer.json"
    evaluation = Evaluation(options)
    evaluation.run()
    print_summary(evaluation.results)


if __name__ == "__main__":
    main()
