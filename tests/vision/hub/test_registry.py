"""The registry: names, patterns, arguments, and that it stays lazy."""

import subprocess
import sys

import pytest

from vizoo.vision.hub import registry
from vizoo.vision.hub.sharing import save_pretrained


def test_patterns(family):
    assert registry.list_models("dummy*") == ["dummy_deep", "dummy_small"]
    assert registry.list_models("toy/*") == ["dummy_deep", "dummy_small"]
    assert registry.list_models("toy/*_deep") == ["dummy_deep"]
    assert registry.list_models("toy/*", pretrained=True) == []
    assert registry.list_models("nothing*") == []


def test_create_keeps_the_architecture(family):
    net = registry.create_model("dummy_small", width=3)
    assert net.architecture == {"name": "dummy_small", "width": 3}
    assert net.first.out_channels == 3
    info = registry.model_info("dummy_small")
    assert (info.name, info.task, info.arguments) == ("dummy_small", "toy", ("width",))


@pytest.mark.parametrize("name", ["dummy_smal", "Dummy-Small", "toy/dummy_small", "dummysmall"])
def test_unknown_name_gives_the_nearest(family, name):
    with pytest.raises(ValueError, match="did you mean .*dummy_small"):
        registry.create_model(name)


@pytest.mark.parametrize("path", ["runs/last.ckpt", "./x.safetensors", "model.pth"])
def test_a_path_is_no_name(family, path):
    with pytest.raises(ValueError, match="is a path.*load_weights"):
        registry.create_model(path)


@pytest.mark.parametrize("name", ["results", "run.1", "."])
def test_a_folder_that_is_there_is_no_name(family, name, tmp_path, monkeypatch):
    net = registry.create_model("dummy_small")
    save_pretrained(net, tmp_path / name, licence="MIT", trained_on="nothing")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is a folder, .* by create_model.'local-dir:"):
        registry.create_model(name)
    assert registry.create_model(f"local-dir:{name}").architecture["name"] == "dummy_small"


def test_a_file_without_an_ending_is_no_name(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.1").touch()
    with pytest.raises(ValueError, match="is a path.*load_weights"):
        registry.create_model("weights.1")


@pytest.mark.parametrize("name", ["dummy_small", "dummy_deep"])
def test_unknown_argument_names_the_accepted(family, name):
    with pytest.raises(ValueError, match=r"no architecture argument 'widht'; it takes .*width"):
        registry.create_model(name, widht=3)


def test_a_fault_inside_the_network_is_not_hidden(family):
    with pytest.raises(ValueError, match="width must be positive"):
        registry.create_model("dummy_small", width=0)


def test_pretrained_without_weights(family):
    with pytest.raises(ValueError, match="dummy_small has no pretrained weights"):
        registry.create_model("dummy_small", pretrained=True)
    with pytest.raises(ValueError, match="not both"):
        registry.create_model("dummy_small", pretrained=True, weights="x.safetensors")


def test_name_outside_the_families(family):
    def other_small():
        raise AssertionError

    with pytest.raises(ValueError, match="first word"):
        registry.register_model(task="toy")(other_small)


def test_the_package_stays_lazy():
    code = (
        "import sys, vizoo; vizoo.__version__; dir(vizoo);"
        "bad = {'torch', 'lightning', 'open3d', 'cv2', 'numpy'} & set(sys.modules);"
        "bad |= {m for m in sys.modules if m.startswith('vizoo.') };"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
