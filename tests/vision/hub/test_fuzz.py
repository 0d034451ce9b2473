"""Damaged weight files end in one line, whatever the damage."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from vizoo.vision.hub.published import read_published
from vizoo.vision.hub.weights import read_weights


def _checkpoint(legacy: bool) -> bytes:
    file = io.BytesIO()
    content = {"state_dict": {"a": torch.arange(5.0), "b": torch.ones(2, 2)}, "epoch": 1}
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


WHOLE = {
    ".safetensors": [save({"a": torch.arange(5.0)}, {"vizoo": '{"name": "x"}'})],
    ".ckpt": [_checkpoint(False), _checkpoint(True)],
}


@st.composite
def damaged(draw, suffix):
    whole = bytearray(draw(st.sampled_from([*WHOLE[suffix], b""])))
    for _ in range(draw(st.integers(0, 3))):
        if whole:
            whole[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(whole)))
    return bytes(whole[:cut]) + draw(st.binary(max_size=20))


@pytest.mark.parametrize("suffix", WHOLE)
@pytest.mark.parametrize("read", [read_weights, read_published])
@given(data=st.data())
def test_damage(suffix, read, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    path.write_bytes(data.draw(damaged(suffix)))
    try:
        read(path)
    except ValueError as error:
        assert "\n" not in str(error) and str(path) in str(error)
