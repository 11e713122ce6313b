"""What a model must answer some of whose layers keep a budget while the others see everything, or
what filter layers choose: the two definitions of bounded_oracle.py and offload_oracle.py, each in
its layers.

  Text(model, selection, budget, layers)   one sequence; prompt() and token() give logits
"""
import copy

import numpy

import bounded_oracle
import offload_oracle


class Text(offload_oracle.Text):
    """budget: of these layers, which neither choose nor follow."""

    def __init__(self, model, selection, budget, layers):
        super().__init__(model, selection)
        self.budget, self.layers = budget, layers
        self.heads = {i: [bounded_oracle.Head(model, i, head, budget)
                          for head in range(model.n_kv_heads)] for i in layers}
        self.before = None  # the heads before the newest token, which may be tried again
        for group in self.groups:
            self.groups[group] -= sum(self.behind[i] == group for i in layers)

    def prompt(self, tokens):
        size = len(tokens) if self.budget.whole else self.budget.chunk
        return numpy.concatenate([self._rows(tokens[i:i + size], None)
                                  for i in range(0, len(tokens), size)])

    def token(self, token, off_by):
        self.before = copy.deepcopy({i: [vars(head) for head in heads]
                                     for i, heads in self.heads.items()},
                                    {id(self.model): self.model})
        return super().token(token, off_by)

    def _again(self, token, swaps, before):
        for i, heads in self.heads.items():
            for head, was in zip(heads, copy.deepcopy(self.before[i], {id(self.model): self.model})):
                vars(head).update(was)
        return super()._again(token, swaps, before)

    def _read(self, layer, q, k, v, at, step):
        read = super()._read(layer, q, k, v, at, step)
        if layer not in self.heads:
            return read
        q = q.reshape(len(q), self.model.n_kv_heads, self.model.group, -1).transpose(1, 2, 0, 3)
        return numpy.concatenate([head.attend(q[h], k[:, h], v[:, h], step is not None)
                                  for h, head in enumerate(self.heads[layer])])

    @property
    def closest(self):
        return min(head.closest for heads in self.heads.values() for head in heads)
