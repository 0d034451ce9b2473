"""Disparity, depth and points of stereo pairs.

Example:
    >>> predictor = vizoo.StereoPredictor()
    >>> result = predictor("left.png", "right.png")
    >>> result.save("out")
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ..common.devices import choose_device, choose_dtype
from ..common.memory import PeakMemory, available_memory, held_memory, return_freed_memory
from ..vision.exported import ExportedNetwork, is_exported
from ..vision.hub.create import load_network
from ..vision.inference import check_prediction, optimize
from ..vision.io.images import ImageLike, as_pair, to_bytes
from ..vision.runtimes import prepared
from . import DEFAULT_MODEL
from .confidence import confidence, left_right_difference
from .guided import FUSION, MATCHING_BYTES, Guided, max_disparity
from .rectification import REMEDY, check_pair, require_content
from .result import StereoResult
from .tiling import least_pixels, refine

__all__ = ["StereoPredictor", "open_pair", "reduced"]

# A pair's largest disparity is looked up in a copy of at most this width, or of half as much until
# it is well within reach: a third more than what all but one pixel in fifty stay below.
_GLANCE, _NEARLY_ALL, _RESERVE = 288, 0.98, 1.3
_NARROW, _WELL = 72, 0.9
_SMALLEST = 8  # pixels; a side of a picture that is matched at a scale of the user's
_QUICK = (128, 256)  # height and width of the pair by which time is estimated

# What is said before: work of more seconds, of images of more pixels.
_LONG, _LARGE = 2.0, 500_000
# Bytes for each pixel: of the maps of whole images, and what the second matching of `both` adds; of
# a network's own at least (memory that was freed before hides a part when they are measured) and
# at most.
_MAPS, _MIRRORED, _LEAST, _MOST = 28, 36, 254, 4000
_LEAST_KEPT = 800  # in runtimes that keep their memory, so that it shows but once
_MEASURED = (256, 512)  # height and width of the pair by which a network's are measured
_SAFETY = 1.3
_USED = 0.9  # of the memory; the rest goes to gaps between what is freed and asked for again
_HIDDEN = 1.0  # matched pixels by which the disparities differ where one image does not see it
_EDGE = 0.5  # pixels of a small image by which a disparity and the mean of those around differ
_TOGETHER = 1 << 18  # pixels at edges, for what they take of memory
_SURE = (128, 256)  # height and width of pairs that every network of the zoo can match
_ASTRAY = 0.5  # share of matches outside of the right image; of pairs that are matched, an eighth


class StereoPredictor:
    """A network with its weights, ready for pairs of any size.

    Args:
        model: a network ``net(left, right)`` (copied), or trained weights: ``NAME`` or
            ``NAME.TAG`` of `list_models(pretrained=True)`, ``hf-hub:ORG/NAME[@REVISION]``, a
            folder of `save_pretrained`, a ``.safetensors`` file or a Lightning checkpoint; or a
            file of `vizoo.export` for any size, ``.xml`` or ``.onnx``, which runs by itself.
        device: ``auto`` (a GPU if there is one), or what ``torch.device`` takes.
        dtype: ``float32``, ``bfloat16`` or ``float16`` (GPU only), for the network's inside.
        runtime: what runs the network: ``torch``, on the CPU also ``openvino`` and ``onnxruntime``
            (float32 alone), for which it is exported once, or ``auto``, the fastest of those that
            are installed, see `vizoo.vision.runtimes.Fastest`.
        guided: fuse what the network finds with semi-global matching, see `Guided`: more accurate,
            above all to a fraction of a pixel and at edges, and farther. The default takes half as
            much time again, a small network several times as much. None: the default model is,
            others are not; a `Guided` always is.

    Attributes:
        guided: whether it is.
        max_disparity: pixels; the network is made for disparities below that, guided for twice as
            many. None where it does not say.
        reach: pixels; the largest disparity up to which the network was measured to work, guided
            twice that, or ``max_disparity`` where it was not.

    Raises:
        FileNotFoundError: there is no such weight file.
        ValueError: no such model, no trained weights for it, no such device or runtime, or a dtype
            that it cannot use.
        ImportError: the runtime is not installed; the message says how to get it.
    """

    def __init__(
        self,
        model: str | os.PathLike | nn.Module = DEFAULT_MODEL,
        device: str = "auto",
        dtype: str = "float32",
        runtime: str = "torch",
        *,
        guided: bool | None = None,
    ) -> None:
        if is_exported(model) and device == "auto":
            device = "cpu"  # where the file runs
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        how = runtime, self.dtype, self.device
        exported = ExportedNetwork(model, "stereo", *how) if is_exported(model) else None
        net: Any = exported or load_network(model, "stereo")
        self.guided = model == DEFAULT_MODEL if guided is None else guided
        scored, fusion = getattr(net, "scored", False), None
        if isinstance(net, Guided):
            self.guided, scored, net, fusion = True, net.scored, net.net, net.fusion
        self.net: nn.Module = exported or prepared(net, *how)
        if self.guided:
            fusion = fusion or load_network(FUSION, "stereo-fusion")
            fast = optimize(fusion.to(self.device), self.dtype)
            self.net, net = (Guided(part, fast, scored) for part in (self.net, net))
        self._scored = self.guided or scored
        self.runtime = runtime if exported is None else exported.runtime
        self._bytes: float | None = None
        self.max_disparity = max_disparity(net)
        self.reach = getattr(net, "reach", None) or self.max_disparity

    @torch.inference_mode()
    def __call__(
        self,
        left: ImageLike,
        right: ImageLike,
        *,
        scale: float | str = "auto",
        max_disparity: float | None = None,
        memory: float | None = None,
        both: bool = False,
        check: bool = True,
        remedy: str = REMEDY,
    ) -> StereoResult:
        """Find the disparity of one pair.

        Args:
            left: a path, a uint8 or uint16 array, (H, W, 3) RGB or (H, W) grey, or a (3, H, W)
                tensor in [0, 1].
            right: likewise; of the same size, both rectified.
            scale: above 0 and at most 1: the images are made smaller by it before they are
                matched, and nearer things come within reach; the disparity is given at their own
                size again, in their own pixels. ``auto`` takes 1 wherever ``reach`` is enough;
                where it is not, the pair is matched at a smaller size, and again at its own around
                what was found (see `vizoo.stereo.tiling`).
            max_disparity: the pair's largest, pixels, instead of a look at it.
            memory: bytes that this process may hold, or on a GPU the network; where a pair needs
                more it is matched in tiles. By default what is free.
            both: also match the right image; its disparity and what the right image does not see
                are part of the result, and the confidence, but of a guided network, knows more. It
                takes twice as long.
            check: whether to look if the pair is swapped or not rectified, by keypoints, and
                beyond reach at a scale of yours. It takes up to a second; many pairs of one
                camera need it once.
            remedy: what a warning says to do about a pair that is not rectified.

        Raises:
            FileNotFoundError: there is no such image.
            ValueError: an image cannot be read or is all of one colour, the sizes differ, both
                are the same picture, a scale, disparity or memory of another form, or the network's
                output is not finite.

        Warns (``UserWarning``) of a pair that is swapped, not rectified or of different scenes, and
        of disparities beyond ``reach``.
        """
        first, second = open_pair(left, right)
        whole = _whole(scale, *first.shape[1:])
        for name, value in (("max_disparity", max_disparity), ("memory", memory)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive, got {value:g}")
        picture = to_bytes(first)
        doubts = check_pair(picture, to_bytes(second), remedy=remedy) if check else []
        for note in doubts:
            warnings.warn(note, stacklevel=3)
        start = self._reached(first, second, whole, scale == "auto", max_disparity, check)
        height, width = (max(1, round(whole * length)) for length in first.shape[1:])
        pixels = self._pixels(height, width, memory, both)
        if pixels is not None:
            start = min(start, whole * 0.99 * math.sqrt(pixels / (height * width)))
            warnings.warn(
                f"{height}x{width} pixels do not fit into memory at once: the pair was matched at "
                f"{start:.2g} of its size, then at {whole:g} in tiles",
                stacklevel=3,
            )
        disparity, *peak = self._infer(first, second, start, whole, pixels)
        astray = float((disparity > torch.arange(disparity.shape[1])).float().mean())
        if check and not doubts and astray > _ASTRAY:
            rows, columns = disparity.shape
            why = "are left and right swapped, or of two scenes?"
            if rows < _SURE[0] or columns < _SURE[1]:
                why = (
                    f"{rows}x{columns} pixels are too few to match ({_SURE[0]}x{_SURE[1]} are "
                    "enough), or left and right are swapped, or of two scenes"
                )
            warnings.warn(
                f"{astray:.0%} of the pixels are matched beyond the edge of the right image: {why}",
                stacklevel=3,
            )
        other = difference = None
        if both:
            other = self._infer(second.flip(-1), first.flip(-1), start, whole, pixels)[0].flip(-1)
            difference = left_right_difference(disparity, other)
        known = peak[0] if peak else None
        sure = confidence(first, second, disparity, known, difference, whole, self.guided)
        return StereoResult(
            disparity.numpy(),
            picture,
            Path(left).stem if isinstance(left, (str, os.PathLike)) else "pair",
            start,
            sure.numpy(),
            None if other is None else other.numpy(),
            None if difference is None else (difference > _HIDDEN / whole).numpy(),
        )

    @torch.inference_mode()
    def estimate(self, height: int, width: int) -> float:
        """Return about how many seconds a pair of this size takes at scale 1.

        The network's work grows with the number of pixels, so a small pair is timed.
        """
        left = torch.rand(3, *_QUICK)
        right = left.roll(-8, -1)  # what does not match would be searched for everywhere
        times = []
        for _ in range(8):  # the first warms up, and the fastest is the least disturbed
            start = time.perf_counter()
            self.maps(left, right)
            times.append(time.perf_counter() - start)
        return min(times) * height * width / math.prod(_QUICK)

    def forewarnings(self, height: int, width: int, scale: float | str = "auto") -> list[str]:
        """Return what a user should know before a pair of this size: long work, little memory.

        Args:
            height: of the images, pixels.
            width: of the images, pixels.
            scale: as it will be asked for.
        """
        if height * width <= _LARGE:
            return []
        share = 1.0 if scale == "auto" else float(scale) ** 2
        seconds = share * self.estimate(height, width)
        if seconds <= _LONG:
            return []
        return [
            f"{height}x{width} pixels take about {seconds:.0f} s on {self.device}, several times "
            "as long where disparities are beyond the network's reach; a smaller scale takes less"
        ]

    @torch.inference_mode()
    def maps(self, left: Tensor, right: Tensor) -> Tensor:
        """What the network finds, guided where it is, at once and whatever its reach.

        Args:
            left: (3, H, W), RGB in [0, 1].
            right: the same shape.

        Returns:
            (1, H, W), the disparity; of a network that scores its candidates (2, H, W), with the
            share of all chances that lies in the peak; guided with the chance that it is right.
        """
        net: Any = self.net
        call = net.predict if self._scored else lambda *views: (net(*views)[:, :1],)
        return self._run(call, left, right)

    @torch.inference_mode()
    def alone(self, left: Tensor, right: Tensor) -> Tensor:
        """The disparity, (1, H, W), that the network finds without guidance; see `maps`."""
        if not isinstance(self.net, Guided):
            return self.maps(left, right)[:1]
        return self._run(self.net.claimed, left, right)[:1]

    def _run(self, call: Callable[..., tuple[Tensor, ...]], left: Tensor, right: Tensor) -> Tensor:
        """What a network gives for two views, (C, H, W) float32 on the CPU, checked."""
        parts = call(*(view[None].to(self.device) for view in (left, right)))
        maps = torch.cat([part.float().cpu() for part in parts], 1)[0]
        check_prediction(maps, dtype=self.dtype)
        return maps

    def _infer(
        self, left: Tensor, right: Tensor, start: float, whole: float, pixels: int | None
    ) -> Tensor:
        """Maps (C, H, W) of images matched at the scale `start`, then at `whole` if that is more.

        The network gets so many pixels at once at most.
        """
        full = left
        left, right = reduced(left, whole), reduced(right, whole)
        if start >= whole:
            maps = self.maps(left, right)
        else:
            ratio = start / whole
            small = reduced(left, ratio)
            coarse = _enlarged(self.maps(small, reduced(right, ratio)), small, left)
            match = self.maps if pixels is None else self._sparing_maps
            maps = refine(match, left, right, coarse, ratio, self.reach, pixels)
        return _enlarged(maps, left, full)

    def _sparing_maps(self, left: Tensor, right: Tensor) -> Tensor:
        maps = self.maps(left, right)
        return_freed_memory()  # tiles differ in size, and what one leaves seldom fits the next
        return maps

    def _pixels(self, height: int, width: int, memory: float | None, both: bool) -> int | None:
        """How many pixels the network may get at once; None where memory is no matter."""
        free, taken, left = self._memory(height, width, memory, both)
        if height * width * _MOST > left:
            return_freed_memory()  # what was kept for the next tensor counts as taken
            free, taken, left = self._memory(height, width, memory, both)
        if height * width * _MOST <= left:
            return None
        if self._bytes is None:
            views = [torch.linspace(0, 1, 3 * math.prod(_MEASURED)).view(3, *_MEASURED)] * 2
            if self.runtime != "torch":  # what it takes to export and compile is not meant
                self.maps(*(view[:, ::4, ::4] for view in views))
            with PeakMemory(self.device) as peak:
                self.maps(*views)
            least = _LEAST if self.runtime == "torch" else _LEAST_KEPT
            self._bytes = _SAFETY * max(peak.bytes / math.prod(_MEASURED), least)
        pixels = int(left / self._bytes)
        if pixels >= height * width:
            return None
        least = least_pixels(height, width, math.ceil(self.reach or width / 4))
        if pixels < least:
            needed = (free - left / _USED + least * self._bytes / _USED) / 1e9
            held = f" ({taken / 1e9:.2g} GB are held already)" if taken else ""
            raise ValueError(
                f"a pair of {height}x{width} pixels does not fit into {free / 1e9:.2g} GB of "
                f"memory{held}: in the smallest tiles it needs {math.ceil(10 * needed) / 10:.2g} GB"
            )
        return pixels

    def _memory(
        self, height: int, width: int, memory: float | None, both: bool
    ) -> tuple[float, float, float]:
        """Bytes that may be held, of which are held already, and that are left for the network."""
        free = _free_memory(self.device) if memory is None else memory
        if free is None:
            return math.inf, 0, math.inf
        if self.device.type != "cpu":
            return free, 0, _USED * free
        taken = 0 if memory is None else held_memory()
        maps = height * width * (_MAPS + _MIRRORED * both) + MATCHING_BYTES * width * self.guided
        return free, taken, _USED * free - taken - maps

    def _reached(
        self,
        left: Tensor,
        right: Tensor,
        wanted: float,
        automatic: bool,
        given: float | None,
        check: bool,
    ) -> float:
        """The scale to match at first; warns where disparities go beyond the network's reach."""
        if self.reach is None or not (check or automatic):
            return wanted
        if given is None:
            alone = self.reach / (1 + self.guided)
            largest, reserve = self._largest(left, right, alone), _RESERVE
        else:
            largest, reserve = min(given, left.shape[2]), 1.0  # no match is farther away
        if largest * wanted <= self.reach:
            return wanted
        within = max(math.floor(100 * self.reach / (reserve * largest)), 1) / 100
        beyond = (
            f"disparities reach about {largest:.0f} px, beyond the network's {self.reach:g} px: "
        )
        if automatic:
            beyond += (
                f"the pair was matched at {within:g} of its size, then at its own around what was "
                "found, which takes longer"
            )
        else:
            beyond += f"what is nearer comes out wrong; take the scale {within:g} or auto"
        if given is None or not automatic:
            warnings.warn(beyond, stacklevel=4)
        return within if automatic else wanted

    def _largest(self, left: Tensor, right: Tensor, reach: float) -> float:
        """About the largest disparity of a pair, pixels, by a look at a small copy."""
        width = left.shape[2]
        narrow = min(_GLANCE, width)
        while True:
            small = [reduced(view, narrow / width) for view in (left, right)]
            seen = float(self.alone(*small).flatten().quantile(_NEARLY_ALL))
            if seen <= _WELL * reach or narrow < 2 * _NARROW:
                return min(seen, narrow) * width / narrow
            narrow //= 2


def _whole(scale: float | str, height: int, width: int) -> float:
    """The scale that a pair is matched at in the end, which is not always the first."""
    if scale == "auto":
        return 1.0
    if not (isinstance(scale, Real) and 0 < scale <= 1):
        raise ValueError(f"scale is above 0 and at most 1, or 'auto', not {scale!r}")
    if min(height, width) * scale < min(_SMALLEST, height, width):
        raise ValueError(
            f"at {scale:g} of {height}x{width} pixels there is nothing left to match: "
            f"take {math.ceil(100 * _SMALLEST / min(height, width)) / 100:g} at least"
        )
    return float(scale)


def _enlarged(maps: Tensor, small: Tensor, full: Tensor) -> Tensor:
    """Maps (C, H, W) of a small image at the size of the full one; the first is a disparity.

    Half way between near and far is nothing. There each pixel takes what the neighbour has whose
    colour is most like its own (after Kopf et al., "Joint Bilateral Upsampling", SIGGRAPH 2007).
    """
    if maps.shape[1:] == full.shape[1:]:
        return maps
    size = full.shape[1:]
    smooth = interpolate(maps[None], size, mode="bilinear")[0]
    near = interpolate(maps[None, :1], size, mode="nearest-exact")[0, 0]
    edges = (near.sub_(smooth[0]).abs_() > _EDGE).nonzero()
    for y, x in (part.T for part in edges.split(_TOGETHER)):
        neighbours = []
        for place, short, long in zip((y, x), small.shape[1:], size, strict=True):
            before = ((place + 0.5) * short / long - 0.5).floor().long()
            neighbours.append(torch.stack([before, before + 1]).clamp_(0, short - 1))
        rows, columns = neighbours
        index = (small.shape[2] * rows[:, None] + columns).flatten(0, 1)  # (4, N)
        differences = (small.flatten(1)[:, index] - full[:, y, x][:, None]).abs().sum(0)
        index = index.gather(0, differences.argmin(0, keepdim=True))[0]
        smooth[:, y, x] = maps.flatten(1)[:, index]
    smooth[0] *= size[1] / small.shape[2]
    return smooth


def _free_memory(device: torch.device) -> int | None:
    if device.type != "cuda":
        return available_memory()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def open_pair(left: ImageLike, right: ImageLike) -> tuple[Tensor, Tensor]:
    """Both views (3, H, W) in [0, 1], of paths, arrays or tensors.

    Raises:
        FileNotFoundError: there is no such image.
        ValueError: an image cannot be read or is all of one colour, the sizes differ, or both are
            the same picture.
    """
    first, second = as_pair(left, right)
    if first.shape != second.shape:
        sizes = [f"{image.shape[1]}x{image.shape[2]}" for image in (first, second)]
        raise ValueError(
            f"left and right differ in size: {_name(left)}{sizes[0]} against "
            f"{_name(right)}{sizes[1]}; a rectified pair has one size"
        )
    require_content(first, second)
    return first, second


def reduced(image: Tensor, scale: float) -> Tensor:
    """A (3, H, W) image made smaller by a scale."""
    if scale == 1:
        return image
    size = [max(1, round(length * scale)) for length in image.shape[1:]]
    return interpolate(image[None], size, mode="bilinear", antialias=True)[0]


def _name(image: ImageLike) -> str:
    return f"{os.fspath(image)} " if isinstance(image, (str, os.PathLike)) else ""
