"""Checkpoints: the weights and where the training stands, with or without the optimizer.

A full checkpoint (8 bytes a parameter that Muon moves, 12 of the others) goes on as if nothing had
happened.  A light one has the weights alone, in bf16: it is what fits through a narrow door
between two machines.  The optimizer then begins anew and the rate warms up again.
"""
import os

import torch

from network import Shape


def save(path, plan, weights, place, optimizer=None):
    """place: {"step", "tokens", "progress"}.  The file appears whole or not at all."""
    kind = torch.float32 if optimizer else torch.bfloat16
    content = {"settings": plan.settings, "place": place,
               "weights": {name: weight.detach().to(kind) for name, weight in weights.items()}}
    if optimizer:
        content["optimizer"] = optimizer.state()
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    os.replace(partial, path)


def load(path, device):
    """(settings, weights in f32 that take gradients, place, optimizer state or None)."""
    content = torch.load(path, map_location=device, weights_only=True)
    weights = {name: weight.float().to(device).requires_grad_()
               for name, weight in content["weights"].items()}
    return content["settings"], weights, content["place"], content.get("optimizer")


def load_for_evaluation(path, device):
    """(shape, settings, weights rounded to bf16, as a server has them)."""
    settings, weights, place, _ = load(path, device)
    weights = {name: weight.detach().bfloat16().float() for name, weight in weights.items()}
    return Shape(**settings["model"]), settings, weights, place
