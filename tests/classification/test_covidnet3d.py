"""CovidNet3D: the checks of every network and supernet, its encodings and published files."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from network_tester import ExportTester, NetworkTester, slow
from supernet_tester import SupernetTester, run, same

from vizoo.__main__ import main
from vizoo.classification._covidnet3d_published import PLANS
from vizoo.classification.covidnet3d import Calibration, convert_published, published_architecture
from vizoo.common.counts import count, count_parameters
from vizoo.nas.differentiable import GumbelSoftmax, Logits, weighted
from vizoo.nas.supernet import activate, extract, search_space
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_state, load_weights
from vizoo.vision.inference import optimize

MIXED = [8, 0, 8, 5, 3, 8, 8, 8, 0, 8, 8, 8, 4, 8, 8, 8, 0, 8, 8, 8, 1]


class TestSmall(NetworkTester):
    name = "covidnet3d_s"
    parameters = 25_688_482
    architecture = {"encoding": MIXED}
    exported = {"encoding": [8] * 20 + [0]}
    size = (64, 64)

    # Tiny is of the same blocks.
    test_compiles_to_one_graph = slow(NetworkTester.test_compiles_to_one_graph)
    test_exports = slow(NetworkTester.test_exports)


@pytest.mark.slow
class TestLarge(ExportTester):
    name = "covidnet3d_l"
    architecture = {"encoding": [8] * 20 + [0]}
    size = (32, 32)


class TestTiny(NetworkTester):
    name = "covidnet3d_tiny"
    parameters = 615_874
    backend = "aot_eager"
    architecture = {"encoding": [8, 2, 1, 5, 3]}
    exported = {"encoding": [8, 2, 8, 8, 8]}
    size = (64, 48)


class TestSupernet(SupernetTester):
    compiled = slice(1, 2)  # that graphs follow the activation, smaller supernets show

    def build(self):
        net = create_model("covidnet3d_tiny")
        net.dropout.p = 0  # which drops others each time
        return net

    def inputs(self):
        generator = torch.Generator().manual_seed(1)
        return (torch.rand(2, 1, 8, 24, 16, generator=generator),)

    def test_optimized_equals_activated(self, net, samples):
        for architecture in samples:
            activate(net, architecture)
            assert same(run(optimize(net), self.inputs()), run(net, self.inputs()), 1e-3)

    def test_a_built_subnet_is_an_extracted_one(self, net, samples):
        for architecture in samples:
            extracted = extract(net, architecture)
            built = create_model("covidnet3d_tiny", subnet=architecture.to_json()).eval()
            built.load_state_dict(extracted.state_dict())
            assert same(run(built, self.inputs()), run(extracted, self.inputs()))

    def test_every_logit_learns_whatever_was_drawn(self, net, samples):
        logits = Logits(search_space(net))
        skips = 0
        for seed in range(4):
            draw = logits.draw(GumbelSoftmax(), torch.Generator().manual_seed(seed))
            skips += list(draw.architecture.values()).count("skip")
            logits.zero_grad()
            with weighted(net, draw):
                torch.nn.functional.cross_entropy(
                    net(*self.inputs()), torch.tensor([0, 1])
                ).backward()
            assert all((vector.grad != 0).all() for vector in logits.vectors.values())
        assert skips  # a skip without its input would stop them


def test_spaces():
    with torch.device("meta"):
        clean = search_space(create_model("covidnet3d_s"))
        published = search_space(create_model("covidnet3d_s", identity=True))
    assert clean.count() == 8**21 and published.count() == 9**21
    assert len(clean.choices["stages.5.blocks.0"].values) == 8
    assert clean == search_space_of("covidnet3d_l")


def search_space_of(name):
    with torch.device("meta"):
        return search_space(create_model(name))


def test_encodings():
    architecture = published_architecture(MIXED)
    assert architecture["stages.0.blocks.3"] == "mbconv7_3"
    assert architecture in search_space_of("covidnet3d_s")
    nine = published_architecture([0, 9, *[8] * 19])
    assert nine == published_architecture([0, *[8] * 20])  # both are the skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"encoding": [8] * 20}, "has 21 numbers: 20"),
        ({"encoding": [8] * 20 + [9]}, "number 20 of the encoding is 9: must be 0 to 8"),
        ({"encoding": [8, 10] + [8] * 19}, "number 1 of the encoding is 10: must be 0 to 9"),
        ({"encoding": [0.5] * 21}, "encoding must be of type Sequence"),
        ({"encoding": MIXED, "subnet": {}}, "either an encoding or a subnet"),
        ({"subnet": {"version": 1, "choices": {"depth": 2}}}, "no choice 'depth'"),
        ({"classes": 1, "encoding": MIXED}, "two classes or more"),
    ],
)
def test_malformed_arguments(arguments, says):
    with pytest.raises(ValueError, match=says):
        create_model("covidnet3d_s", **arguments)


def test_volumes_of_other_shapes_are_named():
    net = create_model("covidnet3d_tiny", encoding=[8] * 5).eval()
    with pytest.raises(ValueError, match=r"grey.*\(1, 3, 4, 8, 8\)"):
        net(torch.zeros(1, 3, 4, 8, 8))
    assert net(torch.zeros(1, 1, 1, 1, 1)).isfinite().all()


def test_the_identity_doubles_what_a_skip_passes():
    nets = [create_model("covidnet3d_tiny", encoding=[0, code, 0, 0, 0]) for code in (7, 9)]
    nets[0].load_state_dict(nets[1].state_dict())
    identity, skip = (net.eval().stages[0][1] for net in nets)
    x = torch.randn(1, 16, 2, 3, 3)
    assert torch.equal(identity(x), 2 * skip(x))


def test_calibrations_keep_the_variance():
    layer = Calibration(64, 96, 1)
    assert layer(torch.randn(4, 64, 4, 8, 8)).var().item() == pytest.approx(1, rel=0.2)


def test_published_counts(shared):
    counts = json.loads((shared / "golden/nas/covidnet3d_counts.json").read_text())
    for case in counts["cases"]:
        with torch.device("meta"):
            name = f"covidnet3d_{case['size'].lower()}"
            net = create_model(name, classes=case["classes"], encoding=case["arch"])
            volume = torch.zeros(1, 1, 16, 64, 64)
        assert count_parameters(net) == case["params"]
        if macs := case.get("conv_linear_macs_16x64x64"):
            assert count(net, volume).macs == macs


@pytest.fixture(params=["tiny", "small"])
def published(request, golden):
    """A published case: its description, arrays, tensors and input."""
    folder, synthetic = golden("nas")
    cases = json.loads((folder / "covidnet3d.json").read_text())["cases"]
    case = next(case for case in cases if case["name"] == request.param)
    arrays = np.load(folder / "covidnet3d.npz")
    volume = synthetic.synthetic_image(case["image_name"], tuple(case["image_shape"]))
    return case, arrays, synthetic.synthetic_state(case["state_shapes"]), volume


def test_parity(published, tmp_path):
    """Through the file and the command line: logits, and every block's mean and deviation."""
    case, arrays, state, volume = published
    torch.save({"state_dict": state}, tmp_path / "best.pth")
    target, encoding = tmp_path / "net.safetensors", ",".join(map(str, case["arch"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        command = ["convert", str(tmp_path / "best.pth"), str(target), "--encoding", encoding]
        assert main(command) == 0
    net = load_weights(target)
    parts = [
        net.first,
        *(part for stage in net.stages for cell in stage for part in cell.children()),
    ]
    seen = [None] * len(parts)
    for number, part in enumerate(parts):
        part.register_forward_hook(lambda _, __, y, n=number: seen.__setitem__(n, y))
    with torch.inference_mode():
        logits = net(volume)
    expected = torch.from_numpy(arrays[f"{case['name']}_logits"])
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()
    for kind in ("mean", "std"):
        found = [float(getattr(y.double(), kind)()) for y in seen]
        wanted = arrays[f"{case['name']}_block_{kind}"]
        scale = arrays[f"{case['name']}_block_std"].max()
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5 * scale)


def test_converting_says_what_it_cannot_know(published):
    case, _, state, _ = published
    doubtful = [n for n, code in enumerate(case["arch"]) if code in (7, 8, 9) and n % 4]
    if case["name"] == "tiny":
        convert_published(state)  # its only skip is in a first cell: no warning
        return
    with pytest.warns(UserWarning, match=f"cells {', '.join(map(str, doubtful))} have no weights"):
        name, arguments, _ = convert_published(state)
    assert name == "covidnet3d_s" and arguments["classes"] == 3
    assert [code == 8 for code in arguments["encoding"]] == [c in (7, 8, 9) for c in case["arch"]]


@pytest.mark.parametrize("published", ["tiny"], indirect=True)
def test_a_published_supernet(published):
    """A file of all candidates: the same weights in the chosen ones predict the same."""
    case, arrays, state, volume = published
    supernet = create_model("covidnet3d_tiny", identity=True).eval()
    plan = PLANS["covidnet3d_tiny"]
    theirs = dict(state)
    for number in range(plan.total):
        stage, index = plan.place(number)
        candidates = supernet.stages[stage][index].operation.state_dict()
        for code, operation in enumerate(("3_3", "3_4", "3_6", "5_3", "5_4", "7_3", "7_4")):
            for key, value in candidates.items():
                if key.startswith(f"mbconv{operation}."):
                    key = key.partition(".")[2].replace("expand", "inverted_bottleneck")
                    key = key.replace("depthwise", "depth_conv").replace("norm", "bn")
                    key = key.replace("project", "point_linear")
                    prefix = f"blocks.{2 * number + 2}.mobile_inverted_conv.choices.{code}"
                    theirs.setdefault(f"{prefix}.{key}", value)
    name, arguments, ours = convert_published(theirs)
    assert (name, arguments) == ("covidnet3d_tiny", {"classes": 2, "identity": True})
    load_state(supernet, ours, "published")
    activate(supernet, published_architecture(case["arch"], plan))
    expected = torch.from_numpy(arrays["tiny_logits"])
    assert same(run(supernet, (volume,)), expected, 1e-4)


def test_others_are_refused(published):
    *_, state, _ = published
    with pytest.raises(ValueError, match="not the weights of CovidNet3D"):
        convert_published({"conv.weight": torch.zeros(1)})
    state["blocks.1.conv.weight"] = torch.zeros(17, 16, 1, 1, 1)
    with pytest.raises(ValueError, match="is none of covidnet3d_s, "):
        convert_published(state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_optimized(dtype):
    net = create_model("covidnet3d_s", encoding=[0, 7, 9, 6, *[0] * 17]).eval()
    volume = torch.rand(2, 1, 9, 33, 20)
    with torch.inference_mode():
        wanted, found = net(volume), optimize(net, dtype)(volume)
    assert found.dtype == torch.float32
    assert (found - wanted).norm() < (1e-4 if dtype == torch.float32 else 0.05) * wanted.norm()
