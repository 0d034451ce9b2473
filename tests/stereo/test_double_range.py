"""Weights for twice the range begin as two networks side by side."""

import runpy
import sys

import torch

from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights


def test_both_halves_are_the_narrow_network(root, tmp_path, monkeypatch):
    out = tmp_path / "wide.safetensors"
    given = str(root / "stereo/weights/easnet_small.safetensors")
    monkeypatch.setattr(sys, "argv", ["double_range", given, str(out)])
    runpy.run_path(str(root / "scripts/double_range.py"), run_name="__main__")
    narrow, wide = create_model("easnet_small.generated").eval(), load_weights(out).eval()
    assert wide.candidates[0] == 2 * narrow.candidates[0] == 64
    left, right = torch.rand(2, 1, 3, 96, 192)
    with torch.inference_mode():
        few, many = (net.forward_volumes(left, right)[1] for net in (narrow, wide))
    for (mine, _), (theirs, _) in zip(few, many, strict=True):
        # The candidates of the second half change nothing of what the first half says of its own.
        assert theirs.shape[1] == 2 * mine.shape[1]
        assert torch.allclose(theirs[:, : mine.shape[1]], mine, atol=1e-4)
