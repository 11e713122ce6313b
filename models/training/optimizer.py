"""Muon for the matrices of the layers, AdamW for the embedding and the norms; or AdamW for all, if
the settings have "matrices": "adamw".

Muon (Jordan et al. 2024) makes the momentum of a matrix nearly orthogonal by five steps of a
Newton-Schulz iteration before it is added; the factor 0.2 * sqrt(larger side) gives its updates the
size of AdamW's (Liu et al. 2025, arXiv 2502.16982).  A matrix that holds several (query, key and
value; gate and up) is updated in its parts.  Parts of one size go through the iteration together.
"""
import math

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
N_ITERATIONS = 5


def orthogonalised(stack):
    """[n, rows, columns] -> the same, each with singular values near 1."""
    a, b, c = COEFFICIENTS
    x = stack.bfloat16() if stack.is_cuda else stack
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(N_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return (x.mT if tall else x).float()


def parts_of(name, weight, shape):
    """(first row, end row) of the logical matrices in a weight."""
    if name.endswith(".qkv"):
        cuts = [0, shape.n_query, shape.n_query + shape.n_key, weight.shape[0]]
    elif name.endswith(".gate_up"):
        cuts = [0, shape.inner, 2 * shape.inner]
    else:
        cuts = [0, weight.shape[0]]
    return list(zip(cuts, cuts[1:]))


class Optimizer:
    def __init__(self, weights, shape, settings):
        self.weights, self.settings = weights, settings
        matrices = {name: weight for name, weight in weights.items()
                    if weight.dim() == 2 and name != "embedding"}
        others = [weight for name, weight in weights.items() if name not in matrices]
        adam = [{"params": others, "weight_decay": 0.0, "full_rate": settings["other_rate"]}]
        if settings["matrices"] == "adamw":
            adam.append({"params": list(matrices.values()), "full_rate": settings["matrix_rate"],
                         "weight_decay": settings["weight_decay"]})
            matrices = {}
        self.matrices = list(matrices.values())
        self.momenta = [torch.zeros_like(weight) for weight in self.matrices]
        self.groups = {}  # (rows, columns) -> [(number of the matrix, first row, end row)]
        for i, (name, weight) in enumerate(matrices.items()):
            for first, end in parts_of(name, weight, shape):
                self.groups.setdefault((end - first, weight.shape[1]), []).append((i, first, end))
        self.adam = torch.optim.AdamW(adam, betas=(0.9, 0.95), eps=1e-10,
                                      fused=others[0].is_cuda)

    def step(self, rate):
        """One step at `rate` of the full learning rates; returns the norm of the gradient."""
        weights = list(self.weights.values())
        norm = torch.nn.utils.clip_grad_norm_(weights, self.settings["clip"])
        for group in self.adam.param_groups:
            group["lr"] = group["full_rate"] * rate
        self.adam.step()
        if self.matrices:
            self.step_matrices(self.settings["matrix_rate"] * rate)
        for weight in weights:
            weight.grad = None
        return norm

    @torch.no_grad()
    def step_matrices(self, rate):
        momentum = self.settings["momentum"]
        gradients = [weight.grad for weight in self.matrices]
        torch._foreach_lerp_(self.momenta, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, self.momenta, momentum)  # Nesterov
        torch._foreach_mul_(self.matrices, 1 - rate * self.settings["weight_decay"])
        for (n_rows, n_columns), members in self.groups.items():
            updates = orthogonalised(torch.stack([ahead[i][a:z] for i, a, z in members]))
            scale = -rate * 0.2 * math.sqrt(max(n_rows, n_columns))
            torch._foreach_add_([self.matrices[i][a:z] for i, a, z in members],
                                list(updates.unbind(0)), alpha=scale)

    def state(self):
        return {"momenta": self.momenta, "adam": self.adam.state_dict()}

    def load(self, state):
        for mine, other in zip(self.momenta, state["momenta"]):
            mine.copy_(other)
        self.adam.load_state_dict(state["adam"])
