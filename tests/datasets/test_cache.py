"""Samples that are kept come back as they were; damaged ones are made again."""

from __future__ import annotations

import collections

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vizoo.datasets import shelf as module
from vizoo.datasets.cache import SampleCache


def sample(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {
        "picture": torch.randint(0, 256, (3, 7, 9), generator=generator) / 255,
        "pictures": torch.randint(0, 256, (2, 3, 5, 4), generator=generator) / 255,
        "disparity": torch.randn(1, 7, 9, generator=generator).exp(),
        "mask": torch.rand(1, 7, 9, generator=generator) > 0.5,
        "matrix": torch.randn(2, 4, 4, generator=generator, dtype=torch.float64),
        "label": torch.tensor(3),
        "half": torch.randn(5, generator=generator).half(),
    }
    made["disparity"][0, 0, :3] = torch.tensor([torch.inf, torch.nan, -0.0])
    return made


def test_what_is_kept_comes_back(tmp_path):
    cache = SampleCache(str(tmp_path), "set", ["picture", "pictures"])
    made = cache.recall(0, sample)
    kept = cache.recall(0, lambda _: pytest.fail("made again"))
    assert kept.keys() == made.keys()
    for name, value in made.items():
        assert kept[name].dtype == value.dtype and kept[name].shape == value.shape
        torch.testing.assert_close(kept[name], value, rtol=0, atol=0, equal_nan=True)


def test_smooth_maps_and_pictures_are_packed(tmp_path):
    ramp = torch.linspace(0, 1, 200).expand(3, 100, 200)
    made = {"picture": (ramp * 255).round() / 255, "depth": 1 / (1 + ramp[:1])}
    SampleCache(str(tmp_path), "set", ["picture"]).recall(0, lambda _: made)
    (file,) = (tmp_path / "set").iterdir()
    assert file.stat().st_size < 0.4 * (3 * 100 * 200 + 4 * 100 * 200)


@settings(max_examples=30, deadline=None)
@given(cut=st.floats(0, 0.999), junk=st.binary(max_size=40), flipped=st.booleans())
def test_damaged_files_are_made_again(tmp_path_factory, cut, junk, flipped):
    folder = tmp_path_factory.mktemp("cache")
    cache = SampleCache(str(folder), "set", ["picture", "pictures"])
    cache.recall(0, sample)
    (file,) = (folder / "set").iterdir()
    data = file.read_bytes()
    start = int(cut * len(data))
    damaged = data[:start] + junk + (data[start + len(junk) :] if flipped else b"")
    file.write_bytes(damaged)
    again = cache.recall(0, sample)
    assert again.keys() == sample().keys()
    if len(damaged) != len(data):  # bytes of a picture's last check may change and nobody looks
        assert torch.equal(again["picture"], sample()["picture"]) and file.read_bytes() == data


def test_a_folder_that_cannot_be_written_does_not_end_a_training(tmp_path):
    (tmp_path / "set").write_text("in the way")
    cache = SampleCache(str(tmp_path), "set", [])
    with pytest.warns(UserWarning, match="samples are not kept"):
        assert cache.recall(0, sample)["label"] == 3
    assert cache.recall(1, sample)["label"] == 3


def test_a_full_disk_is_left_alone(tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage(100, 95, 5))
    cache = SampleCache(str(tmp_path), "set", [])
    cache.recall(0, sample)
    assert {path.name for path in tmp_path.iterdir()} <= {".lock", ".full"}  # no sample
