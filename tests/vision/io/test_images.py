"""Images of every common kind, and damaged ones."""

import io
import random
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, UnidentifiedImageError

from vizoo.vision.io.images import (
    as_image,
    as_pair,
    image_size,
    read_image,
    read_pixels,
    to_bytes,
    write_image,
)

RGB = np.random.default_rng(0).integers(0, 256, (12, 17, 3), dtype=np.uint8)
DEEP = np.random.default_rng(1).integers(0, 65536, (12, 17, 4), dtype=np.uint16)


def png(pixels=RGB, mode=None, kind="PNG") -> bytes:
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
def test_kinds_of_8_bits(tmp_path, mode):
    (tmp_path / "a.png").write_bytes(png(mode=mode))
    image = read_image(tmp_path / "a.png")
    assert image.shape == (3, 12, 17) and image.dtype == torch.float32
    assert 0 <= image.min() and image.max() <= 1
    wanted = np.array(Image.fromarray(RGB).convert(mode).convert("RGB"))
    assert torch.equal(image.mul(255).round().byte().permute(1, 2, 0), torch.from_numpy(wanted))


@pytest.mark.parametrize("suffix", [".png", ".tiff", ".ppm"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bits_are_kept(tmp_path, channels, suffix):
    if suffix == ".ppm" and channels != 3:
        pytest.skip("PPM holds RGB")
    pixels = DEEP[:, :, 0] if channels == 1 else DEEP[:, :, :channels]
    assert cv2.imwrite(str(tmp_path / f"a{suffix}"), pixels)
    read = read_pixels(tmp_path / f"a{suffix}")
    assert read.dtype == np.uint16
    np.testing.assert_array_equal(read, pixels if channels == 1 else pixels[:, :, 2::-1])
    assert read_image(tmp_path / f"a{suffix}").max() <= 1


def test_grey_of_16_bits_with_alpha_is_grey(tmp_path):
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + check

    rows = DEEP[:, :, :2].astype(">u2").reshape(12, -1)
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    header = b"".join(size.to_bytes(4, "big") for size in (17, 12)) + bytes([16, 4, 0, 0, 0])
    parts = chunk(b"IHDR", header), chunk(b"IDAT", body), chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.png"), DEEP[:, :, 0])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["8.png", "8.tiff", "16.png", "16.tiff", "rgb16.png"])
def test_orientation_is_applied(tmp_path, kind, orientation):
    """To images of 16 bits too, and to none whose stored pixels are asked for."""
    path, exif = tmp_path / kind, Image.Exif()
    exif[0x0112] = orientation
    stored = {"8": RGB, "16": DEEP[:, :, 0], "rgb16": DEEP[:, :, :3]}[path.stem]
    if path.stem == "rgb16":  # which Pillow does not write
        data = cv2.imencode(".png", stored)[1].tobytes()
        tag = exif.tobytes().removeprefix(b"Exif\0\0")
        chunk = (
            len(tag).to_bytes(4, "big")
            + b"eXIf"
            + tag
            + zlib.crc32(b"eXIf" + tag).to_bytes(4, "big")
        )
        path.write_bytes(data[:33] + chunk + data[33:])
        stored = stored[:, :, ::-1]
    else:
        Image.fromarray(stored).save(path, exif=exif)
    turned = {
        1: stored,
        2: stored[:, ::-1],
        3: np.rot90(stored, 2),
        4: stored[::-1],
        5: np.swapaxes(stored, 0, 1),
        6: np.rot90(stored, -1),
        7: np.rot90(np.swapaxes(stored, 0, 1), 2),
        8: np.rot90(stored),
    }[orientation]
    np.testing.assert_array_equal(read_pixels(path), turned)
    np.testing.assert_array_equal(read_pixels(path, upright=False), stored)
    assert read_image(path).shape == (3, *turned.shape[:2])
    assert read_image(path, upright=False).shape == (3, 12, 17)
    assert image_size(path) == (12, 17)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_that_pillow_does_not_know_lies_as_it_is_stored(tmp_path, orientation):
    path, grey = tmp_path / "a.tiff", np.where(RGB[:, :, 0] > 127, np.uint8(255), np.uint8(0))
    # Bits from the lowest on, which leaves 0 and 255 as they are.
    backwards = {0x0112: orientation, 0x010A: 2}
    Image.fromarray(np.stack([grey, grey], axis=-1)).save(path, tiffinfo=backwards)
    with pytest.raises(UnidentifiedImageError):
        Image.open(path)
    np.testing.assert_array_equal(read_pixels(path, upright=False), grey)
    assert read_pixels(path).shape == ((12, 17) if orientation < 5 else (17, 12))


def test_a_tiff_whose_zero_is_white_is_no_negative(tmp_path):
    for grey in (RGB[:, :, 0], DEEP[:, :, 0]):
        stored = ~grey if grey.dtype == np.uint16 else grey  # Pillow turns 8 bits itself
        Image.fromarray(stored).save(tmp_path / "a.tiff", tiffinfo={262: 0})
        np.testing.assert_array_equal(read_pixels(tmp_path / "a.tiff"), grey)


@pytest.mark.parametrize("most", [100, 255, 256, 4095, 65535])
@pytest.mark.parametrize("magic", ["P2", "P3", "P5", "P6"])
def test_white_of_netpbm_is_what_its_header_says(tmp_path, magic, most):
    values = np.linspace(0, most, 24).round().astype(np.uint16).reshape(4, 6)
    values = values if magic in ("P2", "P5") else np.stack([values] * 3, axis=-1)
    if magic in ("P2", "P3"):
        body = " ".join(map(str, values.ravel())).encode() + b"\n"
    else:
        body = values.astype(">u2" if most > 255 else np.uint8).tobytes()
    path = tmp_path / "a.pgm"
    path.write_bytes(f"{magic} # a camera's\n# 9 9 9\n6 4\n{most}\n".encode() + body)
    whole = np.iinfo(np.uint8 if most <= 255 else np.uint16)
    pixels = read_pixels(path)
    assert pixels.dtype == whole.dtype and np.abs(pixels - values * (whole.max / most)).max() < 1
    assert read_image(path).max() == 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "WEBP"])
def test_cut_short(tmp_path, kind):
    data = png(kind=kind)
    for part in (0.3, 0.6, 0.9):
        path = tmp_path / "a.img"
        path.write_bytes(data[: int(len(data) * part)])
        with pytest.raises(ValueError) as caught:
            read_image(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_empty_folder_text(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_image(tmp_path / "a.png")
    with pytest.raises(ValueError, match="is a folder"):
        read_image(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        read_image(tmp_path / "a.png")
    (tmp_path / "a.png").write_text("a letter")
    with pytest.raises(ValueError, match="not an image"):
        read_image(tmp_path / "a.png")


def test_floating_point_is_refused(tmp_path):
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match="8 or 16 bits"):
        read_image(tmp_path / "a.tiff")


def test_promised_size_must_be_possible(tmp_path):
    data = bytearray(png())
    data[16:24] = (30000).to_bytes(4, "big") * 2
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(ValueError, match="cannot hold 30000x30000"):
        read_image(tmp_path / "a.png")


@given(at=st.integers(0, len(png()) - 1), value=st.integers(0, 255), cut=st.integers(0, 900))
def test_damage_is_a_value_error(tmp_path_factory, at, value, cut):
    data = bytearray(png())
    data[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.png"
    path.write_bytes(data[: len(data) - cut] if cut < 400 else data)
    try:
        assert read_image(path).shape[0] == 3
    except ValueError as error:
        assert str(path) in str(error)


def test_write(tmp_path):
    write_image(tmp_path / "a.png", RGB)
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.png"), RGB)
    image = read_image(tmp_path / "a.png")
    write_image(tmp_path / "b.png", image * 2)
    assert torch.equal(read_image(tmp_path / "b.png"), (image * 2).clamp(max=1))
    with pytest.raises(ValueError, match="no image format"):
        write_image(tmp_path / "a.what", RGB)
    with pytest.raises(ValueError, match="got float32"):
        write_image(tmp_path / "a.png", np.zeros((2, 2), np.float32))


def test_to_bytes(tmp_path):
    image = torch.tensor([-0.1, 0.0, 0.5, 1.0, 1.2]).expand(3, 2, 5).requires_grad_()
    pixels = to_bytes(image.bfloat16())
    assert pixels.shape == (2, 5, 3) and pixels.dtype == np.uint8 and pixels.flags.c_contiguous
    assert pixels[0, :, 0].tolist() == [0, 0, 128, 255, 255]
    write_image(tmp_path / "a.png", image)
    np.testing.assert_array_equal(read_pixels(tmp_path / "a.png"), pixels)


def test_sixteen_bits_are_kept(tmp_path):
    pixels = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5001
    write_image(tmp_path / "deep.png", pixels)
    assert np.array_equal(read_pixels(tmp_path / "deep.png"), pixels)
    for name, image in (("deep.jpg", pixels), ("rgb.png", np.zeros((2, 2, 3), np.uint16))):
        with pytest.raises(ValueError, match="uint16 array"):
            write_image(tmp_path / name, image)


def test_threads_that_read_leave_warnings_as_they_are(tmp_path, monkeypatch):
    """Filters are the process's: what is warned of after reading is still heard."""
    write_image(tmp_path / "a.png", torch.rand(3, 8, 8))
    opened = Image.open

    def slow(data):
        time.sleep(random.uniform(0, 0.01))
        return opened(data)

    monkeypatch.setattr(Image, "open", slow)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(read_pixels, [tmp_path / "a.png"] * 40))
        warnings.warn("heard", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["heard"]


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".bmp", ".tif", ".ppm"])
def test_the_size_comes_from_the_header_alone(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    Image.new("RGB", (40, 30)).save(path)
    if suffix != ".webp":  # whose header Pillow reads from whole files alone
        path.write_bytes(path.read_bytes()[:-1])  # cut short, which decoding would meet
    assert image_size(path) == (30, 40)


def test_a_size_is_taken_from_images_of_common_kinds_alone(tmp_path):
    Image.new("RGB", (4, 3)).save(tmp_path / "a.eps")
    (tmp_path / "a.png").write_text("no image")
    for name in ("a.eps", "a.png", "absent.png"):
        with pytest.raises(ValueError, match=f"{name}: not an image of a common kind"):
            image_size(tmp_path / name)
    huge = tmp_path / "huge.pgm"
    huge.write_bytes(b"P5 60000 50000 255\n")
    for read in (image_size, read_image):
        with pytest.raises(ValueError) as error:
            read(huge)
        assert str(error.value) == (
            f"{huge}: 50000x60000 pixels, more than the 134 million that are read; make it smaller"
        )
    assert Image.MAX_IMAGE_PIXELS is not None


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("colours", [True, False])
def test_a_pair_is_as_bright_as_the_bits_of_its_cameras(tmp_path, bits, colours):
    """Both alike: the darker view does not go by its own largest value."""
    shape = (6, 8, 3) if colours else (6, 8)
    bright = np.random.default_rng(0).integers(0, 1 << bits, shape).astype(np.uint16)
    bright.flat[:3] = (1 << bits) - 1
    views = [bright, bright // 8]
    for name, view in zip(("l.png", "r.png"), views, strict=True):
        cv2.imwrite(str(tmp_path / name), view.astype(np.uint8) if bits == 8 else view)
    found = as_pair(tmp_path / "l.png", tmp_path / "r.png")
    for image, view in zip(found, views, strict=True):
        wanted = view[:, :, ::-1] if colours else np.repeat(view[:, :, None], 3, axis=2)
        wanted = torch.from_numpy(wanted.copy().astype(np.float32)).permute(2, 0, 1)
        torch.testing.assert_close(image, wanted / ((1 << bits) - 1), atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(12, 17), (12, 17, 1), (12, 17, 3)])
def test_arrays_are_as_their_files(tmp_path, kind, shape):
    """12 of 16 bits in a pair; alone 16 bits are what a file's are."""
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(kind)
    if kind is np.uint16:
        pixels.flat[0] = 4095
    views, names = [pixels, pixels // 8], ["left", "right"]
    paths = [str(tmp_path / f"{name}.png") for name in names]
    for path, view in zip(paths, views, strict=True):
        assert cv2.imwrite(path, view[:, :, ::-1] if shape[2:] == (3,) else view)
    assert torch.equal(as_image(pixels), read_image(paths[0]))
    for pair in (views, [views[0], paths[1]]):
        for found, wanted in zip(as_pair(*pair), as_pair(*paths), strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((0, 8, 3), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8), np.int16),
        torch.zeros(3, 0, 8),
    ],
)
def test_what_is_no_image(image):
    with pytest.raises(ValueError, match="image: an image is a path, .* got "):
        as_image(image)


def test_what_interpolation_leaves_beyond_the_range_is_cut_off():
    """As a byte a value a little above white would be black."""
    image = torch.tensor([-0.004, 0.5, 1.004]).view(3, 1, 1)
    assert as_image(image).flatten().tolist() == [0, 0.5, 1]
    assert image.flatten().tolist() == pytest.approx([-0.004, 0.5, 1.004])
