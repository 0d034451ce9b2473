"""Scans through a network and back: what is found lies where it is in the scan's own space."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import vizoo
from vizoo.classification.ct_infer import CTPredictor
from vizoo.datasets.ct import CTPreset, CTVolume, read_nifti, write_dicom, write_nifti
from vizoo.datasets.ct.volume import axis_codes, reorient
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights

nibabel = pytest.importorskip("nibabel")

CODES = [
    "".join(c) for o in itertools.permutations(("LR", "AP", "IS")) for c in itertools.product(*o)
]
# Dark to bright: slices, rows, columns 12 x 20 x 24 of 5 x 3 x 3 mm, feet first, turned a little.
TURN = np.eye(4)
TURN[:2, :2] = [[np.cos(0.1), -np.sin(0.1)], [np.sin(0.1), np.cos(0.1)]]
AFFINE = TURN @ np.array([[-3.0, 0, 0, 40], [0, -3, 0, 30], [0, 0, 5, -60], [0, 0, 0, 1]])


class Bright(nn.Module):
    """Its class `bright` is how bright the volume is, so CAM is the volume itself."""

    def __init__(self, preset=CTPreset((16, 20), 6), classes=("dark", "bright")):  # noqa: B008
        super().__init__()
        self.fc = nn.Linear(1, 2, bias=False)
        self.fc.weight.data.copy_(torch.tensor([[-1.0], [1.0]]))
        self.classes, self.input = classes, dataclasses.asdict(preset)

    def forward_features(self, x):
        return x

    def get_classifier(self):
        return self.fc

    def forward(self, x):
        return self.fc(x.mean((2, 3, 4)))


def chest(place, size=2):
    """Air, with a block of bone of (2 size - 1) voxels each way."""
    values = np.full((12, 20, 24), -900, np.int16)
    z, y, x = place
    block = tuple(slice(max(0, at - size + 1), at + size) for at in (z, y, x))
    values[block] = 400
    return values


@settings(max_examples=40)
@given(
    codes=st.sampled_from(CODES),
    place=st.tuples(st.integers(2, 9), st.integers(4, 15), st.integers(4, 19)),
    preset=st.sampled_from(
        [
            CTPreset((16, 20), 6),
            CTPreset((32, 40), 12, margin=1.0),
            CTPreset((24, 28), 12, "published"),
            CTPreset((20, 24), 10, spacing=(6.0, 2.5, 3.5)),
        ]
    ),
)
def test_a_map_lies_on_what_was_seen(tmp_path_factory, codes, place, preset):
    """In any orientation, and in the file that other programs open."""
    values, affine = reorient(chest(place), AFFINE, codes)
    result = CTPredictor(Bright(preset))(CTVolume(values, affine), explained="bright", method="cam")
    path = tmp_path_factory.mktemp("map") / "map.nii.gz"
    write_nifti(path, result.map(), affine, step=1 / 255)
    image = nibabel.load(path)
    assert image.shape == values.shape[::-1]
    np.testing.assert_allclose(image.affine, affine, atol=1e-4)
    heat = image.get_fdata().transpose(2, 1, 0)
    highest = np.unravel_index(heat.argmax(), heat.shape)
    assert values[highest] == 400
    centre = AFFINE @ [*place[::-1], 1]
    found_slice, found = result.peak()
    assert abs(found_slice - place[0]) <= 1.5
    assert np.abs(np.linalg.inv(AFFINE[:3, :3]) @ (found - centre[:3])).max() < 1.6  # voxels


@pytest.mark.parametrize("kind", ["dicom", "nifti", "png"])
def test_scans_of_any_kind(tmp_path, kind):
    values = chest((6, 10, 15))
    if kind == "dicom":
        path = write_dicom(tmp_path / "a", values, AFFINE)
    elif kind == "nifti":
        path = tmp_path / "a.nii.gz"
        write_nifti(path, *reorient(values, AFFINE, "RAI"))
    else:
        path = tmp_path / "a"
        path.mkdir()
        for number, plane in enumerate((values > 0) * np.uint8(255)):
            Image.fromarray(plane).save(path / f"{number}.png")
    with torch.no_grad():
        result = CTPredictor(Bright())(path, order="feet-first" if kind == "png" else None)
    assert result.classes == ("dark", "bright") and result.predicted == "bright"
    assert result.probabilities.sum() == pytest.approx(1)
    assert result.slices == [0, 2, 4, 7, 9, 11]
    (tmp_path / "out/scan_slices").mkdir(parents=True)
    for before in ("scan.json", "scan_montage.png", "scan_slices/0002.png"):
        (tmp_path / "out" / before).touch()
    files = result.save(tmp_path / "out", "scan", montage=4)
    assert {file for file in (tmp_path / "out").rglob("*") if file.is_file()} == set(files)
    names = {str(file.relative_to(tmp_path / "out")) for file in files}
    slices = {f"scan_slices/{number:04d}.png" for number in (1, 3, 5, 8, 10, 12)}
    assert names == {"scan.json", "scan_montage.png", "scan_map.nii.gz", *slices}
    written = nibabel.load(tmp_path / "out/scan_map.nii.gz")
    np.testing.assert_allclose(written.affine, result.volume.affine, atol=1e-4)
    assert written.shape == result.volume.values.shape[::-1]
    if kind == "nifti":  # the map lies voxel by voxel on the file
        scan, heat = read_nifti(path).values, written.get_fdata().transpose(2, 1, 0)
        assert heat[scan == 400].mean() > 0.5 > 0.1 > heat[scan != 400].mean()
    pictures = [np.asarray(Image.open(file)) for file in files if file.suffix == ".png"]
    assert min(picture.std() for picture in pictures) > 5
    said = json.loads((tmp_path / "out/scan.json").read_text())
    assert said["class"] == "bright" and "not a medical device" in said["notice"]
    assert (
        said["map"]["method"] == "CAM, 6x16x20 cells, mean of 8 mirror images"
        and said["map"]["class"] == "bright"
    )
    assert (said["spacing_mm"] is None) == (kind == "png")
    assert said["slices_from_the_feet"] == [1, 3, 5, 8, 10, 12]
    without = dataclasses.replace(result, heat=None).save(tmp_path / "out", "scan")
    assert list((tmp_path / "out").iterdir()) == without == [tmp_path / "out/scan.json"]


def test_what_is_no_earlier_result_stays(tmp_path):
    net = Bright()
    net.architecture = "of its own"
    result = CTPredictor(net)(CTVolume(chest((6, 10, 15)), AFFINE), method=None)
    own = tmp_path / "scan_slices/0001.png"  # of a scan that is called so
    own.parent.mkdir()
    own.touch()
    for _ in range(2):
        result.save(tmp_path, "scan")
        assert own.exists()
    own.unlink()
    result.save(tmp_path, "scan")
    assert own.parent.is_dir()


def test_the_montage_holds_the_highest_slices():
    volume = CTVolume(chest((7, 10, 15), size=3), AFFINE)  # slices 5 to 9
    result = CTPredictor(Bright())(volume, explained="bright")
    assert result.highest(2) == [7, 9]
    assert result.highest(99) == result.slices
    wide, one = result.picture(result.highest(2), side=64), result.picture([7], side=64)
    assert wide.shape[1] > one.shape[1]


def test_upside_down_is_turned():
    """Slices count from the feet, whatever the order of the file."""
    values, affine = reorient(chest((9, 10, 15)), AFFINE, "LPI")
    result = CTPredictor(Bright())(CTVolume(values, affine), explained="bright")
    assert axis_codes(result.volume.affine) == "LPI" and result.highest(1) == [9]


def test_other_classes_and_no_map():
    predictor, volume = CTPredictor(Bright()), CTVolume(chest((7, 10, 15)), AFFINE)
    dark = predictor(volume, explained="dark")
    assert dark.explained == "dark" and dark.predicted == "bright"
    bright = predictor(volume, explained="bright")
    torch.testing.assert_close(dark.heat, 1 - bright.heat, atol=1e-5, rtol=0)
    plain = predictor(volume, method=None)
    assert plain.heat is None and "map" not in plain.summary()
    with pytest.raises(ValueError, match="there is no map"):
        plain.map()


def test_the_same_network_by_any_way(tmp_path):
    """Weights on disk bring classes and preset; probabilities are the network's."""
    preset = CTPreset((16, 16), 8, margin=1.0)
    net = create_model("covidnet3d_tiny", classes=3, encoding=[0, 8, 1, 8, 0]).eval()
    names = ["CP", "NCP", "Normal"]
    path = save_weights(
        net, tmp_path / "net.safetensors", classes=names, input=dataclasses.asdict(preset)
    )
    predictor = vizoo.CTPredictor(path)
    assert predictor.classes == tuple(names) and predictor.preset == preset
    assert predictor.name == "covidnet3d_tiny"
    volume = CTVolume(chest((6, 10, 12)), AFFINE)
    result = predictor(volume)
    with torch.no_grad():
        wanted = net(result.sample["volume"][None]).softmax(1)[0]
    np.testing.assert_allclose(result.probabilities, wanted, atol=1e-5)
    assert result.method == "Grad-CAM at stages.0, 2x4x4 cells, mean of 8 mirror images"
    coarse = vizoo.CTPredictor(path, dtype="bfloat16")(volume, method=None)
    np.testing.assert_allclose(coarse.probabilities, wanted, atol=0.03)
    assert net.stages[0][0].calibrate.weight.requires_grad  # the copy alone was frozen


def test_warnings():
    predictor = CTPredictor(Bright(CTPreset((16, 20), 14)))
    with pytest.warns(UserWarning, match="12 slices where the network takes 14"):
        predictor(CTVolume(chest((6, 10, 15)), AFFINE))
    silent = Bright()
    silent.fc.weight.data.zero_()
    with pytest.warns(UserWarning, match="nothing speaks for dark"):
        CTPredictor(silent)(CTVolume(chest((6, 10, 15)), AFFINE))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": ()}, "does not say the names of its classes, as checkpoints of `vizoo fit`"),
        ({"input": {}}, "does not say how its CT scans were prepared"),
        ({"input": {"size": (8, 8), "crop": 1.0}}, "not a classifier of CT scans: its input has"),
        ({"input": {"size": (0, 8)}}, "its input is damaged: size"),
        ({"classes": ("a", "b", "c")}, "2 outputs, but 3 names of classes"),
    ],
)
def test_networks_that_are_not_for_ct(change, said):
    net = Bright()
    for name, value in change.items():
        setattr(net, name, value)
    with pytest.raises(ValueError, match=said):
        CTPredictor(net)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros((12, 20, 24), np.int16), "empty: every voxel is 0"),
        (np.random.rand(12, 20, 24).astype(np.float32), "are no Hounsfield units, of which air"),
    ],
)
def test_values_that_are_no_ct(values, said):
    with pytest.raises(ValueError, match=said):
        CTPredictor(Bright())(CTVolume(values, AFFINE))


def test_unknown_class_and_damaged_network():
    volume = CTVolume(chest((6, 10, 15)), AFFINE)
    with pytest.raises(ValueError, match="class 'NCP' is none of dark, bright"):
        CTPredictor(Bright())(volume, explained="NCP")
    broken = Bright()
    broken.fc.weight.data[0] = torch.nan
    with pytest.raises(ValueError, match="output is not finite"):
        CTPredictor(broken)(volume)
