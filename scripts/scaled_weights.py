"""EASNet small's weights as those of EASNet scaled, to train on.

    python scripts/scaled_weights.py easnet_small.worlds OUT.safetensors

The largest subnet is EASNet small then; smaller copies of the image are enlarged bilinearly.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights

_RENAMED = {"refinement.0.": "refinement.", "upsampling.": "enlargement.1.logits."}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", help="name of trained weights, or a file")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    small = create_model("easnet_small", weights=options.weights)
    torch.manual_seed(0)
    net = create_model("easnet_scaled", max_disparity=small.architecture["max_disparity"])
    known = net.state_dict()
    for name, value in small.state_dict().items():
        for old, new in _RENAMED.items():
            name = new + name.removeprefix(old) if name.startswith(old) else name
        known[name] = value
    net.load_state_dict(known)
    save_weights(net, options.out)


if __name__ == "__main__":
    main()
