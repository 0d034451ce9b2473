"""Compiling the CUDA kernels, which needs no GPU; keeping them; the choice of implementation."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
from kernel_emulator import HEADER, compiler

from vizoo.vision.hub._http import CacheError
from vizoo.vision.ops import _kernels
from vizoo.vision.ops._kernels import KERNELS

# One kernel is enough for what is compiled otherwise for architectures before sm_90.
BEFORE = {"epipolar": ("epipolar_backward<float, 3>",)}


def compilations():
    """All files for three architectures; quickly every branch, each kernel for a type in turn."""
    for file, kernels in KERNELS.items():
        turns = zip(kernels, itertools.cycle(_kernels.TYPES.values()), strict=False)
        quick = tuple(kernel.format(kind) for kernel, kind in turns)
        yield pytest.param(file, quick, "sm_90", id=f"{file}-quick")
        if file in BEFORE:
            yield pytest.param(file, BEFORE[file], "sm_80", id=f"{file}-before-sm_80")
        names = tuple({k.format(t) for k in kernels for t in _kernels.TYPES.values()})
        for architecture in ("sm_80", "sm_90", "sm_120"):
            yield pytest.param(
                file, names, architecture, marks=pytest.mark.slow, id=f"{file}-{architecture}"
            )


@pytest.mark.parametrize(("file", "names", "architecture"), [*compilations()])
def test_compiles(file, names, architecture):
    """The machine code names all kernels that were asked for."""
    if _kernels._absent():
        pytest.skip(f"kernels were not compiled: {_kernels._absent()}")
    code = _kernels._compile_kernels(file, names, architecture)
    assert set(code.symbol_mapping) == set(names)
    for name in code.symbol_mapping.values():
        assert name in code.code


def test_branches_are_compiled_on_both_sides():
    branching = {file for file in KERNELS if "__CUDA_ARCH__ >=" in _kernels._source(file)}
    assert branching == set(BEFORE)


def test_every_file_has_its_kernels():
    files = {path.stem for path in _kernels.FOLDER.glob("*.cu")}
    assert files == set(KERNELS)


def test_says_what_the_compiler_says():
    if _kernels._absent():
        pytest.skip("no NVRTC")
    with pytest.raises(_kernels._KernelMissing, match="volume.cu: .*no_such_kernel"):
        _kernels._compile_kernels("volume", ("no_such_kernel<float>",), "sm_90")


def test_entries_are_kept(tmp_path):
    path = tmp_path / "new" / "entry.bin"
    assert _kernels._read_entry(path) is None
    code = bytes(range(256)) * 3
    _kernels._write_entry(path, "_Z1kIfE", code)
    assert _kernels._read_entry(path) == ("_Z1kIfE", code)


@pytest.mark.parametrize("damage", [lambda x: x[:-1], lambda x: b"", lambda x: x[:40] + b"?" * 9])
def test_damaged_entries_count_as_none(tmp_path, damage):
    path = tmp_path / "entry.bin"
    _kernels._write_entry(path, "k", b"code" * 20)
    path.write_bytes(damage(path.read_bytes()))
    assert _kernels._read_entry(path) is None


def test_several_may_write_the_same_entry(tmp_path):
    """A reader meets a whole entry or none, whoever writes."""
    path, wrong = tmp_path / "entry.bin", []
    entry = ("k", b"machine code" * 5000)

    def work():
        for _ in range(10):
            _kernels._write_entry(path, *entry)
            if _kernels._read_entry(path) != entry:
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong and [x.name for x in tmp_path.iterdir()] == ["entry.bin"]


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(_kernels, "_WARNED", set())
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot be kept .*VIZOO_HOME"):
        _kernels._write_entry(tmp_path / "file" / "entry.bin", "k", b"code")


def test_without_a_home_folder_kernels_are_compiled_unkept(monkeypatch):
    def homeless(*_):
        raise CacheError("no home folder")

    code = SimpleNamespace(symbol_mapping={"k": b"_Z1k"}, code=b"code")
    kernel = SimpleNamespace(get_kernel=lambda name: f"kernel {name}")
    core = SimpleNamespace(ObjectCode=SimpleNamespace(from_cubin=lambda code: kernel))
    monkeypatch.setattr(_kernels, "_WARNED", set())
    monkeypatch.setattr(_kernels, "_cache_path", homeless)
    monkeypatch.setattr(_kernels, "_compile_kernels", lambda *_: code)
    monkeypatch.setattr(_kernels, "_core", lambda: core)
    monkeypatch.setattr(_kernels, "_loading", contextlib.nullcontext)
    with pytest.warns(UserWarning, match="cannot be kept .no home folder.; set VIZOO_HOME"):
        assert _kernels._load.__wrapped__("file", "k", "sm_90") == "kernel _Z1k"


def test_name_of_an_entry_says_what_it_was_made_from(tmp_path, monkeypatch):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(_kernels, "_versions", lambda: "1")
    (tmp_path / "a.cu").write_text("kernel")
    (tmp_path / "b.cuh").write_text("header")
    monkeypatch.setattr(_kernels, "FOLDER", tmp_path)

    def path(kernel="k<float>", architecture="sm_90"):
        return _kernels._cache_path("a", kernel, architecture)

    first = path()
    assert first == path() and first.is_relative_to(tmp_path / "home" / "kernels")
    seen = {first, path("k<Half>"), path(architecture="sm_80")}
    (tmp_path / "b.cuh").write_text("other header")
    seen.add(path())
    (tmp_path / "a.cu").write_text("other kernel")
    seen.add(path())
    monkeypatch.setattr(_kernels, "_versions", lambda: "2")
    seen.add(path())
    assert len(seen) == 6


class TestChoice:
    """As on a CUDA tensor, but that the tensor is on the CPU."""

    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch):
        monkeypatch.delenv("VIZOO_OPS", raising=False)
        monkeypatch.setattr(_kernels, "_WARNED", set())
        monkeypatch.setattr(_kernels, "_FAILED", {})
        self.reason = None
        monkeypatch.setattr(_kernels, "_absent", lambda: self.reason)
        monkeypatch.setattr(_kernels, "_unsupported", lambda index: None)
        monkeypatch.setattr(_kernels, "_DEVICE", "cpu")

    def call(self, tensor=None, kernel=lambda x: "cuda", **settings):
        tensor = torch.zeros(1) if tensor is None else tensor
        return _kernels.choose("operator", lambda x: "torch", kernel, **settings)(tensor)

    def test_takes_the_kernel(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.call() == "cuda"
            assert self.call(torch.zeros(1, dtype=torch.float64)) == "torch"
            assert self.call(refuses=lambda x: "too many") == "torch"

    def test_warns_once(self):
        self.reason = "no NVRTC"
        with pytest.warns(UserWarning, match="operator takes its PyTorch reference.*no NVRTC"):
            assert self.call() == "torch"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.call() == "torch"

    def test_a_kernel_that_fails_is_not_tried_again(self):
        calls = []

        def kernel(x):
            calls.append(1)
            raise _kernels._KernelMissing("cannot be loaded")

        with pytest.warns(UserWarning, match="cannot be loaded"):
            assert self.call(kernel=kernel) == self.call(kernel=kernel) == "torch"
        assert len(calls) == 1

    def test_a_kernel_that_fails_on_one_gpu_is_tried_on_another(self):
        """As where the compiler knows the one's architecture and not the other's."""
        here = torch.zeros(1)
        _kernels._FAILED["operator", torch.device("cuda", 1)] = "cannot be loaded"
        assert self.call(here) == "cuda"
        _kernels._FAILED["operator", here.device] = "cannot be loaded"
        with pytest.warns(UserWarning, match="cannot be loaded"):
            assert self.call(here) == "torch"

    def test_other_errors_are_not_hidden(self):
        with pytest.raises(ZeroDivisionError):
            self.call(kernel=lambda x: 1 / 0)

    def test_forced(self, monkeypatch):
        monkeypatch.setenv("VIZOO_OPS", "torch")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.call() == "torch"
        monkeypatch.setenv("VIZOO_OPS", "cuda")
        assert self.call() == "cuda"
        self.reason = "no NVRTC"
        with pytest.raises(ValueError, match="VIZOO_OPS=cuda, but operator: no NVRTC; unset"):
            self.call()
        monkeypatch.setenv("VIZOO_OPS", "triton")
        with pytest.raises(ValueError, match="VIZOO_OPS=triton: must be torch or cuda"):
            self.call()

    def test_forced_is_never_given_up_silently(self, monkeypatch):
        monkeypatch.setenv("VIZOO_OPS", "cuda")
        with pytest.raises(ValueError, match="no kernels for float64"):
            self.call(torch.zeros(1, dtype=torch.float64))
        with pytest.raises(ValueError, match="operator: too many"):
            self.call(refuses=lambda x: "too many")
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(ValueError, match="no fixed order"):
                self.call(atomics=True)
        finally:
            torch.use_deterministic_algorithms(False)
        monkeypatch.setattr(_kernels, "_DEVICE", "cuda")
        with pytest.raises(ValueError, match="no kernels for tensors on the CPU; unset VIZOO_OPS"):
            self.call()
        assert self.call(torch.zeros(1, device="meta")) == "torch"

    def test_deterministic_algorithms(self):
        torch.use_deterministic_algorithms(True)
        try:
            assert self.call(atomics=True) == "torch"
            assert self.call() == "cuda"
        finally:
            torch.use_deterministic_algorithms(False)


def test_without_cuda_core(monkeypatch):
    def missing():
        raise ImportError("No module named 'cuda'")

    monkeypatch.setattr(_kernels, "_core", missing)
    reason = _kernels._absent.__wrapped__()
    assert "No module named 'cuda'" in reason and 'pip install "cuda-core[cu' in reason
    with pytest.raises(_kernels._KernelMissing, match="No module named 'cuda'"):
        _kernels._compile_kernels("volume", ("concat_backward<float>",), "sm_90")


def test_report_names_every_operator(monkeypatch):
    monkeypatch.delenv("VIZOO_OPS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _kernels.implementation() == ("torch", "no CUDA device")
    monkeypatch.setenv("VIZOO_OPS", "cuda")
    assert _kernels.implementation() == ("torch", "VIZOO_OPS=cuda is set, but no CUDA device")


def test_launch_hands_over_addresses_and_numbers(monkeypatch):
    launched = []

    class Core:
        LEGACY_DEFAULT_STREAM = "default stream"

        class Device:
            def __init__(self, index):
                pass

            def set_current(self):
                pass

        class LaunchConfig:
            def __init__(self, grid, block):
                self.grid, self.block = grid, block

        @staticmethod
        def launch(stream, config, kernel, *values):
            launched.append((stream, config.grid, config.block, kernel, values))

    class Stream:
        cuda_stream = 0

    monkeypatch.setattr(_kernels, "_core", lambda: Core)
    monkeypatch.setattr(_kernels, "_load", lambda file, kernel, architecture: f"{file}:{kernel}")
    monkeypatch.setattr(_kernels, "_architecture", lambda index: "sm_90")
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream)
    monkeypatch.setattr(_kernels, "_THREAD", threading.local())
    for cached in (_kernels._stream, _kernels._configuration):
        cached.cache_clear()
    tensor = torch.zeros(4)
    _kernels.launch("file", "k<float>", (3, 0, 1), 128, tensor)
    assert not launched
    _kernels.launch("file", "k<float>", (3, 70_000, 2), 128, tensor, 7, 2.5)
    for cached in (_kernels._stream, _kernels._configuration):
        cached.cache_clear()
    assert launched == [
        ("default stream", (3, 65535, 2), 128, "file:k<float>", (tensor.data_ptr(), 7, 2.5))
    ]


def test_what_the_driver_is_told(tmp_path, monkeypatch):
    """By the installed cuda-core, through a driver that only notes; first use while capturing."""
    if _kernels._absent() or compiler() is None:
        pytest.skip("no NVRTC, or no C++ compiler to build a driver with")
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    file, kernel = "regression", "soft_argmin_forward<float>"
    code = _kernels._compile_kernels(file, (kernel,), "sm_90")
    path = _kernels._cache_path(file, kernel, "sm_90")
    _kernels._write_entry(path, code.symbol_mapping[kernel].decode(), code.code)
    library = tmp_path / "driver" / "libcuda.so.1"
    library.parent.mkdir()
    source = HEADER.with_name("noting_driver.cpp")
    command = [compiler(), "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run([*command, "-ldl"], check=True)
    ran = subprocess.run(
        [sys.executable, str(HEADER.with_name("noted_launch.py")), str(library)],
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    relaxed, default_stream = 2, 1
    assert json.loads(ran.stdout) == {
        "launches": [
            [1, 1, 2, 128, 1, 1, 0, default_stream],
            [1, 1, 2, 128, 1, 1, 0, 0xABC],
        ],
        "integers arrive": True,
        "floats": [2.0, 0.5],
        "mode while loading": relaxed,
        "mode after": 0,
    }
