"""`vizoo infer ct`: what it writes and says, and one line for what is wrong."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import re
import shutil

import nibabel
import numpy as np
import pytest
import torch

from vizoo.__main__ import main
from vizoo.classification import NOTICE, ct_infer
from vizoo.classification.cam import METHODS
from vizoo.cli import infer_ct
from vizoo.datasets.ct import Chest, CTPreset, list_series, write_dicom, write_nifti
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.io.images import write_image

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("nibabel")

CLASSES = ("CP", "NCP", "Normal")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    net = create_model("covidnet3d_tiny", classes=3, encoding=[0, 8, 8, 8, 8])
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    facts = {"classes": CLASSES, "input": dataclasses.asdict(CTPreset((16, 16), 4))}
    return str(save_weights(net, path, **facts))


@pytest.fixture(scope="module")
def scan():
    return Chest(1, "covid").scan((8, 20, 24))


@pytest.fixture(scope="module")
def scans(tmp_path_factory, scan):
    """A folder with a DICOM series, a NIfTI file and PNG slices."""
    folder = tmp_path_factory.mktemp("scans")
    values, _, affine = scan
    write_dicom(folder / "series", values, affine)
    write_nifti(folder / "scan.nii.gz", values, affine)
    for number, plane in enumerate(values):
        pixels = ((plane + 1350) / 1500 * 255).clip(0, 255).astype(np.uint8)
        write_image(folder / "slices" / f"{number}.png", pixels)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path, scans):
    """A copy of the scans, of which pictures are small."""
    shutil.copytree(scans, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for kind in ct_infer._SIDES:
        monkeypatch.setitem(ct_infer._SIDES, kind, 64)


def call(*words):
    return main(["infer", "ct", *words, "--device", "cpu"])


def change(file, **tags):
    image = pydicom.dcmread(file)
    for name, value in tags.items():
        setattr(image, name, value)
    image.save_as(file)


@pytest.mark.parametrize("scan_word", ["series", "scan.nii.gz", "slices", "series/0003.dcm"])
def test_one_scan(weights, tmp_path, capsys, scan_word):
    order = ["--slices", "feet-first"] if scan_word == "slices" else []
    assert call(scan_word, "--model", weights, "--out", "out", "--montage", "2", *order) == 0
    told = capsys.readouterr()
    first, second, third, *files, last, notice = told.out.splitlines()
    assert told.err == "" and notice == NOTICE and last == "out/summary.json"
    assert re.fullmatch(rf"{scan_word}: \w+ \((CP|NCP|Normal) [\d.]+, .*\)", first) or (
        scan_word == "series/0003.dcm" and first.startswith("series: ")
    )
    assert re.fullmatch(r"  4 of 8 slices, window -?\d+ to \d+, covidnet3d_tiny, [\d.]+ s", second)
    assert re.fullmatch(r"  (Grad-)?CAM.*, highest at slice \d of 8, from the feet", third)
    name = {"scan.nii.gz": "scan", "series/0003.dcm": "0003"}.get(scan_word, scan_word)
    assert {file.split(" (")[0].strip() for file in files} == {
        f"out/{name}{ending}" for ending in (".json", "_montage.png", "_slices/", "_map.nii.gz")
    }
    said = json.loads((tmp_path / f"out/{name}.json").read_text())
    assert said["class"] in CLASSES and sum(said["probabilities"].values()) == pytest.approx(1)
    assert said["model"] == weights and said["network"] == "covidnet3d_tiny"
    assert said["preset"]["slices"] == 4 and said["notice"] == NOTICE
    assert len(list((tmp_path / f"out/{name}_slices").iterdir())) == 4


def test_a_map_of_nothing_has_no_peak(tmp_path, capsys):
    net = create_model("covidnet3d_tiny", classes=3, encoding=[0, 8, 8, 8, 8])
    net.get_classifier().weight.data.zero_()
    facts = {"classes": CLASSES, "input": dataclasses.asdict(CTPreset((16, 16), 4))}
    path = str(save_weights(net, tmp_path / "silent.safetensors", **facts))
    assert call("scan.nii.gz", "--model", path, "--out", "out", "--no-mirrors") == 0
    told = capsys.readouterr()
    assert "nothing speaks for" in told.err and ", 0 everywhere\n" in told.out
    found = json.loads((tmp_path / "out/scan.json").read_text())["map"]
    assert found["peak_slice"] is None and found["peak_mm"] is None


def test_which_end_of_pictures_is_the_head(weights, tmp_path, capsys):
    """Without a word there is no map as NIfTI, which would be upside down for half of them."""
    words = ("slices", "--model", weights, "--out", "out")
    assert call(*words) == 0
    told = capsys.readouterr()
    assert "do not say which end is the head" in told.err and "from the first" in told.out
    assert not list((tmp_path / "out").glob("*.nii.gz"))
    said = json.loads((tmp_path / "out/slices.json").read_text())
    assert said["ends_known"] is False and "(say feet-first or head-first)" in said["warnings"][0]
    heats = []
    for order in ("feet-first", "head-first"):
        assert call(*words, "--slices", order) == 0
        assert "warning" not in capsys.readouterr().err
        heats.append(nibabel.load(tmp_path / "out/slices_map.nii.gz"))
    assert [nibabel.aff2axcodes(heat.affine)[2] for heat in heats] == ["S", "I"]
    assert call("scan.nii.gz", "--model", weights, "--slices", "feet-first") == 2
    assert "NIfTI, which takes no order: leave it out" in capsys.readouterr().err


def test_a_head_is_not_taken_for_a_chest(weights, tmp_path, capsys, scan):
    values, _, affine = scan
    folder = write_dicom(tmp_path / "head", values, affine)
    for file in folder.iterdir():
        change(file, BodyPartExamined="HEAD")
    assert call("head", "--model", weights, "--out", "out", "--csv", "all.csv") == 0
    assert "this may be no chest: its file says HEAD" in capsys.readouterr().err
    assert "says HEAD" in json.loads((tmp_path / "out/head.json").read_text())["caution"]
    assert "says HEAD" in (tmp_path / "all.csv").read_text()
    solid = np.where(values < -300, 40, values)
    solid[:, 0] = -1000
    write_nifti(tmp_path / "brain.nii.gz", solid, affine)
    assert call("brain.nii.gz", "--model", weights, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["scans"]
    assert "lungs are 0.0 % of the body" in found["caution"]


def test_a_caution_stands_in_every_output(weights, tmp_path, capsys, scan):
    """Terminal, JSON of the scan and of all, table, picture and NIfTI."""
    values, _, affine = scan
    for file in write_dicom(tmp_path / "head", values, affine).iterdir():
        change(file, SeriesDescription="Head 5.0 H30s", BodyPartExamined="CHEST")
    assert call("head", "--model", weights, "--out", "out", "--csv", "all.csv") == 0
    caution = "this may be no chest: its SeriesDescription says 'Head 5.0 H30s'"
    assert f"vizoo: warning: head: {caution}" in capsys.readouterr().err
    assert json.loads((tmp_path / "out/head.json").read_text())["caution"] == caution
    (item,) = json.loads((tmp_path / "out/summary.json").read_text())["items"]
    assert item["caution"] == caution and caution in (tmp_path / "all.csv").read_text()
    header = nibabel.load(tmp_path / "out/head_map.nii.gz").header
    assert header["descrip"].item().decode() == caution
    write_dicom(tmp_path / "plain/head", values, affine)
    assert call("plain/head", "--model", weights, "--out", "other") == 0
    assert "warning" not in capsys.readouterr().err
    for file in sorted((tmp_path / "out").rglob("*.png")):
        plain = tmp_path / "other" / file.relative_to(tmp_path / "out")
        assert file.read_bytes() != plain.read_bytes()
    header = nibabel.load(tmp_path / "other/head_map.nii.gz").header
    assert header["descrip"].item().decode() == NOTICE[:79]


def test_what_is_said_of_pictures_is_for_pictures(weights, tmp_path, capsys):
    """Where other scans lie beside them; where none is of pictures, it is refused."""
    words = ("series", "slices", "scan.nii.gz", "--model", weights, "--json")
    extra = ("--slices", "head-first", "--value-range", "0", "255")
    assert call(*words, "--out", "out", *extra) == 0
    items = {item["name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert all(item["ends_known"] for item in items.values())
    assert items["slices"]["window"] == [0, 255] and items["series"]["window"] != [0, 255]
    assert "slices_from_the_feet" in items["slices"]
    assert call(*words) == 0
    plain = {item["name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert "slices_from_the_feet" not in plain["slices"]
    assert plain["slices"]["slices_from_the_first"] == plain["series"]["slices_from_the_feet"]
    assert call("series", "scan.nii.gz", "--model", weights, "--slices", "head-first") == 1
    assert "2 of 2 scans failed" in capsys.readouterr().err


def test_folders_without_ct_slices(weights, tmp_path, capsys, scan):
    """Found by searching they are passed over; named they are failures."""
    values, _, affine = scan
    folders = {
        "study": {"Modality": "PR"},
        "study/report": {"Modality": "SR", "SOPClassUID": "1.2.840.10008.5.1.4.1.1.88.11"},
        "study/scout": {"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]},
        "study/thorax/lung": {},
    }
    for number, (folder, tags) in enumerate(folders.items()):
        for file in write_dicom(tmp_path / folder, values, affine, series=str(number)).iterdir():
            change(file, **tags)
    (tmp_path / "study/DICOMDIR").write_bytes((tmp_path / "study/0001.dcm").read_bytes())
    words = ("--model", weights, "--json")
    for typed in ("study", "stud*"):
        assert call(typed, *words) == 0
        told = capsys.readouterr()
        (item,) = json.loads(told.out)["items"]
        assert item["scan"] == "study/thorax/lung"
        (note,) = told.err.splitlines()
        assert note.startswith(f"vizoo: warning: {typed}: 3 folders without CT slices in their D")
        assert note.endswith("passed over, first study")
    assert call("study/report", *words) == 2
    assert "modality SR; wants a CT series" in capsys.readouterr().err
    assert call("study/scout", "study/thorax", *words) == 1
    told = capsys.readouterr()
    assert "only localisers (scouts)" in told.err and "1 of 2 scans failed" in told.err
    (tmp_path / "study/thorax").rename(tmp_path / "thorax")
    assert call("study", *words) == 2
    assert "only localisers" in capsys.readouterr().err


def test_kinds_agree(weights, capsys):
    """The same scan in three forms gets the same answer; pictures have been rounded."""
    assert call("series", "scan.nii.gz", "slices", "--model", weights, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["notice"] == NOTICE and summary["model"] == weights
    shares = [list(report["probabilities"].values()) for report in summary["scans"]]
    assert shares[0] == pytest.approx(shares[1], abs=1e-6)
    assert shares[0] == pytest.approx(shares[2], abs=0.01)
    assert all("map" not in report and report["files"] == [] for report in summary["scans"])


def test_a_batch_of_which_one_is_damaged(weights, tmp_path, capsys, scan):
    for number in range(3):
        write_nifti(tmp_path / f"batch/{number}.nii.gz", scan[0], scan[2])
    (tmp_path / "batch/1.nii.gz").write_bytes(b"garbage")
    write_dicom(tmp_path / "batch/more/a", scan[0], scan[2])
    words = ("--model", weights, "--out", "out", "--csv", "out/all.csv", "--no-overlays")
    assert call("batch", *words) == 1
    told = capsys.readouterr()
    assert told.out.splitlines()[-2:] == ["out/all.csv", NOTICE]
    damaged, last = told.err.splitlines()
    assert "batch/1.nii.gz: damaged" in damaged
    assert last == "vizoo: error: 1 of 4 scans failed"
    rows = list(csv.DictReader((tmp_path / "out/all.csv").open()))
    assert [row["scan"] for row in rows] == [
        *(f"batch/{number}.nii.gz" for number in range(3)),
        "batch/more/a",
    ]
    assert "damaged" in rows[1]["error"] and rows[1]["class"] == rows[1]["p_NCP"] == ""
    for row in (rows[0], rows[2], rows[3]):
        assert row["class"] in CLASSES and row["slices_used"] == "4" and row["error"] == ""
        assert sum(float(row[f"p_{name}"]) for name in CLASSES) == pytest.approx(1, abs=1e-5)
        assert row["notice"] == NOTICE
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *(f"{name}.json" for name in ("0", "2", "a")),
        "all.csv",
        "summary.json",
    }


def test_results_are_no_scans(weights, tmp_path, capsys, scan):
    """A second run over a folder that holds the first one's results finds what the first found."""
    write_nifti(tmp_path / "batch/0.nii.gz", scan[0], scan[2])
    for _ in range(2):
        words = ("--out", "batch/result", "--no-mirrors", "--json")
        assert call("batch", "--model", weights, *words) == 0
        (report,) = json.loads(capsys.readouterr().out)["scans"]
        assert report["scan"] == "batch/0.nii.gz"


def test_results_of_another_patient_are_not_replaced_in_silence(weights, tmp_path, capsys, scan):
    for patient in ("a", "b"):
        write_nifti(tmp_path / patient / "chest.nii.gz", scan[0], scan[2])
        assert call(patient, "--model", weights, "--out", "out", "--no-mirrors") == 0
        said = capsys.readouterr()
    files = said.out.count("  out/chest") - 1 + len(list((tmp_path / "out/chest_slices").iterdir()))
    assert said.err.endswith(f"vizoo: replaced {files} files of an earlier run in out\n")


def test_neither_earlier_results_nor_masks_are_scans(weights, tmp_path, capsys, scan):
    write_nifti(tmp_path / "batch/0.nii.gz", scan[0], scan[2])
    write_nifti(tmp_path / "batch/masks/0_lesion.nii.gz", scan[1], scan[2])
    (tmp_path / "slices").rename(tmp_path / "batch/chest_slices")
    words = ("--json", "--model", weights)
    assert call("batch", *words, "--out", "batch/result", "--no-mirrors") == 0
    capsys.readouterr()
    wanted = ["batch/0.nii.gz", "batch/chest_slices"]
    for typed in (["batch"], ["batch/*.nii.gz", "batch/*_slices", "batch/*/*.nii.gz"]):
        assert call(*typed, *words) == 0
        reports = json.loads(capsys.readouterr().out)["scans"]
        assert [report["scan"] for report in reports] == wanted
    assert call("batch/result/0_map.nii.gz", *words) == 2
    assert "0_map.nii.gz: no scan: a result" in capsys.readouterr().err


def test_the_files_of_a_series_are_one_scan(weights, tmp_path, capsys):
    files = [f"series/{file.name}" for file in sorted((tmp_path / "series").iterdir())]
    for typed in (files, ["series/*.dcm"], ["series", *files]):
        assert call(*typed, "--model", weights, "--json") == 0
        (report,) = json.loads(capsys.readouterr().out)["scans"]
        assert report["scan"] == "series"


def test_the_pictures_of_a_folder_are_one_scan(weights, tmp_path, capsys):
    assert call("slices/*.png", "--model", weights, "--json") == 0
    told = capsys.readouterr()
    (report,) = json.loads(told.out)["scans"]
    assert report["scan"] == "slices" and "order, or --slices, says it" in told.err
    assert "not only the" not in told.err
    assert call("slices/*[02468].png", "--model", weights) == 0
    assert re.search(
        r"slices: all of its \d+ slices are read, not only the", capsys.readouterr().err
    )


def test_links_lead_to_no_scan_twice(weights, tmp_path, capsys):
    (tmp_path / "batch").mkdir()
    (tmp_path / "series").rename(tmp_path / "batch/series")
    (tmp_path / "batch/other").mkdir()
    links = [("me", "."), ("up", ".."), ("latest", "series")]
    links += [(f"other/{number}", "../me") for number in range(4)]
    for name, to in links:
        (tmp_path / "batch" / name).symlink_to(to)
    assert call("batch", "--model", weights, "--json") == 0
    (scan,) = json.loads(capsys.readouterr().out)["scans"]
    assert scan["name"] == "series"


def test_endings_in_capitals(weights, tmp_path, capsys, scan):
    write_nifti(tmp_path / "batch/A.NII.GZ", scan[0], scan[2])
    assert call("batch", "--model", weights, "--out", "out", "--no-overlays") == 0
    assert (tmp_path / "out/A.json").is_file()


def test_how_the_map_is_made(weights, tmp_path, capsys):
    words = (
        "series",
        "--model",
        weights,
        "--out",
        "out",
        "--montage",
        "1",
        "--class",
        "CP",
        "--no-mirrors",
    )
    for extra, method in (
        (("--method", "cam"), "CAM, 1x2x2 cells"),
        (("--method", "windows"), "CAM, mean of windows of 1 slices"),
        (("--layer", "stages.0"), "Grad-CAM at stages.0, 1x4x4 cells"),
    ):
        assert call(*words, *extra) == 0
        assert method in capsys.readouterr().out
        said = json.loads((tmp_path / "out/series.json").read_text())["map"]
        assert said["method"] == method and said["class"] == "CP"


def test_mixed_series(weights, tmp_path, capsys, scan):
    for file in write_dicom(tmp_path / "b", scan[0][:5], scan[2], series="2").iterdir():
        file.rename(tmp_path / f"series/b{file.name}")
    uids = list_series(tmp_path / "series")
    assert call("series", "--model", weights) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "2 series mixed" in line and all(uid in line for uid in uids) and "`series`" in line
    for uid in uids:
        assert call("series", "--model", weights, "--series", uid) == 0
    capsys.readouterr()
    assert call("series", "--model", weights, "--series", "1.2.3") == 2
    assert "no series 1.2.3; there is" in capsys.readouterr().err


def test_missing_slices_and_localisers(weights, tmp_path, capsys, scan):
    values, _, affine = scan
    folder = write_dicom(tmp_path / "gap", np.repeat(values, 2, 0), affine)
    (folder / "0005.dcm").unlink()
    assert call("gap", "--model", weights, "--json") == 0
    told = capsys.readouterr()
    (note,) = json.loads(told.out)["scans"][0]["warnings"]
    assert "1 of 16 slices are missing, between 0004.dcm and 0006.dcm" in note
    assert told.err == f"vizoo: warning: {note}\n"
    change(folder / "0001.dcm", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    assert call("gap", "--model", weights) == 0
    assert "1 localisers (scouts) passed over" in capsys.readouterr().err
    for number in (7, 8, 9):
        (folder / f"{number:04d}.dcm").unlink()
    assert call("gap", "--model", weights) == 2
    assert "copy the whole series" in capsys.readouterr().err
    for file in folder.iterdir():
        change(file, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    assert call("gap", "--model", weights) == 2
    assert "only localisers (scouts), which are no scan" in capsys.readouterr().err


def bad(tmp_path, scan, what):
    """A scan with which something is wrong, and its path."""
    values, _, affine = scan
    path = tmp_path / "bad.nii.gz"
    if what == "one slice":
        write_nifti(path, values[:1], affine)
    elif what == "empty":
        write_nifti(path, np.full_like(values, -1000), affine)
    elif what == "no units":
        write_nifti(path, (values + 1024) / 4096, affine)
    elif what == "coronal":
        write_nifti(path, values, affine[:, [0, 2, 1, 3]] * [1, 1 / 6, 2, 1])
    elif what == "cut":
        write_nifti(path, values, affine)
        path.write_bytes(path.read_bytes()[:900])
    elif what == "nothing":
        path = tmp_path / "nothing"
        path.mkdir()
    elif what == "text":
        path = tmp_path / "notes.txt"
        path.write_text("none")
    elif what == "one picture":
        path = tmp_path / "single"
        write_image(path / "1.png", np.zeros((8, 8), np.uint8))
    elif what == "16 bits":
        path = tmp_path / "deep"
        for number in range(3):
            write_image(path / f"{number}.png", np.full((8, 8), 900 * number, np.uint16))
    else:
        path = write_dicom(tmp_path / "bad", values, affine)
        tags = {
            "sagittal": {"ImageOrientationPatient": [0, 1, 0, 0, 0, -1]},
            "no spacing": {"PixelSpacing": None},
            "magnetic": {"Modality": "MR"},
        }[what]
        for file in path.iterdir():
            change(file, **tags)
    return str(path)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("one slice", "bad.nii.gz: one slice; a scan has several"),
        ("empty", "bad.nii.gz: empty: every voxel is -1000"),
        ("no units", "bad.nii.gz: values from .* are no Hounsfield units"),
        ("coronal", "bad.nii.gz: coronal slices"),
        ("cut", "bad.nii.gz: damaged or no NIfTI file"),
        ("nothing", "nothing: no scan: no DICOM file, no NIfTI file"),
        ("text", "notes.txt: not a scan; give a NIfTI file"),
        ("one picture", "1.png: 1 slices; a scan has several"),
        ("16 bits", "0.png: 16 bits; say which values become 0 and 1 .value_range, or --value-r"),
        ("sagittal", "bad: sagittal slices; take the scan's axial series"),
        ("no spacing", "0001.dcm: no usable PixelSpacing in its header"),
        ("magnetic", "bad: modality MR; wants a CT series"),
    ],
)
def test_bad_scans(weights, tmp_path, capsys, scan, what, message):
    assert call(bad(tmp_path, scan, what), "--model", weights, "--out", "out") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("vizoo: error: ") and re.search(message, line), line
    assert not (tmp_path / "out").exists()


def test_sixteen_bits(weights, tmp_path, capsys, scan):
    path = bad(tmp_path, scan, "16 bits")
    assert call(path, "--model", weights, "--value-range", "0", "4000") == 0
    assert "window 0 to 4000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("series",), "no --model: this version ships no trained weights for CT.*fit"),
        (("series", "--model", "covidnet3d_tiny"), "has no trained weights"),
        (("series", "--model", "fadnet_plus_tiny"), "is a model for stereo"),
        (("series", "--model", "none.ckpt"), "none.ckpt: no such"),
        (("series", "--model", "scan.nii.gz"), "scan.nii.gz"),
        (
            ("series", "--model", "W", "--class", "Flu", "--out", "o"),
            "--class Flu: none of CP, NCP, Normal",
        ),
        (("series", "--model", "W", "--method", "lime"), "invalid choice: 'lime'"),
        (("series", "--model", "W", "--out", "o", "--layer", "stage"), "no layer 'stage'"),
        (("series", "--model", "W", "--method", "cam", "--layer", "x", "--out", "o"), "for grad-c"),
        (
            ("series", "--model", "W", "--no-overlays", "--class", "CP"),
            "are for the map: give --out",
        ),
        (("series", "--model", "W", "--method", "cam"), "are for the map: give --out"),
        (("series", "--model", "W", "--montage", "0"), "--montage 0"),
        (("series", "--model", "W", "--montage", "2"), "--montage are for the map: give --out"),
        (
            ("series", "--model", "W", "--no-mirrors", "--out", "o", "--no-overlays"),
            "--no-mirrors and --montage are for the map",
        ),
        (("series", "slices", "--model", "W", "--series", "1.2"), "the one folder"),
        (("scan.nii.gz", "--model", "W", "--series", "1.2"), "NIfTI, which takes no series"),
        (("series", "--model", "W", "--value-range", "0", "9"), "takes no value_range"),
        (("none", "--model", "W"), "none: no such file or folder"),
        (("none*", "--model", "W"), "none.*: nothing matches"),
        (("series", "--model", "W", "--out", "series"), "--out series is where series lies"),
        (("series", "--model", "W", "--out", "scan.nii.gz"), "scan.nii.gz is a file"),
        (("series", "--modle", "W"), "did you mean --model"),
        ((), "SERIES"),
    ],
)
def test_refused(weights, capsys, words, message):
    assert call(*(weights if word == "W" else word for word in words)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("vizoo: error: ") and re.search(message, line), line


def test_networks_that_do_not_say_enough(tmp_path, capsys):
    net = create_model("covidnet3d_tiny", classes=3, encoding=[0, 8, 8, 8, 8])
    path = save_weights(net, tmp_path / "bare.safetensors")
    assert call("series", "--model", str(path)) == 2
    assert "bare.safetensors: does not say the names of its classes" in capsys.readouterr().err
    facts = {"classes": CLASSES, "input": {"size": [8, 8], "mean": [0.5]}}
    save_weights(net, path, **facts)
    assert call("series", "--model", str(path)) == 2
    assert "not a classifier of CT scans" in capsys.readouterr().err


def test_help(capsys):
    assert main(["infer", "ct", "--help"]) == 0
    said = capsys.readouterr().out
    assert NOTICE in said and "vizoo infer ct series --model last.ckpt --out result" in said


def test_the_choices_are_the_methods():
    parser = argparse.ArgumentParser()
    infer_ct.add_arguments(parser)
    (method,) = (action for action in parser._actions if action.dest == "method")
    assert method.choices == METHODS
