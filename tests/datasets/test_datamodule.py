"""Mixing and loading: weights, splits, seeds, epochs, workers, processes, YAML."""

from __future__ import annotations

import pickle
import warnings
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import Dataset, DistributedSampler

from vizoo.datasets.mixture import EpochSampler, Part, collate, split_by_seed
from vizoo.datasets.stereo import (
    KITTI2015,
    GeneratedStereo,
    Mixture,
    StereoDataModule,
    StereoDataset,
    StereoPairs,
    StereoRecord,
)
from vizoo.vision.callbacks import KeepLast

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*of the published"),
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
]


class Numbered(Dataset):
    """Sample i is named after it and has it for a colour."""

    def __init__(self, size: int, name: str = "n", height: int = 8, extra: bool = False) -> None:
        self.size, self.name, self.height, self.extra = size, name, height, extra

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict:
        shape = (self.height, 12)
        image = torch.full((3, *shape), index / self.size)
        image[:, :, ::2] += 0.01 * torch.arange(self.height).view(1, -1, 1)
        sample = {
            "left": image,
            "right": image.clone(),
            "disparity": torch.ones(1, *shape),
            "valid": torch.ones(1, *shape, dtype=torch.bool),
            "name": f"{self.name}{index}",
        }
        return sample | ({"occluded": sample["valid"]} if self.extra else {})


class Recorder(LightningModule):
    """Learns nothing; writes down what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list] = []
        self.validated: list[str] = []
        self.predicted: list[str] = []

    def on_train_epoch_start(self) -> None:
        self.seen.append([])

    def training_step(self, batch: dict, batch_idx: int) -> torch.Tensor:
        torch.rand(1 + batch_idx)  # what a network draws must not change the data
        self.seen[-1] += list(
            zip(batch["name"], batch["left"].sum(dim=(1, 2, 3)).tolist(), strict=True)
        )
        return self.weight * batch["left"].mean()

    def validation_step(self, batch: dict, batch_idx: int) -> None:
        self.validated += batch["name"]

    def test_step(self, batch: dict, batch_idx: int) -> None:
        self.validated += batch["name"]

    def predict_step(self, batch: dict, batch_idx: int) -> None:
        self.predicted += batch["name"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder, **arguments) -> Trainer:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        **{"num_sanity_val_steps": 0, "enable_checkpointing": False} | quiet | arguments,
    )


def fit(folder, workers: int, epochs: int = 2, seed: int = 0, **arguments) -> Recorder:
    data = StereoDataModule(
        train=[Numbered(10, "a"), Numbered(6, "b", extra=True)],
        val=[Numbered(3, "v")],
        augmentation="fadnet",
        crop_height=6,
        crop_width=8,
        batch_size=3,
        workers=workers,
        seed=seed,
        **arguments,
    )
    model = Recorder()
    trainer(folder, max_epochs=epochs).fit(model, datamodule=data)
    return model


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Recorder:
    """What a run of three epochs without workers saw."""
    return fit(tmp_path_factory.mktemp("alone"), 0, epochs=3)


def test_end_to_end_and_independent_of_workers(tmp_path, alone):
    assert fit(tmp_path, 2).seen == alone.seen[:2]
    assert alone.validated == ["v0", "v1", "v2"] * 3
    assert [len(epoch) for epoch in alone.seen] == [15, 15, 15]
    first, second, _ = ({value for _, value in epoch} for epoch in alone.seen)
    assert len(first) == 15 and not first & second
    assert fit(tmp_path, 0, epochs=1, seed=1).seen != alone.seen[:1]


def test_global_random_state_does_not_matter(tmp_path, alone):
    torch.manual_seed(5)
    assert fit(tmp_path, 0, epochs=1).seen == alone.seen[:1]


@pytest.mark.parametrize("workers", [0, 1])  # workers fetch before the epoch is known
def test_a_resumed_run_goes_on_with_the_next_epoch(tmp_path, workers, alone):
    whole = alone.seen
    arguments = {"augmentation": "fadnet", "crop_height": 6, "crop_width": 8, "batch_size": 3}

    def data() -> StereoDataModule:
        sets = [Numbered(10, "a"), Numbered(6, "b", extra=True)]
        return StereoDataModule(train=sets, workers=workers, **arguments)

    first = trainer(tmp_path, max_epochs=1)
    first.fit(Recorder(), datamodule=data())
    first.save_checkpoint(tmp_path / "one.ckpt")
    model = Recorder()
    trainer(tmp_path, max_epochs=3).fit(model, datamodule=data(), ckpt_path=tmp_path / "one.ckpt")
    assert model.seen == whole[1:]


@pytest.mark.parametrize("scheduled", [False, True])  # schedules ask how long the run is
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_stopped_within_an_epoch_goes_on_behind_its_last_batch(
    tmp_path, workers, scheduled, alone
):
    whole = [sample for epoch in alone.seen[:2] for sample in epoch]
    arguments = {"augmentation": "fadnet", "crop_height": 6, "crop_width": 8, "batch_size": 3}

    class Stopped(Recorder):
        def on_train_batch_end(self, *_: object) -> None:
            self.trainer.save_checkpoint(tmp_path / f"{self.global_step}.ckpt")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            assert not scheduled or self.trainer.estimated_stepping_batches in (2, 10)
            return super().configure_optimizers()

    def seen(start=None, **limits: int) -> list:
        sets = [Numbered(10, "a"), Numbered(6, "b", extra=True)]
        data, model = StereoDataModule(train=sets, workers=workers, **arguments), Stopped()
        model.seen.append([])  # where the epoch that goes on is written down
        training = trainer(tmp_path, max_epochs=2, **limits)
        training.fit(model, datamodule=data, ckpt_path=start)
        training.save_checkpoint(tmp_path / "end.ckpt")
        return [sample for epoch in model.seen for sample in epoch]

    assert seen() == whole
    for step in (7, 5):  # within an epoch, and behind the last batch of one
        assert seen(tmp_path / f"{step}.ckpt") == whole[step * 3 :]
    assert seen(max_steps=2) == whole[: 2 * 3]
    assert seen(tmp_path / "end.ckpt") == whole[5 * 3 :]  # what is broken off is over


@pytest.mark.parametrize("stop", [3, 5])  # the last of the six is 5
def test_a_run_that_stopped_between_two_steps_loses_no_batch(stop, tmp_path):
    class Stopped(Recorder):
        def __init__(self, stop: int) -> None:
            super().__init__()
            self.stop = stop

        def on_train_batch_start(self, batch: dict, batch_idx: int) -> None:
            if batch_idx == self.stop:
                raise KeyboardInterrupt

    def fitted(folder: str, stop: int = -1, start=None) -> float:
        arguments = {"augmentation": "none", "batch_size": 2, "workers": 0}
        data, model = StereoDataModule(train=[Numbered(12)], **arguments), Stopped(stop)
        model.seen.append([])
        settings = {"max_epochs": 1, "accumulate_grad_batches": 2, "enable_checkpointing": True}
        training = trainer(tmp_path / folder, callbacks=[KeepLast()], **settings)
        with suppress(KeyboardInterrupt, SystemExit):
            training.fit(model, datamodule=data, ckpt_path=start)
        return model.weight.item()

    whole = fitted("whole")
    assert fitted("stopped", stop=stop) != whole
    start = tmp_path / "stopped" / "checkpoints" / "last.ckpt"
    assert fitted("resumed", start=start) == pytest.approx(whole, rel=1e-5)


def test_a_loader_alone_is_handed_to_a_trainer(tmp_path, alone):
    sets = [Numbered(10, "a"), Numbered(6, "b", extra=True)]
    arguments = {"augmentation": "fadnet", "crop_height": 6, "crop_width": 8, "batch_size": 3}
    loader = StereoDataModule(train=sets, workers=0, **arguments).train_dataloader()
    model, training = Recorder(), trainer(tmp_path, max_epochs=2)
    training.fit(model, loader)
    training.save_checkpoint(tmp_path / "end.ckpt")
    assert model.seen == alone.seen[:2]


def test_weights_set_the_counts():
    mixture = Mixture([Numbered(100, "a"), Numbered(4, "b"), Numbered(7, "c")], [1, 2, 0], 30)
    assert mixture.counts == [10, 20, 0]
    for epoch in range(3):
        names = [mixture[epoch * 30 + position]["name"] for position in range(30)]
        assert Counter(name[0] for name in names) == {"a": 10, "b": 20}
        assert set(Counter(name for name in names if name[0] == "b").values()) == {5}
    assert Mixture([Numbered(3), Numbered(5)]).counts == [3, 5]
    assert sum(Mixture([Numbered(3)] * 3, [1, 1, 1], 10).counts) == 10


def test_every_sample_is_used_before_any_is_used_again():
    mixture = Mixture([Numbered(10), Numbered(5)], [2, 1], 6)
    drawn = [mixture.locate(index) for index in range(6 * 5)]
    assert Counter(drawn) == {(0, i): 2 for i in range(10)} | {(1, i): 2 for i in range(5)}
    assert len({inner for which, inner in drawn[:12] if which == 0}) == 8


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"weights": [1]}, "1 weights for 2 training sets"),
        ({"weights": [1, -1]}, "none may be negative"),
        ({"weights": [0, 0]}, "one must be positive"),
        ({"samples_per_epoch": 0}, "0 samples per epoch"),
        ({"val_share": 1.0}, "val_share 1.0"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"min_batches": 0}, "min_batches 0"),
        ({"augmentation": "storng"}, "augmentation 'storng' is none of"),
    ],
)
def test_settings_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        StereoDataModule(train=[Numbered(4), Numbered(4)], **arguments).train_dataloader()


def test_sampler_divides_an_epoch_among_processes():
    mixture = Mixture([Numbered(12)])
    samplers = [EpochSampler(mixture, 2, rank, seed=1) for rank in (0, 1)]
    for epoch in (0, 3):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        halves = [list(sampler) for sampler in samplers]
        assert sorted(halves[0] + halves[1]) == list(range(12 * epoch, 12 * (epoch + 1)))
        assert len(halves[0]) == 6 and sorted(halves[0]) != halves[0]


def test_evaluation_counts_every_pair_once():
    data = StereoDataModule(test=[Numbered(13, "a"), Numbered(7, "b")], workers=0)
    seen = []
    for rank in range(8):
        data.trainer = SimpleNamespace(world_size=8, global_rank=rank)
        loader = data.test_dataloader()
        assert isinstance(loader.sampler, DistributedSampler)  # else Lightning replaces it
        share = [name for batch in loader for name in batch["name"]]
        assert len(share) == len(loader.sampler) == (3 if rank < 4 else 2)
        seen += share
    whole = [f"a{i}" for i in range(13)] + [f"b{i}" for i in range(7)]
    assert sorted(seen) == sorted(whole)
    data.trainer = SimpleNamespace(world_size=21, global_rank=0)
    with pytest.raises(ValueError, match=r"20 samples to evaluate on 21 .*trainer\.devices 20"):
        data.test_dataloader()


def test_split_by_seed():
    whole = Numbered(20)
    train, val = split_by_seed(whole, 0.2, 1)
    assert len(train) == 16 and len(val) == 4
    assert sorted(train.indices + val.indices) == list(range(20))
    assert split_by_seed(whole, 0.2, 1)[1].indices == val.indices
    assert split_by_seed(whole, 0.2, 2)[1].indices != val.indices
    assert len(split_by_seed(Numbered(2), 0.01)[1]) == 1
    assert isinstance(val, Part) and val[0]["name"] == f"n{val.indices[0]}"


def test_orders_of_past_epochs_are_forgotten():
    mixture = Mixture([Numbered(1000)], length=600)
    sizes = set()
    for epoch in range(40):
        indices = [epoch * 600 + position for position in reversed(range(600))]
        drawn = [mixture.locate(index) for index in indices]
        again = Mixture([Numbered(1000)], length=600)
        assert drawn == [again.locate(index) for index in indices]
        sizes.add(len(pickle.dumps(mixture)))
    assert max(sizes) < 25_000  # two orders of 1000 samples at most, 8 bytes a number


def test_validation_share_is_held_out():
    data = StereoDataModule(
        train=[Numbered(10, "a"), Numbered(5, "b")],
        val_share=0.2,
        augmentation="none",
        batch_size=1,
        workers=0,
    )
    trained = [batch["name"][0] for batch in data.train_dataloader()]
    held = [batch["name"][0] for batch in data.val_dataloader()]
    assert len(trained) == 12 and Counter(name[0] for name in held) == {"a": 2, "b": 1}
    assert not set(trained) & set(held)


def test_a_set_smaller_than_a_batch_is_one_batch():
    data = StereoDataModule(train=[Numbered(3)], augmentation="none", batch_size=8, workers=0)
    assert [len(batch["name"]) for batch in data.train_dataloader()] == [3]
    assert data.val_dataloader() == []


@pytest.mark.parametrize(
    ("samples", "least", "sizes"),
    [
        (40, 1, [16, 16]),
        (40, 3, [13, 13, 13]),
        (40, 5, [8] * 5),
        (40, 20, [8] * 5),
        (9, 4, [8]),
        (5, 4, [5]),
        (400, 4, [16] * 25),
    ],
)
def test_a_small_set_has_smaller_batches_where_an_epoch_wants_some(samples, least, sizes, caplog):
    data = StereoDataModule(
        train=[Numbered(samples)], augmentation="none", batch_size=16, min_batches=least, workers=0
    )
    with caplog.at_level("INFO"):
        assert [len(batch["name"]) for batch in data.train_dataloader()] == sizes
    said = f"{samples} training samples an epoch, in batches of {sizes[0]} instead of 16"
    assert (said in caplog.text) == (sizes[0] < 16)


def test_training_without_validation_and_the_other_stages(tmp_path, caplog):
    data = StereoDataModule(
        train=[Numbered(4)], test=[Numbered(2, "t", 8), Numbered(1, "u", 10)], workers=0,
        predict=[Numbered(2, "p")], augmentation="none",
    )  # fmt: skip
    model = Recorder()
    trainer(tmp_path, max_epochs=1).fit(model, datamodule=data)
    assert len(model.seen[0]) == 4
    with caplog.at_level("INFO"):
        trainer(tmp_path).test(model, datamodule=data, verbose=False)
    assert "test data: Numbered (2), Numbered (1)" in caplog.text
    assert model.validated == ["t0", "t1", "u0"]
    trainer(tmp_path).predict(model, datamodule=data)
    assert model.predicted == ["p0", "p1"]
    with pytest.raises(ValueError, match="no test data: give the data module `test`"):
        StereoDataModule(train=[Numbered(4)]).test_dataloader()
    with pytest.raises(ValueError, match="no train data: give the data module `train`"):
        StereoDataModule(test=[Numbered(4)]).train_dataloader()


def test_one_set_in_place_of_a_list_is_refused():
    with pytest.raises(ValueError, match="val: give a list of data sets, not a Numbered"):
        StereoDataModule(train=[Numbered(4)], val=Numbered(4))


def test_sets_without_ground_truth_can_only_be_predicted():
    blind = StereoDataset([StereoRecord("x", "left.png", "right.png")])
    assert StereoDataModule(predict=[blind]).predict_dataloader()
    with pytest.raises(ValueError, match=r"val set 1 \(StereoDataset\) has no ground truth"):
        StereoDataModule(train=[Numbered(4)], val=[blind]).setup("fit")


def test_collate():
    batch = collate([Numbered(4)[0], Numbered(4, extra=True)[1]])
    assert "occluded" not in batch and batch["left"].shape == (2, 3, 8, 12)
    assert batch["name"] == ["n0", "n1"]
    with pytest.raises(ValueError, match=r"different sizes in one batch \(8x12, 9x12\)"):
        collate([Numbered(4)[0], Numbered(4, height=9)[0]])


def test_generated_scenes_mix_with_files(tmp_path, trees):
    root = trees.kitti(tmp_path, 2015)
    data = StereoDataModule(
        train=[GeneratedStereo(4, 48, 64, max_disparity=24), KITTI2015(root, split="train")],
        augmentation="strong",
        crop_height=16,
        crop_width=24,
        weights=[1, 1],
        samples_per_epoch=8,
        batch_size=8,
        workers=0,
    )
    batch = next(iter(data.train_dataloader()))
    assert batch["left"].shape == (8, 3, 16, 24)
    assert set(batch) == {"left", "right", "disparity", "valid", "name"}


YAML = """
model: {{class_path: {model}}}
data:
  class_path: vizoo.datasets.stereo.StereoDataModule
  init_args:
    train:
      - class_path: vizoo.datasets.stereo.KITTI2015
        init_args: {{root: $VIZOO_TEST_DATA/kitti, split: train}}
      - class_path: vizoo.datasets.stereo.GeneratedStereo
        init_args: {{length: 4, height: 32, width: 64, max_disparity: 24}}
    weights: [2, 1]
    samples_per_epoch: 6
    val:
      - class_path: vizoo.datasets.stereo.KITTI2015
        init_args: {{root: $VIZOO_TEST_DATA/kitti, split: val}}
    augmentation: kitti
    crop_height: 16
    crop_width: 32
    batch_size: 3
    workers: 0
trainer: {{accelerator: cpu, max_epochs: 1, default_root_dir: {folder}, logger: false,
  enable_checkpointing: false, enable_progress_bar: false, enable_model_summary: false}}
"""


def command(path, *arguments: str) -> LightningCLI:
    return LightningCLI(
        LightningModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=None,
        args=["fit", "--config", str(path), *arguments],
    )


def test_yaml(tmp_path, trees, monkeypatch):
    path = tmp_path / "config.yaml"
    path.write_text(YAML.format(model=f"{Recorder.__module__}.Recorder", folder=tmp_path))
    monkeypatch.setenv("VIZOO_TEST_DATA", str(tmp_path))
    trees.kitti(tmp_path / "kitti", 2015)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = command(path, "--data.batch_size=2")
    assert len(run.model.seen[0]) == 6
    assert sum(name.startswith("training/") for name, _ in run.model.seen[0]) == 4
    assert run.model.validated[-2:] == ["training/000001_10", "training/000006_10"]
    (tmp_path / "kitti/training/disp_occ_0/000150_10.png").unlink()
    with pytest.raises(FileNotFoundError, match="^KITTI 2015 at .*: 1 of 5 disparity maps missing"):
        command(path)
    with pytest.raises(SystemExit):
        command(path, "--data.crop_hight=2")


def test_only_the_sets_of_a_stage_are_made(tmp_path):
    def missing() -> Dataset:
        raise FileNotFoundError("training data are elsewhere")

    data = StereoDataModule(train=[missing], test=[lambda: Numbered(2, "t")], workers=0)
    model = Recorder()
    trainer(tmp_path).test(model, datamodule=data, verbose=False)
    assert model.validated == ["t0", "t1"]
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        trainer(tmp_path, max_epochs=1).fit(model, datamodule=data)


def test_a_damaged_file_is_one_line_from_a_worker_too(tmp_path, trees):
    from vizoo.vision.configs.messages import condense

    trees.write_pair(tmp_path / "l.png", tmp_path / "r.png", tmp_path / "d.pfm")
    pairs = StereoPairs(*(str(tmp_path / name) for name in ("l.png", "r.png", "d.pfm")))
    (tmp_path / "d.pfm").write_bytes(b"Pf\n4 4\n-1\n")
    data = StereoDataModule(train=[pairs], augmentation="none", batch_size=1, workers=1)
    with pytest.raises(ValueError) as error:
        next(iter(data.train_dataloader()))
    one_line = condense(str(error.value))
    assert one_line.startswith(f"{tmp_path}/d.pfm: ") and "\n" not in one_line
