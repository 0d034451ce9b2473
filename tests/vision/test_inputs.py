"""What a network costs, whatever its task."""

import pytest
import torch
from torch import nn

from vizoo.common.counts import count, count_parameters
from vizoo.vision.inputs import example_inputs, input_names


class Net(nn.Module):
    """Takes one image, two, or three."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)


class One(Net):
    def forward(self, image, scale=1.0):
        return self.conv(image) * scale


class Three(Net):
    def forward(self, left, middle, right, *, flip=False):
        return self.conv(left) + self.conv(middle) + self.conv(right)


@pytest.mark.parametrize(
    ("net", "names"), [(One(), ["image"]), (Three(), ["left", "middle", "right"])]
)
def test_as_many_images_as_the_network_takes(net, names):
    assert input_names(torch.compile(net, backend="eager")) == names
    inputs, views = example_inputs(net, 8, 16, batch=2), len(names)
    assert input_names(net) == names
    assert [tuple(image.shape) for image in inputs] == [(2, 3, 8, 16)] * views
    assert count(net, *inputs).macs == views * 2 * 8 * 16 * 3 * 4 * 9
    assert count_parameters(net) == 108 and torch.isfinite(inputs[0]).all()
