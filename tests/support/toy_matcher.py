"""A stereo network of two convolutions, plain and as a supernet."""

from __future__ import annotations

import sys

import torch
from torch import nn

from vizoo.nas.elastic import BatchNorm2d, Conv2d
from vizoo.nas.space import Choice
from vizoo.nas.supernet import extract
from vizoo.vision.hub import registry


class Matcher(nn.Module):
    """A positive map of two images, by convolutions of elastic width."""

    def __init__(self, widths):
        super().__init__()
        width = Choice("width", widths) if len(widths) > 1 else widths[0]
        self.first = Conv2d(6, width, 3, padding=1)
        self.norm = BatchNorm2d(width)
        self.last = Conv2d(width, 1, 1)

    def forward(self, left, right):
        x = self.norm(self.first(torch.cat([left, right], 1))).relu()
        return 8 + self.last(x).tanh()


def match_plain():
    """A network without choices."""
    return Matcher((4,))


def match_super(*, widths=(2, 4, 6), subnet: dict | None = None):
    """A supernet, or one of its subnets."""
    net = Matcher(tuple(widths))
    return net if subnet is None else extract(net, subnet["choices"])


def register(monkeypatch, *others: registry.ModelEntry) -> None:
    """Make these, without weights, and others that are registered the only models for a test."""
    monkeypatch.setitem(sys.modules, "vizoo.toy_matcher", sys.modules[__name__])
    families = {entry.name: entry.module.removeprefix("vizoo.") for entry in others}
    monkeypatch.setattr(registry, "FAMILIES", {"match": "toy_matcher", **families})
    monkeypatch.setattr(registry, "_ENTRIES", {entry.name: entry for entry in others})
    for function in (match_plain, match_super):
        registry.register_model(task="stereo")(function)
