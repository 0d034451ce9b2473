"""Stereo networks fine-tuned by adapters: what `vizoo fit` trains, writes and resumes."""

import copy

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file
from trainers import quiet_trainer

from vizoo.__main__ import main
from vizoo.datasets.stereo import GeneratedStereo, StereoDataModule
from vizoo.stereo.task import StereoTask
from vizoo.vision.callbacks import AveragedWeights, KeepLast
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.lora import Adapters, is_adapted, load_adapters

NAME = "fadnet_plus_micro"
ADAPTER = {
    "name": "lora_fa",
    "rank": 2,
    "layers": ["*.conv?.*", "*iconv*"],
    "trains": ["*.upflow*"],
}


@pytest.fixture
def start(tmp_path):
    return save_weights(create_model(NAME), tmp_path / "start.safetensors")


@pytest.fixture
def data():
    scenes = [GeneratedStereo(4, 64, 128, seed=1, max_disparity=32)]
    crop = {"crop_height": 64, "crop_width": 128, "augmentation": "none"}
    return StereoDataModule(train=scenes, val=scenes, batch_size=2, workers=0, **crop)


def trainer(folder, epochs, *callbacks):
    return quiet_trainer(folder, max_epochs=epochs, callbacks=[KeepLast(), *callbacks])


def test_a_fit_trains_adapters_writes_them_and_resumes(tmp_path, start, data):
    base = load_weights(start)
    task = StereoTask(NAME, init_weights=str(start), adapter=ADAPTER, lr=1e-2, warmup_steps=0)
    before = copy.deepcopy(task.net.state_dict())
    trainer(tmp_path, 1, AveragedWeights(0.5)).fit(task, data)
    after = task.net.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {name for name in after if name.endswith("lora_b") or ".upflow" in name}
    last = tmp_path / "checkpoints" / "last.ckpt"
    kept = torch.load(last, weights_only=True)
    trained = {id(p) for p in task.parameters() if p.requires_grad}
    assert len(kept["optimizer_states"][0]["state"]) == len(trained) == len(changed)

    images = torch.rand(2, 1, 3, 64, 128)
    with torch.no_grad():
        wanted = task.net.eval()(*images)
        adapted = load_adapters(copy.deepcopy(base), tmp_path / "adapter.safetensors")
        loaded = adapted.to(memory_format=torch.channels_last)(*images)  # as it was trained
        plain = load_weights(tmp_path / "merged.safetensors")
        assert not torch.allclose(base(*images), wanted, atol=0.1)
        assert torch.equal(loaded, wanted)
        exact = images.double()  # float32 rounds sums, which these weights make much of
        summed, merged = adapted.double()(*exact), plain.double()(*exact)
        assert torch.allclose(merged, summed, rtol=1e-3, atol=1e-3)
    # The checkpoint is a plain network too, and a start.
    assert load_weights(last).state_dict().keys() == base.state_dict().keys()
    assert not is_adapted(StereoTask(NAME, init_weights=str(last)).net)

    again = StereoTask(NAME, adapter=ADAPTER, lr=1e-2)
    trainer(tmp_path, 2).fit(again, data, ckpt_path=last, weights_only=True)
    assert again.global_step == 4
    frozen = {name for name in after if name not in changed}
    state = again.net.state_dict()
    assert all(torch.equal(state[name], before[name]) for name in frozen)
    assert any(not torch.equal(state[name], after[name]) for name in changed)


class Plain(LightningModule):
    """A task of somebody else."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 4)

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], 0.1)


def test_the_callback_serves_any_task(tmp_path):
    task, batches = Plain(), torch.utils.data.DataLoader(torch.ones(4, 4))
    weight = task.net.weight.clone()
    trainer(tmp_path, 1, Adapters({"name": "lora", "rank": 1})).fit(task, batches)
    assert torch.equal(task.net._parameters["weight"], weight) and task.net.lora_b.any()
    base = torch.nn.Linear(4, 4)
    base.load_state_dict({"weight": weight, "bias": task.net.bias})
    load_adapters(base, tmp_path / "adapter.safetensors")
    assert torch.equal(base(torch.ones(4)), task.net(torch.ones(4)))
    assert not (tmp_path / "merged.safetensors").exists()  # it does not say what it is


class Watched(Plain):
    """Its score says that the first epoch was the best."""

    def on_train_epoch_end(self):
        self.log("score", float(self.current_epoch))
        self.seen = [*getattr(self, "seen", ()), self.net.lora_b.detach().clone()]


def test_what_is_written_is_of_the_best_epoch(tmp_path):
    batches = torch.utils.data.DataLoader(torch.ones(4, 4))
    for monitor, epoch in (("score", 0), (None, 2)):
        folder, task = tmp_path / str(monitor), Watched()
        checkpoints = ModelCheckpoint(folder / "kept", monitor=monitor, mode="min")
        trainer(folder, 3, Adapters({"name": "lora_fa", "rank": 1}), checkpoints).fit(task, batches)
        written = load_file(folder / "adapter.safetensors")["lora_b"]
        assert torch.equal(written, task.seen[epoch]) and len(task.seen) == 3
        assert not torch.equal(task.seen[0], task.seen[2])
        assert torch.equal(task.net.lora_b, task.seen[2])


def test_batch_norms_may_not_be_synchronised(tmp_path, data):
    task = StereoTask(NAME, adapter="lora_fa")
    task.net.extra = torch.nn.SyncBatchNorm(4)
    with pytest.raises(ValueError, match="leave sync_batchnorm out"):
        trainer(tmp_path, 1).fit(task, data)


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scenes = {"length": 2, "height": 64, "width": 128, "max_disparity": 32}
    path = "vizoo.datasets.stereo.GeneratedStereo"
    sets = [{"class_path": path, "init_args": scenes}]
    data = {"train": sets, "val": sets, "test": sets, "batch_size": 2, "workers": 0}
    crop = {"crop_height": 64, "crop_width": 128, "augmentation": "none"}
    settings = {
        "trainer": {"max_epochs": 1, "logger": False},
        "model": {"init_args": {"model": NAME}},
        "data": {"init_args": {**data, **crop}},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    return ["fit", "--config", "stereo/fadnet_generated.yaml", "--config", "small.yaml"]


def test_from_the_command_line(small, tmp_path, capsys):
    assert main([*small, "--model.adapter", "{name: lora_fa, rank: 2, corrected: true}"]) == 0
    assert not is_adapted(load_weights(tmp_path / "merged.safetensors"))
    assert (tmp_path / "adapter.safetensors").stat().st_size < 300_000
    for words, message in [
        ("dora", "adapter 'dora' is unknown: choose lora_fa or lora"),
        ("{name: lora, layers: ['*nowhere*']}", "no part is '*nowhere*'"),
        ("{name: lora_fa, rank: big}", "rank must be of type int, not 'big'"),
    ]:
        capsys.readouterr()
        assert main([*small, "--model.adapter", words]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("vizoo: error: ") and message in said
