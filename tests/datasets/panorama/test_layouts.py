"""The three published layouts: written and read back; what is refused, in one line."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from vizoo.datasets.mixture import Part, split_by_seed
from vizoo.datasets.panorama import Matterport3D, Stanford2D3D, ThreeD60, write_panoramas
from vizoo.datasets.panorama.base import PanoramaRecord
from vizoo.vision.io.exr import read_exr, write_exr
from vizoo.vision.io.images import read_pixels, write_image

READERS = {"stanford2d3d": Stanford2D3D, "matterport3d": Matterport3D, "3d60": ThreeD60}
UNITS = {"stanford2d3d": 1 / 512, "matterport3d": 1 / 4000, "3d60": 0}


def random_sample(seed=0, height=16):
    """Depth up to 9.9 m with gaps; what is not valid holds NaN, infinity or a number."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, height, 2 * height)
    depth = 0.2 + 9.7 * torch.rand(shape, generator=generator)
    valid = torch.rand(shape, generator=generator) > 0.2
    planted = torch.tensor([float("nan"), float("inf"), 3.0])
    spoilt = planted[torch.randint(3, shape, generator=generator)]
    image = torch.randint(0, 256, (3, *shape[1:]), generator=generator) / 255
    return {"image": image, "depth": torch.where(valid, depth, spoilt), "valid": valid}


@pytest.mark.parametrize("layout", READERS)
def test_round_trip(tmp_path, layout):
    samples = [random_sample(seed) for seed in range(3)]
    write_panoramas({"train": samples[:1], "val": samples[1:]}, tmp_path, layout)
    if layout == "3d60":  # the second of the list is turned
        first, second = (tmp_path / "val.txt").read_text().splitlines()
        (tmp_path / "val.txt").write_text(f"{first}\n{second.replace('_0.0.', '_90.0.')}\n")
    train = READERS[layout](tmp_path, size=None)
    val = READERS[layout](tmp_path, "val.txt", size=None)
    assert len(train) == 1 and len(val) == 2 and train.has_truth
    for number, (sample, found) in enumerate(zip(samples, [train[0], val[0], val[1]], strict=True)):
        depth, valid = torch.where(sample["valid"], sample["depth"], 0), sample["valid"]
        image = sample["image"]
        if layout == "3d60" and number == 2:  # a quarter of the 32 columns
            depth, valid, image = (x.roll(8, 2) for x in (depth, valid, image))
        assert torch.equal(found["valid"], valid)
        assert (found["depth"][~valid] == 0).all()
        assert (found["depth"] - depth).abs().max() <= UNITS[layout] / 2 * 1.001
        assert found["depth"].dtype == torch.float32 and found["name"]
        off = (found["image"] - image).abs()
        assert off.mean() < 0.05 if layout == "matterport3d" else off.max() < 1e-6  # JPEG


def test_colours_are_as_bright_as_the_bits_of_their_camera(tmp_path):
    root = write_panoramas({"train": [random_sample()]}, tmp_path, "stanford2d3d")
    stored = np.random.default_rng(0).integers(0, 1 << 12, (16, 32, 3)).astype(np.uint16)
    cv2.imwrite(str(next(root.rglob("*_rgb.png"))), stored[:, :, ::-1])
    wanted = torch.from_numpy(stored / 4095).permute(2, 0, 1).float()
    torch.testing.assert_close(Stanford2D3D(root, size=None)[0]["image"], wanted, atol=1e-3, rtol=0)


def test_what_shows_one_place_is_kept_together(tmp_path):
    samples = [random_sample(seed) for seed in range(3)]
    for layout, reader in READERS.items():
        root = write_panoramas({"train": samples}, tmp_path / layout, layout)
        rows = (root / "train.txt").read_text().splitlines()
        if layout == "3d60":  # as its lists name one file four times
            rows += [row.replace("_0.0.", "_180.0.") for row in rows]
        (root / "train.txt").write_text("\n".join(rows))
        places = [place for place, _ in reader(root, size=None).groups]
        assert [places.index(place) for place in places] == {
            "stanford2d3d": [0, 1, 2],
            "matterport3d": [0, 1, 0],  # of two houses
            "3d60": [0, 1, 2, 0, 1, 2],
        }[layout]
        whole = Part(reader(root, size=None), [0, *range(2, len(rows))])
        parts = split_by_seed(whole, 0.4)
        images = [{image for _, image in part.groups} for part in parts]
        assert all(images) and not images[0] & images[1]


def test_panoramas_of_one_room_or_house_are_kept_together(tmp_path):
    place = "area_1/pano/rgb/camera_{}_{}_frame_equirectangular_domain_rgb"
    names = [place.format(*words) for words in (("0f", "hall_1"), ("1e", "hall_1"), ("2d", "wc_2"))]
    assert len({Stanford2D3D._place(PanoramaRecord(name, name)) for name in names}) == 2
    names = ["area1/0_area_11", "area1/12_area_11", "area3/0_area_31"]
    files = [f"3d60/{name}_color_0_Left_Down_0.0.png" for name in names]
    assert len({ThreeD60._place(PanoramaRecord(file, file)) for file in files}) == 2


def test_invalid_codes_on_disk(tmp_path):
    sample = random_sample()
    for layout, code in (("stanford2d3d", 65535), ("matterport3d", 0)):
        root = write_panoramas({"train": [sample]}, tmp_path / layout, layout)
        stored = read_pixels(root / (root / "train.txt").read_text().split()[1])
        assert stored.dtype == np.uint16
        assert ((stored == code) == ~sample["valid"][0].numpy()).all()
    root = write_panoramas({"train": [sample]}, tmp_path / "3d60", "3d60")
    stored = read_exr(root / (root / "train.txt").read_text().split()[1])
    assert (np.isinf(stored) == ~sample["valid"][0].numpy()).all()


def test_far_depth_is_unknown(tmp_path):
    sample = random_sample()
    sample["depth"][0, 4:8] = 12.0
    sample["valid"][0, 4:8] = True
    root = write_panoramas({"train": [sample]}, tmp_path, "stanford2d3d")
    near, far = Stanford2D3D(root, size=None)[0], Stanford2D3D(root, size=None, max_depth=20)[0]
    assert not near["valid"][0, 4:8].any() and (near["depth"][0, 4:8] == 0).all()
    assert (far["depth"][0, 4:8] == 12).all()


def test_sizes(tmp_path):
    root = write_panoramas({"train": [random_sample(height=32)]}, tmp_path, "stanford2d3d")
    whole, half = Stanford2D3D(root, size=None)[0], Stanford2D3D(root, size=(16, 32))[0]
    assert half["image"].shape == (3, 16, 32) and half["depth"].shape == (1, 16, 32)
    assert torch.isin(half["depth"], whole["depth"]).all()
    assert torch.equal(half["valid"], half["depth"] > 0)
    assert 0 <= half["image"].min() and half["image"].max() <= 1
    assert Stanford2D3D(root)[0]["image"].shape == (3, 512, 1024)
    assert ThreeD60.__init__.__defaults__[1] == (256, 512)
    with pytest.raises(ValueError, match=r"size \(16, 16\)"):
        Stanford2D3D(root, size=(16, 16))


def test_panoramas_without_truth(tmp_path):
    root = write_panoramas({"train": [random_sample()]}, tmp_path, "matterport3d")
    colour = (root / "train.txt").read_text().split()[0]
    (root / "predict.txt").write_text(f"# own\n\n{colour}\n")
    found = Matterport3D(root, "predict.txt", size=None)
    assert not found.has_truth and not found[0]["valid"].any()


class TestRefuses:
    @pytest.fixture
    def root(self, tmp_path):
        return write_panoramas({"train": [random_sample()]}, tmp_path, "stanford2d3d")

    @pytest.fixture
    def files(self, root):
        return [root / word for word in (root / "train.txt").read_text().split()]

    def test_absent(self, root, files, tmp_path, line):
        (root / "train.txt").write_text("a.png b.png\nc.png d.png\n")
        said = line(lambda: Stanford2D3D(root), FileNotFoundError)
        assert "2 of 2 panoramas missing, first" in said and "a.png" in said
        assert "2 of 2 depth maps missing" in said
        said = line(lambda: Stanford2D3D(root, "none.txt"), FileNotFoundError)
        assert "none.txt: no such list file" in said
        said = line(lambda: Stanford2D3D(tmp_path / "nowhere"), FileNotFoundError)
        assert "nowhere: no such folder" in said
        (root / "train.txt").write_text("\n")
        said = line(lambda: Stanford2D3D(root), FileNotFoundError)
        assert "expected lines 'colour depth'" in said
        (root / "train.txt").write_text("a b c\n")
        assert "line 1: 3 columns" in line(lambda: Stanford2D3D(root))

    def test_shape_and_channels(self, root, files, line):
        colour, depth = files
        good = colour.read_bytes()
        write_image(colour, torch.rand(3, 16, 30))
        assert "16x30 pixels; an equirectangular" in line(lambda: Stanford2D3D(root))
        write_image(colour, np.zeros((16, 32), np.uint8))
        assert "one channel; the colours" in line(lambda: Stanford2D3D(root))
        colour.write_bytes(good)
        write_image(depth, np.zeros((16, 32), np.uint8))
        assert "8 bits, grey; a depth map has 16" in line(lambda: Stanford2D3D(root))
        write_image(depth, torch.rand(3, 16, 32))
        assert "8 bits, colour; a depth map" in line(lambda: Stanford2D3D(root))
        Image.fromarray(np.full((8, 16), 512, np.uint16)).save(depth)
        said = line(lambda: Stanford2D3D(root, size=None))
        assert "8x16 pixels, but its colours" in said
        Image.fromarray(np.full((8, 8), 512, np.uint16)).save(depth)
        assert "8x8 pixels; an equirectangular" in line(lambda: Stanford2D3D(root))

    def test_wrong_unit(self, root, files, line):
        Image.fromarray(np.full((16, 32), 40000, np.uint16)).save(files[1])
        said = line(lambda: Stanford2D3D(root))
        assert "all depth is above 10 m, from 78.1" in said and str(files[1]) in said
        Image.fromarray(np.full((16, 32), 65535, np.uint16)).save(files[1])
        assert not Stanford2D3D(root)[0]["valid"].any()  # unknown everywhere is no wrong unit

    def test_damaged(self, root, files, tmp_path, line):
        files[1].write_bytes(files[1].read_bytes()[:200])
        assert str(files[1]) in line(lambda: Stanford2D3D(root))
        other = write_panoramas({"train": [random_sample()]}, tmp_path / "3d60", "3d60")
        path = other / (other / "train.txt").read_text().split()[1]
        path.write_bytes(path.read_bytes()[:-50])
        assert "damaged or cut short OpenEXR" in line(lambda: ThreeD60(other))
        write_exr(path, np.full((16, 32), 3000.0))
        assert "all depth is above 10 m" in line(lambda: ThreeD60(other))

    def test_angles(self, tmp_path, line):
        root = write_panoramas({"train": [random_sample()]}, tmp_path / "3d60", "3d60")
        listed = (root / "train.txt").read_text()
        (root / "train.txt").write_text(listed.replace("Down_0.0.png", "Down_90.0.png"))
        assert "end in one angle" in line(lambda: ThreeD60(root))
        (root / "train.txt").write_text("a.png b.exr\n")
        assert "line 1: colour and depth" in line(lambda: ThreeD60(root))

    def test_depth_that_a_layout_cannot_hold(self, tmp_path, line):
        sample = random_sample()
        sample["depth"][:] = 20.0
        said = line(lambda: write_panoramas({"train": [sample]}, tmp_path, "matterport3d"))
        assert "20.00 m does not fit: this layout ends at 16.38 m" in said
        assert "none of" in line(lambda: write_panoramas({}, tmp_path, "kitti"))
