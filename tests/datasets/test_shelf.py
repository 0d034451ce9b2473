"""Shelves are bounded, shared by processes, and never stand in the way of reading."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule
from mvs_fixtures import small_scene
from PIL import Image
from ranks import context
from shelf_writers import write_in_turns

from vizoo.datasets import shelf as module
from vizoo.datasets.cache import SampleCache, source_name
from vizoo.datasets.ct import CCCCII, CTPreset, write_scans
from vizoo.datasets.images import GeneratedLesions, ImageDataModule, ImageFolders, ImagePreset
from vizoo.datasets.mixture import split_by_seed
from vizoo.datasets.mvs import SceneFolders, write_scene
from vizoo.datasets.panorama import PanoramaDataset, Stanford2D3D, write_panoramas
from vizoo.datasets.shelf import Shelf, open_shelf
from vizoo.datasets.stereo import GeneratedStereo, PairFolders, StereoDataModule
from vizoo.vision.io.images import read_image

BLOCK = 4096


def size(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in files)


def age(path, seconds):
    state = path.stat()
    os.utime(path, (state.st_atime, state.st_mtime - seconds))


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    old = Shelf(tmp_path, 4 * BLOCK)
    for name in "abcd":
        old.write(name, b"x" * 10)
    assert not old.full
    for seconds, name in enumerate("dbca", start=100):
        age(tmp_path / name, seconds)
    assert old.read("a") == b"x" * 10  # from now on the last one used
    new = Shelf(tmp_path, 4 * BLOCK)
    new.write("e", b"y")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name[0] != ".") == ["a", "d", "e"]
    new.write("f", b"y")  # room for one was made beforehand
    assert new.read("d") == b"x" * 10 and size(tmp_path) == 4 * BLOCK


def test_a_shelf_of_others_is_read(tmp_path, monkeypatch):
    """Its files cannot be marked as used."""
    Shelf(tmp_path, 4 * BLOCK).write("a", b"x")

    def refused(path):
        raise PermissionError(path)

    monkeypatch.setattr("os.utime", refused)
    assert Shelf(tmp_path, 4 * BLOCK).read("a") == b"x"


def test_what_this_training_uses_stays(tmp_path):
    shelf = Shelf(tmp_path, 3 * BLOCK)
    age_of = time.time() - 10
    with pytest.warns(UserWarning, match="its 12,288 bytes are taken; raise cache_size") as said:
        for name in "abcde":
            shelf.write(name, b"x")
            if (tmp_path / name).exists():
                assert (tmp_path / name).stat().st_mtime > age_of
    assert len(said) == 1
    assert shelf.full and shelf.read("a") == b"x" and shelf.read("d") is None
    assert size(tmp_path) <= 3 * BLOCK


def test_one_process_finds_out_for_all_that_a_shelf_is_full(tmp_path, monkeypatch):
    shelf = Shelf(tmp_path, 3 * BLOCK)
    workers, scans, tidy = [copy.copy(shelf) for _ in range(3)], [], Shelf._tidy
    monkeypatch.setattr(Shelf, "_tidy", lambda *given: (scans.append(1), tidy(*given))[1])
    with pytest.warns(UserWarning, match="full, so that other samples are read anew") as said:
        for name, worker in zip("abcdefghi", workers * 3, strict=True):
            worker.write(name, b"x")
    assert len(said) == 1 and len(scans) == 2  # of the empty folder, and of the full one
    assert all(worker.full for worker in workers)
    for name in "abc":
        age(tmp_path / name, 100)
    later = Shelf(tmp_path, 3 * BLOCK)
    later.write("j", b"x")
    assert later.read("j") == b"x" and not later.full


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("limit", [None, 10**6])
def test_a_full_disk_is_said_once(tmp_path, monkeypatch, limit, shared):
    monkeypatch.setattr(module, "_SHARED", tmp_path if shared else tmp_path / "else")
    usage = SimpleNamespace(total=64_000, free=4_000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage)
    shelf = Shelf(tmp_path / "kept", limit)
    other = copy.copy(shelf)
    with pytest.warns(UserWarning, match="nine tenths of its disk's 64,000 bytes") as said:
        for each in (shelf, other):
            each.write("a", b"x")
    assert len(said) == 1 and other.full and other.read("a") is None
    assert ("--shm-size" in str(said[0].message)) == shared


def test_a_count_that_is_wrong_is_made_anew(tmp_path):
    for wrong in ("", "junk", str(10**9)):
        shelf = Shelf(tmp_path / wrong, 4 * BLOCK)
        shelf.folder.mkdir(exist_ok=True)
        (shelf.folder / ".bytes").write_text(wrong)
        shelf.write("a", b"x")
        assert shelf.read("a") == b"x"


@pytest.mark.parametrize("limit", [30 * 3 * BLOCK, 200 * 3 * BLOCK])
def test_processes_write_at_once(tmp_path, limit):
    begin = context.Barrier(3)
    writers = [
        context.Process(target=write_in_turns, args=(str(tmp_path), limit, begin)) for _ in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    kept = len(list(tmp_path.rglob("sample")))
    assert size(tmp_path) <= limit
    assert kept == 40 if limit > 3 * 40 * 3 * BLOCK else 8 <= kept <= 30
    assert not list(tmp_path.rglob(".sample.*"))  # nothing half written


@pytest.fixture
def in_memory(tmp_path, monkeypatch):
    """A folder in place of the one that all programs here share."""
    monkeypatch.setattr(module, "_SHARED", tmp_path / "shm")
    monkeypatch.setattr(module, "_held", {})
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


HOLDER = """
import sys
from pathlib import Path
from vizoo.datasets import shelf as module
module._SHARED = Path({shared!r})
shelf = module.open_shelf("memory", 10**6)
if sys.argv[1:]:
    shelf.write(sys.argv[1], b"x")
print(*sorted(p.name for p in shelf.folder.iterdir() if p.name[0] != "."), flush=True)
sys.stdin.readline()
"""


def holder(shared, *words):
    code = HOLDER.format(shared=str(shared))
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", code, *words], text=True, **pipes)


def test_memory_goes_with_the_last_process(in_memory):
    first = holder(in_memory, "a")
    assert first.stdout.readline() == "a\n"
    second = holder(in_memory, "b")
    assert second.stdout.readline() == "a b\n"
    first.communicate("\n")
    (folder,) = in_memory.iterdir()
    assert {path.name for path in folder.iterdir()} >= {"a", "b"}
    second.kill()
    second.communicate()
    assert (folder / "b").exists()  # nobody could take it away
    third = holder(in_memory)
    assert third.stdout.readline() == "\n"
    third.communicate("c\n")
    assert third.returncode == 0 and not list(folder.iterdir())


def test_memory_is_refused_where_there_is_none(in_memory, monkeypatch):
    in_memory.rmdir()
    with pytest.raises(ValueError, match=r"cache memory: .* is missing, as on all but Linux"):
        open_shelf("memory")
    with pytest.raises(ValueError, match="cache 'tape': choose memory or disk"):
        open_shelf("tape")
    in_memory.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    with pytest.raises(PermissionError, match="belongs to another user; choose disk"):
        open_shelf("memory", 100)


def test_a_disk_shelf_lies_beside_the_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path))
    shelf = open_shelf("disk")
    assert (shelf.folder, shelf.limit) == (tmp_path / "samples", 20e9)
    assert open_shelf("disk", 5).limit == 5


@pytest.fixture
def images(tmp_path):
    for kind in ("cat", "dog"):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for number in range(4):
            pixels = torch.randint(0, 256, (24, 20, 3), dtype=torch.uint8).numpy()
            Image.fromarray(pixels).save(tmp_path / "images" / kind / f"{number}.png")
    return tmp_path / "images"


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[name].dtype and torch.equal(value, other[name])
        else:
            assert value == other[name]


def images_of(folder):
    return ImageFolders(str(folder), preset=ImagePreset((16, 16)))


def test_images_come_back_bit_for_bit_and_follow_their_files(tmp_path, images, monkeypatch):
    plain, kept = images_of(images), images_of(images)
    kept.keep_on(Shelf(tmp_path / "kept"))
    for _ in range(2):
        for index in range(8):
            same(kept[index], plain[index])
    files = sorted((tmp_path / "kept").rglob("*.sample"))
    assert len(files) == 8 and files[0].stat().st_size < 3 * 24 * 20 + 200
    fresh = plain[3]
    with monkeypatch.context() as patch:
        patch.setattr("vizoo.datasets.images.dataset.read_image", lambda _: pytest.fail("read"))
        same(kept[3], fresh)
    path = kept.records[3].path
    Image.new("RGB", (20, 24), "red").save(path)
    same(kept[3], images_of(images)[3])
    os.unlink(path)
    with pytest.raises(FileNotFoundError, match=r"3\.png: no such file"):
        kept[3]


def test_damage_is_read_anew_from_the_source(tmp_path, images):
    kept = images_of(images)
    kept.keep_on(Shelf(tmp_path / "kept", 10**6))
    right = kept[0]
    (file,) = (tmp_path / "kept").rglob("*.sample")
    whole = file.read_bytes()
    for place in range(0, len(whole), 37):
        for damaged in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :],
            whole[:place] + b"junk" + whole[place:],
        ):
            file.write_bytes(damaged)
            same(kept[0], right)
            assert file.read_bytes() == whole


def test_16_bits_are_not_rounded(tmp_path):
    path = tmp_path / "deep.png"
    deep = torch.randint(0, 65536, (8, 9), dtype=torch.int32).numpy().astype("uint16")
    Image.fromarray(deep).save(path)
    cache = SampleCache(None, lambda _: source_name([path]), ["image"]).on(Shelf(tmp_path / "kept"))
    made = {"image": read_image(path), "none": torch.zeros(0, 4), "label": torch.tensor(3)}
    cache.recall(0, lambda _: made)
    same(cache.recall(0, lambda _: pytest.fail("made again")), made)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_data_module_reads_every_file_once(
    tmp_path, images, in_memory, monkeypatch, kind, workers
):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    train = [lambda: images_of(images)]

    def epochs(workers=workers, **more):
        data = ImageDataModule(train=train, batch_size=4, workers=workers, **more)
        data.setup("fit")
        loader = data.train_dataloader()
        batches = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            batches += list(loader)
        return batches

    plain = epochs(workers=0)
    kept = epochs(cache=kind, cache_size="1MB")
    for one, other in zip(plain, kept, strict=True):
        same(one, other)
    where = in_memory if kind == "memory" else tmp_path / "home" / "samples"
    assert len(list(where.rglob("*.sample"))) == 8
    with monkeypatch.context() as patch:
        patch.setattr("vizoo.datasets.images.dataset.read_image", lambda _: pytest.fail("read"))
        again = epochs(workers=0, cache=kind, cache_size="1MB")
    same(again[3], plain[3])


def test_sets_without_a_way_to_keep_samples_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path))
    data = ImageDataModule(train=[lambda: GeneratedLesions(4)], cache="disk", workers=0)
    with pytest.warns(UserWarning, match="GeneratedLesions has no way to keep samples"):
        data.setup("fit")
    train, val = split_by_seed(GeneratedStereo(3, 16, 32), 0.3)
    StereoDataModule(train=[train], val=[val], cache="disk").setup("fit")
    assert train[0]["name"] != val[0]["name"]
    assert len(list((tmp_path / "samples").rglob("*.sample"))) == 2  # of parts, the whole's way
    with pytest.raises(ValueError, match="choose memory or disk"):
        ImageDataModule(cache="tape")
    with pytest.raises(ValueError, match="choose memory or disk"):
        ImageDataModule(cache_size="8GB")
    with pytest.raises(ValueError, match="cache_size lots: give bytes such as 512MB"):
        ImageDataModule(cache="disk", cache_size="lots")


def test_a_cache_is_asked_for_in_yaml(images):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningDataModule, "data")
    train = {"class_path": "vizoo.datasets.images.ImageFolders", "init_args": {"root": str(images)}}
    words = {"train": [train], "cache": "disk", "cache_size": "8GB"}
    kind = "vizoo.datasets.images.ImageDataModule"
    make = getattr(parser, "instantiate", None) or parser.instantiate_classes
    parsed = parser.parse_object({"data": {"class_path": kind, "init_args": words}})
    data = make(parsed).data
    assert (data.cache, data.cache_size) == ("disk", 8e9)
    with pytest.raises(Exception, match="tape"):
        wrong = {"class_path": kind, "init_args": words | {"cache": "tape"}}
        parser.parse_object({"data": wrong})


def test_pairs_and_generated_sets(tmp_path, monkeypatch):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    scenes = GeneratedStereo(2, 64, 96)
    own = GeneratedStereo(2, 64, 96, cache=str(tmp_path / "own"))
    pair = tmp_path / "pairs" / "one"
    pair.mkdir(parents=True)
    for name in ("left", "right"):
        pixels = torch.randint(0, 256, (64, 96, 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(pair / f"{name}.png")
    truth = torch.randint(0, 9999, (64, 96), dtype=torch.int32).numpy().astype("uint16")
    Image.fromarray(truth).save(pair / "truth.png")
    sets = [scenes, own, PairFolders(tmp_path / "pairs")]
    plain = [GeneratedStereo(2, 64, 96), own, PairFolders(tmp_path / "pairs")]
    train = [lambda made=made: made for made in sets]
    StereoDataModule(train=train, cache="disk", workers=0).setup("fit")
    for kept, fresh in zip(sets, plain, strict=True):
        for _ in range(2):
            same(kept[0], fresh[0])
    assert own.cache.shelf.folder == tmp_path / "own"
    assert len(list((tmp_path / "home" / "samples").rglob("*.sample"))) == 2
    assert len(list((tmp_path / "own").rglob("*.safetensors"))) == 1


def test_other_ways_to_read_a_file_are_other_samples(tmp_path, images):
    file = str(images / "cat" / "0.png")
    names = {source_name([file], *how) for how in ((), ("a",), ("b",), (None,))}
    assert len(names) == 4 and source_name([file]) in names
    cache = SampleCache(None, None, [])  # of a set that reads in a way nobody can name
    assert cache.on(Shelf(tmp_path)) is cache
    assert PanoramaDataset([], lambda path: path).cache.name is None


def test_a_file_that_changed_is_another_sample(images):
    file, names = images / "cat" / "0.png", set()
    for seconds in (1, 2):  # and its size stays
        os.utime(file, (seconds, seconds))
        names.add(source_name([file]))
    assert len(names) == 2


def panoramas(root):
    sample = {"image": torch.rand(3, 16, 32), "depth": torch.rand(1, 16, 32) + 0.5}
    sample["valid"] = sample["depth"] > 0.7
    write_panoramas({"train": [sample]}, root, "stanford2d3d")
    return lambda: Stanford2D3D(root, size=(8, 16))


def scans(root):
    write_scans(root, "cc-ccii", (1, 1, 1), (8, 16, 20))
    return lambda: CCCCII(root, "train.json", CTPreset((16, 16), 6))


def views(root):
    path = write_scene(small_scene(), root, "folder")
    return lambda: SceneFolders(path, views=3, random_sources=False)


@pytest.mark.parametrize(
    ("write", "reader"),
    [
        (panoramas, "panorama.base._read_colours"),
        (scans, "ct.dataset.read_slices"),
        (views, "mvs.scene.read_pixels"),
    ],
)
def test_every_kind_of_set(tmp_path, monkeypatch, write, reader):
    make = write(tmp_path / "data")
    fresh, kept = make()[0], make()
    kept.keep_on(Shelf(tmp_path / "kept", 10**8))
    same(kept[0], fresh)
    assert any((tmp_path / "kept").rglob("*.sample"))
    monkeypatch.setattr(f"vizoo.datasets.{reader}", lambda *_: pytest.fail("read"))
    same(kept[0], fresh)


def test_a_shelf_that_cannot_be_written_to_is_said_once(tmp_path, images):
    (tmp_path / "file").write_text("in the way")
    kept = images_of(images)
    kept.keep_on(Shelf(tmp_path / "file", 10**6))
    with pytest.warns(UserWarning, match="samples are not kept"):
        kept[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(kept[1], images_of(images)[1])
