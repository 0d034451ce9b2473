"""Which slices are taken: as published, evenly, at random."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vizoo.datasets.ct.preparation import published_slices, random_slices, uniform_slices

NUMBERS = st.integers(1, 90)


def test_published_slices_are_those_of_the_published_program(shared):
    path = shared / "golden/nas/covidnet3d.json"
    if not path.is_file():
        pytest.skip(f"no {path}")
    golden = json.loads(path.read_text())["even_slice_indices"]
    assert golden
    for wanted, cases in golden.items():
        for available, slices in cases.items():
            assert published_slices(int(available), int(wanted)).tolist() == slices


@given(NUMBERS, NUMBERS)
def test_every_sampler(available, wanted):
    for slices in (
        uniform_slices(available, wanted),
        published_slices(available, wanted),
        random_slices(available, wanted, torch.Generator().manual_seed(1)),
    ):
        assert slices.shape == (wanted,) and slices.dtype == torch.int64
        assert (slices.diff() >= 0).all()
        assert slices[0] >= 0 and slices[-1] < available


@given(NUMBERS, NUMBERS)
def test_uniform_and_random_use_what_there_is(available, wanted):
    even = uniform_slices(available, wanted)
    if wanted > 1:
        assert even[0] == 0 and even[-1] == available - 1
        assert even.diff().max() - even.diff().min() <= 1
    drawn = random_slices(available, wanted, torch.Generator().manual_seed(2))
    counts = torch.bincount(drawn, minlength=available)
    assert counts.max() - counts.min() <= 1
    if available == wanted:
        assert torch.equal(drawn, torch.arange(available))


def test_random_slices_follow_the_generator():
    seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    one, same, other = (random_slices(60, 20, seed) for seed in seeds)
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_no_slices():
    for sampler in (uniform_slices, published_slices, random_slices):
        with pytest.raises(ValueError, match="at least 1"):
            sampler(0, 4)
