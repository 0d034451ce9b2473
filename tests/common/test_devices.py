"""Which type a network predicts in."""

import warnings

import pytest
import torch

from vizoo.common.devices import choose_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize("instructions", [[], ["avx512_bf16"]])
def test_bfloat16_without_hardware_is_told(monkeypatch, instructions):
    monkeypatch.setattr("vizoo.common.devices.bfloat16_instructions", lambda: instructions)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert choose_dtype("bfloat16", CPU) == torch.bfloat16
        assert choose_dtype("float32", CPU) == torch.float32
    told = [
        "this CPU computes bfloat16 without hardware for it: float32 may be several times as fast"
    ]
    assert [str(warning.message) for warning in caught] == (told if not instructions else [])


@pytest.mark.parametrize(
    ("name", "says"), [("half", "'half' is not one of float32, bf"), ("float16", "needs a GPU")]
)
def test_refused(name, says):
    with pytest.raises(ValueError, match=says):
        choose_dtype(name, CPU)
