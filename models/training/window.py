"""Perplexity of an endless text through a window with attention sinks, as in StreamingLLM.

A token at position p sees the first n_sinks tokens and the nearest ones, `window` in all, with
positions counted in the cache:

    tokens      0 1 2 3 | evicted ....... | p-w+5 ... p
    positions   0 1 2 3                     4 ... w-1

Rotary positions count distances alone, so the near keys keep their rotation, and for the sinks the
query is turned back to position w-1.  What a layer stores of a token depends on the layer below
under the same window, so the whole text goes through layer by layer, nothing computed twice.
"""
import math

import torch
import torch.nn.functional as F

from network import rotate, rotations

BLOCK = 256  # queries at once


class Window:
    """The attention of network.hidden()'s attend, for one row."""

    def __init__(self, shape, size, n_sinks):
        self.shape, self.size, self.n_sinks = shape, size, n_sinks

    def __call__(self, layer, q, k, v, n_rows):
        group = self.shape.heads // self.shape.kv_heads
        k, v = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
        blocks = [self.block(q[a:a + BLOCK], k, v, a) for a in range(0, len(q), BLOCK)]
        return torch.cat(blocks).flatten(1)

    def turned_back(self, q, positions):
        """The queries at the positions in the cache that they have."""
        in_cache = positions.clamp(max=self.size - 1)
        cos, sin = rotations(in_cache - positions, self.shape.head_size, self.shape.rope_base)
        return rotate(q, cos.to(q.dtype), sin.to(q.dtype))

    def block(self, q, k, v, first):
        """q [n, heads, size] at positions first...; k, v [heads, N, size] -> [n, heads, size]."""
        positions = torch.arange(first, first + len(q), device=q.device)
        near = max(self.n_sinks, first - (self.size - self.n_sinks) + 1)
        end = first + len(q)
        keys = torch.arange(near, end, device=q.device)
        n_near = self.size - self.n_sinks
        visible = (keys <= positions[:, None]) & (keys > positions[:, None] - n_near)
        sinks = torch.arange(self.n_sinks, device=q.device) <= positions[:, None]
        scale = 1 / math.sqrt(q.shape[-1])
        wide = q.float().transpose(0, 1)
        turned = self.turned_back(q.float(), positions).transpose(0, 1)
        scores = torch.cat([turned @ k[:, :self.n_sinks].float().mT,
                            wide @ k[:, near:end].float().mT], dim=-1) * scale
        scores = scores.masked_fill(~torch.cat([sinks, visible], dim=-1), float("-inf"))
        values = torch.cat([v[:, :self.n_sinks], v[:, near:end]], dim=1).float()
        if self.shape.sink == "zero":
            scores, values = F.pad(scores, (1, 0)), F.pad(values, (0, 0, 1, 0))
        return (scores.softmax(dim=-1) @ values).transpose(0, 1).to(q.dtype)


@torch.no_grad()
def streamed(network, ids, size, n_sinks):
    """The losses of the tokens that come when the window is full, behind positions size, ..."""
    hidden = network.hidden(ids[None, :-1], Window(network.shape, size, n_sinks))
    losses = [F.cross_entropy(network.logits(part).float(), targets, reduction="none")
              for part, targets in zip(hidden[size:].split(8192), ids[size + 1:].split(8192))]
    return torch.cat(losses)


def spread(ids, size, n_positions):
    """Positions spread over the text behind its first window."""
    step = max(1, (len(ids) - size - 1) // n_positions)
    return torch.arange(size, len(ids) - 1, step)[:n_positions]


@torch.no_grad()
def recomputed(network, ids, size, positions, rows_at_once, bos=None):
    """The losses of the tokens behind these positions, each with a window that is computed anew."""
    losses = []
    for some in positions.split(rows_at_once):
        rows = torch.stack([ids[end - size + 1:end + 1] for end in some])
        if bos is not None:
            rows[:, 0] = bos
        last = network.hidden(rows).view(len(some), size, -1)[:, -1]
        logits = network.logits(last).float()
        losses.append(F.cross_entropy(logits, ids[some + 1], reduction="none"))
    return torch.cat(losses)
