"""Eight bits: which parts stay in float, what is refused, and files that run."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vizoo.vision import _export_formats as formats
from vizoo.vision.export import export
from vizoo.vision.int8 import Sample, quantize


class Steps(nn.Module):
    """Two images to a map, in two parts."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, left, right):
        return self.last(self.first(left) - self.first(right))


class Fake:
    """A format whose files are lists of the layers in float, and whose parts have known losses."""

    losses = {"encoder": 0.05, "volume": 0.5, "refinement": 0.2}

    def layers(self, file):
        return [f"{part}.0/conv2d_{i}" for part in self.losses for i in range(2)]

    def quantize(self, source, target, inputs, kept):
        Path(target).write_text(" ".join(kept))

    def read(self, file, dtype):
        if (text := Path(file).read_text()) == "float":
            return (lambda inputs: [torch.full((1, 1, 2, 2), 1.0)]), {}
        in_int8 = set(self.losses) - {name.partition(".")[0] for name in text.split()}
        value = 1 + sum(self.losses[part] for part in in_int8)
        return (lambda inputs: [torch.full((1, 1, 2, 2), value)]), {}


def samples(count=4, truth=None, size=(24, 32)):
    torch.manual_seed(1)
    return [Sample(tuple(torch.rand(2, 1, 3, *size)), truth) for _ in range(count)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.fake"
    path.write_text("float")
    return path


@pytest.mark.parametrize(
    ("max_loss", "kept"),
    [(0.8, ()), (0.3, ("volume",)), (0.1, ("volume", "refinement"))],
)
def test_the_most_sensitive_parts_stay_in_float(file, max_loss, kept):
    told = []
    found = quantize(Fake(), file, samples(), max_loss, told.append)
    assert found.float_parts == kept and found.loss <= max_loss and found.error is None
    assert found.parts == pytest.approx(Fake.losses)
    assert {name.partition(".")[0] for name in file.read_text().split()} == set(kept)
    assert told[0] == "encoder in int8 costs 0.05" and [file] == list(file.parent.iterdir())


def test_truth_is_what_counts_where_there_is_any(file):
    truth = torch.tensor([[[[0.5, 1.5], [0.9, float("nan")]]]])
    found = quantize(Fake(), file, samples(truth=truth), 1.0)
    assert found.error == pytest.approx(1.1 / 3) and found.samples == 2
    assert found.parts["encoder"] == pytest.approx((0.55 + 0.45 + 0.15 - 1.1) / 3)


def test_where_float32_guesses_int8_neither_gains_nor_loses(file):
    """All parts together add 0.75 where float32 is right, and would win 0.75 where it is lost."""
    truth = torch.tensor([[[[1.0, 1.0], [1.0, 100.0]]]])
    found = quantize(Fake(), file, samples(truth=truth), 1.0)
    assert found.error == 0 and found.loss == pytest.approx(0.75)
    assert found.parts == pytest.approx(Fake.losses)


def test_truth_that_is_known_nowhere_is_none(file):
    found = quantize(Fake(), file, samples(truth=torch.full((1, 1, 2, 2), math.nan)), 0.8)
    assert found.error is None and found.parts == pytest.approx(Fake.losses)


def test_what_calibrates_does_not_measure(file):
    calibrated, measured = set(), set()

    class Noting(Fake):
        def quantize(self, source, target, inputs, kept):
            calibrated.update(map(id, inputs))
            super().quantize(source, target, inputs, kept)

        def read(self, file, dtype):
            run, facts = super().read(file, dtype)
            return (lambda inputs: measured.add(id(inputs)) or run(inputs)), facts

    given = samples(5)
    assert quantize(Noting(), file, given, 1.0).samples == len(measured) == 2
    assert not calibrated & measured
    assert calibrated | measured == {id(sample.inputs) for sample in given}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("truth", [None, torch.ones(1, 1, 2, 2)])
def test_a_part_whose_outputs_are_no_numbers_stays_in_float(file, value, truth):
    class Broken(Fake):
        def read(self, file, dtype):
            run, facts = super().read(file, dtype)

            def spoilt(inputs):
                (output,) = run(inputs)
                if (text := Path(file).read_text()) != "float" and "encoder" not in text:
                    output[..., 0, 0] = value
                return [output]

            return spoilt, facts

    found = quantize(Broken(), file, samples(truth=truth), 0.8)
    assert found.float_parts == ("encoder",) and found.loss == pytest.approx(0.7)
    assert not math.isfinite(found.parts["encoder"])
    assert found.parts["volume"] == pytest.approx(0.5)


def test_parts_that_are_named_stay_in_float(file):
    truth = torch.full((1, 1, 2, 2), 0.5)
    found = quantize(Fake(), file, samples(truth=truth), 0.6, float_parts=["refinement"])
    assert found.float_parts == ("refinement",) and found.parts == {}
    assert found.loss == pytest.approx(0.55)
    file.write_text("float")
    with pytest.raises(ValueError, match=r"int8 costs more than 0.5 \(0.55\); allow more loss"):
        quantize(Fake(), file, samples(), 0.5, float_parts=["refinement"])
    with pytest.raises(ValueError, match="no part is called rest; there are encoder, volume, ref"):
        quantize(Fake(), file, samples(), 0.5, float_parts=["rest"])


def test_how_much_errors_grow_by_each_part(file):
    truth = torch.full((1, 1, 2, 2), 0.5)
    found = quantize(Fake(), file, samples(truth=truth), 0.3)
    assert found.float_parts == ("volume",)
    assert found.growth == pytest.approx({"encoder": 0.1, "refinement": 0.4})
    file.write_text("float")
    with pytest.raises(ValueError, match="is known where each part was measured"):
        _ = quantize(Fake(), file, samples(), 0.3).growth


def test_too_much_loss_is_refused_and_leaves_the_file(file):
    with pytest.raises(ValueError, match="more than 0.01 whatever stays .*volume 0.5, refin"):
        quantize(Fake(), file, samples(), 0.01)
    assert file.read_text() == "float" and [file] == list(file.parent.iterdir())


@pytest.mark.parametrize("to", [pytest.param("openvino", marks=pytest.mark.slow), "onnx"])
def test_a_network_in_int8(tmp_path, to):
    for module in ("nncf", "openvino") if to == "openvino" else ("onnx", "onnxruntime"):
        pytest.importorskip(module)
    torch.manual_seed(0)
    form, net = formats.FORMATS[to], Steps().eval()
    path = tmp_path / f"net{form.suffixes[0]}"
    how = {"size": (24, 32), "dynamic": True, "precision": "int8", "max_loss": 1.0}
    exported = export(net, path, to=to, calibrate=samples(), **how)
    assert set(exported.quantized.parts) == {"first", "last"}
    assert exported.quantized.float_parts == () and exported.metadata["precision"] == "int8"
    files = {path, *(path.with_suffix(suffix) for suffix in form.beside)}
    assert files == set(tmp_path.iterdir())
    run, facts = form.read(path, torch.float32)
    assert facts["model"] == "Steps" and facts["precision"] == "int8"
    for size in (40, 56), (24, 32), (72, 48), (40, 56):
        pair = samples(1, size=size)[0].inputs
        error = (run(pair)[0] - net(*pair)).abs()
        assert 0 < error.mean() < 0.03 * net(*pair).abs().max()
    # In two products of larger weights processors without VNNI overflow.
    weights = list(int8_weights(path))
    assert len(weights) == 2 and all(8 < abs(values.astype(int)).max() <= 64 for values in weights)


def int8_weights(path):
    """The quantised weights of the convolutions in a file."""
    if path.suffix == ".onnx":
        import onnx

        for entry in onnx.load(path).graph.initializer:
            values = onnx.numpy_helper.to_array(entry)
            if values.dtype == np.int8 and values.ndim == 4:
                yield values
        return
    import openvino

    for node in openvino.Core().read_model(path).get_ops():
        if node.get_type_name() == "Constant" and node.get_element_type().to_string() == "i8":
            yield node.get_data()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"precision": "int4"}, "precision 'int4': openvino has float32, float16, int8"),
        (
            {"precision": "int8", "calibrate": samples()},
            "sample 0 is 1x3x24x32, and the file takes",
        ),
        ({"precision": "int8", "calibrate": samples(1)}, "two samples at least"),
        (
            {"precision": "int8", "calibrate": samples(), "float_parts": ["rest"]},
            "no part is called rest; there are first, last",
        ),
    ],
)
def test_refused(tmp_path, how, says):
    pytest.importorskip("nncf")
    with pytest.raises(ValueError, match=says):
        export(Steps(), tmp_path / "net.xml", to="openvino", size=(16, 24), **how)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_half(tmp_path):
    pytest.importorskip("openvino")
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.Conv2d(64, 1, 3)).eval()
    how = {"to": "openvino", "size": (16, 24)}
    sizes = []
    for precision in ("float32", "float16"):
        exported = export(net, tmp_path / f"{precision}.xml", precision=precision, **how)
        sizes.append((tmp_path / f"{precision}.bin").stat().st_size)
    assert 0.45 < sizes[1] / sizes[0] < 0.55 and 0 < exported.maximum < 1e-2


def test_int8_of_a_format_without(tmp_path):
    with pytest.raises(ValueError, match="precision 'int8': torchscript has float32"):
        export(Steps(), tmp_path / "net.pt", to="torchscript", precision="int8")
