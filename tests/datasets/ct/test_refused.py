"""Bad scans: each is refused with one clear line, or named in a warning."""

from __future__ import annotations

import shutil

import numpy as np
import pydicom
import pytest
from PIL import Image

from vizoo.datasets.ct import CTPreset, list_series, prepare, read_nifti, read_scan, write_dicom
from vizoo.datasets.ct import write_nifti as write


def change(file, **tags):
    """Give a DICOM file other tags; None deletes one."""
    image = pydicom.dcmread(file)
    for name, value in tags.items():
        if value is None:
            delattr(image, name)
        else:
            setattr(image, name, value)
    image.save_as(file)


class TestDicom:
    def test_mixed_series(self, series, scan, line):
        write_dicom(series / "b", scan[0][:5], scan[2], series="2", description="thick")
        said = line(lambda: read_scan(series))
        assert "2 series mixed: name one" in said and "5 slices, 'thick'" in said
        found = list_series(series)
        assert sorted(text.split()[0] for text in found.values()) == ["12", "5"]
        for uid, text in found.items():
            assert f"{len(read_scan(series, uid).values)} slices" in text
        assert "no series 1.2; there is" in line(lambda: read_scan(series, "1.2"))

    def test_missing_slices(self, series, scan, line):
        (series / "0005.dcm").unlink()
        with pytest.warns(
            UserWarning, match="1 of 12 slices are missing, between 0004.dcm and 0006.dcm; i"
        ):
            found = read_scan(series)
        between = np.rint((scan[0][3].astype(float) + scan[0][5]) / 2)
        assert np.array_equal(found.values[4], between)
        assert np.array_equal(np.delete(found.values, 4, 0), np.delete(scan[0], 4, 0))
        np.testing.assert_allclose(found.affine, scan[2], atol=1e-6)
        (series / "0008.dcm").unlink()
        said = line(lambda: read_scan(series))
        assert "2 of 12 slices are missing" in said and "copy the whole series" in said

    def test_localisers(self, series, line):
        change(
            series / "0001.dcm", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"], PixelSpacing=None
        )
        with pytest.warns(UserWarning, match="1 localisers"):
            assert len(read_scan(series).values) == 11
        for file in series.iterdir():
            change(file, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
        assert "only localisers (scouts)" in line(lambda: read_scan(series))

    def test_orientation(self, series, line):
        for file in series.iterdir():
            change(file, ImageOrientationPatient=[1, 0, 0, 0, 0, -1])
        assert "coronal slices; take the scan's axial" in line(lambda: read_scan(series))
        for directions in ([0] * 6, [1, 0, 0, 1, 0, 0], [2, 0, 0, 0, 1, 0]):
            change(series / "0003.dcm", ImageOrientationPatient=directions)
            said = line(lambda: read_scan(series))
            assert "0003.dcm: ImageOrientationPatient" in said and "at right angles" in said
        for file in series.iterdir():
            change(file, ImageOrientationPatient=[0] * 6)
        assert "at right angles" in line(lambda: read_scan(series))

    def test_mixed_kinds(self, series, line):
        change(series / "0003.dcm", PixelSpacing=[1, 1])
        said = line(lambda: read_scan(series))
        assert "20x24 axial of 18x15 mm in 0001.dcm, 20x24 axial of 1x1 mm in 0003.dcm" in said

    def test_positions(self, series, line):
        shutil.copy(series / "0003.dcm", series / "copy.dcm")
        change(series / "copy.dcm", SOPInstanceUID="1.2.3")
        assert "0003.dcm and copy.dcm lie at one position" in line(lambda: read_scan(series))
        change(series / "copy.dcm", ImagePositionPatient=[0, 0, -85])
        assert "a scan has them at even distances" in line(lambda: read_scan(series))

    def test_a_file_that_lies_there_twice(self, series, scan):
        shutil.copy(series / "0003.dcm", series / "copy.dcm")
        with pytest.warns(UserWarning, match="1 files lie there twice.*first copy.dcm"):
            assert np.array_equal(read_scan(series).values, scan[0])

    def test_one_uid_for_all_slices(self, series, scan):
        """It says nothing then: slices at different places are no copies."""
        for file in series.iterdir():
            change(file, SOPInstanceUID="1.2.3")
        assert np.array_equal(read_scan(series).values, scan[0])

    @pytest.mark.parametrize(
        "tag", ["PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient", "RescaleSlope"]
    )
    def test_without(self, series, line, tag):
        change(series / "0002.dcm", **{tag: None})
        assert f"0002.dcm: no usable {tag} in its header" in line(lambda: read_scan(series))

    def test_other_images(self, series, line):
        change(series / "0002.dcm", NumberOfFrames=3)
        assert "0002.dcm: 3 images, and the places of 1" in line(lambda: read_scan(series))
        change(series / "0002.dcm", NumberOfFrames=1, SamplesPerPixel=3)
        assert "3 samples a pixel" in line(lambda: read_scan(series))
        for file in series.iterdir():
            change(file, SamplesPerPixel=1, Modality="MR")
        assert "modality MR; wants a CT series" in line(lambda: read_scan(series))
        assert "modality MR; wants a CT" in line(lambda: read_scan(series / "0002.dcm"))

    def test_what_lies_beside_a_series(self, series, scan, tmp_path, line):
        """Reports, segmentations and notes do not stop a series, named or not."""
        uid = next(iter(list_series(series)))
        for number, kind in enumerate(("SR", "SEG", "RTDOSE", "SR")):
            shutil.copy(series / "0003.dcm", series / f"{kind}{number}.dcm")
            change(series / f"{kind}{number}.dcm", Modality=kind, SOPClassUID="1.2.3", Rows=None)
        raw = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.66", "Rows": None}  # Modality CT, no image
        shutil.copy(series / "0003.dcm", series / "raw.dcm")
        change(series / "raw.dcm", **raw)
        (series / "dicomdir").write_bytes((series / "SR0.dcm").read_bytes())
        (series / "readme.dcm").write_text("how this was exported\n")
        for name in (None, uid):
            with pytest.warns(UserWarning) as said:
                assert np.array_equal(read_scan(series, name).values, scan[0])
            text = " ".join(str(warning.message) for warning in said)
            assert "5 files that are no CT images passed over (1 RTDOSE, 1 SEG, 2 SR, 1 Raw" in text
            assert "1 files that are not DICOM passed over, first readme.dcm" in text

    def test_another_series_that_cannot_be_used(self, series, scan, line):
        """Such as a dose report, which is a picture of the scanner's."""
        write_dicom(series / "b", scan[0][:2], scan[2], series="2")
        for file in (series / "b").iterdir():
            change(file, ImagePositionPatient=None)
        with pytest.warns(UserWarning, match="1 series without usable images passed over, first"):
            assert len(read_scan(series).values) == 12
        (other,) = {pydicom.dcmread(file).SeriesInstanceUID for file in (series / "b").iterdir()}
        assert "no usable ImagePositionPatient" in line(lambda: read_scan(series, other))

    def test_one_slice(self, series, line):
        for file in sorted(series.iterdir())[1:]:
            file.unlink()
        assert "one slice; a scan has several" in line(lambda: read_scan(series))

    def test_damage(self, series, line):
        file = series / "0004.dcm"
        whole = file.read_bytes()
        file.write_bytes(whole[:-300])
        assert "0004.dcm: damaged or unsupported pixels" in line(lambda: read_scan(series))
        for size in (200, 400, 600):
            file.write_bytes(whole[:size])
            assert "0004.dcm" in line(lambda: read_scan(series))
        file.write_bytes(b"")
        assert "0004.dcm: damaged or no DICOM file" in line(lambda: read_scan(series))

    def test_compression(self, series, line):
        """Pixels that nothing installed decodes are told from the header alone."""
        from pydicom.uid import RLELossless

        for file in series.iterdir():
            image = pydicom.dcmread(file)
            image.compress(RLELossless)
            image.save_as(file)
        assert len(read_scan(series).values) == 12
        for file in series.iterdir():
            image = pydicom.dcmread(file)
            image.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.100"  # MPEG2: no plugin at all
            image.save_as(file)
        said = line(lambda: read_scan(series))
        assert "compressed as MPEG2" in said and "pip install 'vizoo[ct]'" in said

    def test_other_files(self, series, tmp_path, line):
        (series / "notes.txt").write_text("none")
        with pytest.warns(UserWarning, match="1 files that are not DICOM passed over, first notes"):
            read_scan(series)
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(series / "preview.png")
        with pytest.warns(UserWarning, match="2 files that are not DICOM"):
            assert len(read_scan(series).values) == 12
        (tmp_path / "empty").mkdir()
        said = line(lambda: read_scan(tmp_path / "empty"), FileNotFoundError)
        assert "no DICOM file, and no PNG" in said
        assert "no such file or folder" in line(lambda: read_scan("nowhere"), FileNotFoundError)
        assert "notes.txt: not a scan" in line(lambda: read_scan(series / "notes.txt"))


def test_what_does_not_apply(series, tmp_path, scan, line):
    """A series of a NIfTI file, a range of stored values of Hounsfield units."""
    path = tmp_path / "a.nii.gz"
    write(path, scan[0], scan[2])
    said = line(lambda: read_scan(path, series="1.2"))
    assert "a.nii.gz: NIfTI, which takes no series: leave it out" in said
    for place, kind in ((path, "NIfTI"), (series, "DICOM"), (series / "0001.dcm", "DICOM")):
        said = line(lambda place=place: read_scan(place, value_range=(0, 9)))
        assert f"{kind}, which takes no value_range: leave it out" in said


class TestNifti:
    def test_one_slice(self, tmp_path, scan, line):
        write(tmp_path / "a.nii.gz", scan[0][:1], scan[2])
        assert "a.nii.gz: one slice; a scan has several" in line(
            lambda: read_scan(tmp_path / "a.nii.gz")
        )

    def test_planes(self, tmp_path, scan, line):
        coronal = np.array([[1.0, 0, 0, 0], [0, 0, 8, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
        write(tmp_path / "a.nii", scan[0], coronal)
        assert "coronal slices (1 x 8 mm" in line(lambda: read_nifti(tmp_path / "a.nii"))
        sagittal = coronal[[1, 0, 2, 3]]
        write(tmp_path / "a.nii", scan[0], sagittal)
        assert "sagittal slices (8 x 1 mm" in line(lambda: read_nifti(tmp_path / "a.nii"))
        c, s = np.cos(0.7), np.sin(0.7)
        lean = np.array([[1, 0, 0, 0], [0, c, -s, 0], [0, s, c, 0], [0, 0, 0, 1]])
        write(tmp_path / "a.nii", scan[0], lean)
        assert "slices lean 40 degrees" in line(lambda: read_nifti(tmp_path / "a.nii"))

    def test_no_scan(self, tmp_path, scan, line):
        import nibabel

        path = tmp_path / "a.nii.gz"
        nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4, 2), np.int16), np.eye(4)), path)
        assert "4x4x4x2 of int16; a scan is one grey" in line(lambda: read_nifti(path))
        plain = tmp_path / "plain.nii"
        write(plain, scan[0], scan[2])
        header = bytearray(plain.read_bytes())
        header[280:328] = bytes(48)  # the affine's rows
        plain.write_bytes(header)
        assert "plain.nii: unknown spacing" in line(lambda: read_nifti(plain))
        values = np.zeros((4, 4, 4))
        values[0, 0] = np.nan
        write(path, values, scan[2])
        said = line(lambda: read_nifti(path))
        assert "4 of 64 values are not finite" in said and "set them to -1000" in said
        write(path, np.full((4, 4, 4), -1000), scan[2])
        said = line(lambda: prepare(read_nifti(path), CTPreset((4, 4), 2)))
        assert "a.nii.gz: empty: every voxel is -1000" in said

    def test_without_orientation(self, tmp_path, scan):
        import nibabel

        image = nibabel.Nifti1Image(scan[0].transpose(2, 1, 0), None)
        nibabel.save(image, tmp_path / "a.nii")
        with pytest.warns(UserWarning, match="does not say how the patient lies"):
            read_nifti(tmp_path / "a.nii")

    @pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
    def test_damage(self, tmp_path, scan, line, suffix):
        path = tmp_path / f"a{suffix}"
        write(path, scan[0], scan[2])
        whole = path.read_bytes()
        for content in (b"", b"garbage", whole[:200], whole[: len(whole) // 2]):
            path.write_bytes(content)
            said = line(lambda: read_nifti(path))
            assert f"a{suffix}: damaged or no NIfTI file" in said
        assert "no such file" in line(lambda: read_nifti(tmp_path / "b.nii"), FileNotFoundError)

    def test_writer(self, tmp_path, scan, line):
        assert "ends in .nii" in line(lambda: write(tmp_path / "a.png", scan[0], scan[2]))
        assert "a volume is (D, H, W)" in line(
            lambda: write(tmp_path / "a.nii", scan[0][0], scan[2])
        )


class TestPictures:
    @pytest.fixture
    def folder(self, tmp_path):
        for number in range(12):
            Image.fromarray(np.full((6, 8), 20 * number, np.uint8)).save(tmp_path / f"{number}.png")
        return tmp_path

    def test_in_the_order_of_numbers(self, folder):
        found = read_scan(folder)
        assert found.values[:, 0, 0].tolist() == [20 * number for number in range(12)]
        assert found.span == (0, 255) and not found.spaced

    def test_first_channel(self, folder):
        Image.fromarray(np.full((6, 8, 3), (7, 8, 9), np.uint8)).save(folder / "0.png")
        assert read_scan(folder).values[0, 0, 0] == 7

    def test_sixteen_bits(self, folder, line):
        for file in folder.iterdir():
            file.unlink()
        for number in (1, 2):
            Image.fromarray(np.full((6, 8), 1000 * number, np.uint16)).save(
                folder / f"{number}.tif"
            )
        assert "1.tif: 16 bits; say which values" in line(lambda: read_scan(folder))
        seen = prepare(read_scan(folder, value_range=(0, 4000)), CTPreset((4, 4), 2))["volume"]
        assert seen[0, :, 0, 0].tolist() == pytest.approx([0.25, 0.5], abs=1e-5)
        assert "pictures, which takes no series" in line(lambda: read_scan(folder, series="1"))
        assert "the first must be" in line(lambda: read_scan(folder, value_range=(5, 5)))

    def test_refused(self, folder, line):
        said = line(lambda: prepare(read_scan(folder), CTPreset(spacing=(1, 1, 1))))
        assert "unknown spacing: pictures give no size" in said
        (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:40])
        assert "3.png" in line(lambda: read_scan(folder))
        Image.fromarray(np.zeros((6, 9), np.uint8)).save(folder / "3.png")
        assert "3.png: 6x9 pixels of 8 bits, but 0.png has 6x8" in line(lambda: read_scan(folder))
        for file in sorted(folder.iterdir())[1:]:
            file.unlink()
        assert "1 slices; a scan has several" in line(lambda: read_scan(folder))
