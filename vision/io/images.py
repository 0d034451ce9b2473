"""Reading and writing images.

Pillow decodes, because it refuses a file that is cut short (OpenCV versions differ: some return the
lower part in grey). OpenCV reads what Pillow would reduce to 8 bits: 16-bit colour PNG and
TIFF, PGM and PPM.
"""

from __future__ import annotations

import io
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from ...common.files import atomic_write, existing

__all__ = [
    "SUFFIXES",
    "ImageLike",
    "as_image",
    "as_pair",
    "as_views",
    "image_size",
    "read_image",
    "read_pixels",
    "to_bytes",
    "to_float",
    "used_bits",
    "write_image",
]

#: Files in a folder that count as images.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".webp")

ImageLike = str | os.PathLike | np.ndarray | Tensor
"""What `as_image` takes."""

_PROCESS_WIDE = threading.Lock()
_PIXEL_LIMIT = 1 << 27  # 134 million, above what stereo cameras deliver
_PNG = b"\x89PNG\r\n\x1a\n"
_TIFF = (b"II*\x00", b"MM\x00*")
_PPM = (b"P2", b"P3", b"P5", b"P6")  # grey and colours, in text and binary
_HEADER = 4096  # bytes of a PPM in which its header ends, comments and all
_DEFLATE_RATIO = 1032  # deflate's best compression: a PNG cannot hold more pixels than this allows
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_COMMON = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "PPM")
_ORIENTATION = 0x0112  # EXIF's tag, 1 to 8
_JPEG = {"quality": 95, "subsampling": 0}
# Level 4 takes half the time of Pillow's own 6, for files a few percent larger.
_OPTIONS: dict[str, Any] = {".png": {"compress_level": 4}, ".jpg": _JPEG, ".jpeg": _JPEG}
_SLACK = 0.005  # beyond [0, 1], as interpolation and rounding leave it


def read_image(path: str | os.PathLike, upright: bool = True) -> Tensor:
    """Read an image of any common kind as RGB.

    8 and 16 bits, grey, grey with alpha, RGB, RGBA and palette images are read; alpha is dropped
    and grey is repeated.

    Args:
        path: the file: PNG, JPEG, TIFF, PPM, WebP, BMP, ...
        upright: whether the orientation that a camera noted (EXIF) is applied; without it pixels
            lie as they are stored.

    Returns:
        (3, H, W) float32 in [0, 1], RGB.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not an image, is damaged, is cut short or holds float values.
    """
    return to_float(read_pixels(path, upright))


def used_bits(pixels: np.ndarray) -> int:
    """Bits that a camera delivered: 8, or by the largest of 16-bit values 10, 12, 14 or 16."""
    if pixels.dtype == np.uint8:
        return 8
    used = int(pixels.max()).bit_length()
    return next(bits for bits in (10, 12, 14, 16) if used <= bits)


def as_image(image: ImageLike, which: str = "image") -> Tensor:
    """Return (3, H, W) float32 in [0, 1] on the CPU from a path, an array or a tensor.

    Raises:
        ValueError: none of these, or a tensor with values outside [0, 1].
    """
    if isinstance(image, (str, os.PathLike)):
        return read_image(image)
    if _is_picture(image):
        return to_float(image)
    if isinstance(image, Tensor) and image.ndim == 3 and image.shape[0] == 3:
        if image.is_floating_point() and image.numel():
            image = image.detach().float().cpu()
            low, high = (float(value) for value in image.aminmax())
            if not (low >= -_SLACK and high <= 1 + _SLACK):
                raise ValueError(
                    f"{which}: values from {low:g} to {high:g}; a float tensor holds 0 to 1: "
                    "divide 8-bit values by 255, and leave normalisation to the network"
                )
            return image.clamp(0, 1) if low < 0 or high > 1 else image
    shape = getattr(image, "shape", None)
    raise ValueError(
        f"{which}: an image is a path, a uint8 or uint16 array (H, W, 3) or (H, W), or a float "
        f"tensor (3, H, W), got {type(image).__name__}"
        + (f" of {image.dtype} {tuple(shape)}" if shape else "")
    )


def as_pair(left: ImageLike, right: ImageLike) -> tuple[Tensor, Tensor]:
    """Return two images of alike cameras, see `as_views`."""
    first, second = as_views([left, right], ["left", "right"])
    return first, second


def as_views(images: Sequence[ImageLike], names: Sequence[str]) -> list[Tensor]:
    """Return images of alike cameras as `as_image` does, which messages call by the names.

    Cameras that deliver 10, 12 or 14 bits mostly leave the upper bits of 16-bit files and arrays
    empty: then the largest value of so many bits is white, in all images.
    """
    views = [read_pixels(one) if isinstance(one, (str, os.PathLike)) else one for one in images]
    spare = 16 - max(map(used_bits, filter(_is_picture, views)), default=16)
    shifted = (view << spare if _is_picture(view, np.uint16) else view for view in views)
    return [as_image(view, name) for view, name in zip(shifted, names, strict=True)]


def image_size(path: str | os.PathLike) -> tuple[int, int]:
    """Return the height and width of the stored pixels, by the header; nothing is decoded.

    Only common kinds are looked at: of an image from anywhere, that is to be done first.

    Raises:
        ValueError: the file is no PNG, JPEG, TIFF, WebP, BMP or PPM, its header is damaged, or it
            names more pixels than any image may have.
    """
    try:
        with _opening(), Image.open(path, formats=_COMMON) as image:
            _check_size(image)
            if isinstance(image, TiffImageFile):  # versions of Pillow differ in what they turn
                return int(image.tag_v2[257]), int(image.tag_v2[256])
            return image.size[::-1]
    except _TooManyPixelsError as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # a header, too, is damaged in many ways
        raise ValueError(f"{path}: not an image of a common kind ({', '.join(_COMMON)})") from error


def read_pixels(path: str | os.PathLike, upright: bool = True) -> np.ndarray:
    """Read an image's stored numbers, without alpha.

    Those of a PGM or PPM whose greatest is neither 255 nor 65535 are scaled to the next of these.

    Args:
        path: the file.
        upright: as in ``read_image``.

    Returns:
        uint8 or uint16 array: (H, W) for a grey image, (H, W, 3) RGB for others.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as in ``read_image``.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not an image")
    data = existing(path).read_bytes()
    if not data:
        raise ValueError(f"{path}: the file is empty")
    if data.startswith(_PNG):
        _check_png(data, path)
    try:
        return _decode(data, upright)
    except UnidentifiedImageError as error:
        raise ValueError(f"{path}: not an image (no known format)") from error
    except _TooManyPixelsError as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # a decoder meets damage in many ways: SyntaxError, zlib.error, ...
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged or unsupported image: {reason}") from error


def to_float(pixels: np.ndarray) -> Tensor:
    """Return a uint8 or uint16 array, (H, W), (H, W, 1) or (H, W, 3), as (3, H, W) in [0, 1]."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    scale = float(np.float32(1 / np.iinfo(pixels.dtype).max))
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32)
    return torch.from_numpy(planes).mul_(scale).clamp_(max=1.0)


def to_bytes(image: Tensor) -> np.ndarray:
    """Return a float tensor (3, H, W) in [0, 1] (clipped) as a uint8 array (H, W, 3).

    Example:
        >>> to_bytes(torch.ones(3, 4, 5)).shape
        (4, 5, 3)
    """
    scaled = image.detach().float().cpu().clamp(0, 1).mul(255).round()
    return scaled.byte().permute(1, 2, 0).contiguous().numpy()


def write_image(path: str | os.PathLike, image: Tensor | np.ndarray) -> None:
    """Write an image, atomically; the suffix says the format.

    Args:
        path: the file to write.
        image: float tensor (3, H, W) in [0, 1] (clipped), or uint8 array (H, W, 3) or (H, W); or
            uint16 array (H, W), for PNG.

    Raises:
        ValueError: the shape, the type or the suffix is none of those.
    """
    path = Path(path)
    if isinstance(image, Tensor) and image.ndim == 3 and image.shape[0] == 3:
        pixels = to_bytes(image)
    else:
        pixels = np.asarray(image)
    suffix = path.suffix.lower()
    deep = pixels.dtype == np.uint16 and pixels.ndim == 2 and suffix == ".png"
    plain = pixels.dtype == np.uint8 and pixels.ndim in (2, 3) and pixels.shape[2:] in ((), (3,))
    if not (deep or plain):
        raise ValueError(
            f"{path}: an image is a tensor (3, H, W), a uint8 array (H, W, 3) or (H, W), or for "
            f"PNG a uint16 array (H, W), got {pixels.dtype} of shape {tuple(pixels.shape)}"
        )
    if suffix not in Image.registered_extensions():
        raise ValueError(f"{path}: no image format is known by the suffix {path.suffix!r}")
    with atomic_write(path) as temporary:
        Image.fromarray(np.ascontiguousarray(pixels)).save(temporary, **_OPTIONS.get(suffix, {}))


class _TooManyPixelsError(ValueError):
    """An image is larger than those that are read."""


@contextmanager
def _opening() -> Iterator[None]:
    """Open images without Pillow's limit and warnings: the limit here is our own.

    Both are the whole process's, and threads that change them at a time would leave those of one
    behind.
    """
    with _PROCESS_WIDE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > _PIXEL_LIMIT:
        raise _TooManyPixelsError(
            f"{image.height}x{image.width} pixels, more than the {_PIXEL_LIMIT // 10**6} million "
            "that are read; make it smaller"
        )


def _is_picture(image: object, *types: type) -> TypeGuard[np.ndarray]:
    """Whether it is an array of pixels, of one of the types: 8 or 16 bits, grey or RGB."""
    if not isinstance(image, np.ndarray) or image.dtype not in (types or (np.uint8, np.uint16)):
        return False
    return bool(image.size) and image.ndim in (2, 3) and image.shape[2:] in ((), (1,), (3,))


def _check_png(data: bytes, path: Path) -> None:
    """Refuse a PNG whose header promises more than its bytes can hold, before memory is taken."""
    if len(data) < 33:
        raise ValueError(f"{path}: cut short: a PNG header has 33 bytes, the file {len(data)}")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    bits = data[24] * _PNG_CHANNELS.get(data[25], 1)
    if width * height * bits > 8 * _DEFLATE_RATIO * len(data):
        raise ValueError(
            f"{path}: cut short or damaged: {len(data)} bytes cannot hold {height}x{width} pixels"
        )


def _decode(data: bytes, upright: bool) -> np.ndarray:
    try:
        with _opening():
            image = Image.open(io.BytesIO(data))
        _check_size(image)
        orientation = image.getexif().get(_ORIENTATION, 1)  # of a TIFF it is gone once loaded
        image.load()
    except UnidentifiedImageError:
        if not data.startswith(_TIFF):
            raise
        exif = Image.Exif()
        exif.load(data)
        return _decoded_tiff(_decode_deep(data), exif.get(_ORIENTATION, 1), upright)
    if _reduced(data, image):
        pixels = _decode_deep(data)
    elif image.mode.startswith("I;16"):
        pixels = np.asarray(image).astype(np.uint16)
        if isinstance(image, TiffImageFile) and image.tag_v2.get(262) == 0:  # 0 is white
            pixels = ~pixels  # as Pillow does, of 8 bits
    elif image.mode in ("I", "F"):
        raise ValueError("32-bit values; an image has 8 or 16 bits a channel")
    else:
        pixels = np.array(image.convert("L" if image.mode in ("1", "L", "LA", "La") else "RGB"))
    if isinstance(image, TiffImageFile):
        return _decoded_tiff(pixels, orientation, upright)
    return _turned(pixels, orientation) if upright else pixels


def _decoded_tiff(pixels: np.ndarray, orientation: int, upright: bool) -> np.ndarray:
    """What Pillow or OpenCV made of a TIFF, which both turn upright."""
    return pixels if upright else _turned(pixels, {6: 8, 8: 6}.get(orientation, orientation))


def _turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels (H, W, ...) turned upright by their EXIF orientation."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _reduced(data: bytes, image: Image.Image) -> bool:
    """Say whether Pillow reduces this image's 16 bits to 8, or takes them for 32."""
    if data.startswith(_PNG):
        return data[24] == 16
    if isinstance(image, TiffImageFile) and not image.mode.startswith("I;16"):
        return 16 in image.tag_v2.get(258, ())  # BitsPerSample
    return data.startswith(_PPM) and _ppm_maximum(data) > 255


def _ppm_maximum(data: bytes) -> int:
    """The value of white in a PGM or PPM, which its header names last, after width and height."""
    return int(re.sub(rb"#[^\n]*", b"", data[:_HEADER]).split(None, 4)[3])


def _decode_deep(data: bytes) -> np.ndarray:
    """Decode 16-bit data through OpenCV to (H, W) or RGB (H, W, 3)."""
    import cv2

    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise ValueError("cannot be decoded")
    if pixels.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"{pixels.dtype} values; an image has 8 or 16 bits a channel")
    if data.startswith(_PPM) and (most := _ppm_maximum(data)) < 65535:
        pixels = np.rint(pixels * (65535 / most)).clip(max=65535).astype(np.uint16)
    if pixels.ndim == 3 and data.startswith(_PNG) and data[25] == 4:
        pixels = pixels[:, :, 0]  # grey with alpha, of which OpenCV makes colours with alpha
    return np.ascontiguousarray(pixels if pixels.ndim == 2 else pixels[:, :, 2::-1])
