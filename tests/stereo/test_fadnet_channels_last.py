"""Training in channels-last memory, at the shapes of the configs: oneDNN has crashed in some."""

from __future__ import annotations

from pathlib import Path

import channels_last
import pytest
import torch
import yaml
from ranks import context

from vizoo.stereo import fadnet

CONFIGS = Path(fadnet.__file__).parents[1] / "configs" / "stereo"


def _trainings():
    """Network, batch and crop of each config; the large networks are slow and take one pair."""
    for path in sorted(CONFIGS.glob("*.yaml")):
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        task, data = (settings[part]["init_args"] for part in ("model", "data"))
        large = task["model"] not in ("fadnet_plus_tiny", "fadnet_plus_micro")
        crop = 1 if large else data["batch_size"], data["crop_height"], data["crop_width"]
        marks = [pytest.mark.slow] if large else []
        yield pytest.param(task["model"], crop, id=path.stem, marks=marks)


@pytest.mark.parametrize("name, crop", list(_trainings()))
def test_a_step_does_not_crash(name, crop):
    """In a process of its own, since what is feared is a segmentation fault."""
    process = context.Process(target=channels_last.step, args=(name, *crop))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_gradients_are_those_of_the_plain_layout():
    left, right = torch.rand(2, 2, 3, 64, 128, dtype=torch.float64)
    gradients = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        net = fadnet.fadnet_plus_micro().double().train().to(memory_format=layout)
        stages = net.forward_stages(left, right)
        sum(scale.square().mean() for stage in stages for scale in stage).backward()
        gradients.append([p.grad for p in net.parameters() if p.grad is not None])
    for plain, last in zip(*gradients, strict=True):
        # A bias before a batch norm has no gradient but rounding.
        scale = plain.abs().max().item()
        torch.testing.assert_close(last, plain, rtol=1e-6, atol=1e-8 * scale + 1e-10)
