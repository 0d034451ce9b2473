"""A picture of what each other family does: by trained weights where there are some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...vision.io.images import to_bytes
from ...vision.viz.page import Picture

if TYPE_CHECKING:
    from .pair import Sample

_ROOM: dict[str, Any] = {"layouts": ("room",), "floating": 0, "photometric": False}
_UNTRAINED = "No trained weights come with this version: this is a generated input and its truth."


@dataclass(frozen=True)
class Card:
    """What the page shows of a family."""

    title: str  #: the family
    text: str  #: what it is for, and whether a trained network made the pictures
    pictures: list[Picture]  #: what it sees, and what it makes of that
    commands: list[str]  #: that make the like of them, and that train a network


def family_cards(sample: Sample, device: str, pair: str) -> list[Card]:
    """One card a family, in the order of the README; `pair` is the sample's files, as typed."""
    stereo = _fadnet(sample, device, pair)
    return [stereo, _dispmvs(device), _spheredepth(device), _covidnet(), _images()]


def _fadnet(sample: Sample, device: str, pair: str) -> Card:
    from ...stereo.infer import StereoPredictor
    from ...vision.viz.colour import colour_range, colourise
    from .pair import scores

    model = "fadnet_plus_tiny"
    result = StereoPredictor(model, device=device)(sample.left, sample.right, scale=1, check=False)
    low, high = colour_range(*sample.known)
    error = scores(sample, result)["epe"]
    picture = colourise(result.disparity, low=low, high=high)
    return Card(
        "FADNet++: stereo, fast",
        "Encoder, correlation and decoder in two stages: the fastest of the stereo networks. "
        "A trained network made this picture.",
        [Picture(picture, f"The pair above, seen by {model}: EPE {error:.2f} px.")],
        [
            f"vizoo infer stereo {pair} --model {model} --out result",
            "vizoo fit --config stereo/fadnet_tiny_generated.yaml",
        ],
    )


def _dispmvs(device: str) -> Card:
    from ...datasets.worlds.views import WorldViews
    from ...mvs import DEFAULT_MODEL
    from ...mvs.infer import MVSPredictor

    views = WorldViews(1, 256, 320, views=3, seed=2, **_ROOM)[0]
    photographs = [to_bytes(image) for image in views["images"][:2]]
    cameras = views["images"], views["intrinsics"], views["extrinsics"]
    result = MVSPredictor(device=device)(*cameras, tuple(views["depth_range"].tolist()))
    truth, known = views["depth"][0].numpy(), views["valid"][0].numpy()
    error = np.median(np.abs(result.depth - truth)[known] / truth[known])
    captions = (
        "One photograph,",
        "another one of the ring,",
        f"the first one's depth by {DEFAULT_MODEL}, guided by a plane sweep, in the median "
        f"{100 * error:.0f} % off,",
        "and as it is.",
    )
    pictures = [*photographs, *_coloured(result.depth, truth, known)]
    return Card(
        "DispMVS: many photographs with cameras",
        "Depth maps and a fused, coloured cloud. A trained network made the third picture.",
        list(map(Picture, pictures, captions)),
        [
            "vizoo world views --camera views --place room",
            "vizoo infer mvs views/world-0-000000 --out result",
            "vizoo fit --config mvs/dispmvs_generated.yaml",
        ],
    )


def _coloured(depth: np.ndarray, truth: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
    """A predicted depth and the true one in the true one's colours."""
    from ...vision.viz.colour import colour_range, colourise

    low, high = colour_range(truth, known, logarithmic=True)
    how: dict[str, Any] = {"low": low, "high": high, "palette": "turbo_r", "logarithmic": True}
    return [colourise(depth, **how), colourise(truth, known, **how)]


def _spheredepth(device: str) -> Card:
    from ...datasets.worlds.panorama import WorldPanoramas
    from ...panorama import DEFAULT_MODEL
    from ...panorama.infer import PanoramaPredictor

    room = WorldPanoramas(1, 256, seed=6, **_ROOM)[0]
    truth, known = room["depth"][0].numpy(), room["valid"][0].numpy()
    depth = PanoramaPredictor(device=device)(room["image"]).depth
    error = np.median(np.abs(depth - truth)[known] / truth[known])
    captions = (
        "A panorama of a room,",
        f"how far everything is by {DEFAULT_MODEL}, in the median {100 * error:.0f} % off,",
        "and in truth.",
    )
    pictures = [to_bytes(room["image"]), *_coloured(depth, truth, known)]
    return Card(
        "SphereDepth: panoramas",
        "Depth all around, on a sphere without seams or distorted poles. A trained network made "
        "the second picture.",
        list(map(Picture, pictures, captions)),
        [
            "vizoo world rooms --camera panorama --place room",
            "vizoo infer panorama 'rooms/*/pano/rgb/*.png' --out result",
            "vizoo fit --config panorama/spheredepth_generated.yaml",
        ],
    )


def _covidnet() -> Card:
    from ...datasets.ct.chest import Chest

    values, lesions, _ = Chest(1, "covid").scan((40, 192, 192))
    place = int(lesions.sum(axis=(1, 2)).argmax())
    grey = ((values[place].astype(np.float32) + 1000) / 1400).clip(0, 1)
    plain = to_bytes(torch.from_numpy(grey).expand(3, -1, -1))
    marked = plain.copy()
    marked[lesions[place]] = (0.5 * marked[lesions[place]] + (120, 40, 0)).astype(np.uint8)
    return Card(
        "CovidNet3D: chest CT, found by search",
        "A differentiable search finds the network; it names the class and shows where it looked. "
        f"Research software, not a medical device. {_UNTRAINED}",
        [
            Picture(plain, "A slice of a generated scan,"),
            Picture(marked, "and where its lesions are."),
        ],
        [
            "pip install 'vizoo[ct]'",
            "vizoo scans scans --layout dicom",
            "vizoo fit --config classification/covidnet3d_search_generated.yaml",
            "vizoo infer ct scans/NCP --model CHECKPOINT --out result",
        ],
    )


def _images() -> Card:
    from ...datasets.images.lesions import KINDS, draw_lesions

    pictures = []
    for number, kind in enumerate(KINDS[:4]):
        image, _ = draw_lesions(kind, 128, np.random.default_rng(number))
        pictures.append(Picture(to_bytes(torch.from_numpy(image)), kind))
    return Card(
        "Images: any of timm's networks, detectors, ensembles",
        f"Classes of images, calibrated, with a map of where networks looked. {_UNTRAINED}",
        pictures,
        [
            "vizoo fit --config classification/skin_generated.yaml",
            "vizoo infer image PHOTOS --model CHECKPOINT --out result",
        ],
    )
