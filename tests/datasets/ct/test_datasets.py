"""Generated scans, the published layouts, augmentation and batches."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from vizoo.datasets.ct import (
    CCCCII,
    Chest,
    COVIDCTset,
    CTDataModule,
    CTPreset,
    GeneratedCT,
    ListedScans,
    MosMed,
    VolumeAugmentation,
    read_nifti,
    to_scan,
    write_scans,
)

PRESET = CTPreset((16, 16), 6)
SHAPE = (8, 16, 20)


def listed(root, list_file, preset, **arguments):
    classes = {"CP": 0, "NCP": 1, "Normal": 2}
    return ListedScans(root, list_file, classes, preset, **arguments)


READERS = {"cc-ccii": CCCCII, "mosmed": MosMed, "covid-ctset": COVIDCTset, "dicom": listed}


class TestChest:
    @pytest.mark.parametrize("finding", ["covid", "pneumonia"])
    def test_lesions_are_what_differs_from_the_healthy_twin(self, finding):
        for seed in range(4):
            ill, mask, affine = Chest(seed, finding).scan((20, 48, 48))
            well, none, _ = Chest(seed).scan((20, 48, 48))
            assert mask.any() and not none.any()
            assert np.array_equal(mask, ill != well)
            assert (ill[mask] > well[mask]).all() and well[mask].mean() < -700

    def test_kinds_differ(self):
        """Opacities are thin and in both lungs; a consolidation is dense and in one."""
        for seed in range(6):
            covid, where, _ = Chest(seed, "covid").scan((20, 48, 48))
            sides = where[:, :, :24].any(), where[:, :, 24:].any()
            assert all(sides) and covid[where].mean() < -350
            dense, where, _ = Chest(seed, "pneumonia").scan((20, 48, 48))
            sides = where[:, :, :24].any(), where[:, :, 24:].any()
            assert sum(sides) == 1 and dense[where].mean() > -150

    def test_any_resolution_and_again(self):
        coarse, fine = (Chest(3, "covid").scan(shape) for shape in ((15, 24, 24), (30, 48, 48)))
        halved = fine[0].reshape(15, 2, 24, 2, 24, 2).mean((1, 3, 5))
        assert np.abs(halved - coarse[0]).mean() < 60
        again = Chest(3, "covid").scan((15, 24, 24))
        assert all(np.array_equal(a, b) for a, b in zip(coarse, again, strict=True))
        assert not np.array_equal(Chest(4, "covid").scan((15, 24, 24))[0], coarse[0])
        with pytest.raises(ValueError, match="finding 'flu' is none of"):
            Chest(0, "flu")


class TestGenerated:
    def test_samples(self):
        scans = GeneratedCT(6, 3, PRESET, depth=8, seed=2)
        assert scans.classes == ("CP", "NCP", "Normal") and scans.labels == [0, 1, 2, 0, 1, 2]
        for label, sample in zip(scans.labels, scans, strict=False):
            assert sample["volume"].shape == sample["lesion"].shape == (1, 6, 16, 16)
            assert sample["volume"].dtype == torch.float32 and sample["label"] == label
            assert 0 <= sample["volume"].min() and sample["volume"].max() <= 1
            assert sample["lesion"].any() == (label != 2)
        assert len(set(scans.groups)) == 6
        assert not set(scans.groups) & set(GeneratedCT(6, 3, PRESET, seed=3).groups)
        assert torch.equal(scans[-1]["volume"], scans[5]["volume"])

    def test_pairs_differ_in_their_lesions_alone(self):
        scans = GeneratedCT(6, 3, CTPreset((20, 20), 8, margin=1), depth=8, paired=True)
        assert scans.groups[0] == scans.groups[2] != scans.groups[3] == scans.groups[5]
        assert len({sample["name"] for sample in scans}) == 6
        ill, other, well = scans[0], scans[1], scans[2]
        lesions = ill["lesion"] | other["lesion"]
        same = ill["volume"] == well["volume"]
        assert same[~lesions].all() and not same[ill["lesion"]].all()
        assert not torch.equal(well["volume"], scans[5]["volume"])

    def test_draws_follow_the_generator(self, monkeypatch):
        listed = property(lambda _: pytest.fail("one scan lists the labels of all"))
        monkeypatch.setattr(GeneratedCT, "labels", listed)
        scans = GeneratedCT(2, preset=PRESET)
        seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
        one, same, other = (scans.draw(1, seed)["slices"] for seed in seeds)
        assert torch.equal(one, same) and not torch.equal(one, other)

    def test_cache_changes_nothing(self, tmp_path, monkeypatch):
        plain = GeneratedCT(2, preset=PRESET)[1]
        GeneratedCT(2, preset=PRESET, cache=str(tmp_path))[1]
        monkeypatch.setattr(Chest, "scan", None)
        kept = GeneratedCT(2, preset=PRESET, cache=str(tmp_path))[1]
        assert plain.keys() == kept.keys()
        for name, value in plain.items():
            assert torch.equal(value, kept[name]) if isinstance(value, torch.Tensor) else True

    def test_refused(self):
        with pytest.raises(ValueError, match="choose 2 or 3"):
            GeneratedCT(2, 4)
        with pytest.raises(ValueError, match="length 0"):
            GeneratedCT(0)
        with pytest.raises(IndexError):
            GeneratedCT(2)[2]


@pytest.mark.parametrize("layout", READERS)
class TestLayouts:
    @pytest.fixture
    def root(self, tmp_path, layout):
        return write_scans(tmp_path, layout, (3, 1, 1), SHAPE, seed=4)

    def test_round_trip(self, root, layout):
        """Every layout holds the scans that were generated, up to the steps of its pixels."""
        lists = [READERS[layout](root, f"{n}.json", PRESET) for n in ("train", "val", "test")]
        assert [len(found) for found in lists] == [3, 1, 1]
        assert len({name for found in lists for name in found.groups}) == 5
        two = layout in ("mosmed", "covid-ctset")
        exact = GeneratedCT(5, 2 if two else 3, PRESET, seed=4)
        for record in lists[0].records:
            number = int(record.patient[1:])
            assert record.label == exact.labels[number]
            sample = lists[0][lists[0].records.index(record)]
            values, _, affine = exact.chest(number).scan(SHAPE)
            back = to_scan(sample["volume"], sample)
            assert back.shape == values.shape == read_nifti(_lesions(root, record)).values.shape
            want = ((values + 1350.0) / 1500).clip(0, 1)
            seen = slice(2, -2)
            error = np.abs(back - want)[:, seen, seen]
            assert np.median(error) < 0.05
            if layout in ("mosmed", "dicom"):
                np.testing.assert_allclose(sample["affine"], affine, atol=1e-4)

    def test_cache(self, root, layout, tmp_path):
        plain = READERS[layout](root, "train.json", PRESET)[2]
        kept = tmp_path / "cache"
        READERS[layout](root, "train.json", PRESET, cache=str(kept))[2]
        again = READERS[layout](root, "train.json", PRESET, cache=str(kept))
        again._read = None
        assert torch.equal(plain["volume"], again[2]["volume"])
        assert len(list(kept.iterdir())) == 1
        READERS[layout](root, "train.json", CTPreset((8, 8), 4), cache=str(kept))
        record = again.records[2]
        os.utime(os.path.join(record.path, *record.files[1:2]), (1, 1))
        READERS[layout](root, "train.json", PRESET, cache=str(kept))
        assert len(list(kept.iterdir())) == 3

    def test_missing_files(self, root, layout, line):
        scans = READERS[layout](root, "train.json", PRESET)
        record = scans.records[1]
        path = os.path.join(record.path, record.files[3]) if record.files else record.path
        os.remove(path)
        said = line(lambda: READERS[layout](root, "train.json", PRESET), FileNotFoundError)
        total = sum(len(found.files) or 1 for found in scans.records)
        assert f"1 of {total} files missing, first {path}" in said

    def test_absent(self, root, layout, line):
        said = line(lambda: READERS[layout](root / "no", "train.json", PRESET), FileNotFoundError)
        assert "no such folder" in said
        said = line(lambda: READERS[layout](root, "none.json", PRESET), FileNotFoundError)
        assert "none.json: no such list file" in said


def _lesions(root, record):
    return root / "lesions" / f"{record.patient}_lesion.nii.gz"


def test_a_listed_scan_without_hounsfield_units_is_refused(tmp_path, line):
    """As one that is read alone."""
    import pydicom

    write_scans(tmp_path, "dicom", (1, 1, 1), SHAPE)
    for file in tmp_path.rglob("*.dcm"):
        image = pydicom.dcmread(file)
        image.RescaleIntercept = "1000"
        image.save_as(file)
    assert "are no Hounsfield units" in line(lambda: listed(tmp_path, "train.json", PRESET))


@pytest.mark.parametrize("layout", ["cc-ccii", "covid-ctset"])
def test_pictures_of_a_longer_run_are_gone(tmp_path, layout):
    for depth in (12, 8):
        write_scans(tmp_path, layout, (1, 1, 1), (depth, 16, 20))
    (record,) = READERS[layout](tmp_path, "train.json", PRESET).records
    assert len(record.files) == 8 and sorted(os.listdir(record.path)) == list(record.files)


def test_slices_of_a_longer_run_are_gone(tmp_path):
    write_scans(tmp_path, "dicom", (1, 1, 1), (12, 16, 20))
    write_scans(tmp_path, "dicom", (1, 1, 1), (8, 16, 20))
    (record,) = listed(tmp_path, "train.json", PRESET).records
    assert record.files == tuple(f"{number:04d}.dcm" for number in range(1, 9))
    assert sorted(os.listdir(record.path)) == list(record.files)
    with open(os.path.join(record.path, "note.txt"), "w") as note:
        note.write("no slice")
    write_scans(tmp_path, "dicom", (1, 1, 1), (8, 16, 20))
    assert listed(tmp_path, "train.json", PRESET).records[0].files == record.files


def test_own_classes(tmp_path, line):
    write_scans(tmp_path, "dicom", (1, 1, 1), SHAPE)
    said = line(lambda: ListedScans(tmp_path, "train.json", {"CP": 1, "NCP": 2}, PRESET))
    assert "labels run from 0 on" in said
    assert "layout 'png' is none of" in line(lambda: write_scans(tmp_path, "png"))
    assert "want three numbers" in line(lambda: write_scans(tmp_path, "dicom", (1, 1)))
    assert "of at least 1, for" in line(lambda: write_scans(tmp_path, "dicom", (2, 1, 0)))


class TestAugmentation:
    SAMPLE = GeneratedCT(2, preset=PRESET)[1]

    def test_flips(self):
        volume, seen = self.SAMPLE["volume"], set()
        mirrors = [[a + 1 for a in range(3) if n >> a & 1] for n in range(8)]
        for seed in range(60):
            found = VolumeAugmentation()(self.SAMPLE, torch.Generator().manual_seed(seed))
            which = [m for m in mirrors if torch.equal(volume.flip(m), found["volume"])]
            assert torch.equal(self.SAMPLE["lesion"].flip(which[0]), found["lesion"])
            seen.add(str(which[0]))
        assert len(seen) == 8
        assert "affine" not in found and "affine" in self.SAMPLE

    def test_full(self):
        pytest.importorskip("monai")
        change = VolumeAugmentation(full=True)
        changed = 0
        for seed in range(8):
            one, two = (change(self.SAMPLE, torch.Generator().manual_seed(seed)) for _ in range(2))
            assert type(one["volume"]) is torch.Tensor and one["lesion"].dtype == torch.bool
            assert torch.equal(one["volume"], two["volume"])
            assert one["volume"].shape == self.SAMPLE["volume"].shape
            assert 0 <= one["volume"].min() and one["volume"].max() <= 1
            changed += one["volume"].unique().numel() != self.SAMPLE["volume"].unique().numel()
        assert changed > 4

    def test_names(self):
        assert CTDataModule(augmentation="none").augment is None
        with pytest.raises(ValueError, match="augmentation 'spin' is none of none, flips, full"):
            CTDataModule(augmentation="spin")


def test_batches():
    def module(**sets):
        return CTDataModule(batch_size=2, eval_batch_size=2, workers=0, **sets)

    scans = GeneratedCT(4, preset=PRESET, seed=1)
    data = module(train=[scans], test=[GeneratedCT(2, preset=PRESET, seed=2)])
    batches = list(data.train_dataloader())
    assert [batch["volume"].shape for batch in batches] == [(2, 1, 6, 16, 16)] * 2
    for one, other in zip(batches, module(train=[scans]).train_dataloader(), strict=True):
        assert torch.equal(one["volume"], other["volume"]) and one["name"] == other["name"]
    (test,) = data.test_dataloader()
    assert test["affine"].shape == (2, 4, 4) and test["label"].tolist() == [0, 1]
    assert {name for batch in data.halves()["weights"] for name in batch["patient"]}.isdisjoint(
        name for batch in data.halves()["logits"] for name in batch["patient"]
    )
    mixed = module(train=[scans, GeneratedCT(4, preset=CTPreset((16, 16), 4), seed=5)], seed=1)
    with pytest.raises(ValueError, match="samples of 4 and 6 slices in one batch"):
        list(mixed.train_dataloader())


def test_a_preset_in_yaml(tmp_path, capsys):
    """A config names the preset's own words; another word is refused."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_subclass_arguments(CTDataModule, "data")
    text = """
data:
  class_path: vizoo.datasets.ct.CTDataModule
  init_args:
    workers: 0
    train:
      - class_path: vizoo.datasets.ct.GeneratedCT
        init_args: {length: 2, seed: 1, preset: {size: [16, 16], slices: 4, sampler: published}}
"""
    path = tmp_path / "config.yaml"
    parser.add_argument("--config", action="config")
    path.write_text(text)
    data = parser.instantiate_classes(parser.parse_args(["--config", str(path)])).data
    assert data.sets("train")[0].preset == CTPreset((16, 16), 4, "published")
    path.write_text(text.replace("slices", "slises"))
    with pytest.raises(SystemExit):
        parser.parse_args(["--config", str(path)])
    assert "slises" in capsys.readouterr().err
