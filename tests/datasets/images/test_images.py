"""Images with labels: folders, lists, box files, splits, preparation, augmentation, batches."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from vizoo.datasets.images import (
    CocoImages,
    GeneratedLesions,
    ImageAugmentation,
    ImageDataModule,
    ImageFolders,
    ImagePreset,
    ListedImages,
    VocImages,
    split_groups,
)
from vizoo.vision.io.images import write_image

SMALL = ImagePreset((8, 12), 1.0)
BOX = (2.0, 3.0, 10.0, 8.0)


@pytest.fixture
def folders(tmp_path):
    """Three classes; of each ten images of five patients."""
    torch.manual_seed(0)
    for kind in ("acne", "mole", "wart"):
        for n in range(10):
            name = f"p{n // 2}_{n}.png"
            write_image(tmp_path / "skin" / kind / name, torch.rand(3, 10, 16))
    (tmp_path / "skin/.thumbnails").mkdir()
    (tmp_path / "skin/acne/notes.txt").write_text("no image")
    return tmp_path / "skin"


def test_folders(folders, monkeypatch):
    monkeypatch.setenv("SKIN", str(folders))
    found = ImageFolders("$SKIN", preset=SMALL)
    assert found.classes == ("acne", "mole", "wart") and len(found) == 30
    sample = found[12]
    assert sample["image"].shape == (3, 8, 12) and sample["label"] == 1
    assert sample["name"] == "mole/p1_2.png"
    assert ImageFolders(str(folders), classes=["wart", "acne"]).labels == [0] * 10 + [1] * 10


def test_images_of_other_kinds_are_named(folders):
    (folders / "mole" / "new.HEIC").write_bytes(b"an image of a telephone")
    with pytest.warns(UserWarning, match="1 passed over, of kinds that are not read, first .*HEIC"):
        assert len(ImageFolders(str(folders))) == 30


def test_parts_share_no_source_and_hold_every_image_once(folders):
    sets = {
        part: ImageFolders(str(folders), part, SMALL, source=r"^(p\d)_", seed=3)
        for part in ("train", "val", "test")
    }
    names = {part: {r.name for r in found.records} for part, found in sets.items()}
    assert sum(map(len, names.values())) == 30 == len(set.union(*names.values()))
    sources = {part: set(found.groups) for part, found in sets.items()}
    assert not sources["train"] & sources["val"] and not sources["train"] & sources["test"]
    assert [Counter(found.labels) for found in sets.values()] == [
        Counter({0: n, 1: n, 2: n}) for n in (6, 2, 2)
    ]


def test_folds_test_every_image_once(folders):
    tested = []
    for fold in range(5):
        options = {"preset": SMALL, "folds": 5, "fold": fold}
        parts = [ImageFolders(str(folders), part, **options) for part in ("train", "val", "test")]
        names = [{record.name for record in part.records} for part in parts]
        assert not names[0] & names[1] and not (names[0] | names[1]) & names[2]
        assert len(set.union(*names)) == 30
        tested += names[2]
    assert len(tested) == 30 == len(set(tested))


def test_a_split_follows_its_shares_and_seed():
    labels = [n % 4 == 0 for n in range(200)]
    groups = [n // 2 for n in range(200)]
    parts = split_groups(labels, groups, (6, 2, 2), seed=1)
    assert sorted(sum(parts, [])) == list(range(200))
    assert parts == split_groups(labels, groups, (6, 2, 2), seed=1)
    assert parts != split_groups(labels, groups, (6, 2, 2), seed=2)
    for part, share in zip(parts, (0.6, 0.2, 0.2), strict=True):
        assert abs(len(part) - 200 * share) <= 2
        assert abs(sum(labels[n] for n in part) - 50 * share) <= 2
        assert all(n ^ 1 in part for n in part)
    with pytest.raises(ValueError, match="class 1 is in 2 groups, too few for 3 parts"):
        split_groups([0, 0, 0, 1, 1], range(5), (6, 2, 2))


def test_list(folders, tmp_path):
    rows = ["path,label,source"]
    rows += [
        f"{kind}/p{n // 2}_{n}.png,{kind},p{n // 2}" for kind in ("acne", "mole") for n in range(10)
    ]
    listed = folders / "list.csv"
    listed.write_text("\ufeff" + "\n".join(rows) + "\n")
    found = ListedImages(str(listed), preset=SMALL)
    assert len(found) == 20 and found.classes == ("acne", "mole")
    parts = [ListedImages(str(listed), part=p, preset=SMALL) for p in ("train", "val", "test")]
    assert [len(part) for part in parts] == [12, 4, 4]
    assert not set(parts[0].groups) & (set(parts[1].groups) | set(parts[2].groups))


def test_two_lists_of_one_folder_may_not_share_a_source(folders, boxed, monkeypatch):
    rows = [f"acne/p0_{n}.png,acne,p0\nmole/p{n}_{2 * n}.png,mole,p{n}" for n in (0, 1)]
    for name, row in zip(("train", "val"), rows, strict=True):
        (folders / f"{name}.csv").write_text(f"path,label,source\n{row}\n")
    monkeypatch.chdir(folders)
    train, val = (ListedImages(str(p), preset=SMALL) for p in ("train.csv", folders / "val.csv"))
    with pytest.raises(ValueError, match="1 sources of images are in both train and val, .*, p0"):
        ImageDataModule(train=[train], val=[val], workers=0).setup("fit")
    file = boxed / "JPEGImages/boxes.json"
    again = file.with_name("val.json")
    again.write_text(file.read_text())
    coco = [CocoImages(str(one)) for one in (file, again)]
    monkeypatch.chdir(boxed)
    for train, val in (coco, [VocImages(one) for one in (".", str(boxed))]):
        with pytest.raises(ValueError, match="1 sources of images are in both train and val"):
            ImageDataModule(train=[train], val=[val], workers=0).setup("fit")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,kind\na.png,x\n", "no column 'label' in its first line"),
        ("path,label\nacne/p0_0.png,\n", "line 2: wants a path and a label"),
        (
            "path,label\na.png,x\nb.png,x\na.png,y\n",
            "line 4: a.png has another label or source than in line 2",
        ),
        ("path,label\n", "no image in it"),
        ("path,label\nnone.png,acne\nacne/p0_0.png,mole\n", "1 of 2 images missing.*none.png"),
        ("path,label\nacne/p0_0.png,acne\n", "1 class; want two"),
    ],
)
def test_lists_that_are_refused(folders, text, message):
    (folders / "bad.csv").write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ListedImages(str(folders / "bad.csv"))


def test_folders_that_are_refused(folders, tmp_path):
    with pytest.raises(FileNotFoundError, match="none: no such folder"):
        ImageFolders(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="0 folders; want one for each class"):
        ImageFolders(str(folders / "acne"))
    with pytest.raises(FileNotFoundError, match="no image in .*lichen"):
        ImageFolders(str(folders), classes=["acne", "lichen"])
    with pytest.raises(ValueError, match="part 'all of it' is none of all"):
        ImageFolders(str(folders), "all of it")
    with pytest.raises(ValueError, match="fold 5 of 5"):
        ImageFolders(str(folders), "val", folds=5, fold=5)
    with pytest.raises(ValueError, match="source .* finds nothing in acne/p0_0.png"):
        ImageFolders(str(folders), source="patient")


def test_a_class_of_too_few_images_is_named(folders):
    listed = folders / "list.csv"
    few = [f"mole/p0_{number}.png,mole" for number in range(2)]
    rows = [f"acne/p{number // 2}_{number}.png,acne" for number in range(10)]
    listed.write_text("\n".join(["path,label", *few, *rows]))
    with pytest.raises(ValueError, match="class mole is in 2 groups, too few for 3 parts"):
        ListedImages(str(listed), part="train", preset=SMALL)


def test_photographs_of_every_kind(tmp_path):
    """Grey, CMYK, palette, alpha and turned by EXIF: all come as upright RGB."""
    upright = np.zeros((10, 16, 3), np.uint8)
    upright[:, :8] = (250, 10, 10)
    photo = Image.fromarray(upright)
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
    photo.convert("L").save(tmp_path / "a/grey.png")
    photo.convert("CMYK").save(tmp_path / "a/cmyk.jpg", quality=95)
    photo.convert("P").save(tmp_path / "a/palette.png")
    photo.convert("RGBA").save(tmp_path / "a/alpha.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.rotate(90, expand=True).save(tmp_path / "a/turned.jpg", exif=exif, quality=95)
    (tmp_path / "b/cut.png").write_bytes((tmp_path / "a/alpha.png").read_bytes()[:60])
    found = ImageFolders(str(tmp_path), preset=ImagePreset((10, 16), 1.0))
    for sample in (found[n] for n in range(5)):
        image = sample["image"]
        assert image.shape == (3, 10, 16), sample["name"]
        assert image[0, :, :6].mean() > image[0, :, 10:].mean() + 0.2, sample["name"]
    with pytest.raises(ValueError, match="b/cut.png"):
        found[5]


def test_the_middle_is_seen_and_boxes_follow():
    image = torch.zeros(3, 20, 40)
    image[:, 5:15, 15:25] = 1
    preset = ImagePreset((10, 10), 0.5)
    assert preset.region(20, 40) == (5, 15, 10, 10) and preset.prepare(image).eq(1).all()
    boxes = torch.tensor([[16.0, 6, 20, 10], [0, 0, 16, 6], [18, 8, 30, 15]])
    moved, kept = preset.move(boxes, preset.region(20, 40))
    assert kept.tolist() == [True, False, True]  # of the second next to nothing is inside
    assert moved.tolist() == [[1, 1, 5, 5], [3, 3, 10, 10]]
    whole = ImagePreset((10, 10), 1.0, "stretch")
    assert whole.region(20, 40) == (0, 0, 20, 40)
    moved, _ = whole.move(boxes[:1], whole.region(20, 40))
    assert moved.tolist() == [[4, 3, 5, 5]]


@pytest.mark.parametrize(
    "settings", [{"size": (0, 4)}, {"crop": 0}, {"fit": "pad"}, {"scale": (0.5, 2)}]
)
def test_presets_that_are_refused(settings):
    with pytest.raises(ValueError, match="|".join(settings)):
        ImagePreset(**settings)


def test_random_crops_are_inside_and_of_their_size():
    preset = ImagePreset((8, 8), 1.0, scale=(0.3, 0.6))
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        top, left, tall, wide = preset.random_region(30, 50, generator)
        assert 0 <= top <= 30 - tall and 0 <= left <= 50 - wide
        assert 0.25 * 1500 < tall * wide < 0.63 * 1500
        assert 0.7 < wide / tall < 1.4


def test_generated_lesions(monkeypatch):
    listed = property(lambda _: pytest.fail("one sample lists the labels of all"))
    monkeypatch.setattr(GeneratedLesions, "labels", listed)
    found = GeneratedLesions(12, 6, ImagePreset((32, 32), 1.0), seed=5)
    sample, again = found[7], GeneratedLesions(30, 6, ImagePreset((32, 32), 1.0), seed=5)[7]
    assert torch.equal(sample["image"], again["image"]) and sample["label"] == 1
    assert not torch.equal(
        sample["image"], GeneratedLesions(12, 6, seed=6, preset=found.preset)[7]["image"]
    )
    for sample in (found[n] for n in range(12)):
        boxes = sample["boxes"]
        assert sample["image"].amin() >= 0 and sample["image"].amax() <= 1
        assert 1 <= len(boxes) <= 3 and (boxes[:, 2:] - boxes[:, :2] > 1).all()
        assert boxes.amin() >= 0 and boxes.amax() <= 32
        assert (sample["box_labels"] == sample["label"]).all()
    with pytest.raises(ValueError, match="7 classes: choose 2 to 6"):
        GeneratedLesions(4, 7)
    with pytest.raises(IndexError):
        found[12]


def test_boxes_lie_on_the_lesions():
    """What is dark in an image of moles is in its boxes, in evaluation and in crops alike."""
    found = GeneratedLesions(16, 2, ImagePreset((48, 48), 1.0, scale=(0.6, 1.0)), seed=1)
    generator = torch.Generator().manual_seed(0)
    for sample in (found.draw(n, generator) if n % 4 else found[n] for n in range(0, 16, 2)):
        mask = torch.zeros(48, 48, dtype=torch.bool)
        for left, top, right, bottom in sample["boxes"].round().int().tolist():
            mask[top:bottom, left:right] = True
        grey = sample["image"].mean(0)
        if mask.any():
            assert grey[mask].mean() < 0.75 * grey[~mask].mean()


def test_augmentation():
    sample = GeneratedLesions(2, preset=ImagePreset((24, 24), 1.0))[1]
    plain = {k: v for k, v in sample.items() if "box" not in k}
    for name in ("mirror", "flips", "colour", "randaugment", "trivialaugment"):
        change = ImageAugmentation(name)
        first, second = (change(plain, torch.Generator().manual_seed(4)) for _ in range(2))
        assert torch.equal(first["image"], second["image"])
        others = [change(plain, torch.Generator().manual_seed(n))["image"] for n in range(8)]
        assert any(not torch.equal(first["image"], other) for other in others)
        assert type(first["image"]) is torch.Tensor and first["image"].dtype == torch.float32
        assert 0 <= first["image"].amin() and first["image"].amax() <= 1
    with pytest.raises(ValueError, match="boxes could not follow"):
        ImageAugmentation("randaugment")(sample)
    with pytest.raises(ValueError, match="augmentation 'flip'"):
        ImageAugmentation("flip")


def test_boxes_follow_mirrors():
    image = torch.zeros(3, 12, 16)
    image[:, 3:8, 2:10] = 1
    sample = {"image": image, "boxes": torch.tensor([BOX]), "box_labels": torch.tensor([0])}
    seen = set()
    for seed in range(12):
        found = ImageAugmentation("flips")(sample, torch.Generator().manual_seed(seed))
        left, top, right, bottom = found["boxes"][0].int().tolist()
        seen.add((left, top))
        assert found["image"][:, top:bottom, left:right].eq(1).all()
        assert found["image"].sum() == image.sum()
    assert len(seen) == 4
    change = ImageAugmentation("mirror")
    found = [change(sample, torch.Generator().manual_seed(seed))["boxes"] for seed in range(12)]
    assert {(int(boxes[0, 0]), int(boxes[0, 1])) for boxes in found} == {(2, 3), (6, 3)}


def test_balanced_classes(folders):
    for name in sorted((folders / "wart").iterdir())[2:]:
        name.unlink()
    data = ImageDataModule(
        train=[lambda: ImageFolders(str(folders), preset=SMALL)],
        balanced=True,
        augmentation="none",
        samples_per_epoch=30,
        batch_size=15,
        workers=0,
    )
    data.setup("fit")
    labels = torch.cat([batch["label"] for batch in data.train_dataloader()])
    assert torch.bincount(labels).tolist() == [10, 10, 10]
    with pytest.raises(ValueError, match="not both"):
        ImageDataModule(balanced=True, weights=[1.0])


def test_batches_with_boxes_and_disjoint_roles():
    def lesions(seed):
        return GeneratedLesions(6, 2, ImagePreset((16, 16), 1.0), seed=seed)

    data = ImageDataModule(train=[lesions(1)], val=[lesions(2)], batch_size=3, workers=0)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["image"].shape == (3, 3, 16, 16) and len(batch["boxes"]) == 3
    assert all(
        b.shape == (len(n), 4) for b, n in zip(batch["boxes"], batch["box_labels"], strict=True)
    )
    data = ImageDataModule(train=[lesions(1)], val=[lesions(1)], workers=0)
    with pytest.raises(ValueError, match="6 sources of images are in both train and val"):
        data.setup("fit")


def test_boxes_that_only_some_images_have_are_left_out():
    boxed = GeneratedLesions(1, 2, ImagePreset((16, 16), 1.0))[0]
    plain = {name: value for name, value in boxed.items() if not name.startswith("box")}
    for samples in ([boxed, plain], [plain, boxed]):
        batch = ImageDataModule.collate(samples)
        assert batch["image"].shape == (2, 3, 16, 16) and "boxes" not in batch


@pytest.fixture
def boxed(tmp_path):
    """Two images with boxes, as COCO and as VOC describe them."""
    for name in ("a", "b"):
        write_image(tmp_path / "JPEGImages" / f"{name}.png", torch.rand(3, 12, 16))
    coco = {
        "images": [{"id": 7, "file_name": "a.png"}, {"id": 9, "file_name": "b.png"}],
        "categories": [{"id": 5, "name": "wart"}, {"id": 2, "name": "mole"}],
        "annotations": [
            {"image_id": 7, "category_id": 5, "bbox": [2, 3, 8, 5]},
            {"image_id": 7, "category_id": 2, "bbox": [0, 0, 4, 4]},
            {"image_id": 7, "category_id": 2, "bbox": [1, 1, 4, 4]},
            {"image_id": 9, "category_id": 5, "bbox": [0, 0, 4, 4], "iscrowd": 1},
        ],
    }
    (tmp_path / "JPEGImages/boxes.json").write_text(json.dumps(coco))
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/a.xml").write_text(
        "<annotation><filename>a.png</filename><object><name>wart</name><bndbox><xmin>3</xmin>"
        "<ymin>4</ymin><xmax>10</xmax><ymax>8</ymax></bndbox></object></annotation>"
    )
    (tmp_path / "Annotations/b.xml").write_text(
        "<annotation><filename>b.png</filename></annotation>"
    )
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a\n")
    return tmp_path


def test_coco(boxed):
    found = CocoImages(str(boxed / "JPEGImages/boxes.json"), preset=ImagePreset((12, 16), 1.0))
    assert found.classes == ("mole", "wart") and len(found) == 1
    sample = found[0]
    assert sample["boxes"].tolist()[0] == list(BOX) and sample["box_labels"].tolist() == [1, 0, 0]
    assert sample["label"] == 0  # two of three boxes


def test_coco_of_some_categories_and_boxes(boxed):
    """Boxes without an area and of other categories are left out, and images left without any."""
    file = boxed / "JPEGImages/boxes.json"
    content = json.loads(file.read_text())
    content["annotations"] += [
        {"image_id": 7, "category_id": 2, "bbox": [1, 1, 0, 4]},
        {"image_id": 9, "category_id": 5, "bbox": [0, 0, 4, 4]},
    ]
    file.write_text(json.dumps(content))
    preset = ImagePreset((12, 16), 1.0)
    both, moles = (CocoImages(str(file), None, preset, kinds) for kinds in (None, ["mole"]))
    assert both[0]["box_labels"].tolist() == [1, 0, 0] and len(both) == 2
    assert moles.classes == ("mole",) and len(moles) == 1
    assert moles[0]["box_labels"].tolist() == [0, 0]


def test_voc_of_some_classes(boxed):
    (boxed / "Annotations/b.xml").write_text(
        (boxed / "Annotations/a.xml").read_text().replace("wart", "mole").replace("a.png", "b.png")
    )
    found = VocImages(str(boxed), classes=["mole"])
    assert [record.name for record in found.records] == ["b.png"]


def test_voc(boxed):
    preset = ImagePreset((24, 32), 1.0)
    found = VocImages(str(boxed), "train", preset, classes=["mole", "wart"])
    assert found[0]["boxes"].tolist() == [[2 * value for value in BOX]] and found.labels == [1]
    assert len(VocImages(str(boxed))) == 1  # the other one has no boxes


def test_boxes_that_are_refused(boxed):
    file = boxed / "JPEGImages/boxes.json"
    content = json.loads(file.read_text())
    for change, message in (
        ({"categories": None}, "not COCO annotations"),
        (
            {"categories": [{"id": 5, "name": "a"}, {"id": "6", "name": "b"}]},
            "not COCO annotations",
        ),
        ({"images": [{"id": 7, "file_name": 7}]}, "not COCO annotations"),
        ({"annotations": [{"image_id": 1, "category_id": 5, "bbox": [0, 0, 1, 1]}]}, "no such"),
        ({"annotations": [{"image_id": 7, "category_id": 5, "bbox": [0, 0, 1]}]}, "four numbers"),
        ({"annotations": [{"image_id": 7, "category_id": 5, "bbox": [0, 0, -1, 1]}]}, "no area"),
        (
            {
                "images": [{"id": 7, "file_name": "c.png"}],
                "annotations": content["annotations"][:1],
            },
            "c.png",
        ),
    ):
        (boxed / "bad.json").write_text(json.dumps({**content, **change}))
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            CocoImages(str(boxed / "bad.json"), str(boxed / "JPEGImages"))
    with pytest.raises(ValueError, match="class 'wort' is none of its categories"):
        CocoImages(str(file), classes=["mole", "wort"])
    with pytest.raises(FileNotFoundError, match="val.txt: no such list"):
        VocImages(str(boxed), "val")
    (boxed / "Annotations/a.xml").write_text(
        "<annotation><object><name>x</name></object></annotation>"
    )
    with pytest.raises(ValueError, match="a.xml: not a VOC annotation"):
        VocImages(str(boxed))
