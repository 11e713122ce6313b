#!/usr/bin/env python3
"""Makes a light checkpoint of an exported model, so that its training can go on.

    python resume.py --model DIR --settings settings/quire-31m.json --step N --tokens N --out light.pt

The optimizer's state is not in a model: it begins anew.  train.py's --resume-at says at which
progress the training goes on.
"""
import argparse
import pathlib

import torch
from safetensors.torch import load_file

import checkpoint
from export import names_of
from network import Shape
from plan import Plan


def weights_of(tensors, shape):
    """The opposite of export.tensors()."""
    return {ours: torch.cat([tensors[name] for name in names])
            for ours, names in names_of(shape).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--settings", required=True, type=pathlib.Path)
    parser.add_argument("--step", required=True, type=int, help="steps that the model has seen")
    parser.add_argument("--tokens", required=True, type=int)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    options = parser.parse_args()
    plan = Plan(options.settings)
    weights = weights_of(load_file(options.model / "model.safetensors"), Shape(**plan.model))
    place = {"step": options.step, "tokens": options.tokens, "progress": 1.0}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(options.out, plan, weights, place)


if __name__ == "__main__":
    main()
