"""Networks in other runtimes: same values, kept files, and what is refused."""

import ctypes
import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from vizoo.common.files import write_json
from vizoo.common.system import source_digest
from vizoo.stereo import disparity_fusion
from vizoo.vision import ops, runtimes
from vizoo.vision.hub._http import CacheError
from vizoo.vision.runtimes import Compiled, Fastest, check_runtime, prepared


class Pair(nn.Module):
    """Two images in, a map out; `predict` gives two."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, left, right):
        return self.predict(left, right)[0]

    def predict(self, left, right):
        x = self.conv(left) - self.conv(right)
        return x.sum(1, keepdim=True), x.abs().amax(1, keepdim=True)


@pytest.fixture
def net(monkeypatch, tmp_path):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path))
    torch.manual_seed(0)
    return Pair().eval()


@pytest.fixture
def known(net, tmp_path_factory, monkeypatch):
    """The same network, of which other tests may have exported already what one needs."""
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path_factory.getbasetemp() / "runtimes"))
    return net


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_network_in_another_runtime_gives_the_same_at_any_size(known, runtime, monkeypatch):
    pytest.importorskip(runtime)
    fast = prepared(known, runtime)
    for size in ((2, 3, 33, 65), (1, 3, 64, 40)):
        pair = torch.rand(2, *size)
        torch.testing.assert_close(fast(*pair), known(*pair), atol=1e-5, rtol=1e-5)
        for one, other in zip(fast.predict(*pair), known.predict(*pair), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    # The next time nothing is exported.
    monkeypatch.setattr(runtimes, "export", None)
    torch.testing.assert_close(prepared(known, runtime)(*pair), fast(*pair))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_openvino_compiles_for_sizes_that_come_again(known, dtype, monkeypatch):
    """Two sizes at most; the results are the same."""
    openvino = pytest.importorskip("openvino")
    compiled, compile_model = [], openvino.Core.compile_model

    def told(core, model, *settings):
        compiled.append([tuple(port.partial_shape)[2].is_static for port in model.inputs])
        return compile_model(core, model, *settings)

    prepared(known, "openvino")(*torch.rand(2, 1, 3, 24, 32))  # the file is made
    monkeypatch.setattr(openvino.Core, "compile_model", told)
    fast = prepared(known, "openvino", dtype)
    atol = 1e-5 if dtype == torch.float32 else 0.05
    for width in (32, 40, 32, 40, 32, 40, 48, 48, 48, 32, 40):
        pair = torch.rand(2, 1, 3, 24, width)
        torch.testing.assert_close(fast(*pair), known(*pair), atol=atol, rtol=1e-5)
    sized = [[True, True]] * (2 if dtype == torch.float32 else 5)
    assert compiled == ([[False, False]] if dtype == torch.float32 else []) + sized


def test_openvino_computes_one_call_at_a_time(known, monkeypatch):
    """Its requests hold the inputs of one: a thread would get what another asked for."""
    openvino = pytest.importorskip("openvino")
    inside, most, infer = [], [], openvino.InferRequest.infer

    def watched(request, arrays):
        inside.append(request)
        most.append(len(inside))
        time.sleep(0.03)  # lets other threads in
        outputs = infer(request, arrays)
        inside.pop()
        return outputs

    fast = prepared(known, "openvino")
    pairs = torch.rand(4, 2, 1, 3, 24, 32)
    fast(*pairs[0])
    monkeypatch.setattr(openvino.InferRequest, "infer", watched)
    with ThreadPoolExecutor(4) as threads:
        outputs = list(threads.map(lambda pair: fast(*pair), pairs))
    assert most == [1] * 4
    for output, pair in zip(outputs, pairs, strict=True):
        torch.testing.assert_close(output, known(*pair), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_openvino_leaves_signals_a_stack(known):
    """It brings one of its own, and Python's handlers run on it."""

    class Stack(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

    pytest.importorskip("openvino")
    pair = torch.rand(2, 1, 3, 16, 24)
    networks = [prepared(known, "openvino") for _ in range(2)]
    for fast in networks:
        fast(*pair)
    del fast
    while networks:
        networks.pop(0)
        gc.collect()
    stack = Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
    maps = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [[int(end, 16) for end in part.split("-")] for part in maps]
    assert not stack.base or any(low <= stack.base < high for low, high in ranges)


def test_a_network_stays_where_and_as_it_is(net):
    """Also where its form for prediction is on another device."""
    net.train()
    fast = prepared(net, device="meta")
    assert {x.device.type for x in fast.parameters()} == {"meta"}
    pytest.importorskip("openvino")
    pair = torch.rand(2, 1, 3, 16, 24)
    run = runtimes.of_one_size(net, tuple(pair), "openvino")
    torch.testing.assert_close(run(*pair)[0], net(*pair), atol=1e-5, rtol=1e-5)
    assert net.training and net.conv.training


def test_a_damaged_file_is_named(net, monkeypatch, tmp_path):
    pytest.importorskip("openvino")
    path = tmp_path / "kept.xml"
    for part in (path, path.with_suffix(".bin")):
        part.write_text("no network")
    monkeypatch.setattr(runtimes, "_file", lambda *facts: path)
    with pytest.raises(ValueError, match=r"kept.xml: openvino cannot read it; delete it, and"):
        prepared(net, "openvino")(*torch.rand(2, 1, 3, 16, 24))


def test_other_weights_are_another_file(known):
    pytest.importorskip("openvino")
    pair = torch.rand(2, 1, 3, 16, 24)
    before = prepared(known, "openvino")(*pair)
    with torch.no_grad():
        known.conv.weight.mul_(2)
    torch.testing.assert_close(prepared(known, "openvino")(*pair), 2 * before)


def test_what_forwards_call_and_the_runtime_are_in_the_name_of_a_file(net, tmp_path, monkeypatch):
    assert Path(ops.__file__).parent in runtimes._CALLED
    stereo = Path(disparity_fusion.__file__).parent
    assert runtimes._source(disparity_fusion.DisparityFusion) == source_digest(stereo)
    names = set()
    for text in ("x + 1", "x + 2", "x + 2"):
        folder = tmp_path / text
        folder.mkdir(exist_ok=True)
        (folder / "ops.py").write_text(text)
        monkeypatch.setattr(runtimes, "_CALLED", (folder,))
        names.add(runtimes._file(net, "forward", ".xml"))
    assert len(names) == 2


def test_the_network_is_copied(net):
    fast = Compiled(net, "openvino")
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert fast.net is not net


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tensorrt", "cpu", torch.float32), "runtime 'tensorrt': there are torch, openvino, onnx"),
        (("openvino", "cuda", torch.float32), "runtime openvino runs on the cpu here, not on cuda"),
        (("onnxruntime", "cpu", torch.bfloat16), "onnxruntime computes in float32, not in bfloat"),
    ],
)
def test_what_a_runtime_cannot_do(arguments, message):
    runtime, device, dtype = arguments
    with pytest.raises(ValueError, match=message):
        check_runtime(runtime, torch.device(device), dtype)


def test_a_missing_runtime_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(__import__("sys").modules, "openvino", raising=False)
    with pytest.raises(
        ImportError, match=r"openvino needs .*openvino: pip install .vizoo\[openvino\]"
    ):
        check_runtime("openvino", torch.device("cpu"), torch.float32)


def test_auto_measures_once_and_says_what_it_took(net, tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "_usable", lambda name: name in ("torch", "openvino"))
    speeds = {"torch": 2.0, "openvino": 1.0}
    measured = []

    def measure(self, method, inputs):
        measured.append(method)
        return speeds

    monkeypatch.setattr(Fastest, "_measure", measure)
    pair, larger = torch.rand(2, 1, 3, 32, 48), torch.rand(2, 1, 3, 128, 96)
    fast = prepared(net, "auto")
    fast.forms["openvino"] = lambda *inputs: None
    fast.forms["openvino"].forward = lambda *inputs: "openvino's"
    with pytest.warns(UserWarning, match="runtime auto: openvino about 1x3x32x48 .openvino 1 ms,"):
        assert fast(*pair) == "openvino's"
    assert fast(*pair[:, ..., :44]) == "openvino's" and measured == ["forward"]
    speeds["torch"] = 0.5
    with pytest.warns(UserWarning, match="runtime auto: torch about 1x3x128x96"):
        torch.testing.assert_close(fast(*larger), net(*larger))
    # Another process measures nothing; another number of threads is another machine.
    with pytest.warns(UserWarning, match="auto: torch"):
        prepared(net, "auto")(*larger)
    assert measured == ["forward"] * 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    with pytest.warns(UserWarning, match="auto: torch"):
        prepared(net, "auto")(*larger)
    assert measured == ["forward"] * 3


def test_auto_measures_again_with_another_version(net, monkeypatch):
    monkeypatch.setattr(runtimes, "_usable", lambda name: name == "torch")
    pair, measured = torch.rand(2, 1, 3, 16, 16), []
    monkeypatch.setattr(
        Fastest, "_measure", lambda *_: measured.append(len(measured)) or {"torch": 1.0}
    )
    for version in ("1", "2", "2"):
        monkeypatch.setattr(runtimes, "_version", lambda name, version=version: version)
        with pytest.warns(UserWarning, match="runtime auto: torch"):
            prepared(net, "auto")(*pair)
    assert measured == [0, 1]


@pytest.mark.parametrize("home", [None, "file"])
def test_auto_does_without_what_it_cannot_keep(net, home, tmp_path, monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setattr(runtimes, "_usable", lambda name: name in ("torch", "openvino"))
    monkeypatch.setattr(runtimes, "export", None)
    if home is None:

        def homeless():
            raise CacheError("no home folder")

        monkeypatch.setattr(runtimes, "cache_folder", homeless)
    else:
        (tmp_path / home).write_text("in the way")
        monkeypatch.setenv("VIZOO_HOME", str(tmp_path / home))
        monkeypatch.setattr(runtimes, "export", lambda _, path, **__: write_json(path, {}))
    fast, pair = prepared(net, "auto"), torch.rand(2, 1, 3, 16, 16)
    with pytest.warns(UserWarning) as warned:
        torch.testing.assert_close(fast(*pair), net(*pair))
    said = [str(warning.message) for warning in warned]
    assert said[0].startswith("runtime auto goes without openvino (") and "VIZOO_HOME" in said[0]
    assert said[1].startswith("runtime auto: torch about 1x3x16x16 (torch ")


def test_auto_takes_of_kept_times_what_it_still_has(net, monkeypatch):
    monkeypatch.setattr(runtimes, "_usable", lambda name: name in ("torch", "openvino"))
    measured = []
    monkeypatch.setattr(
        Fastest, "_measure", lambda *_: measured.append(len(measured)) or {"torch": 3.0}
    )
    small, large = torch.rand(2, 1, 3, 16, 16), torch.rand(2, 1, 3, 64, 64)
    fast, kept = prepared(net, "auto"), [{"torch": 2.0, "openvino": 1.0}, {"openvino": 1.0}]
    del fast.forms["openvino"]  # as where its file could not be kept at another size
    monkeypatch.setattr(runtimes, "read_json", lambda path: kept.pop(0))
    monkeypatch.setattr(runtimes.Path, "is_file", lambda path: True)
    monkeypatch.setattr(runtimes, "write_json", None)  # no times are kept that lack a runtime
    for pair, said in ((small, "torch 2 ms"), (large, "torch 3 ms")):
        with pytest.warns(UserWarning, match=rf"runtime auto: torch about .* \({said}\)"):
            torch.testing.assert_close(fast(*pair), net(*pair))
    assert measured == [0]


def test_auto_passes_over_what_a_network_cannot_be_exported_to(net, monkeypatch):
    class Stubborn:
        def forward(self, *inputs):
            raise ValueError("cannot be exported")

    monkeypatch.setattr(runtimes, "_usable", lambda name: name == "torch")
    fast, pair = prepared(net, "auto"), torch.rand(2, 1, 3, 16, 16)
    fast.forms["openvino"] = Stubborn()
    with pytest.warns(UserWarning, match="runtime auto: torch"):
        torch.testing.assert_close(fast(*pair), net(*pair))


def test_auto_leaves_bfloat16_to_pytorch(net):
    assert not isinstance(prepared(net, "auto", torch.bfloat16), Fastest)


def test_predictors_take_a_runtime(known):
    from vizoo import StereoPredictor

    pytest.importorskip("openvino")
    left, right = torch.rand(2, 3, 33, 40)
    mine, plain = StereoPredictor(known, runtime="openvino"), StereoPredictor(known)
    torch.testing.assert_close(mine.maps(left, right), plain.maps(left, right))
    with pytest.raises(ValueError, match="runtime 'tensorflow': there are torch, openvino"):
        StereoPredictor(known, runtime="tensorflow")
    with pytest.raises(ValueError, match="onnxruntime computes in float32"):
        StereoPredictor(known, dtype="bfloat16", runtime="onnxruntime")
