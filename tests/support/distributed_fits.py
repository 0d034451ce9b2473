"""What the processes of tests of tasks and searches on several devices do."""

from __future__ import annotations

import torch
from torch.utils.data import Subset
from toy_mixture import Filtered, Fit
from toy_regression import Data, Regression
from trainers import quiet_trainer

from vizoo.classification.callbacks import PredictionTable
from vizoo.classification.detection_task import DetectionTask
from vizoo.classification.detectors import Detections
from vizoo.classification.task import ClassificationTask
from vizoo.datasets.ct import CTDataModule, CTPreset, GeneratedCT
from vizoo.datasets.images import GeneratedLesions, ImageDataModule, ImagePreset
from vizoo.nas.differentiable import DifferentiableSearch, GumbelSoftmax, HalvedData, Uniform
from vizoo.nas.distributed import HookDDPStrategy, TopK
from vizoo.vision.callbacks import KeepLast


def score(rank, folder, processes):
    """Test a classifier on five scans, which processes share unevenly; predict three, and one."""
    torch.manual_seed(0)
    task = ClassificationTask("covidnet3d_tiny", {"classes": 3, "encoding": [8, 0, 8, 8, 0]})
    scans = GeneratedCT(5, 3, CTPreset((16, 16), 8), depth=8)
    strategy = "ddp" if processes > 1 else "auto"
    trainer = _trainer(folder, processes, strategy, callbacks=[PredictionTable(folder)])
    trainer.test(task, CTDataModule(test=[scans], workers=0), verbose=False)
    trainer.predict(task, CTDataModule(predict=[Subset(scans, range(3))], workers=0))
    try:
        trainer.predict(task, CTDataModule(predict=[Subset(scans, [3])], workers=0))
    except ValueError as error:
        return str(error)


class Dark(torch.nn.Module):
    """Finds one box, around what is darker than three quarters of the mean."""

    def forward(self, image):
        places = [(one.mean(0) < 0.75 * one.mean()).nonzero().flip(1).float() for one in image]
        boxes = [torch.cat([p.amin(0), p.amax(0) + 1])[None] for p in places]
        certain = [one.mean()[None] for one in image]
        pairs = zip(boxes, certain, strict=True)
        return [Detections(b, c, torch.zeros(1).long()) for b, c in pairs]


def detect(rank, folder, processes):
    """Test a detector on five images, which processes share unevenly; the metrics."""
    task = DetectionTask("ssdlite", 2)
    task.net = Dark()
    images = GeneratedLesions(5, 2, ImagePreset((32, 32), 1.0, scale=(1, 1)), side=32)
    trainer = _trainer(folder, processes, "ddp" if processes > 1 else "auto")
    return trainer.test(task, ImageDataModule(test=[images], workers=0), verbose=False)[0]


def differentiable_search(rank, folder):
    """Search with half of every batch; the state of the search."""
    torch.manual_seed(0)
    search = DifferentiableSearch(Fit(), GumbelSoftmax(), only={"*.kind": ["small", "large"]})
    return _searched(search, folder, 2)


def search_of_noise(rank, folder):
    """Train paths of which some have no weights; the state of the search."""
    torch.manual_seed(0)
    return _searched(DifferentiableSearch(Fit("two"), Uniform()), folder, 4)


class Noted(TopK):
    def average(self, items):
        self.passes = [*getattr(self, "passes", []), sorted({name[:4] for name, _ in items})]
        super().average(items)


def search_by_hook(rank, folder):
    """Search with a hook; of whom gradients travelled in each pass."""
    hook = Noted(0.5)
    _searched(DifferentiableSearch(Fit()), folder, 1, HookDDPStrategy(hook))
    return hook.passes


class Overflowing(Regression):
    """What is normalised in the second epoch's last batch of one process is too large."""

    def on_train_epoch_end(self):
        if self.current_epoch == self.global_rank == 1:
            self.net.blocks[0].norm.running_var.fill_(torch.inf)


def overflow(rank, folder):
    """Fit until statistics are no numbers in one process; why it ended."""
    how = {"devices": 2, "strategy": "ddp", "max_epochs": 4, "callbacks": [KeepLast()]}
    try:
        quiet_trainer(folder, **how).fit(Overflowing(), Data())
    except ValueError as error:
        return str(error)


def _searched(search, folder, epochs, strategy="ddp_find_unused_parameters_true"):
    settings = {"max_epochs": epochs, "accumulate_grad_batches": 2}
    trainer = _trainer(folder, 2, strategy, **settings)
    trainer.fit(search, HalvedData(Filtered(64, batch_size=4)))
    return {name: value.tolist() for name, value in search.state_dict().items()}


def _trainer(folder, processes, strategy, **settings):
    settings = {"enable_checkpointing": False, "limit_val_batches": 0, **settings}
    return quiet_trainer(folder, devices=processes, strategy=strategy, **settings)
