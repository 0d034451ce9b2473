"""`vizoo infer image` and `vizoo ensemble` as typed: what they write, say and refuse."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F

import vizoo
from vizoo.__main__ import main
from vizoo.classification.detection_task import DetectionTask
from vizoo.classification.ensemble_fit import fit_ensemble
from vizoo.classification.image_infer import ImagePredictor
from vizoo.classification.members import ImageMember
from vizoo.cli._pairs import find_sorted
from vizoo.datasets.images import GeneratedLesions, ImagePreset
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.io.images import read_image, write_image

PRESET = ImagePreset((32, 32), 1.0, scale=(1, 1))
NAMES = ("mole", "ring")


class Red(nn.Module):
    """Class `red` by how red an image is, so that its map is the red channel."""

    def __init__(self, preset=PRESET, classes=("blue", "red")):
        super().__init__()
        self.fc = nn.Linear(2, 2, bias=False)
        self.fc.weight.data.copy_(torch.eye(2) * 4)
        self.order = [("blue", 2), ("red", 0)]
        self.channels = [dict(self.order)[name] for name in classes]
        self.classes, self.input = classes, dataclasses.asdict(preset)

    def forward_features(self, x):
        return x[:, self.channels]

    def get_classifier(self):
        return self.fc

    def forward(self, x):
        return self.fc(self.forward_features(x).mean((2, 3)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a network that knows moles from rings, trained for seconds, and what it saw."""
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    data = GeneratedLesions(128, 2, PRESET, side=32, seed=1)
    samples = [data[n] for n in range(128)]
    images, labels = (torch.stack([s[key] for s in samples]) for key in ("image", "label"))
    net = create_model("image_classifier", backbone="test_resnet", classes=2)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=60)
    for _ in range(60):
        chosen = torch.randperm(128)[:32]
        optimizer.zero_grad()
        F.cross_entropy(net(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        schedule.step()
    facts = {"input": dataclasses.asdict(PRESET)}
    save_weights(net, folder / "a.safetensors", classes=list(NAMES), **facts)
    with torch.no_grad():  # the same network, its classes in the other order
        for tensor in (net.body.fc.weight, net.body.fc.bias):
            tensor.copy_(tensor.flip(0))
    save_weights(net, folder / "b.safetensors", classes=list(NAMES[::-1]), **facts)
    save_weights(net, folder / "other.safetensors", classes=["mole", "wart"], **facts)
    settings = {
        "class_path": "vizoo.datasets.images.ImageDataModule",
        "init_args": {
            role: [
                {
                    "class_path": "vizoo.datasets.images.GeneratedLesions",
                    "init_args": {
                        "length": 24,
                        "classes": 2,
                        "side": 32,
                        "seed": seed,
                        "preset": {"size": [20, 20]},
                    },
                }
            ]
            for role, seed in (("val", 2), ("test", 3))
        },
    }
    (folder / "data.yaml").write_text(yaml.safe_dump({"data": settings}))
    return folder


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A folder of photographs of other sizes than the network's."""
    folder = tmp_path_factory.mktemp("drawn")
    data = GeneratedLesions(6, 2, ImagePreset((48, 48), 1.0), side=48, seed=9)
    for number in range(6):
        image = data[number]["image"]
        if number == 1:
            image = F.pad(image, (0, 12))
        write_image(folder / f"{NAMES[number % 2]}{number}.png", image)
    return folder


@pytest.fixture
def photos(trained, drawn, tmp_path, monkeypatch):
    """The photographs beside the network, in the working folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return shutil.copytree(drawn, tmp_path / "photos")


def call(*words):
    return main([*words, "--device", "cpu"])


def test_a_folder_of_photographs(photos, tmp_path, capsys):
    words = ("photos", "--model", "a.safetensors", "--out", "out", "--csv", "all.csv")
    assert call("infer", "image", *words, "--batch", "4") == 0
    told = capsys.readouterr()
    assert told.err == "" and told.out.splitlines()[-1].startswith("Research software")
    assert re.search(r"photos/mole0\.png: \w+ \(\w+ [01]\.\d{3}, \w+ [01]\.\d{3}\)", told.out)
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert [row["image"] for row in rows] == sorted(
        str(p) for p in photos.relative_to(tmp_path).iterdir()
    )
    right = [row["class"] in row["image"] for row in rows]
    assert sum(right) >= 5, rows
    for row in rows:
        assert float(row["p_mole"]) + float(row["p_ring"]) == pytest.approx(1, abs=1e-5)
        assert row["error"] == row["warnings"] == "" and row["notice"].startswith("Research")
    report = json.loads((tmp_path / "out/ring1.json").read_text())
    assert report["size"] == [48, 60] and report["notice"].startswith("Research software")
    assert list(report["probabilities"].values()) == sorted(report["probabilities"].values())[::-1]
    assert report["map"]["class"] == report["class"] and "CAM" in report["map"]["method"]
    picture = read_image(tmp_path / "out/ring1_overlay.png")
    assert picture.shape[1] > 200 and picture.std() > 0.05


def test_a_folder_for_each_class(photos, tmp_path, capsys):
    """As classifiers are trained on: what the folders say is compared with what is found."""
    for file in list(photos.iterdir()):
        folder = photos / ("unsorted" if file.name == "mole4.png" else file.stem[:-1])
        folder.mkdir(exist_ok=True)
        file.rename(folder / file.name)
    (photos / "ring").rename(tmp_path / "elsewhere")
    (photos / "ring").symlink_to(tmp_path / "elsewhere")
    for name in ("mole/5.gif", "mole/6.HEIC", "ring/7.gif", "ring/notes.txt"):
        (photos / name).touch()
    assert call("infer", "image", "photos", "--model", "a.safetensors", "--out", "out") == 0
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "vizoo: warning: 3 images in folders passed over, of kinds that are not read: .gif .heic",
        "vizoo: warning: 1 image does not count in the accuracy: unsorted is no class",
    ]
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    items = summary["images"]
    assert [item.get("truth") for item in items] == ["mole"] * 2 + ["ring"] * 3 + [None]
    right = [item["class"] == item["truth"] for item in items[:5]]
    assert summary["labelled"] == 5 and summary["accuracy"] == pytest.approx(sum(right) / 5)
    assert summary["accuracy_of"]["mole"] == pytest.approx(sum(right[:2]) / 2)
    assert f"accuracy {sum(right) / 5:.3f} of 5 images of known class (mole " in told.out
    assert call("infer", "image", "photos/mole", "--model", "a.safetensors") == 0
    assert "accuracy" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "labelled"),
    [
        (("photos/*",), 4),
        (("photos/mole", "photos/ring"), 4),
        (("photos/*", "photos"), 4),
        (("photos/mole", "photos/mole/"), None),
        (("photos/mol?",), None),
        (("photos/wart", "photos/moles"), None),
        (("photos/*/*.png",), None),
    ],
)
def test_folders_of_classes_that_are_named(photos, tmp_path, capsys, words, labelled):
    """By themselves or by a glob; one folder alone may be named as a class by chance."""
    folders = ("mole", "ring", "mole", "ring", "wart", "moles")
    for file, folder in zip(
        sorted(photos.iterdir(), key=lambda f: f.stem[-1]), folders, strict=True
    ):
        (photos / folder).mkdir(exist_ok=True)
        file.rename(photos / folder / file.name)
    assert call("infer", "image", *words, "--model", "a.safetensors", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out).get("labelled") == labelled
    left = "2 images do not count in the accuracy: moles, wart are no classes"
    assert (left in told.err) == ("photos/*" in words)


def test_results_among_the_folders_of_classes_are_no_class(photos, tmp_path, capsys):
    """Written there by a first run, they would be taken for images by the second."""
    (photos / "mole").mkdir()
    for file in list(photos.glob("*.png")):
        file.rename(photos / "mole" / file.name)
    words = ("--model", "a.safetensors", "--out", "photos/result")
    for asked, replaced in (("photos", 0), ("photos", 12), ("photos/*", 12)):
        assert call("infer", "image", asked, *words) == 0
        told = f"vizoo: replaced {replaced} files of an earlier run in photos/result\n"
        assert capsys.readouterr().err == (told if replaced else "")
        told = json.loads((photos / "result/summary.json").read_text())
        assert {Path(item["image"]).parent.name for item in told["items"]} == {"mole"}


def test_a_glob_of_folders_passes_over_results(photos, capsys):
    """Those of a folder that is named are asked for, as rectified pictures may be."""
    words = ("--model", "a.safetensors", "--out", "photos/result")
    for _ in range(2):
        assert call("infer", "image", "photos/**/mole*.png", *words) == 0
    said = capsys.readouterr().err
    assert said == "vizoo: replaced 6 files of an earlier run in photos/result\n"
    told = json.loads((photos / "result/summary.json").read_text())
    assert [item["name"] for item in told["items"]] == ["mole0", "mole2", "mole4"]
    assert len(find_sorted(["photos/result/*.png"])[0]) == 3
    assert call("infer", "image", "phot*/result/*.png", *words) == 2
    said = capsys.readouterr().err
    assert "no file matches outside results of an earlier run: photos/result" in said


def test_images_that_differ_in_their_kind_alone(photos):
    """Such as a camera writes, or a picture that was saved again."""
    shutil.copy(photos / "mole0.png", photos / "mole0.tif")
    images, _ = find_sorted(["photos"])
    assert {"mole0.png", "mole0.tif"} < images.keys() and len(images) == 7


@pytest.mark.parametrize(
    ("words", "count"), [(["photos"], 5), (["photos/*"], 5), (["photos", "photos/mole"], 6)]
)
def test_folders_of_images_beside_images_are_named(photos, capsys, words, count):
    """A stray picture among folders of classes is all that is taken."""
    (photos / "mole").mkdir()
    (photos / "mole0.png").rename(photos / "mole/mole0.png")
    images, _ = find_sorted(words)
    assert len(images) == count
    left = "vizoo: warning: images in these folders are passed over, name them too: photos/mole\n"
    assert capsys.readouterr().err == (left if count == 5 else "")


def test_folders_whose_images_are_taken_are_not_named(photos, capsys):
    (photos / "linked").mkdir()
    (photos / "linked/mole0.png").symlink_to(photos.resolve() / "mole0.png")
    for other in (".thumbs", "results"):
        (photos / other).mkdir()
        shutil.copy(photos / "mole0.png", photos / other / "other.png")
    (photos / "results/summary.json").write_text('{"kind": "image", "items": []}')
    find_sorted(["photos"])
    assert capsys.readouterr().err == ""


def test_names_that_are_no_formula_and_in_no_font(photos, tmp_path, capsys):
    (photos / "mole0.png").rename(photos / "a$_$\u80ba.png")
    words = ("--model", "a.safetensors", "--out", "out", "--json")
    assert call("infer", "image", "photos/a*.png", *words) == 0
    told = capsys.readouterr()
    (item,) = json.loads(told.out)["images"]
    assert len(item["files"]) == 2
    assert re.search("missing from (current )?font", item["warnings"][0])
    assert told.err.startswith("vizoo: warning: photos/a$_$") and told.err.count("\n") == 1


def test_json_and_what_is_left_out(photos, tmp_path, capsys):
    (photos / "cut.png").write_bytes((photos / "mole0.png").read_bytes()[:100])
    words = ("--model", "a.safetensors", "--no-overlays", "--json", "--tta", "--out", "out")
    assert call("infer", "image", "photos/*.png", *words, "--csv", "all.csv") == 1
    told = capsys.readouterr()
    failed, *others = csv.DictReader((tmp_path / "all.csv").open())
    assert failed["image"] == "photos/cut.png" and "cut.png" in failed["error"]
    assert failed["class"] == failed["p_mole"] == "" and len(others) == 6
    images = {entry["image"]: entry for entry in json.loads(told.out)["images"]}
    assert len(images) == 7 and "cut.png" in images["photos/cut.png"]["error"]
    assert "map" not in images["photos/mole0.png"]
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json"}
    assert told.err.splitlines()[-1] == "vizoo: error: 1 of 7 images failed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("photos/mole0.png",), "no --model.*skin_generated.yaml"),
        (("photos/mole0.png", "--model", "none.ckpt"), "none.ckpt: no such"),
        (("none.png", "--model", "a.safetensors"), "none.png: no such file"),
        (("photos", "--model", "a.safetensors", "--out", "photos"), "--out photos is where"),
        (("photos", "--model", "a.safetensors", "--top", "0"), "--top 0"),
        (
            ("photos", "--model", "a.safetensors", "--csv", "a.safetensors/all.csv"),
            "--csv a.safetensors: .* is a file; name a folder",
        ),
        (
            ("photos", "--model", "a.safetensors", "--out", "o", "--class", "wart"),
            "--class wart: none of mole",
        ),
        (
            ("photos", "--model", "a.safetensors", "--no-overlays", "--layer", "x", "--out", "o"),
            "are for the map",
        ),
        (("photos", "--model", "a.safetensors", "--layer", "x"), "are for the map: give --out"),
        (("photos", "--model", "covidnet3d_tiny"), "has no trained weights"),
        (("photos", "--model", "bare.safetensors"), "does not say the names of its classes"),
        (
            ("photos", "--model", "ct.safetensors"),
            "not a classifier of images: its input has level",
        ),
        (
            ("photos/mole0.png", "--model", "a.safetensors", "--out", "o", "--layer", "body.fx"),
            "no layer 'body.fx'",
        ),
    ],
)
def test_refused(photos, tmp_path, capsys, words, message):
    net = create_model("image_classifier", backbone="test_resnet")
    save_weights(net, tmp_path / "bare.safetensors")
    save_weights(net, tmp_path / "ct.safetensors", classes=["a", "b"], input={"level": -600})
    assert call("infer", "image", *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("vizoo: error: ")
    assert re.search(message, lines[0]), lines[0]


def test_the_map_lies_on_what_was_seen():
    """Of a wide picture the middle is seen; red stands in its lower right corner."""
    image = torch.zeros(3, 40, 80)
    image[2], image[0, 30:, 50:60] = 0.02, 1
    result = ImagePredictor(Red(), device="cpu")(image, method="cam", explained="red")
    assert result.explained == "red" and result.heat.shape == (40, 80)
    assert result.heat[:, :20].eq(0).all() and result.heat[:, 60:].eq(0).all()
    inside = result.heat[31:39, 51:59]
    assert inside.amin() > 0.9 and result.heat[:28, 20:60].amax() < 0.1
    assert result.overlay("wide").shape[2] == 3
    with pytest.raises(ValueError, match="was not asked for"):
        ImagePredictor(Red(), device="cpu")(image).overlay()


def test_the_overlay_of_an_earlier_result_goes(tmp_path):
    for method in ("cam", None):
        result = ImagePredictor(Red(), device="cpu")(torch.rand(3, 16, 16), method=method)
        files = result.save(tmp_path, "a")
        assert set(files) == set(tmp_path.iterdir()) and len(files) == (2 if method else 1)


def test_no_images_have_no_results():
    assert ImagePredictor(Red(), device="cpu").many([]) == []


def test_images_of_one_tensor_that_is_written_to_afterwards():
    images = torch.rand(2, 3, 16, 16)
    kept, predictor = images.clone(), ImagePredictor(Red(), device="cpu")
    results = predictor.many(images)
    assert len(predictor.many(image for image in images)) == 2
    images.zero_()
    assert torch.equal(torch.stack([result.picture for result in results]), kept)


def test_mirror_images_are_averaged():
    class Left(Red):
        def forward_features(self, x):
            return x[:, [2, 0], :, :16]

    image = torch.zeros(3, 32, 32)
    image[0, :, :16] = 1
    member = ImageMember(Left(), device="cpu")
    alone, both = (member(image[None], flips).exp() for flips in (False, True))
    turned = member(image.flip(2)[None]).exp()
    torch.testing.assert_close(both, (alone + turned) / 2)
    torch.testing.assert_close(member(image.flip(2)[None], True).exp(), both)


def test_temperature_cools_and_heats():
    image = torch.rand(1, 3, 32, 32)
    first, second = (ImageMember(Red(), t, device="cpu")(image) for t in (1.0, 2.0))
    torch.testing.assert_close((first / 2).log_softmax(1), second)
    with pytest.raises(ValueError, match="temperature 0"):
        ImageMember(Red(), 0)


def test_transformers_have_no_map(tmp_path, capsys):
    net = create_model("image_classifier", backbone="test_vit", classes=2)
    path = tmp_path / "vit.safetensors"
    facts = dataclasses.asdict(ImagePreset((160, 160)))
    save_weights(net, path, classes=["a", "b"], input=facts)
    write_image(tmp_path / "in/x.png", torch.rand(3, 20, 20))
    words = (str(tmp_path / "in/x.png"), "--model", str(path), "--out", str(tmp_path / "out"))
    assert call("infer", "image", *words) == 0
    assert "no map of image_classifier test_vit" in capsys.readouterr().err
    assert not (tmp_path / "out/x_overlay.png").exists() and (tmp_path / "out/x.json").exists()
    assert call("infer", "image", *words, "--method", "grad-cam") == 2


@pytest.mark.parametrize("method", ["weighted", "stacking"])
def test_an_ensemble_from_the_command_line(photos, tmp_path, capsys, method):
    """Members with classes in different orders; data in another size than they want."""
    (tmp_path / "nets").mkdir()
    words = ("a.safetensors", "b.safetensors", "--data", "data.yaml", "--method", method)
    assert call("ensemble", *words, "--out", "nets/e.json", "--tta") == 0
    told = capsys.readouterr().out
    assert "val, 24 images" in told and "test, 24 images" in told and "temperature" in told
    assert told.splitlines()[-2:] == ["nets/e.json", "nets/e_reliability.png"]
    assert read_image(tmp_path / "nets/e_reliability.png").std() > 0.05
    content = json.loads((tmp_path / "nets/e.json").read_text())
    assert content["classes"] == list(NAMES) and content["flips"] is True
    assert [m["source"] for m in content["members"]] == ["../a.safetensors", "../b.safetensors"]
    first, second = content["report"]["val"]["members"]
    assert first["accuracy"] == second["accuracy"]  # one network, aligned by name
    assert content["report"]["val"]["ensemble"]["loss"] <= first["loss"] + 0.3
    assert call("infer", "image", "photos", "--model", "nets/e.json", "--out", "out", "--json") == 0
    images = json.loads(capsys.readouterr().out)["images"]
    assert sum(entry["class"] in entry["image"] for entry in images) >= 5
    assert all(entry["members"][0] == entry["members"][1] for entry in images)
    assert images[0]["map"]["method"].startswith("mean of ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("a.safetensors", "other.safetensors"),
            "other.safetensors: other classes than mole, ring",
        ),
        (("other.safetensors",), "GeneratedLesions: other classes than mole, wart: it lacks wart"),
        (("a.safetensors", "--out", "e.txt"), "written as .json"),
        (("a.safetensors", "--out", "ct.yaml/e.json", "--data", "none.yaml"), "--out ct.yaml"),
        (("a.safetensors", "--data", "none.yaml"), "none.yaml: no such config"),
        (("a.safetensors", "--data", "ct.yaml"), "GeneratedCT holds no images"),
        (("a.safetensors", "--data", "test.yaml"), "no validation images"),
    ],
)
def test_ensembles_that_are_refused(photos, tmp_path, capsys, words, message):
    content = yaml.safe_load((tmp_path / "data.yaml").read_text())
    del content["data"]["init_args"]["val"]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(content))
    scans = {"class_path": "vizoo.datasets.ct.GeneratedCT", "init_args": {"length": 2}}
    data = {"class_path": "vizoo.datasets.ct.CTDataModule", "init_args": {"val": [scans]}}
    (tmp_path / "ct.yaml").write_text(yaml.safe_dump({"data": data}))
    given = {"--data": "data.yaml", "--out": "e.json"}
    more = [part for key, value in given.items() if key not in words for part in (key, value)]
    assert call("ensemble", *words, *more) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and re.search(message, lines[0]), lines


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """The checkpoint of an untrained detector, whose boxes never count."""
    task = DetectionTask("fcos", 2, "resnet18", 32, threshold=0.99)
    hyper = dict(task.hparams)
    checkpoint = {
        "pytorch-lightning_version": "2.6.6",
        "state_dict": task.state_dict(),
        "hyper_parameters": hyper,
        "classes": list(NAMES),
        "input": dataclasses.asdict(PRESET),
    }
    path = tmp_path_factory.mktemp("detector") / "detector.ckpt"
    torch.save(checkpoint, path)
    return path


@pytest.fixture
def silent(photos, detector, tmp_path):
    """The photographs, with the detector beside them."""
    shutil.copy(detector, tmp_path)
    return photos


def test_a_detector_that_finds_nothing_says_so(silent, tmp_path, capsys):
    words = ("infer", "image", "photos/mole0.png", "--model", "detector.ckpt", "--out", "out")
    assert call(*words, "--csv", "all.csv") == 0
    assert "photos/mole0.png: no box above the threshold" in capsys.readouterr().err
    assert json.loads((tmp_path / "out/mole0.json").read_text())["members"] == [None]
    (row,) = csv.DictReader((tmp_path / "all.csv").open())
    assert "no box" in row["warnings"]
    for option in (("--layer", "zz"), ("--method", "grad-cam")):
        assert call(*words, *option) == 2
        assert "the map of a detector is its boxes" in capsys.readouterr().err


def test_an_image_without_a_box_is_not_right(silent, tmp_path, capsys):
    """As `vizoo test` counts it, though the first class is its own."""
    (tmp_path / "sorted/mole").mkdir(parents=True)
    shutil.copy(silent / "mole0.png", tmp_path / "sorted/mole")
    assert call("infer", "image", "sorted", "--model", "detector.ckpt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0


def test_a_detector_falls_back_on_a_classifier(silent, tmp_path, capsys):
    photos = silent
    alone = ImagePredictor("a.safetensors", device="cpu")
    members = [
        {"source": name, "temperature": 1.0} for name in ("./detector.ckpt", "./a.safetensors")
    ]
    ensemble = {
        "kind": "ensemble of image classifiers",
        "format": 1,
        "classes": list(NAMES),
        "members": members,
        "combination": {"method": "weighted", "weights": [0.9, 0.1]},
        "flips": False,
    }
    (tmp_path / "e.json").write_text(json.dumps(ensemble))
    both = ImagePredictor("e.json", device="cpu")
    for name in ("mole0", "ring1"):
        found, wanted = (each(photos / f"{name}.png") for each in (both, alone))
        assert found.probabilities == pytest.approx(wanted.probabilities, abs=1e-5)
        assert found.members == (None, wanted.predicted)
    assert call("ensemble", "detector.ckpt", "--data", "data.yaml", "--out", "d.json") == 2
    assert "detector.ckpt finds no box in any validation image" in capsys.readouterr().err


def test_what_an_ensemble_cannot_be_fitted_by_is_refused_before_more_is_asked(silent):
    sets = {role: [GeneratedLesions(4, 2, PRESET, side=32)] for role in ("validation", "test")}
    asked = set()
    with pytest.raises(ValueError, match="detector.ckpt finds no box in any validation image"):
        fit_ensemble(
            ["a.safetensors", "detector.ckpt"],
            **sets,
            device="cpu",
            report=lambda what, *_: asked.add(what),
        )
    assert asked == {"a.safetensors, val", "detector.ckpt, val"}
    for wrong, message in (({"method": "median"}, "median"), ({"batch": 0}, "at least 1, not 0")):
        with pytest.raises(ValueError, match=message):
            fit_ensemble(["nosuch.ckpt"], **sets, **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"members": "a.safetensors"}, "members must be of type Sequence"),
        ({"members": []}, "no members: an ensemble has one at least"),
        ({"validation": GeneratedLesions(4, 2)}, "validation: give a list of data sets"),
    ],
)
def test_what_is_no_list_for_an_ensemble_is_refused(wrong, message):
    given = {"members": ["nosuch.ckpt"], "validation": [GeneratedLesions(4, 2)]}
    with pytest.raises(ValueError, match=message):
        fit_ensemble(**{**given, **wrong})


@pytest.mark.parametrize("name", ["skin_generated", "skin10", "skin100"])
def test_built_in_configs_run(name, root, tmp_path, monkeypatch):
    """As they are, but for a small network and a few small images."""
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load((root / f"configs/classification/{name}.yaml").read_text())
    model = settings["model"]["init_args"]
    model["init_weights"] = None
    model["model_args"]["backbone"] = "test_resnet"
    data = settings["data"]["init_args"]
    for number in range(model["model_args"]["classes"] if name != "skin_generated" else 0):
        first = tmp_path / f"images/kind{number:03d}/0.png"
        write_image(first, np.full((8, 8, 3), number, np.uint8))
        for image in range(1, 4):
            shutil.copy(first, first.with_name(f"{image}.png"))
    for variable in ("SKIN10", "SKIN100"):
        monkeypatch.setenv(variable, str(tmp_path / "images"))
    for role in ("train", "val", "test", "predict"):
        for entry in data.get(role, []):
            preset = {**entry["init_args"]["preset"], "size": [32, 32]}
            entry["init_args"] |= {"preset": preset}
            if name == "skin_generated":
                entry["init_args"] |= {"length": 8, "side": 32}
    data |= {"workers": 0, "batch_size": 4, "eval_batch_size": 4}
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "max_epochs": 1}
    settings["trainer"] |= {**quiet, "limit_train_batches": 2, "limit_val_batches": 2}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    assert main(["fit", "--config", "small.yaml"]) == 0
    member = ImageMember("checkpoints/last.ckpt", device="cpu")
    assert member.preset == ImagePreset(**preset) and member.preset.size == (32, 32)
    assert member.name == "image_classifier test_resnet"
    assert len(member.classes) == model["model_args"]["classes"]


def test_the_package_offers_it():
    assert vizoo.ImagePredictor is ImagePredictor
