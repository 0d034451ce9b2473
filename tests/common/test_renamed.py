"""Modules by their old names: the same objects, in configs and checkpoints too."""

import importlib
import inspect
import pydoc
import subprocess
import sys

import pytest
import torch

from vizoo.common.renamed import _RENAMED, REPLACED, present_name
from vizoo.datasets.worlds.base import WorldDataset
from vizoo.vision.configs.agreement import check_agreement
from vizoo.vision.configs.task import instantiate


@pytest.mark.parametrize("old", _RENAMED)
def test_an_old_name_is_the_same_module(old):
    new = importlib.import_module(f"vizoo.{_RENAMED[old]}")
    assert importlib.import_module(f"vizoo.{old}") is new
    assert new.__spec__.name == new.__name__ == f"vizoo.{_RENAMED[old]}"


def test_a_module_below_a_renamed_package():
    from vizoo.classification.task import ClassificationTask
    from vizoo.vision.classification.task import ClassificationTask as Old

    assert Old is ClassificationTask


def test_old_names_come_first_in_a_fresh_process():
    """Nothing of the new name is imported yet, and no module is loaded twice."""
    code = (
        "from vizoo.vision.classification.comparison.significance import differences as old\n"
        "from vizoo.classification.comparison.significance import differences as new\n"
        "from vizoo.vision.extras import from_extra as moved\n"
        "from vizoo.common.extras import from_extra as there\n"
        "assert old is new and moved is there"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_no_module_stays_none():
    with pytest.raises(ModuleNotFoundError, match="vizoo.vision.no_such"):
        importlib.import_module("vizoo.vision.no_such")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("vizoo.vision.classification.no_such")


def test_a_config_of_old_names():
    content = {
        "model": {
            "class_path": "vizoo.vision.classification.task.ClassificationTask",
            "init_args": {"model": "nasbench201", "model_args": {"classes": 2}},
        },
    }
    made = instantiate("old.yaml", content, ["model"])
    assert type(made.model).__module__ == "vizoo.classification.task"


@pytest.mark.parametrize("name", REPLACED)
def test_a_config_of_what_is_no_longer_there(name):
    replacement, _, arguments = REPLACED[name].partition(" ")
    class_path = name if name[-1] != "d" else f"{name}.Generated"
    data = {
        "class_path": "vizoo.datasets.mvs.MVSDataModule",
        "init_args": {"train": [{"class_path": class_path, "init_args": {"length": 2}}]},
    }
    with pytest.raises(ValueError, match=f"; take {replacement}") as error:
        instantiate("old.yaml", {"data": data}, ["data"])
    assert "\n" not in str(error.value)
    taken = inspect.signature(pydoc.locate(replacement)).parameters
    common = inspect.signature(WorldDataset).parameters
    assert all(word in taken or word in common for word in arguments.strip("()").split(", "))


def test_a_checkpoint_of_old_names(tmp_path):
    hyper = {"strategy": "vizoo.nas.distributed.strategy.HookDDPStrategy"}
    torch.save(hyper, tmp_path / "old.ckpt")
    module, _, name = torch.load(tmp_path / "old.ckpt", weights_only=True)["strategy"].rpartition(
        "."
    )
    assert getattr(importlib.import_module(module), name).__name__ == "HookDDPStrategy"


def test_a_checkpoint_agrees_with_a_config_of_new_names(tmp_path):
    stored = {
        "_class_path": "vizoo.vision.classification.task.ClassificationTask",
        "sampler": {"class_path": "vizoo.nas.distributed.hooks.AllReduce", "init_args": {}},
        "lr": 0.1,
    }
    content = {"pytorch-lightning_version": "2.6.6", "hyper_parameters": stored}
    torch.save(content, tmp_path / "old.ckpt")
    given = {
        "class_path": "vizoo.classification.task.ClassificationTask",
        "init_args": {
            "sampler": {"class_path": "vizoo.nas.distributed.gradients.hooks.AllReduce"},
            "lr": 0.1,
        },
    }
    check_agreement(tmp_path / "old.ckpt", given, "fit")
    given["class_path"] = "vizoo.stereo.task.StereoTask"
    with pytest.raises(ValueError, match="model.class_path is 'vizoo.stereo.task.StereoTask' here"):
        check_agreement(tmp_path / "old.ckpt", given, "fit")


@pytest.mark.parametrize("name", ["vizoo.stereo.task", "other.vision.device", "vizoo", "text", ""])
def test_other_words_stay(name):
    assert present_name(name) == name


def test_a_module_that_is_replaced_says_by_what():
    with pytest.raises(ModuleNotFoundError, match="no longer there; take vizoo.datasets.worlds"):
        importlib.import_module("vizoo.datasets.mvs.generated")
