#!/usr/bin/env python3
"""Times a layer with a recurrent state (Gated DeltaNet) beside flash-linear-attention.

    fla_delta.py build/tests/cuda/recurrent_test

Runs `recurrent_test --bench delta` first, and then the kernels of flash-linear-attention (PyPI: fla-core) on the same GPU, as its
own layer calls them: the convolution, the chunked rule with the gates and the norms of q and k, and the norm and the gate
of the output.  Each time is the median of replays of a CUDA graph, so the host's launches count in neither.  Prints CSV;
`ratio` is quire's time of the same work over FLA's.  It needs PyTorch, Triton and einops."""
import csv
import re
import statistics
import subprocess
import sys

import torch
from fla.modules import FusedRMSNormGated
from fla.modules.causal_conv1d import causal_conv1d
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

DIM, WIDTH, WINDOW = 128, 4, 64
PROMPT = re.compile(r"prompt,delta (\d+)/(\d+) heads of 128,(\d+) rows,1 sequences,window (\d+): whole ([\d.]+) us "
                    r"\(convolve ([\d.]+) prepare [\d.]+ scan [\d.]+\) output ([\d.]+)")
DECODE = re.compile(r"decode,delta (\d+)/(\d+) heads of 128,(\d+) sequences: ([\d.]+) us a layer")


class Layer:
    """The inputs of a layer for some rows, as its products leave them."""

    def __init__(self, n_k_heads, n_v_heads, n_seqs, n_rows):
        def rows(*shape, dtype=torch.bfloat16):
            return torch.randn(n_seqs, n_rows, *shape, device="cuda", dtype=dtype)
        self.n_k_heads, self.n_v_heads = n_k_heads, n_v_heads
        self.n_keys = n_k_heads * DIM
        n_channels = 2 * self.n_keys + n_v_heads * DIM
        self.qkv = rows(n_channels)
        self.z, self.a, self.b = rows(n_v_heads, DIM), rows(n_v_heads), rows(n_v_heads)
        self.conv = torch.randn(n_channels, WIDTH, device="cuda", dtype=torch.bfloat16)
        self.a_log = torch.rand(n_v_heads, device="cuda")
        self.dt_bias = torch.rand(n_v_heads, device="cuda")
        self.norm = FusedRMSNormGated(DIM, activation="swish").to("cuda", torch.bfloat16)
        self.state = torch.zeros(n_seqs, n_v_heads, DIM, DIM, device="cuda")

    def convolve(self):
        """FLA's rule copies q, k and v, whose rows lie apart here, before it begins."""
        mixed = causal_conv1d(x=self.qkv, weight=self.conv, activation="silu", backend="triton")[0]
        q, k, v = torch.split(mixed, [self.n_keys, self.n_keys, self.n_v_heads * DIM], dim=-1)
        self.q, self.k = (x.unflatten(-1, (self.n_k_heads, DIM)) for x in (q, k))
        self.v = v.unflatten(-1, (self.n_v_heads, DIM))

    def pack(self):
        self.q, self.k, self.v = (x.contiguous() for x in (self.q, self.k, self.v))

    def rule(self, run=chunk_gated_delta_rule):
        self.out, _ = run(
            q=self.q, k=self.k, v=self.v, g=self.a, beta=self.b, initial_state=self.state,
            output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, state_v_first=True, A_log=self.a_log, dt_bias=self.dt_bias)

    def output(self):
        self.norm(self.out, self.z)


def microseconds(work, n_times=7):
    """The median of replays, once all kernels have been compiled and chosen."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(n_times + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[2:])


@torch.inference_mode()
def prompt(n_k_heads, n_v_heads, n_rows):
    """The times of the rule alone, of the convolution before it as well, and of all."""
    layer = Layer(n_k_heads, n_v_heads, 1, n_rows)
    mixes = microseconds(lambda: (layer.convolve(), layer.rule()))
    whole = microseconds(lambda: (layer.convolve(), layer.rule(), layer.output()))
    layer.pack()
    return microseconds(layer.rule), mixes, whole


@torch.inference_mode()
def decode(n_k_heads, n_v_heads, n_seqs):
    """The rule alone, without convolution, norm and gate, which quire's time includes."""
    layer = Layer(n_k_heads, n_v_heads, n_seqs, 1)
    layer.convolve()
    layer.pack()
    return microseconds(lambda: layer.rule(fused_recurrent_gated_delta_rule))


def main():
    shown = subprocess.run([sys.argv[1], "--bench", "delta"], check=True, capture_output=True, text=True).stdout
    out = csv.writer(sys.stdout)
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}")
    out.writerow(["work", "k_heads", "v_heads", "rows", "quire_us", "fla_us", "ratio"])
    for line in sorted(shown.splitlines(), key=lambda line: line.startswith("decode")):
        if found := PROMPT.match(line):
            k, v, n, window = map(int, found.groups()[:4])
            whole, convolve, output = map(float, found.groups()[4:])
            if window != WINDOW:
                continue
            fla = prompt(k, v, n)
            for work, ours, theirs in (("rule", whole - convolve, fla[0]),
                                       ("convolution and rule", whole, fla[1]),
                                       ("layer", whole + output, fla[2])):
                out.writerow([work, k, v, n, f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.3f}"])
        elif found := DECODE.match(line):
            k, v, n = map(int, found.groups()[:3])
            ours, theirs = float(found[4]), decode(k, v, n)
            out.writerow(["decode", k, v, n, f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.3f}"])
        sys.stdout.flush()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
