"""Causal attention over whole rows, by the fastest kernel that this device has for the shape."""
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# (name, kernel, whether keys and values are repeated for each query head)
CANDIDATES = [("cudnn", SDPBackend.CUDNN_ATTENTION, False),
              ("cudnn repeated", SDPBackend.CUDNN_ATTENTION, True),
              ("flash", SDPBackend.FLASH_ATTENTION, False),
              ("flash repeated", SDPBackend.FLASH_ATTENTION, True)]
N_TIMED = 3
MOST_ERROR = 0.02  # of bf16 kernels against f32, relative


def rows_of(x, n_rows):
    """[N, heads, size] -> [rows, heads, length, size], without a copy."""
    return x.view(n_rows, -1, *x.shape[1:]).transpose(1, 2)


def call(kernel, repeat, q, k, v):
    if repeat:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if kernel is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not repeat)
    with sdpa_kernel(kernel):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not repeat)


class Attention:
    def __init__(self, shape):
        self.shape, self.chosen = shape, {}

    def __call__(self, q, k, v, n_rows):
        """q [N, heads, size], k and v [N, kv_heads, size], rotated -> [N, heads * size]."""
        if self.shape.sink == "zero":
            return self.with_zero_sink(q, k, v, n_rows)
        return self.dense(q, k, v, n_rows)

    def dense(self, q, k, v, n_rows):
        n = q.shape[0]
        kernel, repeat = self.kernel_for(q, n // n_rows)
        o = call(kernel, repeat, *(rows_of(x, n_rows) for x in (q, k, v)))
        return o.transpose(1, 2).reshape(n, -1)

    def with_zero_sink(self, q, k, v, n_rows):
        """StreamingLLM's Zero Sink: a key and a value of zeros before each row, so that the sum of
        the softmax has a one more (its logit is 0) and the values nothing.  A query stands with
        them to keep the mask causal; its result is dropped."""
        def padded(x):
            return F.pad(x.view(n_rows, -1, *x.shape[1:]), (0, 0, 0, 0, 1, 0)).flatten(0, 1)
        o = self.dense(padded(q), padded(k), padded(v), n_rows)
        return o.view(n_rows, -1, o.shape[-1])[:, 1:].reshape(q.shape[0], -1)

    def kernel_for(self, q, length):
        """(kernel, repeat): measured once for each row length; None leaves it to PyTorch."""
        if q.device.type != "cuda" or q.dtype != torch.bfloat16:
            return None, False
        if length not in self.chosen:
            self.chosen[length] = self.measure(q.shape[0], length, q.device)
        return self.chosen[length]

    def inputs(self, n_rows, length, device):
        def draw(heads):
            size = (n_rows, heads, length, self.shape.head_size)
            return torch.randn(size, device=device, dtype=torch.bfloat16).requires_grad_()
        return draw(self.shape.heads), draw(self.shape.kv_heads), draw(self.shape.kv_heads)

    @torch.enable_grad()
    def measure(self, n_tokens, length, device):
        """The fastest candidate, forward and backward, of those that are right."""
        times = {}
        for name, kernel, repeat in CANDIDATES:
            try:
                if not self.is_right(kernel, repeat, device):
                    continue
                q, k, v = self.inputs(max(1, n_tokens // length), length, device)
                for i in range(N_TIMED + 1):
                    if i == 1:  # the first call compiles or plans
                        torch.cuda.synchronize()
                        started = time.monotonic()
                    o = call(kernel, repeat, q, k, v)
                    o.backward(o.detach())
                torch.cuda.synchronize()
                times[name] = time.monotonic() - started, kernel, repeat
            except RuntimeError:  # this kernel does not take this shape here
                continue
        if not times:
            return None, False
        name = min(times, key=lambda one: times[one][0])
        milliseconds = {one: round(1e3 * times[one][0] / N_TIMED, 2) for one in times}
        print(f"attention: rows of {length}: {name} of {milliseconds} ms", flush=True)
        return times[name][1:]

    def is_right(self, kernel, repeat, device):
        torch.manual_seed(0)
        inputs = self.inputs(2, 384, device)
        wide = [x.detach().float().requires_grad_() for x in inputs]
        o, expected = call(kernel, repeat, *inputs), call(None, True, *wide)
        o.backward(o.detach())
        expected.backward(o.detach().float())
        pairs = [(o, expected), *((x.grad, y.grad) for x, y in zip(inputs, wide))]
        return all((a.float() - b).norm() <= MOST_ERROR * b.norm() for a, b in pairs)
