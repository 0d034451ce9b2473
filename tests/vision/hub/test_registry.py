"""The registry: names, patterns, arguments, and that it stays lazy."""

import subprocess
import sys
import typing
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from vizoo.__main__ import main
from vizoo.common.arguments import check_arguments
from vizoo.vision.hub import registry
from vizoo.vision.hub.create import create_model, open_model
from vizoo.vision.hub.sharing import save_pretrained
from vizoo.vision.hub.weights import save_weights


def test_patterns(family):
    assert registry.list_models("dummy*") == ["dummy_deep", "dummy_small"]
    assert registry.list_models("toy/*") == ["dummy_deep", "dummy_small"]
    assert registry.list_models("toy/*_deep") == ["dummy_deep"]
    assert registry.list_models("toy/*", pretrained=True) == []
    assert registry.list_models("nothing*") == []


def test_create_keeps_the_architecture(family):
    net = create_model("dummy_small", width=3)
    assert net.architecture == {"name": "dummy_small", "width": 3}
    assert net.first.out_channels == 3
    info = registry.model_info("dummy_small")
    assert (info.name, info.task, info.arguments) == ("dummy_small", "toy", ("width",))


@pytest.mark.parametrize("name", ["dummy_smal", "Dummy-Small", "toy/dummy_small", "dummysmall"])
def test_unknown_name_gives_the_nearest(family, name):
    with pytest.raises(ValueError, match="did you mean .*dummy_small"):
        create_model(name)


@pytest.mark.parametrize("path", ["runs/last.ckpt", "./x.safetensors", "model.pth"])
def test_a_path_is_no_name(family, path):
    with pytest.raises(ValueError, match="is a path.*load_weights"):
        create_model(path)


@pytest.mark.parametrize("path", ["dummy_small", "x.safetensors", "C:\\x.ckpt"])
def test_a_path_object_is_no_name(family, path):
    with pytest.raises(ValueError, match="is a path, not a model's name; .*load_weights"):
        create_model(Path(path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("https://huggingface.co/org/net/tree/main", "the model is spelled 'hf-hub:org/net'"),
        ("https://example.org/x.safetensors", "comes from elsewhere is spelled hf-hub:ORG/NAME"),
        ("hf_hub:org/net", "comes from elsewhere is spelled hf-hub:ORG/NAME"),
        ("HF-HUB:org/net", "comes from elsewhere is spelled hf-hub:ORG/NAME"),
        ("C:\\runs\\x.ckpt", "is a path|no such weight file"),
    ],
)
def test_an_address_is_no_name(family, name, says):
    """Neither for a network by name nor for what commands take."""
    for function in (create_model, open_model):
        with pytest.raises((ValueError, FileNotFoundError), match=says) as caught:
            function(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["resnet18", "resnet18.a1_in1k", "vit_base_patch16_224"])
def test_a_network_of_timm_is_named_as_one(name):
    with pytest.raises(
        ValueError, match=f"image_classifier with backbone='{name}', or timm/{name}"
    ):
        create_model(name)
    with pytest.raises(ValueError, match=f"image_classifier with backbone='{name}'"):
        open_model(name)


def test_a_mistyped_name_of_ours_does_not_wait_for_timm(monkeypatch):
    monkeypatch.setattr(registry, "_in_timm", lambda name: pytest.fail("timm takes seconds"))
    with pytest.raises(ValueError, match="did you mean easnet_small"):
        registry.model_info("easnet_smal")


def test_the_list_of_models_names_networks_of_timm_too(capsys):
    assert main(["models", "resnet18"]) == 2
    assert "backbone='resnet18', or timm/resnet18" in capsys.readouterr().err


def test_networks_of_timm(tmp_path):
    net = create_model("timm/test_resnet", classes=3)
    wanted = {"name": "image_classifier", "backbone": "test_resnet", "classes": 3}
    assert net.architecture == wanted
    file = save_weights(net, tmp_path / "net.safetensors")
    assert create_model("timm/test_resnet", weights=file).architecture == wanted
    opened, trained = open_model("timm/test_resnet", untrained=True)
    assert (opened.architecture["backbone"], trained) == ("test_resnet", False)
    for call, says in {
        lambda: create_model("timm/test_resnt"): "did you mean test_resnet",
        lambda: create_model("timm/test_resnet", pretrained=True): "all but the last",
        lambda: create_model("timm/test_resnet", backbone="resnet18"): "its backbone is 'test_res",
        lambda: registry.model_info("timm/test_resnet"): "image_classifier, backbone='test_resnet'",
        lambda: open_model("timm/test_resnet"): "has no trained weights",
        lambda: open_model("timm/test_resnet", task="stereo"): "for classification, not for stereo",
    }.items():
        with pytest.raises(ValueError, match=says):
            call()


@pytest.mark.parametrize("name", ["results", "run.1", "."])
def test_a_folder_that_is_there_is_no_name(family, name, tmp_path, monkeypatch):
    net = create_model("dummy_small")
    save_pretrained(net, tmp_path / name, licence="MIT", trained_on="nothing")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is a folder, .* by create_model.'local-dir:"):
        create_model(name)
    assert create_model(f"local-dir:{name}").architecture["name"] == "dummy_small"


def test_a_file_without_an_ending_is_no_name(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.1").touch()
    with pytest.raises(ValueError, match="is a path.*load_weights"):
        create_model("weights.1")


@pytest.mark.parametrize("name", ["dummy_small", "dummy_deep"])
def test_unknown_argument_names_the_accepted(family, name):
    with pytest.raises(ValueError, match=r"no architecture argument 'widht'; it takes .*width"):
        create_model(name, widht=3)


@pytest.mark.parametrize(
    ("name", "architecture", "says"),
    [
        ("fadnet_plus_tiny", {"max_disparity": "a"}, "max_disparity must be of type int, not 'a'"),
        (
            "fadnet_plus_tiny",
            {"max_disparity": None},
            "max_disparity must be of type int, not None",
        ),
        (
            "fadnet_plus_tiny",
            {"max_disparity": 96.0},
            "max_disparity must be of type int, not 96.0",
        ),
        ("fadnet_plus_tiny", {"normalization": 3}, "normalization must be of type str, not 3"),
        ("easnet", {"published_warp": 1}, "published_warp must be of type bool, not 1"),
        ("easnet", {"subnet": ["a"]}, "subnet must be of type Mapping[str, Any] | None, not ['a']"),
        (
            "easnet",
            {"subnet": {3: 1}},
            "subnet must be of type Mapping[str, Any] | None, not {3: 1}",
        ),
        ("nasbench201", {"cells": True}, "cells must be of type int, not True"),
        ("proxyless", {"width": "1.0"}, "width must be of type float, not '1.0'"),
        ("proxyless", {"width": float("nan")}, "width must be of type float, not nan"),
        ("covidnet3d_tiny", {"encoding": "012"}, "encoding must be of type Sequence[int] | None"),
        ("covidnet3d_tiny", {"encoding": ["a"]}, "encoding must be of type Sequence[int] | None"),
    ],
)
def test_a_value_of_another_type_is_one_line(name, architecture, says):
    with pytest.raises(ValueError) as caught:
        create_model(name, **architecture)
    assert str(caught.value).startswith(f"{name}: {says}") and "\n" not in str(caught.value)


def test_a_name_among_values_is_refused_at_once():
    with pytest.raises(ValueError, match="normalization 'imagnet' is unknown: choose 'imagenet'"):
        create_model("fadnet_plus_micro", normalization="imagnet")


def test_values_that_count_as_of_the_type(family):
    def dummy_odd(
        width: float = 2, *, depth: int | None = None, kinds: Sequence[int] = (), free=None
    ) -> nn.Module:
        return nn.Linear(1, 1)

    registry.register_model(task="toy")(dummy_odd)
    for given in (
        {"width": 3, "kinds": (1, 2), "free": object()},
        {"width": np.float32(3), "depth": np.int64(3), "kinds": [np.int8(1)]},
        {"depth": None, "kinds": []},
    ):
        assert create_model("dummy_odd", **given).architecture["name"] == "dummy_odd"
    with pytest.raises(
        ValueError, match=r"dummy_odd: kinds must be of type .*Sequence.int., not 'x+…"
    ):
        create_model("dummy_odd", kinds="x" * 999)


@pytest.mark.parametrize("name", registry.list_models())
def test_defaults_are_of_their_types(name):
    entry = registry.model_info(name)
    hints = typing.get_type_hints(entry.function)
    assert set(entry.arguments) <= set(hints)
    check_arguments(name, entry.function, entry.defaults)


def test_a_fault_inside_the_network_is_not_hidden(family):
    with pytest.raises(ValueError, match="width must be positive"):
        create_model("dummy_small", width=0)


def test_a_tag_given_as_pretrained_is_refused():
    with pytest.raises(ValueError, match="True or False, not 'worlds'.* as in easnet_small.worlds"):
        create_model("easnet_small", pretrained="worlds")


def test_pretrained_without_weights(family):
    with pytest.raises(ValueError, match="dummy_small has no pretrained weights"):
        create_model("dummy_small", pretrained=True)
    with pytest.raises(ValueError, match="not both"):
        create_model("dummy_small", pretrained=True, weights="x.safetensors")


def test_name_outside_the_families(family):
    def other_small():
        raise AssertionError

    other_small.__module__ = family.__name__
    with pytest.raises(ValueError, match=r"first words .* FAMILIES in .*registry\.py$"):
        registry.register_model(task="toy")(other_small)


PLUGIN = """
from torch import nn
from vizoo.vision.hub.registry import register_model

@register_model(task="toy")
def plugged_small(width: int = 2):
    return nn.Conv2d(3, width, 1)
"""


@pytest.fixture
def plugin(family, tmp_path, monkeypatch):
    """The file of a package that is installed beside this one and names a module of models."""
    facts = tmp_path / "plugged-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[vizoo.models]\nplugged = plugged_models\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plugged_models", raising=False)
    return tmp_path / "plugged_models.py"


def test_models_of_installed_packages_are_known_by_name(plugin):
    plugin.write_text(PLUGIN)
    assert create_model("plugged_small", width=5).out_channels == 5
    assert "plugged_small" in registry.list_models()
    assert registry.model_info("plugged_small").module == "plugged_models"


def test_an_installed_package_that_cannot_be_imported_is_named(plugin):
    plugin.write_text("import nothing_of_this_name")
    assert registry.model_info("dummy_small").name == "dummy_small"  # without a look at it
    with (
        pytest.warns(UserWarning, match="^plugged_models, .* No module named 'nothing_of_this"),
        pytest.raises(ValueError, match="no model is called 'plugged_small'"),
    ):
        registry.model_info("plugged_small")
    with pytest.warns(UserWarning, match="^plugged_models"):
        assert registry.list_models() == ["dummy_deep", "dummy_small"]


def test_the_package_stays_lazy():
    code = (
        "import sys, vizoo; vizoo.__version__; dir(vizoo);"
        "bad = {'torch', 'lightning', 'open3d', 'cv2', 'numpy'} & set(sys.modules);"
        "bad |= {m for m in sys.modules if m.startswith('vizoo.') and '.common' not in m};"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_papers_are_those_that_the_files_name():
    """By the number on arXiv, or by where and when."""
    unpublished = set()
    for name in registry.list_models():
        entry = registry.model_info(name)
        if entry.paper is None:
            unpublished.add(name)
            continue
        text = " ".join((sys.modules[entry.module].__doc__ or "").split())
        venue = entry.paper.published.rpartition(", ")[2]
        assert entry.paper.arxiv in text or venue in text, name
    assert unpublished == {"depth_fusion", "disparity_fusion", "image_classifier", "mbnet"}
    assert registry.model_info("fadnet_plus_tiny").paper.url.endswith("2110.02582")
    assert registry.model_info("fadnet").paper.url.endswith("2003.10758")
