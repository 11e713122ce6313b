#!/usr/bin/env python3
"""Measures the first hit after a restart: fills --kv-disk-path, restarts the server with cold files,
and asks prompts that only the disk has.

    scripts/load/disk_restart.py --folder /var/tmp/quire-disk --gigabytes 10

Serves a model with random weights that computes little and keeps much: 128 KiB a token in f32, as
much as Llama-3-8B in bf16.  So blocks have the size of that model's, and filling the disk takes
minutes.  The disk's own rate is that of O_DIRECT reads of other files of the same folder, by one
thread and by four, right before.  Files are dropped from the page cache with drop_caches, which needs
root; without it they are only advised away (POSIX_FADV_DONTNEED).

Prints CSV: what, prompt tokens, cached tokens, MB read, milliseconds to the first token, those of the
same prompt asked at once again (from memory), CPU time of both, MB/s of the difference less --grace
milliseconds, and the share of the disk's rate.  CPU time tells what a busy machine adds.  Exits 1 if a prompt was not
found.  --without serves the second time with an empty folder: the case in which it must be bad.
"""
import argparse
import concurrent.futures
import mmap
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from serving import BINARY, ROOT, OwnServer

N_VOCAB = 8192
BLOCK = 64
TOKEN_BYTES = 128 << 10


def make_model(directory):
    subprocess.run([sys.executable, ROOT / "scripts/fixtures/make_bench_model.py", directory,
                    "--dim", "256", "--layers", "64", "--heads", "2", "--kv-heads", "2", "--ffn",
                    "64"], check=True)


class Server(OwnServer):
    def __init__(self, options, model, folder):
        super().__init__(
            options.binary, model, "--device", "cpu", "--kv-cache-memory", options.memory,
            "--max-model-len", 16384, "--max-num-seqs", 4, "--kv-disk-path", folder, "--kv-disk-size",
            f"{2 * options.gigabytes}G", "--prefill", "dense", "--allowed-kv-policies", "full",
            "--log-level", "warn")

    def cpu_ms(self):
        return 1e3 * self.cpu_seconds()

    def ask(self, prompt):
        """Milliseconds to the only token, and how many tokens were cached."""
        begin = time.monotonic()
        answer = self.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})
        return (1e3 * (time.monotonic() - begin),
                answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    def end(self):
        if self.stop() != 0:
            sys.exit("the server did not end well")


def prompt_of(number, n_tokens):
    rng = random.Random(number)
    return [rng.randrange(N_VOCAB - 16) for _ in range(n_tokens)]


def fill(options, server, lengths):
    for number, n_tokens in enumerate(lengths):
        server.ask(prompt_of(number, n_tokens))
        if number % 10 == 0:
            print(f"# {number + 1} of {len(lengths)} prompts, "
                  f"{server.metric('quire_kv_disk_bytes') / 1e9:.2f} GB", file=sys.stderr)


def wait_until_saved(server):
    """Waits until nothing more is written: what is cached is saved in pauses."""
    before = -1
    while (now := server.metric("quire_kv_disk_written_total")) != before:
        before = now
        time.sleep(3)
    print(f"# dropped: {server.metric('quire_kv_disk_dropped_total'):.0f}", file=sys.stderr)


def drop_caches(files):
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        return
    except OSError:
        pass
    for path in files:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_direct(path):
    """Reads a file past the page cache; returns its bytes but for a ragged end."""
    chunk = mmap.mmap(-1, 4 << 20)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    done = 0
    try:
        while (n := os.preadv(fd, [chunk], done)) == len(chunk):
            done += n
        return done + n
    finally:
        os.close(fd)


def disk_rate(files, n_threads):
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(n_threads) as threads:
        n_bytes = sum(threads.map(read_direct, files))
    return n_bytes / (time.monotonic() - begin) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--folder", required=True, help="emptied at the start and at the end")
    parser.add_argument("--gigabytes", type=int, default=10)
    parser.add_argument("--memory", default="2G", help="--kv-cache-memory")
    parser.add_argument("--grace", type=float, default=100, help="milliseconds")
    parser.add_argument("--keep", action="store_true", help="use what an earlier run has kept")
    parser.add_argument("--without", action="store_true")
    options = parser.parse_args()
    folder = pathlib.Path(options.folder)
    asked = [1024, 1024, 4096]
    n_fill = int(options.gigabytes * 1e9 / TOKEN_BYTES - sum(asked)) // 1024
    lengths = asked + [1024] * max(n_fill, 0)
    with tempfile.TemporaryDirectory() as model:
        make_model(model)
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
            server = Server(options, model, folder)
            fill(options, server, lengths)
            wait_until_saved(server)
            server.end()
        files = sorted(folder.glob("[0-9a-f][0-9a-f]/*"))
        n_bytes = sum(path.stat().st_size for path in files)
        random.Random(0).shuffle(files)
        drop_caches(files)
        rates = [disk_rate(files[:80], 1), disk_rate(files[-160:], 4)]
        print(f"# {len(files)} files, {n_bytes / 1e9:.2f} GB; the disk reads {rates[0]:.0f} MB/s "
              f"with one thread, {rates[1]:.0f} MB/s with four")
        drop_caches(files)
        if options.without:
            shutil.rmtree(folder)
        server = Server(options, model, folder)
        print(f"# the restart took {1e3 * server.start_s:.0f} ms")
        print("what,tokens,cached,read_mb,ms,warm_ms,cpu_ms,warm_cpu_ms,mb_per_s,share")
        missing = 0
        for number, n_tokens in enumerate(asked):
            before = server.metric("quire_kv_disk_read_bytes_total")
            cpu = [server.cpu_ms()]
            ms, cached = server.ask(prompt_of(number, n_tokens))
            cpu.append(server.cpu_ms())
            read_mb = (server.metric("quire_kv_disk_read_bytes_total") - before) / 1e6
            warm_ms, _ = server.ask(prompt_of(number, n_tokens))
            cpu.append(server.cpu_ms())
            rate = read_mb / max(1e-3 * (ms - warm_ms - options.grace), 1e-3)
            print(f"hit {number + 1},{n_tokens},{cached},{read_mb:.1f},{ms:.0f},{warm_ms:.0f},"
                  f"{cpu[1] - cpu[0]:.0f},{cpu[2] - cpu[1]:.0f},{rate:.0f},"
                  f"{rate / max(rates):.2f}")
            missing += cached != (n_tokens - 1) // BLOCK * BLOCK
        server.end()
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(missing > 0)


if __name__ == "__main__":
    main()
