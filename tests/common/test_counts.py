"""Counting by shapes alone."""

import pytest
import torch
from torch import nn

from vizoo.common.counts import count, on_meta

INPUT = torch.empty(1, 3, 8, 8, device="meta")
VALUES = {
    "plain": torch.rand(3, 1, 1),
    "scalar": torch.tensor(2),
    "indices": torch.tensor([2, 0, 1]),
}


class Holder(nn.Module):
    """Holds tensors that are neither parameters nor buffers, and computes with them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1, bias=False)
        vars(self).update(VALUES)

    def forward(self, image):
        for _ in range(int(self.scalar)):
            image = image - self.plain
        return self.layer(image[:, self.indices])


def test_tensors_that_a_network_holds():
    assert count(on_meta(Holder()), INPUT).macs == 3 * 4 * 64


@pytest.mark.parametrize("name", VALUES)
def test_what_is_read_keeps_its_values(name):
    assert getattr(on_meta(Holder()), name).is_meta == (name == "plain")
