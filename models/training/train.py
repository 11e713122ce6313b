#!/usr/bin/env python3
"""Trains by one settings file, on one device or several, in one run or several.

    python train.py --settings settings/quire-31m.json --corpus DIR --out DIR [--seconds 1200]
    torchrun --nproc-per-node 2 train.py ... (the same)

A training goes on from the checkpoint in --out, if there is one.  Its progress from 0 to 1, which
decides row lengths and learning rate, counts tokens; or, with --seconds, the time of this run,
which then ends where --until says, whatever the device is: for a machine that is there for a limited time.
--probe S trains for S seconds on each row length and prints the speeds, to plan that time.

--out gets checkpoint.pt (and light.pt, the weights alone) and log.csv.
"""
import argparse
import csv
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

import checkpoint
from network import Network, Shape, initial_weights
from optimizer import Optimizer
from plan import Plan
from rows import Feeder
from sinks import Sinks

CHECKPOINT_SECONDS = 240
LOG_STEPS = 10
RIGHT = 0.6931  # a token counts as known if it has half of the probability: -log 0.5
COLUMNS = ["step", "progress", "seconds", "tokens", "tokens_per_s", "text", "answer", "known",
           "sink", "rate", "gradient", "waited", "gib"]


class Devices:
    """The processes of a run, one device each."""

    def __init__(self):
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0))
        local = int(os.environ.get("LOCAL_RANK", 0))
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", local) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo")

    @property
    def leads(self):
        return self.rank == 0

    def agree(self, *values):
        """The leader's numbers, in every process."""
        if self.world == 1:
            return values
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(numbers, 0)
        return tuple(numbers.tolist())

    def average_gradients(self, weights):
        """One message for all of them."""
        if self.world == 1:
            return
        gradients = [weight.grad for weight in weights.values()]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / self.world
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(part.view_as(gradient))

    def total(self, numbers):
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers


class Clock:
    """The progress of a training: by its tokens, or by the seconds of this run."""

    def __init__(self, plan, start, seconds, until):
        self.total, self.start = plan["total_tokens"], start
        self.seconds, self.until, self.began = seconds, until, None

    def progress(self, tokens):
        if self.seconds is None:
            return min(self.until, tokens / self.total)
        if self.began is None:  # the first step, which compiles, is not counted
            return self.start
        share = min(1.0, (time.monotonic() - self.began) / self.seconds)
        return self.start + (self.until - self.start) * share

    def begin(self):
        self.began = self.began or time.monotonic()


class Trainer:
    def __init__(self, options):
        self.options, self.devices = options, Devices()
        self.plan = Plan(options.settings)
        device = self.devices.device
        shape, state = Shape(**self.plan.model), None
        self.place = {"step": 0, "tokens": 0, "progress": 0.0}
        found = self.find_checkpoint()
        if found:
            _, self.weights, self.place, state = checkpoint.load(found, device)
            if options.resume_at is not None:
                self.place["progress"] = options.resume_at
            self.say(f"goes on from {found.name}: {self.place}")
        else:
            self.weights = initial_weights(shape, self.plan.seed, device)
        cuda = device.type == "cuda"
        self.network = Network(self.weights, shape, torch.bfloat16 if cuda else torch.float32, cuda)
        settings = self.plan.sinks
        self.sinks = settings and Sinks(self.network.attend, settings,
                                        self.plan.seed + self.devices.rank, device)
        self.optimizer = Optimizer(self.weights, shape, self.plan.optimizer)
        if state:
            self.optimizer.load(state)
        self.loss_weights = torch.tensor(self.plan.loss_weights, device=device)
        self.n_micro_batches = self.plan.micro_batches(self.devices.world)
        self.first_step, self.sums = self.place["step"], torch.zeros(6, device=device)
        self.waited, self.logged = 0.0, (time.monotonic(), self.place["tokens"])

    def find_checkpoint(self):
        for name in ("checkpoint.pt", "light.pt"):
            if (self.options.out / name).is_file():
                return self.options.out / name
        return None

    def say(self, text):
        if self.devices.leads:
            print(f"train: {text}", flush=True)

    def to_device(self, batch):
        """(inputs, targets, losses of the targets) of a batch of rows."""
        ids, losses = (torch.from_numpy(array) for array in batch)
        if self.devices.device.type == "cuda":
            ids, losses = ids.pin_memory(), losses.pin_memory()
        ids = ids.to(self.devices.device, non_blocking=True).long()
        losses = losses.to(self.devices.device, non_blocking=True).long()
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), losses[:, 1:].reshape(-1)

    def micro_batch(self, batch):
        """Adds one micro-batch's gradient; the loss is a mean weighted by what tokens are."""
        inputs, targets, kinds = self.to_device(batch)
        if self.sinks:
            self.sinks.begin(inputs.shape[1], inputs.device)
        losses = self.network.losses(inputs, targets, self.sinks)
        weights = self.loss_weights[kinds]
        loss = (losses * weights).sum() / weights.sum().clamp(min=1)
        share = torch.zeros((), device=loss.device)
        if self.sinks:
            missing, share = self.sinks.term()
            loss = loss + missing
        (loss / self.n_micro_batches).backward()
        losses, text, answer = losses.detach(), kinds == 1, kinds == 2
        self.sums += torch.stack([
            (losses * text).sum(), text.sum(), (losses * answer).sum(), answer.sum(),
            (answer & (losses < RIGHT)).sum(), share])
        return targets.numel()

    def step(self, feeder, step, rate):
        """(tokens of this step in all processes, norm of the gradient)."""
        n_tokens = 0
        for m in range(self.n_micro_batches):
            started = time.monotonic()
            batch = feeder.take(step, m)
            self.waited += time.monotonic() - started
            n_tokens += self.micro_batch(batch)
        self.devices.average_gradients(self.weights)
        return n_tokens * self.devices.world, self.optimizer.step(rate)

    def run(self):
        options, place = self.options, self.place
        feeder = Feeder(self.plan, options.corpus, options.tokenizer, self.devices.rank,
                        self.n_micro_batches, options.workers)
        clock = Clock(self.plan, place["progress"], options.seconds, options.until)
        saved = began = time.monotonic()
        try:
            while True:
                (progress,) = self.devices.agree(clock.progress(place["tokens"]))
                if progress >= options.until:
                    break
                feeder.order(place["step"], progress)
                rate = self.plan.rate(progress, place["step"] - self.first_step)
                n_tokens, norm = self.step(feeder, place["step"], rate)
                if clock.began is None:
                    self.say(f"the first step took {time.monotonic() - began:.1f} s")
                    self.logged = (time.monotonic(), place["tokens"] + n_tokens)
                    self.waited = 0.0
                clock.begin()
                place.update(step=place["step"] + 1, tokens=place["tokens"] + n_tokens,
                             progress=progress)
                if place["step"] % LOG_STEPS == 0:
                    self.log(began, rate, norm)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = time.monotonic()
        finally:
            feeder.stop()
        place["progress"] = options.until
        self.save()
        self.say(f"{place['tokens'] / 1e6:.1f} M tokens in {place['step']} steps; this run took "
                 f"{time.monotonic() - began:.0f} s")

    def log(self, began, rate, norm):
        sums = self.devices.total(self.sums.clone()).tolist()
        text, n_text, answer, n_answer, known, share = sums
        self.sums.zero_()
        then, tokens = self.logged
        self.logged = (time.monotonic(), self.place["tokens"])
        if not text + answer < float("inf"):
            raise RuntimeError("the loss is not finite")
        cuda = self.devices.device.type == "cuda"
        row = {"step": self.place["step"], "progress": round(self.place["progress"], 4),
               "seconds": round(time.monotonic() - began, 1), "tokens": int(self.place["tokens"]),
               "tokens_per_s": int((self.place["tokens"] - tokens) / (self.logged[0] - then)),
               "text": round(text / max(1, n_text), 4),
               "answer": round(answer / max(1, n_answer), 4),
               "known": round(known / max(1, n_answer), 4),
               "sink": round(share / (LOG_STEPS * self.n_micro_batches * self.devices.world), 3),
               "rate": round(rate, 4),
               "gradient": round(float(norm), 3),
               "waited": round(self.waited / (self.logged[0] - then), 3),
               "gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if cuda else 0}
        self.waited = 0.0
        if self.devices.leads:
            self.write_row(row)

    def write_row(self, row):
        path = self.options.out / "log.csv"
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)

    def save(self):
        if self.devices.leads:
            out, arguments = self.options.out, (self.plan, self.weights, self.place)
            checkpoint.save(out / "checkpoint.pt", *arguments, optimizer=self.optimizer)
            checkpoint.save(out / "light.pt", *arguments)

    def probe(self, seconds):
        """Speeds by row length, with rows of one kind, which cost what any others cost."""
        entries, n = self.plan.model["entries"], self.plan["tokens_per_micro_batch"]
        lengths = sorted({int(length) for phase in self.plan.phases for length in phase["lengths"]})
        for length in lengths:
            size = (max(1, n // length), length + 1)
            batch = (torch.randint(entries, size, dtype=torch.int32).numpy(),
                     torch.ones(size, dtype=torch.uint8).numpy())
            for _ in range(2):  # what is compiled or measured is done before the clock starts
                self.micro_batch(batch)
                self.optimizer.step(0.0)
            n_tokens, started = 0, time.monotonic()
            while time.monotonic() - started < seconds:
                n_tokens += sum(self.micro_batch(batch) for _ in range(self.n_micro_batches))
                self.devices.average_gradients(self.weights)
                float(self.optimizer.step(0.0))
            speed = n_tokens * self.devices.world / (time.monotonic() - started)
            self.say(f"rows of {length}: {speed / 1e3:.0f} thousand tokens/s")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--settings", required=True, type=pathlib.Path)
    parser.add_argument("--corpus", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="(CORPUS/tokenizer/tokenizer.json)")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, help="time of this run, from its second step on")
    parser.add_argument("--until", type=float, default=1.0, help="progress at which this run ends")
    parser.add_argument("--resume-at", type=float, metavar="PROGRESS",
                        help="progress at which a checkpoint is taken up (its own): an earlier one"
                             " trains a finished model on, with the rate high again")
    parser.add_argument("--workers", type=int, help="processes that make rows, for each device")
    parser.add_argument("--probe", type=float, metavar="SECONDS")
    options = parser.parse_args()
    options.tokenizer = options.tokenizer or options.corpus / "tokenizer" / "tokenizer.json"
    if options.workers is None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        options.workers = max(1, (len(os.sched_getaffinity(0)) - 2) // local)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def main():
    options = parse_arguments()
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(options)
    if options.probe:
        trainer.probe(options.probe)
    else:
        trainer.run()
    if trainer.devices.world > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
