"""Images with boxes, as COCO and Pascal VOC annotate them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from ...common.files import read_json
from ...vision.io.images import SUFFIXES
from ..files import check_files, expand_path
from .dataset import ImageDataset, ImageRecord
from .preparation import ImagePreset

__all__ = ["CocoImages", "VocImages"]

_WHOLE = ImagePreset((320, 320), 1.0, "stretch", "bilinear", (1.0, 1.0))


class CocoImages(ImageDataset):
    """Images with a COCO file of boxes.

    The label of an image is the class that most of its boxes have, of equal numbers the first's.
    Left out are boxes around crowds, without an area, or of none of `classes`, and then images
    without boxes.

    Args:
        annotations: the JSON file, with ``images``, ``annotations`` and ``categories``; a box is
            [left, top, width, height] in pixels of the image as it is shown, turned by its EXIF.
        root: folder of the images; by default that of the annotations.
        preset: how the images are prepared; by default all of it, stretched to 320x320.
        classes: categories to keep, in the order of their numbers; by default all, by their ids.

    Raises:
        FileNotFoundError: the file or images are missing.
        ValueError: it is no such file, the message says where in it; or it has no such category.
    """

    def __init__(
        self,
        annotations: str,
        root: str | None = None,
        preset: ImagePreset = _WHOLE,
        classes: Sequence[str] | None = None,
    ) -> None:
        path = expand_path(annotations)
        where = expand_path(root) if root else path.parent
        content = read_json(path, "COCO annotations")
        try:
            kinds = {kind["id"]: kind["name"] for kind in content["categories"]}
            order = [kinds[key] for key in sorted(kinds)]
            files = {image["id"]: os.fspath(image["file_name"]) for image in content["images"]}
            notes = [note for note in content["annotations"] if not note.get("iscrowd")]
            boxes = [(n["image_id"], n["category_id"], tuple(n["bbox"])) for n in notes]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: not COCO annotations: want images, annotations and categories ({error})"
            ) from error
        names = list(classes or order)
        if unknown := [name for name in names if name not in kinds.values()]:
            raise ValueError(
                f"{path}: class {unknown[0]!r} is none of its categories "
                f"({', '.join(map(str, kinds.values()))})"
            )
        placed: dict[object, list] = {}
        for image, kind, box in boxes:
            if image not in files or kind not in kinds:
                raise ValueError(f"{path}: a box of image {image} and category {kind}: no such")
            try:
                left, top, wide, tall = map(float, box)
            except (TypeError, ValueError) as error:
                where_box = f"{path}, image {files[image]}"
                raise ValueError(f"{where_box}: a box is four numbers, not {box!r}") from error
            if kinds[kind] not in names or min(wide, tall) == 0:
                continue
            corners = (left, top, left + wide, top + tall)
            placed.setdefault(image, []).append((kinds[kind], corners))
        records = [
            _record(files[key], where / files[key], placed[key], names, path)
            for key in files
            if key in placed
        ]
        paths = [record.path for record in records]
        check_files("images", where, {"images": paths}, f"those of {path}", what="images")
        super().__init__(records, names, preset, str(where.resolve()))


class VocImages(ImageDataset):
    """Images with an XML file each, as Pascal VOC: ``Annotations/a.xml``, ``JPEGImages/a.jpg``.

    Boxes are of images as they are shown, see `CocoImages`. The label of an image is the class that
    most of its boxes have, of equal numbers the first's. Left out are boxes of none of `classes`,
    and then images without boxes.

    Args:
        root: folder of ``Annotations``, ``JPEGImages`` and ``ImageSets``.
        names: which images: ``train`` for those of ``ImageSets/Main/train.txt``; None for all.
        preset: see `CocoImages`.
        classes: those to keep, in the order of their numbers; by default those found, sorted.
            Give them where several sets have to agree.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: an annotation is damaged; the message names it.
    """

    def __init__(
        self,
        root: str,
        names: str | None = None,
        preset: ImagePreset = _WHOLE,
        classes: Sequence[str] | None = None,
    ) -> None:
        where = expand_path(root)
        stems = _listed(where, names)
        notes = {stem: where / "Annotations" / f"{stem}.xml" for stem in stems}
        parts = {"annotations": list(notes.values())}
        check_files("VOC images", where, parts, "Annotations/*.xml", what="annotations")
        read = {stem: _read_voc(note) for stem, note in notes.items()}
        order = list(classes or sorted({kind for _, boxes in read.values() for kind, _ in boxes}))
        folder = where / "JPEGImages"
        there = {p.stem: p.name for p in folder.glob("*") if p.suffix.lower() in SUFFIXES}
        records = []
        for stem, (name, placed) in read.items():
            file = name if (folder / name).is_file() else there.get(stem, name)
            boxes = [(kind, box) for kind, box in placed if kind in order]
            if boxes:
                records.append(_record(file, folder / file, boxes, order, notes[stem]))
        paths = [record.path for record in records]
        check_files("VOC images", where, {"images": paths}, "JPEGImages/*.jpg", what="images")
        super().__init__(records, order, preset, str(where.resolve()))


def _record(
    name: str, path: Path, boxes: list[tuple[str, tuple]], classes: Sequence[str], source: Path
) -> ImageRecord:
    for kind, (left, top, right, bottom) in boxes:
        if not (left < right and top < bottom):
            raise ValueError(f"{source}: {name}: a box of {kind} has no area")
    labels = tuple(classes.index(kind) for kind, _ in boxes)
    label = Counter(labels).most_common(1)[0][0]
    corners = tuple(box for _, box in boxes)
    return ImageRecord(name, str(path), label, name, corners, labels)


def _listed(root: Path, names: str | None) -> list[str]:
    if names is None:
        return sorted(path.stem for path in (root / "Annotations").glob("*.xml"))
    path = root / "ImageSets" / "Main" / f"{names}.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such list of images")
    return [line.split()[0] for line in path.read_text().splitlines() if line.strip()]


def _read_voc(path: Path) -> tuple[str, list[tuple[str, tuple]]]:
    """The image's file name, and class and corners of its boxes, in pixels from 0."""
    try:
        root = ElementTree.parse(path).getroot()
        boxes = []
        for thing in root.iter("object"):
            corners = [float(_text(thing, f"bndbox/{name}")) for name in _CORNERS]
            # VOC counts pixels from 1, and a box's last pixel belongs to it.
            box = (corners[0] - 1, corners[1] - 1, corners[2], corners[3])
            boxes.append((_text(thing, "name").strip(), box))
        return (root.findtext("filename") or f"{path.stem}.jpg").strip(), boxes
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"{path}: not a VOC annotation: {error}") from error


def _text(element: ElementTree.Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"{element.tag} without {path}")
    return text


_CORNERS = ("xmin", "ymin", "xmax", "ymax")
