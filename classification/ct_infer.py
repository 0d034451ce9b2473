"""The class of a chest CT scan, and where the network looked.

Research software, not a medical device: not for diagnosis or treatment.

Example:
    >>> predictor = vizoo.CTPredictor("last.ckpt")
    >>> result = predictor("series")  # a DICOM folder, a NIfTI file, a folder of slices
    >>> result.predicted, result.save("out")
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..common.devices import choose_device, choose_dtype
from ..common.files import write_json
from ..datasets.ct import CTPreset, CTVolume, prepare, read_scan, to_scan, to_slices, write_nifti
from ..datasets.ct.doubts import doubts
from ..datasets.ct.volume import check_units
from ..nas.supernet import architecture_of
from ..vision.hub.create import load_network
from ..vision.inference import check_prediction, standalone
from ..vision.io.images import write_image
from ..vision.runtimes import prepared
from . import NOTICE
from ._trained import classes_and_preset
from .cam import explain
from .overlays import overlay_picture

__all__ = ["CTPredictor", "CTResult", "is_result"]

_MONTAGE, _SLICES, _MAP = "_montage.png", "_slices", "_map.nii.gz"  # after a result's name
_SIDES = {_MONTAGE: 384, _SLICES: 512}  # of a slice in a picture that is saved, pixels
_STEP = 1 / 255  # of a map kept as NIfTI
_MARKS = "RLAP"  # edges of an axial slice seen from the feet: right, left, front, back


@dataclass(frozen=True, eq=False)
class CTResult:
    """What was found for one scan.

    Slices are counted from the feet, the first is 0, whatever their order in the file.
    """

    classes: tuple[str, ...]  #: names of the classes
    probabilities: np.ndarray  #: of the classes, (C,) float32
    volume: CTVolume  #: the scan
    sample: dict[str, Tensor]  #: what the network saw of it, see `vizoo.datasets.ct.preparation`
    preset: CTPreset  #: how that was prepared
    #: where the network looked, over what it saw, (D, H, W) float32 in [0, 1]; None where that was
    #: not asked for
    heat: Tensor | None = None
    method: str = ""  #: how `heat` was made, in words
    explained: str = ""  #: the class that it is for
    caution: str = ""  #: why the classes may mean nothing for this scan, or nothing

    @property
    def predicted(self) -> str:
        """The most probable class."""
        return self.classes[int(self.probabilities.argmax())]

    @property
    def slices(self) -> list[int]:
        """The scan's slices that the network saw, each once."""
        factor, offset = self.sample["grid"][0].tolist()
        places = (round((place - offset) / factor) for place in self.sample["slices"].tolist())
        return sorted({min(max(place, 0), len(self._turned[0]) - 1) for place in places})

    def map(self) -> np.ndarray:
        """Where the network looked, on the scan's own voxels.

        Returns:
            Float32 in [0, 1] of the shape of `volume.values`; 0 where the network saw nothing.

        Raises:
            ValueError: the map was not asked for.
        """
        return to_scan(self._heat(), self.sample)

    def peak(self) -> tuple[int, np.ndarray]:
        """Slice and place, (3,) mm, RAS+, of the map's maximum; the middle of several.

        Raises:
            ValueError: the map was not asked for.
        """
        heat = self._heat().float().numpy()
        place = np.argwhere(heat >= heat.max() - 1e-6).mean(0)
        slices = self.sample["slices"].numpy()
        place[0] = np.interp(place[0], np.arange(len(slices)), slices)
        factors, offsets = self.sample["grid"].numpy().T
        inside = ((place - offsets) / factors).clip(0, np.array(self._turned[0].shape) - 1)
        return round(inside[0]), (self._turned[1] @ [*inside[::-1], 1])[:3]

    def picture(self, slices: Sequence[int], title: str = "", side: int = 512) -> np.ndarray:
        """Draw slices with the map over them.

        Args:
            slices: indices of those that are drawn.
            title: stands above all slices.
            side: pixels of a slice's longer side.

        Returns:
            (H, W, 3) uint8 RGB.

        Raises:
            ValueError: the map was not asked for.
        """
        values, affine = self._turned
        heats = to_slices(self._heat(), self.sample, slices)
        low, high = self._window()
        planes = [((values[s].astype(np.float32) - low) / (high - low)).clip(0, 1) for s in slices]
        captions = [f"slice {s + 1} of {len(values)}" for s in slices]
        if self.volume.spaced:
            middle = [(side - 1) / 2 for side in values.shape[:0:-1]]
            heights = [(affine @ [*middle, s, 1])[2] for s in slices]
            captions = [f"{c}\nz {z:.1f} mm" for c, z in zip(captions, heights, strict=True)]
        return overlay_picture(
            planes,
            list(heats),
            captions=captions,
            title=title,
            note=f"{self.method}. {self.caution}{'. ' if self.caution else ''}{NOTICE}",
            label=f"speaks for {self.explained}",
            marks=_MARKS if self.volume.spaced else "",
            side=side,
        )

    def highest(self, count: int) -> list[int]:
        """The slices of those that the network saw where the map is highest, in their order."""
        slices = self.slices
        peaks = to_slices(self._heat(), self.sample, slices).max((1, 2))
        best = sorted(range(len(slices)), key=lambda place: -peaks[place])[:count]
        return sorted(slices[place] for place in best)

    def summary(self) -> dict[str, Any]:
        """What was found, as JSON holds it; slices are counted from 1 there."""
        summary = {
            "scan": self.volume.source,
            "class": self.predicted,
            "probabilities": dict(zip(self.classes, map(float, self.probabilities), strict=True)),
            "size": list(self.volume.values.shape),
            "spacing_mm": list(self.volume.spacing) if self.volume.spaced else None,
            "slices": len(self.volume.values),
            "slices_used": len(self.slices),
            f"slices_from_the_{'feet' if self.volume.ends else 'first'}": [
                place + 1 for place in self.slices
            ],
            "ends_known": self.volume.ends,
            "resampled": self.volume.resampled,
            "window": list(self._window()),
            "preset": dataclasses.asdict(self.preset),
        }
        if self.heat is not None:
            place, where = self.peak()
            hot = bool(self.heat.any())
            summary["map"] = {
                "method": self.method,
                "class": self.explained,
                "peak_slice": place + 1 if hot else None,
                "peak_mm": [round(float(axis), 2) for axis in where] if hot else None,
            }
        return {**summary, "caution": self.caution, "notice": NOTICE}

    def save(
        self,
        folder: str | os.PathLike,
        name: str = "scan",
        *,
        facts: Mapping[str, Any] | None = None,
        montage: int = 8,
    ) -> list[Path]:
        """Write what was found and, where the map was asked for, the map and its pictures.

        Those of an earlier result of this name that are not written again are deleted.

        Args:
            folder: made if it is missing.
            name: first part of the file names: ``<name>.json``, ``<name>_montage.png``,
                ``<name>_slices/0012.png``, and ``<name>_map.nii.gz``, which lies on the scan's own
                voxels, where it is known which end is the head.
            facts: what else the JSON file says.
            montage: slices in the montage, those where the map is highest.

        Returns:
            The files written.

        Raises:
            ImportError: nibabel is not installed.
        """
        folder = Path(folder)
        slices = folder / f"{name}{_SLICES}"
        before: set[Path] = set()
        mapped = is_result(slices)
        if mapped:
            names = f"{name}{_MONTAGE}", f"{name}{_MAP}"
            before = {*(folder / part for part in names), *slices.glob("[0-9]*.png")}
        written = [write_json(folder / f"{name}.json", {**self.summary(), **(facts or {})})]
        if self.heat is not None:
            written += self._save_map(folder, name, montage)
        for old in before - set(written):
            old.unlink(missing_ok=True)
        if mapped:
            with suppress(OSError):  # it is not there, or not empty
                slices.rmdir()
        return written

    def _save_map(self, folder: Path, name: str, montage: int) -> list[Path]:
        written = []
        order = np.argsort(-self.probabilities)
        shares = ", ".join(f"{self.classes[at]} {self.probabilities[at]:.3f}" for at in order)
        title = f"{name}: {shares}"

        def draw(path: Path, slices: list[int], side: int) -> None:
            write_image(path, self.picture(slices, title, side))
            written.append(path)

        draw(folder / f"{name}{_MONTAGE}", self.highest(montage), _SIDES[_MONTAGE])
        for place in self.slices:
            draw(folder / f"{name}{_SLICES}" / f"{place + 1:04d}.png", [place], _SIDES[_SLICES])
        if self.volume.ends:
            written.append(folder / f"{name}{_MAP}")
            note = self.caution or NOTICE
            write_nifti(written[-1], self.map(), self.volume.affine, step=_STEP, note=note)
        return written

    def _heat(self) -> Tensor:
        if self.heat is None:
            raise ValueError("there is no map: ask for one by `method`")
        return self.heat

    @cached_property
    def _turned(self) -> tuple[np.ndarray, np.ndarray]:
        return self.volume.oriented()

    def _window(self) -> tuple[float, float]:
        half = self.preset.width / 2
        return self.volume.span or (self.preset.level - half, self.preset.level + half)


def is_result(path: Path) -> bool:
    """Whether a path is one that `CTResult.save` wrote, pictures and maps that look like scans."""
    if path.name.endswith(_SLICES):  # a scan's folder may be called so too
        name = path.name.removesuffix(_SLICES)
        return all(path.with_name(f"{name}{part}").is_file() for part in (".json", _MONTAGE))
    return path.name.endswith((_MONTAGE, _MAP))


class CTPredictor:
    """A network with its weights, ready for scans of any size.

    Args:
        model: see `StereoPredictor`; it knows its ``classes`` and its ``input``, the preset of its
            training.
        device: see there.
        dtype: see there, for the probabilities; maps are made in float32.
        runtime: see there, for the probabilities; maps are PyTorch's.

    Attributes:
        classes: names of the classes.
        preset: how scans are prepared.

    Raises:
        FileNotFoundError: there is no such weight file.
        ValueError: no such model, no trained weights for it, a network that is not for CT or does
            not name its classes, no such device, or a dtype that the device cannot use.
    """

    def __init__(
        self,
        model: str | os.PathLike | nn.Module,
        device: str = "auto",
        dtype: str = "float32",
        runtime: str = "torch",
    ) -> None:
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        net = load_network(model, "classification")
        self.name = architecture_of(net).get("name", type(net).__name__)
        source = self.name if isinstance(model, nn.Module) else os.fspath(model)
        self.classes, self.preset = classes_and_preset(net, CTPreset, "CT scans", source)
        self.net = standalone(net).requires_grad_(False).to(self.device)
        self.runtime = runtime
        self.fast = prepared(self.net, runtime, self.dtype, self.device)

    def __call__(
        self,
        scan: str | os.PathLike | CTVolume,
        *,
        series: str | None = None,
        value_range: tuple[float, float] | None = None,
        order: str | None = None,
        resample: bool = True,
        method: str | None = "auto",
        layer: str | None = None,
        explained: str | None = None,
        mirrors: bool = True,
    ) -> CTResult:
        """Classify one scan.

        Args:
            scan: a NIfTI file, the folder of a DICOM series or of PNG or TIFF slices, or a volume.
            series: SeriesInstanceUID, where a folder holds several series.
            value_range: stored values that become 0 and 1, of slices with 16 bits.
            order: of PNG and TIFF slices, ``feet-first`` or ``head-first``.
            resample: whether uneven and tilted DICOM series are made even, see `read_dicom`.
            method: of the map, see `cam.explain`; None makes none.
            layer: of Grad-CAM, see there.
            explained: the class that the map is for; by default the most probable one.
            mirrors: whether the map is the mean over the scan's mirror images, see there.

        Raises:
            FileNotFoundError: there is no such scan.
            ImportError: pydicom or nibabel is needed and not installed.
            ValueError: the scan cannot be used, the class or the method is unknown, or the
                network's output is not finite.

        Warns (``UserWarning``) of what is not as it should be: slices that are missing, a scan that
        may be of no chest, fewer slices than the network takes, a class that nothing speaks for.
        """
        if explained is not None and explained not in self.classes:
            raise ValueError(f"class {explained!r} is none of {', '.join(self.classes)}")
        volume = scan
        if not isinstance(volume, CTVolume):
            volume = read_scan(volume, series, value_range, order=order, resample=resample)
        check_units(volume)
        if caution := doubts(volume):
            warnings.warn(f"{volume.source}: {caution}", stacklevel=2)
        if not volume.ends:
            warnings.warn(
                f"{volume.source}: pictures do not say which end is the head: the last one is "
                "taken to be, and no map is written as NIfTI (say feet-first or head-first): "
                "order, or --slices, says it",
                stacklevel=2,
            )
        sample = prepare(volume, self.preset)
        if (taken := len(sample["slices"].unique())) < self.preset.slices:
            warnings.warn(
                f"{volume.source}: {taken} slices where the network takes {self.preset.slices}: "
                "some were repeated",
                stacklevel=2,
            )
        batch = sample["volume"][None].to(self.device)
        with torch.inference_mode():
            logits = self.fast(batch)
        check_prediction(logits, dtype=self.dtype)
        probabilities = logits[0].float().softmax(0).cpu().numpy()
        known = (self.classes, probabilities, volume, sample, self.preset)
        result = CTResult(*known, caution=caution)
        if method is None:
            return result
        explained = explained or result.predicted
        number = torch.tensor([self.classes.index(explained)])
        where = explain(self.net, batch, number, method, layer, mirrors)
        if not where.values.any():
            warnings.warn(
                f"{volume.source}: nothing speaks for {explained} by {where.method}: the map is 0",
                stacklevel=2,
            )
        heat = where.values[0].cpu()
        return dataclasses.replace(result, heat=heat, method=where.method, explained=explained)
