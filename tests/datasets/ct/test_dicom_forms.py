"""Forms in which scanners and archives keep CT: every voxel stays where it is in the patient."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import numpy as np
import pydicom
import pytest
from pydicom import filereader
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    EnhancedCTImageStorage,
    JPEGExtended12Bit,
    LegacyConvertedEnhancedCTImageStorage,
    SecondaryCaptureImageStorage,
)

from vizoo.datasets.ct import list_series, read_dicom, read_scan, write_dicom
from vizoo.datasets.ct.volume import lung_share

SLOPE = np.array([1.5, -2.0, 3.0])  # Hounsfield units a millimetre to the left, back and head


@contextmanager
def edited(file):
    """What is in a DICOM file, to be changed."""
    image = pydicom.dcmread(file)
    yield image
    image.save_as(file)


def change(*files, **tags):
    """Give DICOM files other tags."""
    for file in files:
        with edited(file) as image:
            for name, value in tags.items():
                setattr(image, name, value)


def field(places):
    """A scan whose units say where in the patient one is: interpolation changes nothing."""
    return places @ SLOPE - 300.0


def write_field(folder, positions, directions=((1, 0, 0), (0, 1, 0)), spacing=(2.0, 1.5)):
    """A series of 10x14 pixels whose slices begin at positions (N, 3), mm."""
    right, down = np.array(directions, float)
    rows, columns = np.mgrid[:10, :14]
    inside = columns[..., None] * spacing[1] * right + rows[..., None] * spacing[0] * down
    values = np.stack([field(inside + place) for place in positions])
    write_dicom(folder, np.zeros(values.shape, np.int16), np.diag([-1.0, -1, 1, 1]))
    for file, plane, place in zip(sorted(folder.iterdir()), values, positions, strict=True):
        with edited(file) as image:
            image.ImagePositionPatient = [f"{number:.6f}" for number in place]
            image.ImageOrientationPatient = [*map(str, right), *map(str, down)]
            image.PixelSpacing = list(spacing)
            image.RescaleSlope, image.RescaleIntercept = "0.05", "-1024"
            image.PixelData = np.rint((plane + 1024) / 0.05).astype(np.uint16).tobytes()
    return folder


def check_field(volume, least):
    """Voxels hold the field at their places; those from beyond the slices hold the lowest value."""
    where = np.stack(np.meshgrid(*map(np.arange, volume.values.shape), indexing="ij"), -1)[
        ..., ::-1
    ]
    places = where @ volume.affine[:3, :3].T + volume.affine[:3, 3]
    off = np.abs(volume.values - field(places * [-1, -1, 1]))
    known = volume.values > volume.values.min()
    # A pixel at the edge is mixed with what lies beyond.
    inner = known.copy()
    for axis in (1, 2):
        inner &= np.roll(known, 1, axis) & np.roll(known, -1, axis)
    assert inner.sum() > least and off[inner].max() < 0.2


@pytest.mark.parametrize("angle", [-20.0, 12.0])
@pytest.mark.parametrize("start", [0, 1])
def test_a_tilted_gantry_is_straightened(tmp_path, angle, start):
    """The table moves along the body while slices lean; or slices are upright and drift."""
    lean = np.radians(angle)
    tilted = ((1, 0, 0), (0, np.cos(lean), -np.sin(lean)))
    directions = tilted if start else ((1, 0, 0), (0, 1, 0))
    way = np.array([0, 0, 4.0]) if start else np.array([0, 4 * np.tan(lean), 4.0])
    folder = write_field(tmp_path / "a", np.arange(9)[:, None] * way, directions)
    with pytest.warns(UserWarning, match=f"gantry tilted by {abs(angle):.0f} degrees"):
        volume = read_dicom(folder)
    matrix = volume.affine[:3, :3] / np.linalg.norm(volume.affine[:3, :3], axis=0)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(3), atol=1e-6)
    assert len(volume.values) == 9 and volume.values.shape[1] > 10
    check_field(volume, 9 * 10 * 14 // 3)
    aslant = read_dicom(folder, resample=False)
    assert aslant.values.shape == (9, 10, 14)
    check_field(aslant, 9 * 8 * 12 - 1)


def test_uneven_slices_are_resampled(tmp_path, line):
    heights = np.array([0, 1, 2, 3, 4, 5, 6, 9, 12, 15, 18.0])
    folder = write_field(tmp_path / "a", heights[:, None] * [0, 0, 1.0])
    with pytest.warns(UserWarning, match="slices 1 to 3 mm apart: resampled to 1 mm"):
        volume = read_dicom(folder)
    assert len(volume.values) == 19 and volume.spacing[0] == pytest.approx(1)
    check_field(volume, 19 * 8 * 12 - 1)
    assert "at even distances" in line(lambda: read_dicom(folder, resample=False))
    far = write_field(tmp_path / "b", np.array([0, 1, 2, 3, 4.5, 30.0])[:, None] * [0, 0, 1.0])
    assert "1 to 25.5 mm apart" in line(lambda: read_dicom(far))


def test_missing_slices_are_named(tmp_path):
    heights = np.delete(np.arange(30.0), [4, 5, 20])
    folder = write_field(tmp_path / "a", heights[:, None] * [0, 0, 2.5])
    with pytest.warns(
        UserWarning, match="3 of 30 slices are missing, between 0004.dcm and 0005.dcm, 0018"
    ):
        check_field(read_dicom(folder), 30 * 8 * 12 - 1)


def test_a_stretch_of_missing_slices_is_not_invented(tmp_path, line):
    heights = np.delete(np.arange(44.0), range(20, 24))
    folder = write_field(tmp_path / "a", heights[:, None] * [0, 0, 2.5])
    assert "4 of 44 slices are missing" in line(lambda: read_dicom(folder))


def test_two_scans_in_one_series_are_refused(tmp_path, line):
    """Interleaved, or beside each other: neither is a scan of uneven distances."""
    heights = np.sort([*np.arange(20), *(np.arange(20) + 0.4)])
    mixed = write_field(tmp_path / "a", heights[:, None] * [0, 0, 1.0])
    assert "a" in line(lambda: read_dicom(mixed))
    places = np.arange(20.0)[:, None] * [0, 0, 2.5]
    places[10:, 0] += 30
    beside = write_field(tmp_path / "b", places)
    assert "beside the line of the others: two scans mixed" in line(lambda: read_dicom(beside))
    steep = write_field(tmp_path / "c", np.arange(9)[:, None] * [0, 4.0, 4.0])
    assert "slices drift by 45 degrees" in line(lambda: read_dicom(steep))


def test_whole_numbers_stay_whole_where_slices_are_shifted(tmp_path, scan):
    folder = write_dicom(tmp_path / "a", scan[0], scan[2])
    for file in folder.iterdir():
        with edited(file) as image:
            x, y, z = image.ImagePositionPatient
            image.ImagePositionPatient = [x, f"{y + 0.3 * z:.6f}", z]
    with pytest.warns(UserWarning, match="gantry tilted by 17 degrees"):
        volume = read_dicom(folder)
    assert volume.values.dtype == np.int16 and volume.resampled
    assert volume.values.max() <= scan[0].max() and volume.values.min() == scan[0].min()
    assert not read_dicom(folder, resample=False).resampled


def test_a_deflated_series(series, scan):
    for file in series.iterdir():
        with edited(file) as image:
            image.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    assert np.array_equal(read_scan(series).values, scan[0])


@pytest.mark.parametrize("implicit", [True, False])
@pytest.mark.parametrize("name", ["{}.dcm", "IM{}", "1.2.840.{}"])
def test_files_without_preamble(series, scan, implicit, name):
    for file in sorted(series.iterdir()):
        image = pydicom.dcmread(file)
        data = Dataset()
        data.update(image)
        other = file.with_name(name.format(file.stem))
        file.unlink()
        data.save_as(other, implicit_vr=implicit, little_endian=True, enforce_file_format=False)
    assert np.array_equal(read_scan(series).values, scan[0])
    assert len(list_series(series)) == 1
    assert np.array_equal(read_scan(other).values, scan[0])


def test_without_modality_the_class_tells(series, scan, line):
    for file in series.iterdir():
        with edited(file) as image:
            del image.Modality
    assert np.array_equal(read_scan(series).values, scan[0])
    change(*series.iterdir(), SOPClassUID="1.2.840.10008.5.1.4.1.1.4")
    assert "modality MR Image Storage; wants a CT series" in line(lambda: read_scan(series))


def enhance(series, folder, order=None):
    """The slices of a series as one file of enhanced CT."""
    images = [pydicom.dcmread(file) for file in sorted(series.iterdir())]
    images = [images[place] for place in order or range(len(images))]
    whole = images[0].copy()
    whole.SOPClassUID = whole.file_meta.MediaStorageSOPClassUID = EnhancedCTImageStorage
    whole.NumberOfFrames = len(images)
    whole.PixelData = b"".join(image.PixelData for image in images)

    def group(name, **tags):
        inner, outer = Dataset(), Dataset()
        for tag, value in tags.items():
            setattr(inner, tag, value)
        setattr(outer, name, Sequence([inner]))
        return outer

    shared = group("PixelMeasuresSequence", PixelSpacing=whole.PixelSpacing)
    orientation = {"ImageOrientationPatient": whole.ImageOrientationPatient}
    shared.update(group("PlaneOrientationSequence", **orientation))
    values = {"RescaleSlope": whole.RescaleSlope, "RescaleIntercept": whole.RescaleIntercept}
    shared.update(group("PixelValueTransformationSequence", **values))
    whole.SharedFunctionalGroupsSequence = Sequence([shared])
    whole.PerFrameFunctionalGroupsSequence = Sequence(
        [
            group("PlanePositionSequence", ImagePositionPatient=image.ImagePositionPatient)
            for image in images
        ]
    )
    for tag in ("PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient"):
        delattr(whole, tag)
    del whole.RescaleSlope, whole.RescaleIntercept
    folder.mkdir()
    whole.save_as(folder / "enhanced.dcm")
    return folder


@pytest.mark.parametrize("order", [None, [3, 0, 1, 2, *range(11, 3, -1)]])
def test_enhanced_ct(series, tmp_path, scan, order, line):
    """Frames lie where their functional groups say, in any order."""
    folder = enhance(series, tmp_path / "enhanced", order)
    plain, volume = read_scan(series), read_scan(folder)
    assert np.array_equal(volume.values, scan[0])
    np.testing.assert_allclose(volume.affine, plain.affine)
    assert list(list_series(folder).values()) == ["12 slices, 'generated chest'"]
    with edited(folder / "enhanced.dcm") as image:
        del image.PerFrameFunctionalGroupsSequence[4].PlanePositionSequence
    said = line(lambda: read_scan(folder))
    assert "enhanced.dcm: no usable ImagePositionPatient of slice 5" in said
    with edited(folder / "enhanced.dcm") as image:
        del image.PerFrameFunctionalGroupsSequence[4]
    assert "12 images, and the places of 11" in line(lambda: read_scan(folder))


def test_frames_do_not_cost_the_header_each(series, tmp_path, scan, monkeypatch):
    folder, read, parsed = enhance(series, tmp_path / "enhanced"), filereader.read_partial, []
    monkeypatch.setattr(
        filereader, "read_partial", lambda *a, **k: parsed.append(0) or read(*a, **k)
    )
    assert np.array_equal(read_scan(folder).values, scan[0])
    assert 0 < len(parsed) < 4


def test_an_enhanced_series_that_is_deflated(series, tmp_path, scan):
    folder = enhance(series, tmp_path / "enhanced")
    with edited(folder / "enhanced.dcm") as image:
        image.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    assert np.array_equal(read_scan(folder).values, scan[0])


def test_an_enhanced_scan_in_several_files(series, tmp_path, scan):
    """Concatenations: each file has a part of the frames."""
    for name, part in (("a", range(7)), ("b", range(7, 12))):
        enhance(series, tmp_path / name, list(part))
    (tmp_path / "b/enhanced.dcm").rename(tmp_path / "a/rest.dcm")
    change(tmp_path / "a/rest.dcm", SOPInstanceUID="1.2.3")
    assert np.array_equal(read_scan(tmp_path / "a").values, scan[0])


def test_compressed_in_a_form_that_no_decoder_reads(series, line):
    """The message of damage says too what reads more."""
    for file in series.iterdir():
        with edited(file) as image:
            image.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8\xff\xd9"])
            image["PixelData"].VR = "OB"
            image.file_meta.TransferSyntaxUID = JPEGExtended12Bit
    assert "pip install 'vizoo[ct]'" in line(lambda: read_scan(series))


def test_the_part_of_the_body_is_kept(series):
    assert read_scan(series).part == ""
    for file in series.iterdir():
        image = pydicom.dcmread(file)
        image.BodyPartExamined = "HEAD"
        image.save_as(file, implicit_vr=None)
    assert read_scan(series).part == "HEAD"


def test_what_a_series_says_of_itself(series):
    told = {"SeriesDescription": "Lung 1.0", "ProtocolName": "Thorax", "StudyDescription": "CT"}
    code = Dataset()
    code.CodeMeaning = "Head"
    change(*series.iterdir(), **told, AnatomicRegionSequence=Sequence([code]))
    volume = read_scan(series)
    assert volume.part == "Head" and told.items() <= volume.told.items()
    assert volume.told["ImageType"] == "DERIVED\\SECONDARY\\AXIAL"


def test_phases_of_one_place_are_named(series, tmp_path, scan, line):
    """Repeated acquisitions, phases of the heart, of breathing and of a contrast medium."""
    write_dicom(series / "b", scan[0], scan[2])
    for number, file in enumerate((series / "b").iterdir()):
        change(file, AcquisitionNumber=2, SOPInstanceUID=f"1.2.{number}")
    said = line(lambda: read_scan(series))
    assert "lie at one position (AcquisitionNumber 1 and 2): two scans, or phases" in said
    for file in (series / "b").iterdir():  # measured again
        x, y, z = pydicom.dcmread(file).ImagePositionPatient
        change(file, ImagePositionPatient=[x, y, f"{z + 0.01:.6f}"])
    assert "lie at one position (AcquisitionNumber 1 and 2)" in line(lambda: read_scan(series))
    folder = enhance(write_dicom(tmp_path / "c", scan[0], scan[2]), tmp_path / "enhanced")
    with edited(folder / "enhanced.dcm") as image:
        for number, frame in enumerate(image.PerFrameFunctionalGroupsSequence):
            content = Dataset()
            content.TemporalPositionIndex = 1 + number % 2
            frame.FrameContentSequence = Sequence([content])
            frame.PlanePositionSequence[0].ImagePositionPatient = [0, 0, number // 2]
    said = line(lambda: read_scan(folder))
    assert "(slice 1) and enhanced.dcm (slice 2) lie at one position (TemporalP" in said
    assert "TemporalPositionIndex 1 and 2" in said


def test_kernels_are_not_mixed(series, line):
    """Two reconstructions of which each lies half-way between the slices of the other."""
    change(*series.iterdir(), ConvolutionKernel=["Bl57", "3"])
    assert len(read_scan(series).values) == 12
    change(*sorted(series.iterdir())[::2], ConvolutionKernel=["Br40", "3"])
    said = line(lambda: read_scan(series))
    assert r"kernel Br40\3 in 0001.dcm" in said and r"kernel Bl57\3 in 0002.dcm" in said


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"RescaleType": "MGML"}, "its values are MGML (RescaleType), no Hounsfield units"),
        ({"RescaleType": "Z_EFF"}, "its values are Z_EFF"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "pixels are PALETTE COLOR"),
        ({"PixelSpacing": [18, -15]}, "no usable PixelSpacing"),
        ({"RescaleSlope": 0}, "empty: every voxel is -1024"),
        ({"HighBit": 15, "BitsStored": 12}, "HighBit 15 of 12 bits; wants 11"),
    ],
)
def test_values_that_are_no_plain_ct(series, line, tags, said):
    change(*series.iterdir(), **tags)
    assert said in line(lambda: read_scan(series))


@pytest.mark.parametrize("units", ["HU", "US", "HU_MOD", "", "Hounsfield Units"])
def test_units_that_are_hounsfield_or_unspecified(series, scan, units):
    change(*series.iterdir(), RescaleType=units)
    assert np.array_equal(read_scan(series).values, scan[0])


def test_units_of_enhanced_ct(series, tmp_path, line):
    folder = enhance(series, tmp_path / "enhanced")
    with edited(folder / "enhanced.dcm") as image:
        shared = image.SharedFunctionalGroupsSequence[0].PixelValueTransformationSequence[0]
        del image.RescaleType
        shared.RescaleType = "EDW"
    assert "its values are EDW" in line(lambda: read_scan(folder))


def test_kinds_of_frames(series, tmp_path):
    """A localiser among others; what else a frame says of itself."""
    folder = enhance(series, tmp_path / "enhanced")
    with edited(folder / "enhanced.dcm") as image:
        for number, frame in enumerate(image.PerFrameFunctionalGroupsSequence):
            kind = Dataset()
            kind.FrameType = ["DERIVED", "PRIMARY", "VOLUME" if number else "LOCALIZER", "MAXIMUM"]
            kind.VolumeBasedCalculationTechnique = "MAX_IP"
            frame.CTImageFrameTypeSequence = Sequence([kind])
    with pytest.warns(UserWarning, match="1 localisers"):
        volume = read_scan(folder)
    assert len(volume.values) == 11 and volume.told["ImageType"].endswith("VOLUME\\MAXIMUM")
    assert volume.told["VolumeBasedCalculationTechnique"] == "MAX_IP"


def test_each_frame_has_units_of_its_own(series, tmp_path, scan):
    folder = enhance(series, tmp_path / "enhanced")
    with edited(folder / "enhanced.dcm") as image:
        image.SOPClassUID = LegacyConvertedEnhancedCTImageStorage
        for number, frame in enumerate(image.PerFrameFunctionalGroupsSequence):
            units = Dataset()
            units.RescaleSlope, units.RescaleIntercept = "1", str(number - 1024)
            frame.PixelValueTransformationSequence = Sequence([units])
        del image.SharedFunctionalGroupsSequence[0].PixelValueTransformationSequence
    wanted = scan[0] + np.arange(12, dtype=np.int16)[:, None, None]
    assert np.array_equal(read_scan(folder).values, wanted)


@pytest.mark.parametrize("implicit", [True, False])
@pytest.mark.parametrize(
    ("sign", "padding"), [(0, 40000), (1, 63536), (1, -2000), (0, (40000, 40100)), (1, -1024)]
)
def test_padding_is_air(series, scan, implicit, sign, padding):
    """Where it makes a round picture a rectangle; not a voxel within that has its value."""
    first, last = padding if isinstance(padding, tuple) else (padding, padding)
    low = first - 65536 * (sign and first > 32767)
    wanted = scan[0].copy()
    for plane, file in zip(wanted, sorted(series.iterdir()), strict=True):
        image = pydicom.dcmread(file)
        offset = 0 if sign else 1024
        stored = plane.astype(np.int32) + offset
        stored[0], stored[1, 3:9], stored[5, 5] = low, last - first + low, low
        plane[0] = plane[1, 3:9] = min(low - offset, -1000)
        plane[5, 5] = min(low - offset, 32767)
        data = Dataset()
        data.update(image)
        data.PixelRepresentation, data.RescaleIntercept = sign, str(-offset)
        data.add_new("PixelPaddingValue", "US" if first >= 0 else "SS", first)
        if last > first:
            data.add_new("PixelPaddingRangeLimit", "US", last)
        data.PixelData = stored.astype(np.int16 if sign else np.uint16).tobytes()
        data.save_as(file, implicit_vr=implicit, little_endian=True, enforce_file_format=False)
    assert np.array_equal(read_scan(series).values, wanted)


def test_bits_beyond_those_stored_do_not_count(series, scan):
    """Old scanners kept overlays there, and some do not extend the sign."""
    for plane, file in zip(scan[0], sorted(series.iterdir()), strict=True):
        stored = plane.astype(np.int16).view(np.uint16) & 0x0FFF | 0x1000
        change(file, PixelRepresentation=1, BitsStored=12, HighBit=11, RescaleIntercept="0")
        change(file, PixelData=stored.tobytes())
    assert np.array_equal(read_scan(series).values, scan[0])


def test_loss_is_told(series):
    change(*series.iterdir(), LossyImageCompression="00")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_scan(series)
    change(next(series.iterdir()), LossyImageCompression="01")
    with pytest.warns(UserWarning, match="series: was compressed with loss"):
        read_scan(series)


def test_objects_of_makers_and_pictures_of_doses_lie_beside_a_series(series, scan, tmp_path):
    other = write_dicom(tmp_path / "other", scan[0][:2], scan[2], series="2")
    raw, dose = sorted(other.iterdir())
    image = pydicom.dcmread(raw)
    image.SOPClassUID = "1.3.12.2.1107.5.9.1"  # syngo's, no image
    del image.Rows
    image.save_as(series / "raw.dcm")
    image = pydicom.dcmread(dose)
    image.SOPClassUID, image.SamplesPerPixel = SecondaryCaptureImageStorage, 3
    image.save_as(series / "dose.dcm")
    with pytest.warns(UserWarning, match="2 files that are no CT images passed over.*Secondary"):
        assert np.array_equal(read_scan(series).values, scan[0])


def test_a_scan_without_hounsfield_units_is_refused(series, line):
    change(*series.iterdir(), RescaleIntercept="1000")
    assert "are no Hounsfield units" in line(lambda: read_scan(series))


def test_how_much_lung_there_is(scan):
    """Air within a body; a head has none but its sinuses."""
    from vizoo.datasets.ct import CTVolume

    rows, columns = np.mgrid[-64:64, -64:64]
    radius = np.hypot(rows, columns)
    head = np.full((20, 128, 128), -1000, np.int16)
    head[:, radius < 50] = 40
    head[:, (radius < 50) & (radius > 45)] = 900
    head[8:12, np.hypot(rows + 35, columns) < 5] = -990
    chest = head.copy()
    for side in (-20, 20):
        chest[5:15, np.hypot(rows / 1.5, columns - side) < 14] = -850
    share = [lung_share(CTVolume(values, np.eye(4))) for values in (head, chest)]
    assert share[0] < 0.02 and share[1] > 0.15
    cropped = chest[:, 30:98, 30:98]  # to the lungs: no air outside is left
    assert lung_share(CTVolume(cropped, np.eye(4))) > 0.15
    assert lung_share(CTVolume(scan[0], scan[2])) > 0.1
