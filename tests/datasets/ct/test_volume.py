"""Scans keep their geometry: NIfTI, DICOM, turned axes, prepared and brought back."""

from __future__ import annotations

import itertools

import numpy as np
import pydicom
import pytest
import torch

from vizoo.datasets.ct import (
    CTPreset,
    CTVolume,
    prepare,
    read_dicom,
    read_nifti,
    read_scan,
    to_scan,
    to_slices,
    write_dicom,
    write_nifti,
)
from vizoo.datasets.ct.preparation import frames_of, take
from vizoo.datasets.ct.volume import axis_codes, reorient

CODES = [
    "".join(c) for o in itertools.permutations(("LR", "AP", "IS")) for c in itertools.product(*o)
]


def oblique(affine, angle=0.1):
    """The same scan of a patient who lies turned about the long axis."""
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return turn @ affine


def corner(values, affine):
    """Where the largest value lies, mm."""
    z, y, x = np.unravel_index(values.argmax(), values.shape)
    return affine @ [x, y, z, 1]


@pytest.mark.parametrize("codes", CODES)
def test_reorient_moves_no_voxel(codes):
    values = np.random.rand(3, 4, 5)
    affine = oblique(np.diag([-2.0, -3, 4, 1])) + np.array([[0, 0, 0, 7]] * 3 + [[0] * 4])
    turned, found = reorient(values, affine, codes)
    assert axis_codes(found) == codes and turned.base is not None
    np.testing.assert_allclose(corner(turned, found), corner(values, affine))
    back, again = reorient(turned, found, axis_codes(affine))
    assert np.array_equal(back, values)
    np.testing.assert_allclose(again, affine)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".NII", ".NII.GZ"])
@pytest.mark.parametrize("codes", ["LPS", "RAS", "RAI", "SRA"])
def test_nifti_round_trip(tmp_path, scan, codes, suffix):
    values, affine = reorient(scan[0], oblique(scan[2]), codes)
    write_nifti(tmp_path / f"a{suffix}", values, affine)
    found = read_nifti(tmp_path / f"a{suffix}")
    assert found.values.dtype == np.int16 and np.array_equal(found.values, values)
    np.testing.assert_allclose(found.affine, affine, atol=1e-4)  # the format has float32
    turned, where = found.oriented()
    assert axis_codes(where) == "LPS" and np.array_equal(turned, scan[0])


def test_nifti_keeps_fractions(tmp_path, scan):
    exact = scan[0] + np.float32(0.25)
    write_nifti(tmp_path / "a.nii.gz", exact, scan[2])
    assert np.array_equal(read_nifti(tmp_path / "a.nii.gz").values, exact)


@pytest.mark.parametrize("codes", ["LPS", "RAS", "LPI"])
def test_dicom_round_trip(tmp_path, scan, codes):
    """Slices come back along their normal, whichever way they were written and named."""
    exact = scan[0] + 0.3
    values, affine = reorient(exact, oblique(scan[2]), codes)
    folder = write_dicom(tmp_path / "series", values, affine)
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(file.with_name(f"{(7 * number) % 12:03d}.dcm"))
    found = read_dicom(folder)
    assert found.values.dtype == np.int16 and found.source == str(folder)
    turned, where = found.oriented()
    assert np.abs(turned - exact).max() <= 0.5
    np.testing.assert_allclose(where, oblique(scan[2]), atol=1e-6)
    one = read_scan(folder / "003.dcm")
    assert np.array_equal(one.values, found.values)
    np.testing.assert_allclose(found.spacing, (25, 18, 15), atol=1e-6)


def test_dicom_files_are_whole(tmp_path, scan):
    """What a viewer asks for is there, and the same series is written the same."""
    first, again, other = (
        sorted(write_dicom(tmp_path / name, scan[0], scan[2], "p", name[0]).iterdir())
        for name in ("a1", "a2", "b1")
    )
    assert [f.read_bytes() for f in first] == [f.read_bytes() for f in again]
    headers = [pydicom.dcmread(file) for file in (*first, *other)]
    assert len({h.SOPInstanceUID for h in headers}) == 24
    assert len({h.SeriesInstanceUID for h in headers}) == 2
    assert len({h.StudyInstanceUID for h in headers}) == 1
    for tag in ("FrameOfReferenceUID", "PatientPosition", "SliceThickness", "RescaleType"):
        assert tag in headers[0], tag


def test_a_tilted_gantry_and_fractions(series, scan):
    for file in series.iterdir():
        image = pydicom.dcmread(file)
        image.RescaleSlope = "0.5"
        x, y, z = image.ImagePositionPatient
        image.ImagePositionPatient = [x, y + 0.2 * z, z]
        image.save_as(file)
    found = read_dicom(series, resample=False)
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(found.values, (scan[0] + 1024) / 2 - 1024)
    np.testing.assert_allclose(found.affine[:3, 2], [0, -5, 25], atol=1e-6)


def test_monochrome1_has_the_same_units(series, scan):
    for file in series.iterdir():
        image = pydicom.dcmread(file)
        image.PhotometricInterpretation = "MONOCHROME1"
        image.save_as(file)
    assert np.array_equal(read_dicom(series).values, scan[0])


def test_window():
    values = np.array([-3000, -1350, -600, 150, 3000], np.int16)[:, None, None] + np.zeros(
        (1, 4, 4)
    )
    volume = CTVolume(values, np.diag([-1.0, -1, 1, 1]))
    seen = prepare(volume, CTPreset((4, 4), 5, margin=1))["volume"]
    torch.testing.assert_close(seen[0, :, 0, 0], torch.tensor([0, 0, 0.5, 1, 1]), atol=1e-5, rtol=0)
    picture = CTVolume(values, volume.affine, span=(0, 3000), spaced=False)
    seen = prepare(picture, CTPreset((4, 4), 5, margin=1))["volume"]
    torch.testing.assert_close(
        seen[0, :, 0, 0], torch.tensor([0, 0, 0, 0.05, 1]), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("codes", ["LPS", "RAI", "ASL"])
def test_prepared_alike_in_any_orientation(scan, codes):
    preset = CTPreset((16, 20), 6)
    plain = prepare(CTVolume(scan[0], scan[2]), preset)["volume"]
    turned = prepare(CTVolume(*reorient(scan[0], scan[2], codes)), preset)["volume"]
    assert plain.shape == (1, 6, 16, 20) and plain.dtype == torch.float32
    assert torch.equal(plain, turned)


@pytest.mark.parametrize("codes", ["LPS", "RAI", "ASL"])
@pytest.mark.parametrize(
    "preset",
    [
        CTPreset((20, 24), 12, margin=1),
        CTPreset((32, 40), 12),
        CTPreset((24, 28), 18, spacing=(20, 15, 12.5)),
    ],
)
def test_a_map_lies_where_it_was_seen(scan, codes, preset):
    """The centre of a blob in the scan is the centre of what was prepared and brought back."""
    z, y, x = np.indices(scan[0].shape)
    blob = 1500 * np.exp(-((z - 7) ** 2 / 3 + (y - 9) ** 2 / 6 + (x - 13) ** 2 / 6)) - 1350
    values, affine = reorient(blob, scan[2], codes)
    sample = prepare(CTVolume(values, affine), preset)
    back = to_scan(sample["volume"], sample)
    assert back.shape == values.shape

    def centre(values):
        weights = values.clip(0.05) - 0.05
        return [(weights * axis).sum() / weights.sum() for axis in np.indices(values.shape)]

    np.testing.assert_allclose(centre(back), centre((values + 1350) / 1500), atol=0.1)
    if preset.margin == 1:
        np.testing.assert_allclose(back, (values + 1350) / 1500, atol=1e-4)


def test_a_map_is_zero_beyond_what_was_seen(scan):
    sample = prepare(CTVolume(scan[0], scan[2]), CTPreset((8, 8), 4, "published", margin=2))
    back = to_scan(torch.ones(4, 8, 8), sample)
    assert sample["slices"].tolist() == [2, 5, 8, 11]
    assert not back[0].any() and back[2].any() and back[11].any()
    assert not back[:, 0].any() and not back[:, :, 0].any() and back[5, 10, 12] == 1
    with pytest.raises(ValueError, match="resize it to the volume"):
        to_scan(torch.ones(4, 8, 9), sample)


@pytest.mark.parametrize("sampler", ["uniform", "published", None])
def test_all_prepared_or_only_those_taken(scan, sampler):
    values = scan[0].astype(np.float32)
    volume = CTVolume(values.copy(), scan[2])
    preset = CTPreset((16, 20), 7, sampler or "uniform")
    seeds = [None if sampler else torch.Generator().manual_seed(3) for _ in range(2)]
    one, other = (
        prepare(volume, preset, seeds[0]),
        take(frames_of(volume, preset), preset, seeds[1]),
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert np.array_equal(volume.values, values)


def test_presets():
    assert CTPreset([64, 64], 16) == CTPreset((64, 64), 16)
    nan, inf = float("nan"), float("inf")
    for bad in (
        *({"size": size} for size in ((0, 4), (16.5, 16), (16,), (nan, 16))),
        *({"slices": count} for count in (0, 2.5)),
        *({"margin": margin} for margin in (0.5, nan, inf)),
        *({"width": width} for width in (0, nan, inf)),
        {"level": nan},
        *({"spacing": (1, 1, size)} for size in (0, nan, inf)),
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            CTPreset(**bad)
    with pytest.raises(ValueError, match="sampler 'even' is none of uniform, published"):
        CTPreset(sampler="even")


@pytest.mark.parametrize("codes", ["LPS", "RAI", "ASL"])
def test_some_slices_of_a_map_alone(scan, codes):
    values, affine = reorient(scan[0], scan[2], codes)
    sample = prepare(CTVolume(values, affine), CTPreset((16, 20), 5))
    heat = torch.rand(5, 16, 20)
    whole, _ = reorient(to_scan(heat, sample), affine, "LPS")
    assert np.array_equal(to_slices(heat, sample, [7, 0, 11]), whole[[7, 0, 11]])


def test_a_map_in_bytes(tmp_path, scan):
    """Eight bits, which readers scale back to within half a step; what does not fit is refused."""
    heat = np.random.rand(*scan[0].shape).astype(np.float32)
    write_nifti(tmp_path / "map.nii.gz", heat, scan[2], step=1 / 255)
    found = read_nifti(tmp_path / "map.nii.gz")
    assert np.abs(found.values - heat).max() <= 0.5001 / 255
    np.testing.assert_allclose(found.affine, scan[2], atol=1e-4)
    for beyond in (-0.1, 1.1):
        with pytest.raises(ValueError, match="beyond 0 to 1 do not fit"):
            write_nifti(tmp_path / "map.nii.gz", heat + beyond, scan[2], step=1 / 255)
