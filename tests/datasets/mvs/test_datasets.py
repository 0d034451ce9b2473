"""Data sets of scenes, augmentation, the data module."""

from __future__ import annotations

import shutil

import cv2
import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from mvs_fixtures import small_scene

from vizoo.datasets.mixture import split_by_seed
from vizoo.datasets.mvs import (
    DTU,
    BlendedMVS,
    MVSDataModule,
    MVSDataset,
    Scene,
    SceneFolders,
    View,
    open_scene,
    write_scene,
)
from vizoo.datasets.mvs.camera_files import write_pair_file
from vizoo.datasets.mvs.cameras import check_camera, lift
from vizoo.datasets.mvs.dtu import SPLITS
from vizoo.datasets.mvs.transforms import ColourJitter, PoseError, RandomCrop
from vizoo.datasets.shelf import Shelf
from vizoo.datasets.worlds.views import WorldViews
from vizoo.vision.io.images import read_pixels
from vizoo.vision.io.pfm import write_pfm

pytestmark = pytest.mark.filterwarnings("ignore:.*of the published")


@pytest.fixture
def blended(tmp_path):
    """A training scene and one of the seven for validation."""
    for seed, name in enumerate(["aaaa", "59817e4a1bd4b175e7038d19"]):
        scene = small_scene(seed, height=24, width=32)
        write_scene(scene, tmp_path / name, "blendedmvs", lossless=True)
    return tmp_path


class TestScene:
    def test_a_sample_has_the_contracts_shapes(self, scene):
        sample = scene.sample(1, [0, 2])
        shapes = {key: tuple(v.shape) for key, v in sample.items() if key != "name"}
        assert shapes == {
            "images": (3, 3, 48, 64),
            "intrinsics": (3, 3, 3),
            "extrinsics": (3, 4, 4),
            "depth_range": (2,),
            "depth": (1, 48, 64),
            "valid": (1, 48, 64),
        }
        assert sample["valid"].dtype == torch.bool and sample["valid"].all()
        assert {sample[key].dtype for key in shapes if key != "valid"} == {torch.float32}
        assert 0 <= sample["images"].min() and sample["images"].max() <= 1
        assert sample["name"] == "world-17-000000/00000001"
        check_camera(sample["intrinsics"], sample["extrinsics"])

    def test_what_a_scene_refuses(self, scene):
        a, b, c, _ = scene.views
        with pytest.raises(ValueError, match="1 view; multi-view stereo needs two"):
            Scene("s", [a], [[]], "x")
        with pytest.raises(ValueError, match="two views are called '00000000'"):
            Scene("s", [a, a], [[], []], "x")
        with pytest.raises(ValueError, match="lists source 2, but there are only views 0 to 1"):
            Scene("s", [a, b], [[(2, 1.0)], []], "x", "pair.txt")
        with pytest.raises(ValueError, match="view 00000001 lists itself"):
            Scene("s", [a, b], [[], [(1, 1.0)]], "x")
        with pytest.raises(ValueError, match="pair.txt: view 00000000 lists source 00000001 twice"):
            Scene("s", [a, b], [[(1, 1.0), (1, 0.5)], []], "x", "pair.txt")
        with pytest.raises(ValueError, match="pairs of 1 views, but there are 3"):
            Scene("s", [a, b, c], [[]], "x")
        wrong = View("w", a.image, a.intrinsics, 2 * torch.eye(4))
        with pytest.raises(ValueError, match="scene s, view w: the extrinsics"):
            Scene("s", [a, wrong], [[], []], "x")

    def test_a_view_without_sources(self, scene):
        with pytest.raises(ValueError, match="view 00000000 has no source"):
            scene.sample(0, [])

    def test_ranges_and_names(self, scene):
        narrow = scene.with_range(500, 600)
        assert narrow.sample(0, [1])["depth_range"].tolist() == [500, 600]
        assert scene.views[0].depth_range != (500, 600)
        with pytest.raises(ValueError, match="^depth range 5 to 4: want 0 < least < greatest$"):
            scene.with_range(5, 4)
        assert scene.index("00000002") == 2
        with pytest.raises(ValueError, match="has no view 'x'; its views are 00000000"):
            scene.index("x")

    def test_a_resized_depth_takes_the_nearest(self, scene):
        sample = scene.sample(0, [1], size=(24, 32))
        whole = scene.depth(0)[0]
        assert sample["depth"].shape == (1, 24, 32)
        assert torch.isin(sample["depth"], whole).all()

    def test_a_resized_pixel_looks_where_the_pixels_in_it_look(self, scene):
        whole, half = scene.sample(0, [1]), scene.sample(0, [1], size=(24, 32))
        rays = [torch.linalg.inv(sample["intrinsics"][0]) for sample in (half, whole)]
        middle = rays[1] @ torch.tensor([20.5, 10.5, 1.0])  # of columns 20, 21 and rows 10, 11
        torch.testing.assert_close(rays[0] @ torch.tensor([10.0, 5.0, 1.0]), middle)

    def test_photographs_are_as_bright_as_the_bits_of_their_camera(
        self, scene, tmp_path, monkeypatch
    ):
        """All alike: the darker view does not go by its own largest value."""
        path = write_scene(scene, tmp_path / "s", "folder", lossless=True)
        photographs = sorted((path / "images").iterdir())
        bright = np.random.default_rng(0).integers(0, 1 << 12, (48, 64, 3)).astype(np.uint16)
        stored = [bright, bright // 8, bright, np.uint8(bright >> 4)]
        stored[0][0, 0] = (1 << 12) - 1
        for file, view in zip(photographs, stored, strict=True):
            cv2.imwrite(str(file), view[:, :, ::-1])
        opened = open_scene(path)
        narrow = opened.with_range(1, 9)
        opened.keep_on(Shelf(tmp_path / "kept", 10**8))
        for _ in range(2):
            for index, view in enumerate(stored):
                most = 255 if view.dtype == np.uint8 else (1 << 12) - 1
                wanted = torch.from_numpy(view / most).permute(2, 0, 1).float()
                for made in (opened, narrow):
                    found = made.image(index)
                    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)
        decoded = []

        def decode(file, **how):
            decoded.append(file)
            return read_pixels(file, **how)

        monkeypatch.setattr("vizoo.datasets.mvs.scene.read_pixels", decode)
        narrow.with_range(2, 8).image(0)
        assert decoded == [str(photographs[0])]
        photographs[2].write_bytes(b"")
        torch.testing.assert_close(open_scene(path).image(0), opened.image(0))


class TestDTU:
    def test_splits_are_the_published_ones(self):
        assert [len(SPLITS[split]) for split in ("train", "val", "test")] == [79, 18, 22]
        assert len({scan for scans in SPLITS.values() for scan in scans}) == 119

    def test_every_view_under_every_light(self, dtu):
        whole = DTU(dtu, views=3, scans=[7])
        assert len(whole) == 21 and whole.has_truth
        sample = whole[4]
        assert sample["name"] == "scan7, light 1/00000001"
        assert sample["images"].shape == (3, 3, 512, 640) and sample["valid"].all()
        assert whole.groups == [("7", f"0000000{view}") for view in range(3)] * 7
        assert len(DTU(dtu, views=2, lights=[3], scans=[7])) == 3
        with pytest.raises(ValueError, match="has 2 sources, samples of 5 views need 4"):
            DTU(dtu, scans=[7])
        with pytest.raises(FileNotFoundError, match="3 of 3 cameras missing, first .*scan1_train"):
            DTU(dtu, scans=[7, 1], lights=[3])
        with pytest.raises(ValueError, match="DTU split 'all' is none of"):
            DTU(dtu, "all")

    def test_scans_are_kept_together(self, dtu):
        for folder in ("Rectified/{}_train", "Cameras_1/{}_train", "Depths/{}"):
            shutil.copytree(dtu / folder.format("scan7"), dtu / folder.format("scan8"))
        whole = DTU(dtu, views=3, scans=[7, 8], lights=[0, 3])
        assert [thing for thing, _ in whole.groups] == ["7"] * 6 + ["8"] * 6
        train, val = split_by_seed(whole, 0.3)
        assert {len(train), len(val)} == {6} and not set(train.groups) & set(val.groups)
        # Of one scan alone the views are kept together, under whichever light.
        parts = split_by_seed(train, 0.3)
        assert [len(part) for part in parts] == [4, 2]
        assert not set(parts[0].groups) & set(parts[1].groups)

    def test_nothing_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="Cameras/pair.txt: no such pair file"):
            DTU(tmp_path)
        with pytest.raises(FileNotFoundError, match="DTU at .*gone: no such folder"):
            DTU(tmp_path / "gone")


class TestBlendedMVS:
    def test_splits(self, blended):
        assert len(BlendedMVS(blended, views=4)) == 4
        assert BlendedMVS(blended, "val", views=4)[0]["name"].startswith("59817e4a")
        assert len(BlendedMVS(blended, "all", views=4)) == 8
        (blended / "training_list.txt").write_text("59817e4a1bd4b175e7038d19\n")
        assert BlendedMVS(blended, "train", views=4)[0]["name"].startswith("59817e4a")
        with pytest.raises(FileNotFoundError, match="gone: no such folder"):
            BlendedMVS(blended / "gone")
        with pytest.raises(FileNotFoundError, match="nope/cams/pair.txt: no such pair file"):
            BlendedMVS(blended, scenes=["nope"])
        with pytest.raises(ValueError, match="no view of 1 scenes has 4 sources"):
            BlendedMVS(blended, scenes=["aaaa"])

    def test_oddities_are_left_out(self, blended):
        """A camera without a range, an empty file, a short pair line, an empty depth map."""
        folder = blended / "aaaa"
        pairs = {view: [(s, 1.0) for s in range(4) if s != view] for view in range(4)}
        pairs[3] = pairs[3][:1]
        write_pair_file(folder / "cams/pair.txt", pairs)
        camera = folder / "cams/00000000_cam.txt"
        good = camera.read_text()
        camera.write_text("\n".join([*good.splitlines()[:-1], "-0.5 0.01 128 3"]))
        write_pfm(folder / "rendered_depth_maps/00000001.pfm", np.zeros((24, 32), np.float32))
        with pytest.warns(UserWarning, match="1 of 4 views left out .*first 00000000"):
            scene = open_scene(folder)
        assert [view.name for view in scene.views] == ["00000001", "00000002", "00000003"]
        assert scene.sources(0) == [1, 2] and scene.sources(2) == []
        with pytest.warns(UserWarning, match="left out"):
            kept = BlendedMVS(blended, scenes=["aaaa"], views=3)
        assert len(kept) == 2
        with pytest.warns(UserWarning, match="aaaa/00000001: empty depth map, the next is taken"):
            assert kept[0]["name"] == "aaaa/00000002"
        camera.write_text(good)
        (folder / "blended_images/00000002.png").write_bytes(b"")
        with pytest.warns(UserWarning, match="first 00000002"):
            assert len(open_scene(folder)) == 3

    def test_all_depth_maps_empty(self, blended):
        for file in (blended / "aaaa/rendered_depth_maps").iterdir():
            write_pfm(file, np.zeros((24, 32), np.float32))
        empty = BlendedMVS(blended, scenes=["aaaa"], views=2)
        with (
            pytest.warns(UserWarning),
            pytest.raises(ValueError, match="all 4 depth maps are empty"),
        ):
            empty[0]

    def test_the_wrong_range_form(self, blended):
        for file in (blended / "aaaa/cams").glob("*_cam.txt"):
            file.write_text("\n".join([*file.read_text().splitlines()[:-1], "425 2.5 192 935"]))
        assert open_scene(blended / "aaaa").views[0].depth_range == (425, 935)
        with pytest.raises(ValueError, match="4 of 4 views have no depth range .*range_form"):
            open_scene(blended / "aaaa", range_form="max")


class TestSources:
    def test_drawn_at_random_from_the_list(self, scene):
        dataset = MVSDataset([scene], views=3)
        drawn = set()
        for seed in range(20):
            sample = dataset.draw(0, torch.Generator().manual_seed(seed))
            drawn.add(tuple(sample["extrinsics"][1:, 0, 3].tolist()))
            assert torch.equal(sample["images"][0], scene.image(0))
        assert len(drawn) == 6  # ordered pairs of three
        best = dataset[0]["extrinsics"][1:]
        assert torch.equal(best[0], scene.views[scene.sources(0)[0]].extrinsics)
        fixed = MVSDataset([scene], views=3, random_sources=False)
        again = fixed.draw(0, torch.Generator().manual_seed(1))
        assert torch.equal(again["extrinsics"][1:], best)

    def test_scenes_are_kept_together(self, scene):
        things = [thing for thing, _ in MVSDataset([scene, scene], views=2).groups]
        assert things == ["0"] * 4 + ["1"] * 4
        train, val = split_by_seed(MVSDataset([scene], views=2), 0.25)
        assert (len(train), len(val)) == (3, 1)

    def test_limits(self, scene):
        with pytest.raises(ValueError, match="1 view: multi-view stereo needs two"):
            MVSDataset([scene], views=1)
        with pytest.raises(ValueError, match="has 3 sources, samples of 5 views need 4"):
            MVSDataset([scene], views=5)
        with pytest.raises(IndexError):
            MVSDataset([scene], views=2)[4]


class TestAugmentation:
    def test_a_crop_moves_the_principal_point(self, scene):
        sample = scene.sample(0, [1, 2])
        cropped = RandomCrop(20, 30)(sample, torch.Generator().manual_seed(3))
        assert cropped["images"].shape == (3, 3, 20, 30) and cropped["depth"].shape == (1, 20, 30)
        points = lift(cropped["depth"][0], cropped["intrinsics"][0], cropped["extrinsics"][0])
        whole = lift(sample["depth"][0], sample["intrinsics"][0], sample["extrinsics"][0])
        left, top = (sample["intrinsics"] - cropped["intrinsics"])[0, :2, 2].round().int().tolist()
        expected = whole[top : top + 20, left : left + 30]
        torch.testing.assert_close(points, expected, rtol=1e-4, atol=1e-2)
        with pytest.raises(ValueError, match="48x64 pixels are too few for a crop of 90x30"):
            RandomCrop(90, 30)(sample)

    def test_colours_change_apart_and_repeatably(self, scene):
        sample = scene.sample(0, [1])
        before = sample["images"].clone()
        one, two = (ColourJitter()(sample, torch.Generator().manual_seed(1)) for _ in range(2))
        assert torch.equal(one["images"], two["images"])
        assert torch.equal(sample["images"], before)
        change = (one["images"].mean((1, 2, 3)) - before.mean((1, 2, 3))).tolist()
        assert abs(change[0] - change[1]) > 1e-3
        assert 0 <= one["images"].min() and one["images"].max() <= 1
        still = ColourJitter(0, 0)(sample)["images"]
        torch.testing.assert_close(still, before)

    def test_poses_are_off_by_as_much_as_asked(self, scene):
        sample = scene.sample(0, [1, 2])
        before = sample["extrinsics"].clone()
        off = [
            PoseError(0.5, 0.1)(sample, torch.Generator().manual_seed(seed))["extrinsics"]
            for seed in range(200)
        ]
        again = PoseError(0.5, 0.1)(sample, torch.Generator().manual_seed(3))["extrinsics"]
        assert torch.equal(again, off[3]) and torch.equal(sample["extrinsics"], before)
        poses = torch.stack(off).double()
        assert torch.equal(poses[:, 0], before[:1].double().expand(200, -1, -1))
        rotation, old = poses[:, 1:, :3, :3], before[1:, :3, :3].double()
        eye = torch.eye(3).double().expand_as(rotation)
        torch.testing.assert_close(rotation.mT @ rotation, eye, atol=1e-5, rtol=0)
        cosine = ((rotation @ old.mT).diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
        angles = cosine.clamp(-1, 1).acos().rad2deg()
        # The root of the mean square: that of three draws and of a strength from U(0, 1) is 1.
        assert 0.4 < angles.square().mean().sqrt() < 0.6
        centres = -rotation.mT @ poses[:, 1:, :3, 3:]
        true = -old.mT @ before[1:, :3, 3:].double()
        reference = -before[0, :3, :3].double().mT @ before[0, :3, 3:].double()
        moved = (centres - true).norm(dim=2) / (true - reference).norm(dim=1)
        assert 0.08 < moved.square().mean().sqrt() < 0.12
        exact = PoseError(0, 0)(sample)["extrinsics"]
        torch.testing.assert_close(exact, before, atol=1e-5, rtol=1e-5)

    def test_names(self):
        assert MVSDataModule().augment is None
        with pytest.raises(ValueError, match=r"errors of -1 degrees .* want 0 to 10"):
            MVSDataModule(pose_error=(-1, 0.1))
        for wrong in (0.2, (1,), ("a", 1)):
            with pytest.raises(ValueError, match="MVSDataModule: pose_error must be of type tuple"):
                MVSDataModule(pose_error=wrong)
        with pytest.raises(ValueError, match="augmentation 'flip' is none of none, colour"):
            MVSDataModule(augmentation="flip")
        with pytest.raises(ValueError, match="give both sides, or neither"):
            MVSDataModule(crop_height=64)
        with pytest.raises(ValueError, match="a crop of 4x0 pixels is empty"):
            MVSDataModule(augmentation="colour", crop_height=4, crop_width=0)


class TestDataModule:
    def module(self, **options):
        train = WorldViews(6, 24, 32, 3, seed=1, layouts=["table"])
        return MVSDataModule(**{"train": [lambda: train], "workers": 0, **options})

    def test_batches(self, scene):
        """Of the four views of a scene, each in turn the reference."""
        options = {"augmentation": "colour", "crop_height": 16, "crop_width": 24}
        options |= {"train": [lambda: MVSDataset([scene], views=3)], "batch_size": 2}
        batches = list(self.module(**options).train_dataloader())
        assert len(batches) == 2
        assert batches[0]["images"].shape == (2, 3, 3, 16, 24)
        assert batches[0]["depth_range"].shape == (2, 2) and len(batches[0]["name"]) == 2
        again = next(iter(self.module(**options).train_dataloader()))
        assert torch.equal(batches[0]["images"], again["images"])

    @pytest.mark.parametrize("alone", [True, False], ids=["folder", "list"])
    def test_from_a_config(self, scene, tmp_path, alone):
        path = write_scene(scene, tmp_path / "s", "folder")
        parser = ArgumentParser()
        parser.add_class_arguments(MVSDataModule, "data")
        generated = {"length": 2, "height": 24, "width": 32, "views": 3}
        paths = str(path) if alone else [str(path)]
        folders = {"paths": paths, "views": 3, "height": 24, "width": 32}
        data = {
            "train": [
                {"class_path": "vizoo.datasets.worlds.views.WorldViews", "init_args": generated}
            ],
            "val": [{"class_path": "vizoo.datasets.mvs.SceneFolders", "init_args": folders}],
            "workers": 0,
            "batch_size": 2,
        }
        make = getattr(parser, "instantiate", None) or parser.instantiate_classes  # the older name
        module = make(parser.parse_object({"data": data})).data
        assert next(iter(module.train_dataloader()))["images"].shape == (2, 3, 3, 24, 32)
        assert next(iter(module.val_dataloader()))["images"].shape == (1, 3, 3, 24, 32)
        with pytest.raises(ValueError, match="give both sides"):
            SceneFolders([path], height=24)
        assert len(SceneFolders(path, views=2)) == 4

    def test_held_out_and_whole(self):
        module = self.module(val_share=0.34)
        assert [len(module.sets(role)[0]) for role in ("train", "val")] == [4, 2]
        batch = next(iter(module.val_dataloader()))
        assert batch["images"].shape == (1, 3, 3, 24, 32)

    def test_a_scene_draws_new_sources_each_epoch(self, scene):
        module = MVSDataModule(train=[MVSDataset([scene], views=2)], batch_size=4, workers=0)
        loader = module.train_dataloader()
        seen = set()
        for epoch in range(8):
            loader.sampler.set_epoch(epoch)
            batch = next(iter(loader))
            at = batch["name"].index("world-17-000000/00000000")
            seen.add(batch["extrinsics"][at, 1, 0, 3].item())
        assert len(seen) == 3

    def test_what_does_not_fit(self, scene, tmp_path):
        bare = open_scene(write_scene(scene, tmp_path, "dtu"))
        module = MVSDataModule(train=[MVSDataset([bare], views=2)], predict=[MVSDataset([bare], 2)])
        with pytest.raises(ValueError, match=r"train set 1 \(MVSDataset\) has no ground truth"):
            module.setup("fit")
        module.setup("predict")
        mixed = [MVSDataset([scene], views) for views in (2, 3)]
        with pytest.raises(ValueError, match="samples of 2 and 3 views in one batch"):
            next(iter(MVSDataModule(train=mixed, batch_size=8, workers=0).train_dataloader()))
        mixed = [MVSDataset([scene], 2, (24, width)) for width in (32, 40)]
        with pytest.raises(ValueError, match=r"different sizes in one batch \(24x32, 24x40\)"):
            next(iter(MVSDataModule(train=mixed, batch_size=8, workers=0).train_dataloader()))
