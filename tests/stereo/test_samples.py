"""Pairs that int8 is calibrated with: generated, from folders, and from configs."""

import pytest
import torch
from torch import nn

from vizoo.stereo.samples import calibration_samples
from vizoo.vision.io.images import write_image
from vizoo.vision.io.pfm import write_pfm


@pytest.fixture
def folder(tmp_path):
    """Three pairs without truth; `left` and `right` are folders of images."""
    for side in ("left", "right"):
        for number in range(3):
            pixels = torch.randint(0, 256, (24, 32, 3), dtype=torch.uint8).numpy()
            write_image(tmp_path / side / f"{number}.png", pixels)
    return tmp_path


def test_generated_pairs_lie_within_reach():
    net = nn.Identity()
    net.reach = 20
    samples = calibration_samples(net, size=(48, 96), count=3)
    assert [x.shape for x in samples[0].inputs] == [(1, 3, 48, 96)] * 2 and len(samples) == 3
    assert all(sample.truth.nan_to_num().max() <= 20 for sample in samples)
    again = calibration_samples(net, size=(48, 96), count=2)
    torch.testing.assert_close(again[1].inputs, samples[1].inputs)


def test_a_folder_with_and_without_truth(folder):
    samples = calibration_samples(nn.Identity(), str(folder), count=2)
    assert [sample.truth for sample in samples] == [None, None]
    assert samples[0].inputs[0].shape == (1, 3, 24, 32)
    for number in range(3):
        truth = torch.full((24, 32), 5.0)
        truth[0] = float("inf")
        write_pfm(folder / "truth" / f"{number}.pfm", truth.numpy())
    samples = calibration_samples(nn.Identity(), str(folder))
    assert len(samples) == 3 and samples[0].truth[0, 0, 0].isnan().all()
    assert (samples[0].truth[0, 0, 1:] == 5).all()


def test_validation_of_a_config():
    samples = calibration_samples(nn.Identity(), "stereo/fadnet_tiny_generated.yaml", count=2)
    assert len(samples) == 2 and samples[0].truth.shape == samples[0].inputs[0][:, :1].shape


def test_one_pair_is_too_few(folder):
    with pytest.raises(ValueError, match="two pairs at least, and here are 1"):
        calibration_samples(nn.Identity(), str(folder), count=1)
    with pytest.raises(FileNotFoundError):
        calibration_samples(nn.Identity(), str(folder / "none.yaml"))
