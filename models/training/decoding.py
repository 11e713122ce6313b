"""Greedy generation with a cache, plain and exact: for goldens and for the answers on the card."""
import torch
import torch.nn.functional as F

from attention import rows_of
from network import rotations


class Decoder:
    """One sequence.  Its keys and values are kept, rotated, by layer."""

    def __init__(self, network):
        self.network, self.keys, self.values = network, [], []

    @torch.no_grad()
    def read(self, ids):
        """Logits behind the last of the ids, which follow what was read before."""
        network = self.network
        past = self.keys[0].shape[0] if self.keys else 0
        device = network.weights["embedding"].device
        positions = torch.arange(past, past + len(ids), device=device)
        wide = torch.float64 if network.dtype == torch.float64 else torch.float32
        cos, sin = (table.to(wide) for table in rotations(
            positions, network.shape.head_size, network.shape.rope_base))
        network.tables = {(1, len(ids)): (cos, sin)}
        hidden = network.hidden(torch.tensor([ids], device=device), self.attend)
        network.tables = {}
        return network.logits(hidden[-1:])[0]

    def attend(self, layer, q, k, v, n_rows):
        if layer == len(self.keys):
            self.keys.append(k)
            self.values.append(v)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], k])
            self.values[layer] = torch.cat([self.values[layer], v])
        keys, values = (rows_of(x, 1) for x in (self.keys[layer], self.values[layer]))
        first = len(self.keys[layer]) == len(q)
        if not first and len(q) > 1:
            raise ValueError("behind the first read, one token at a time")
        o = F.scaled_dot_product_attention(rows_of(q, 1), keys, values, is_causal=first,
                                           enable_gqa=True)
        return o.transpose(1, 2).reshape(len(q), -1)


def greedy(network, ids, n_tokens, stop=()):
    """(first logits, tokens, margins between the two best logits); ends behind a stop token."""
    decoder = Decoder(network)
    first = logits = decoder.read(list(ids))
    tokens, margins = [], []
    while True:
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        if len(tokens) == n_tokens or tokens[-1] in stop:
            return first, tokens, margins
        logits = decoder.read(tokens[-1:])
