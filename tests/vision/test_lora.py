"""Adapters: what they compute, keep, train and write, and what they refuse."""

import copy
import json
import pickle
import warnings

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from timm.layers import BatchNormAct2d, Conv2dSame
from torch import nn
from torch.nn import functional as F

from vizoo.nas import elastic
from vizoo.nas.space import Choice
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.lora import (
    LoRA,
    adapt,
    is_adapted,
    load_adapters,
    merge,
    save_adapters,
)

LAYERS = {
    "linear": (lambda: nn.Linear(12, 10), (3, 5, 12)),
    "conv": (lambda: nn.Conv2d(12, 10, 3, 2, 1), (2, 12, 9, 8)),
    "dilated": (lambda: nn.Conv2d(12, 10, 3, padding=2, dilation=2, bias=False), (2, 12, 9, 8)),
    "grouped": (lambda: nn.Conv2d(12, 18, 3, padding=1, groups=3), (2, 12, 7, 8)),
    "depthwise": (lambda: nn.Conv2d(12, 12, 3, padding=1, groups=12), (2, 12, 7, 8)),
    "same": (lambda: nn.Conv2d(12, 10, (2, 3), padding="same"), (2, 12, 7, 8)),
    "reflecting": (lambda: nn.Conv2d(12, 10, 3, padding=1, padding_mode="reflect"), (2, 12, 7, 8)),
    "of TensorFlow": (lambda: Conv2dSame(12, 10, 3, 2), (2, 12, 7, 8)),
    "volumes": (lambda: nn.Conv3d(4, 6, 3, padding=1, groups=2), (2, 4, 5, 6, 7)),
}
EACH = pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)


def trained(net, settings=None, by=0.3):
    """The network with adapters that do something."""
    adapt(net, settings or LoRA(rank=2))
    for name, tensor in net.named_parameters():
        if name.endswith("lora_b"):
            nn.init.normal_(tensor, std=by)
    return net


def kept(function):
    """What autograd keeps for the backward pass: shapes, one for each storage, and their bytes."""
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = tuple(tensor.shape), storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = function()
    shapes, sizes = zip(*seen.values(), strict=True)
    return output, shapes, sum(sizes)


@EACH
@pytest.mark.parametrize("train_a", [False, True])
def test_a_layer_starts_as_it_was_and_is_merged(make, shape, train_a):
    net = nn.Sequential(make())
    plain, x = copy.deepcopy(net), torch.randn(shape)
    adapt(net, LoRA(rank=2, train_a=train_a))
    assert torch.allclose(net(x), plain(x), rtol=0, atol=1e-6)
    trained(merge(net), LoRA(rank=2, train_a=train_a))
    state, y = copy.deepcopy(net.state_dict()), net(x)
    assert (y - plain(x)).abs().max() > 0.1
    weight = net[0].weight  # what reads it gets the sum
    assert torch.allclose(merge(net)[0].weight, weight, rtol=1e-6, atol=1e-6)
    assert (net(x) - y).abs().max() <= 1e-6 * y.abs().max()
    assert type(net[0]) is type(plain[0]) and all(p.requires_grad for p in net.parameters())
    assert net.state_dict().keys() == plain.state_dict().keys() < state.keys()


@EACH
@pytest.mark.parametrize("train_a", [False, True])
def test_gradients(make, shape, train_a):
    net = trained(nn.Sequential(make()).double(), LoRA(rank=2, train_a=train_a))
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    learnt = {name: p for name, p in net.named_parameters() if p.requires_grad}
    assert set(learnt) == {"0.lora_b", *(["0.lora_a"] if train_a else [])}

    def run(x, *values):
        return torch.func.functional_call(net, dict(zip(learnt, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *learnt.values()), fast_mode=True)


@EACH
def test_the_corrected_step_is_the_projected_one(make, shape):
    """Of the sum: the full gradient on the rows of A, whatever these are."""
    net, x = nn.Sequential(make()).double(), torch.randn(shape, dtype=torch.float64)
    steps = []
    for scale in (1.0, 5.0):
        net = trained(copy.deepcopy(net), LoRA(rank=2, corrected=True), by=0)
        net[0].lora_a.data *= scale
        a, b = net[0].lora_a, net[0].lora_b
        plain = copy.deepcopy(net)
        merge(plain)
        plain(x).square().sum().backward()
        full = plain[0].weight.grad
        net(x).square().sum().backward()
        groups = getattr(plain[0], "groups", 1)
        rows, columns = (t.reshape(groups, -1, full[0].numel()) for t in (a, full))
        wanted = columns @ torch.linalg.pinv(rows) @ rows
        got = b.grad.reshape(groups, -1, b.shape[1]) @ rows
        assert torch.allclose(got, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
        steps.append(got)
        net = plain
    assert torch.allclose(*steps, rtol=1e-4, atol=1e-4)


def block(norm=True):
    layers = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16) if norm else nn.Identity()]
    return nn.Sequential(*layers, nn.Conv2d(16, 16, 3, padding=1, bias=False))


def test_only_thin_activations_are_kept():
    """Of layers in a row: A x, and of x nothing, nor of what a batch norm is given."""
    x = torch.randn(2, 16, 12, 12, requires_grad=True)
    net = block()
    _, shapes, full = kept(lambda: net(x))
    assert (2, 16, 12, 12) in shapes
    adapt(net, LoRA(rank=2))
    _, shapes, thin = kept(lambda: net(x))
    big = [shape for shape in shapes if shape[0] == 2 and shape[2:] == (12, 12)]
    assert big == [(2, 2, 12, 12)] * 2 and thin < full / 2
    merge(net)
    adapt(net, LoRA(rank=2, train_a=True))
    assert kept(lambda: net(x))[1].count((2, 16, 12, 12)) == 2  # plain LoRA keeps them


def test_a_frozen_convolution_of_pytorch_keeps_its_input():
    """When this fails PyTorch has mended it, and the frozen forms may go."""
    conv, x = nn.Conv2d(4, 4, 3).requires_grad_(False), torch.randn(1, 4, 8, 8, requires_grad=True)
    assert (1, 4, 8, 8) in kept(lambda: conv(x))[1]
    norm = nn.BatchNorm2d(4).requires_grad_(False).eval()
    assert (1, 4, 8, 8) in kept(lambda: norm(x))[1]
    linear = nn.Linear(8, 4).requires_grad_(False)
    assert (1, 4, 8, 8) not in kept(lambda: linear(x))[1]


def test_convolutions_take_an_image_without_a_batch():
    net, x = nn.Sequential(block(norm=False), nn.ConvTranspose2d(16, 4, 2, 2)), torch.rand(16, 8, 8)
    wanted = torch.autograd.grad(net(x.requires_grad_()).square().sum(), x)[0]
    adapt(net)
    found = torch.autograd.grad(net(x).square().sum(), x)[0]
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_linear_layers_keep_thin_activations():
    net = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32))
    adapt(net, LoRA(rank=4))
    x = torch.randn(7, 32, requires_grad=True)
    shapes = kept(lambda: net(x))[1]
    assert shapes.count((7, 4)) == 2 and not {(7, 32), (7, 64)} & set(shapes)


@pytest.mark.parametrize(
    "make", [lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1), lambda: nn.ConvTranspose3d(4, 6, 2, 2)]
)
def test_what_is_left_is_frozen_thinly(make):
    layer = make()
    name, net = type(layer).__name__, nn.Sequential(layer, nn.Linear(8, 8))
    x = torch.randn(1, 4, *[4] * (layer.weight.dim() - 2), requires_grad=True)
    wanted = torch.autograd.grad(net(x).square().sum(), x)[0]
    left = adapt(net)
    assert left == {"0": f"no form of adapter for {name}"}
    y, shapes, _ = kept(lambda: net(x))
    assert tuple(x.shape) not in shapes
    assert torch.allclose(torch.autograd.grad(y.square().sum(), x)[0], wanted, atol=1e-5)


def test_weights_of_attention_and_parametrized_ones_are_said_to_be_left():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older weight norm is on its way out
        older = nn.utils.weight_norm(nn.Linear(8, 8))
    net = nn.ModuleDict(
        {
            "attention": nn.MultiheadAttention(8, 2),
            "of three": nn.MultiheadAttention(8, 2, kdim=4, vdim=4),
            "normed": nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
            "older": older,
            "spectral": nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 3)),
            "whole": nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)),
            "adapted": nn.Linear(8, 8),
        }
    )
    left = adapt(net, LoRA(trains=["whole"]))
    projection = "no form of adapter for NonDynamicallyQuantizableLinear"
    assert left == {
        "attention": "no form of adapter for MultiheadAttention",
        "attention.out_proj": projection,
        "of three": "no form of adapter for MultiheadAttention",
        "of three.out_proj": projection,
        "normed": "no form of adapter for ParametrizedLinear",
        "older": "its weight is computed from others",
        "spectral": "no form of adapter for ParametrizedConv2d",
        "whole": "trained as it is",
    }


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", [nn.BatchNorm2d, BatchNormAct2d])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms_stay_at_their_statistics(kind, affine, layout):
    norm = kind(6, affine=affine)
    nn.init.uniform_(norm.running_mean)
    nn.init.uniform_(norm.running_var)
    net = nn.Sequential(nn.Conv2d(3, 6, 1), norm)
    x = torch.randn(2, 3, 5, 5).to(memory_format=layout)
    wanted, state = net.eval()(x), copy.deepcopy(net[1].state_dict())
    adapt(net)
    y = net.train()(x)
    assert torch.allclose(y, wanted, atol=1e-6) and y.is_contiguous(memory_format=layout)
    assert all(torch.equal(value, state[name]) for name, value in net[1].state_dict().items())
    merge(net).train()(x)
    assert not torch.equal(net[1].running_mean, state["running_mean"])


def test_norms_of_other_classes_stay_too():
    net = nn.Sequential(nn.Conv2d(3, 6, 1), nn.InstanceNorm2d(6, track_running_stats=True))
    adapt(net)
    net.train()(torch.randn(2, 3, 5, 5))
    assert not net[1].running_mean.any()
    merge(net).train()(torch.randn(2, 3, 5, 5))
    assert net[1].running_mean.any()


HEADS = {"test_vit": "head", "test_resnet": "fc", "test_efficientnet": "classifier"}
HEADS["test_convnext"] = "head"


@pytest.mark.parametrize("name", HEADS)
def test_networks_of_timm(name):
    net = timm.create_model(name, num_classes=3).double().eval()
    x = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    if name == "test_vit":
        x = F.interpolate(x, net.patch_embed.img_size)
    before = net(x)
    adapt(net, LoRA(rank=4, trains=[HEADS[name]]))
    net.train()
    assert torch.allclose(net.eval()(x), before, atol=1e-10)
    optimizer = torch.optim.Adam((p for p in net.parameters() if p.requires_grad), 1e-2)
    for _ in range(2):
        net.train()(x).square().sum().backward()
        for parameter_name, parameter in net.named_parameters():
            head = parameter_name.startswith(("head", "fc", "classifier"))
            learns = parameter_name.endswith("lora_b") or head
            assert (parameter.grad is not None) == learns, parameter_name
        optimizer.step()
        optimizer.zero_grad()
    after = net.eval()(x)
    assert not torch.allclose(after, before, atol=1e-3)
    assert torch.allclose(merge(net)(x), after, rtol=1e-9)


def test_a_stereo_network_trains_every_adapter():
    """FADNet++ reads weights of some layers itself; deconvolutions stay, and say so."""
    net = create_model("fadnet_plus_micro")
    left = adapt(net, LoRA(rank=2))
    assert all("upconv" in name or "upflow" in name for name in left)
    images = torch.rand(2, 1, 3, 64, 128)
    sum(p.square().sum() for stage in net.train().forward_stages(*images) for p in stage).backward()
    adapters = {name: p for name, p in net.named_parameters() if name.endswith("lora_b")}
    silent = [name for name, p in adapters.items() if p.grad is None or not p.grad.any()]
    assert len(adapters) > 60 and silent == []
    for parameter in adapters.values():
        nn.init.normal_(parameter, std=0.02)
    with torch.no_grad():
        images = images.double()
        wanted = net.double().eval()(*images)
        assert torch.allclose(merge(net)(*images), wanted, rtol=1e-6, atol=1e-6)


def test_layers_by_pattern_and_what_is_trained_whole():
    net = nn.Sequential(block(), block(), nn.BatchNorm2d(16), nn.Linear(8, 8))
    left = adapt(net, LoRA(layers=["*.0", "3"], skip=["1.*"], trains=["2", "*.2.weight"]))
    assert left == {
        "0.2": "trained as it is",
        "1.0": "not among the layers",
        "1.2": "trained as it is",
    }
    learns = {name for name, p in net.named_parameters() if p.requires_grad}
    assert learns == {"0.0.lora_b", "0.2.weight", "1.2.weight", "2.weight", "2.bias", "3.lora_b"}
    net.train()(torch.randn(2, 16, 8, 8))
    assert net[2].running_mean.any() and not net[0][1].running_mean.any()


def test_biases_can_be_trained_beside_the_adapters():
    net = nn.Sequential(block(), nn.ConvTranspose2d(16, 4, 2, 2), nn.Linear(16, 3))
    plain, x = copy.deepcopy(net).eval(), torch.randn(2, 16, 8, 8)
    adapt(net, LoRA(trains=["*.bias"]))
    for each in (plain, net):
        each(x).square().sum().backward()
    grads = {name: parameter.grad for name, parameter in net.named_parameters()}
    for name, parameter in plain.named_parameters():
        if name.endswith("bias"):
            assert torch.allclose(grads[name], parameter.grad, rtol=1e-4, atol=1e-4), name
        else:
            assert grads[name] is None


def test_shared_weights_and_layers_that_others_read():
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert set(adapt(tied)) == {"0", "1"}
    layer = trained(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval())
    x = torch.randn(2, 3, 8)
    with torch.no_grad():  # the fast path reads weights alone
        fast = layer(x)
    assert torch.allclose(fast, layer(x.requires_grad_()), atol=1e-5)


def test_what_is_refused():
    net = block()
    with pytest.raises(ValueError, match=r"no part is '0\.\*\*x'; did you mean"):
        adapt(net, LoRA(layers=["0.**x"]))
    with pytest.raises(
        ValueError, match="no layer is left to adapt: 1: no form of adapter for Emb"
    ):
        adapt(nn.Sequential(nn.ReLU(), nn.Embedding(3, 4)))
    with pytest.raises(ValueError, match="rank 0: at least 1"):
        LoRA(rank=0)
    with pytest.raises(ValueError, match="leave out corrected"):
        LoRA(corrected=True, train_a=True)
    with pytest.raises(ValueError, match="is elastic: extract a subnet"):
        adapt(nn.Sequential(elastic.Conv2d(3, Choice("width", (2, 4)) * 1, 3)))
    with pytest.raises(ValueError, match="adapter 'dora' is unknown: choose lora_fa or lora"):
        LoRA.read("dora")
    with pytest.raises(ValueError, match="adapter {'rank': 4}: give its name, lora_fa or lora"):
        LoRA.read({"rank": 4})
    with pytest.raises(ValueError, match="no architecture argument 'ranks'"):
        LoRA.read({"name": "lora", "ranks": 3})
    with pytest.raises(ValueError, match="has no adapters"):
        merge(net)
    adapt(net)
    with pytest.raises(ValueError, match="merge them first"):
        adapt(net)


def test_a_is_drawn_by_the_seed():
    first, same, other = (nn.Sequential(nn.Linear(9, 9)) for _ in range(3))
    for net, seed in ((first, 1), (same, 1), (other, 2)):
        torch.rand(1)
        adapt(net, LoRA(seed=seed))
    assert torch.equal(first[0].lora_a, same[0].lora_a)
    assert not torch.equal(first[0].lora_a, other[0].lora_a)


@pytest.fixture
def classifier():
    return create_model("image_classifier", backbone="test_resnet", classes=3).eval()


def test_a_file_of_adapters(tmp_path, classifier):
    base, other = copy.deepcopy(classifier), copy.deepcopy(classifier)
    settings = LoRA(rank=2, trains=["body.fc"], corrected=True)
    net = trained(classifier, settings)
    nn.init.normal_(net.body.fc.weight)
    net.classes = ("a", "b", "c")
    path = save_adapters(net, tmp_path / "adapter.safetensors", note=1)
    whole = save_weights(base, tmp_path / "base.safetensors")
    assert path.stat().st_size < whole.stat().st_size / 2
    nn.init.zeros_(other.body.fc.weight)  # a part that is trained may begin with anything
    loaded = load_adapters(other, path)
    x = torch.rand(2, 3, 64, 64)
    assert torch.equal(loaded(x), net(x)) and loaded.lora.rank == 2 and not loaded.training
    assert loaded.classes == ("a", "b", "c")
    # An ordinary file is written merged.
    plain = load_weights(save_weights(net, tmp_path / "merged.safetensors"))
    assert not is_adapted(plain) and torch.allclose(plain(x), net(x), rtol=1e-4, atol=1e-5)


def test_a_network_with_an_architecture_of_its_own(tmp_path):
    net = nn.Sequential(nn.Linear(8, 8))
    net.architecture = "mlp"
    other = copy.deepcopy(net)
    path = save_adapters(trained(net), tmp_path / "adapter.safetensors")
    x = torch.rand(2, 8)
    assert torch.equal(load_adapters(other, path)(x), net(x))


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("train_a", [False, True])
def test_a_file_holds_every_value(tmp_path, kind, train_a):
    """An A that stays is of whole numbers in the file, a byte each."""
    base = nn.Sequential(nn.Linear(300, 40), nn.Conv2d(7, 9, 3)).to(kind)
    net = trained(copy.deepcopy(base), LoRA(train_a=train_a))
    with torch.no_grad():
        net[0].lora_a += 0.01 * train_a
    path = save_adapters(net, tmp_path / "adapter.safetensors")
    with safe_open(path, "pt") as file:
        assert file.get_tensor("0.lora_a").dtype == (kind if train_a else torch.int8)
    found = load_adapters(base, path).state_dict()
    assert all(torch.equal(found[name], value) for name, value in net.state_dict().items())
    assert 0.9 < net[0].lora_a.float().std() * 300**0.5 < 1.4


def test_files_that_are_refused(tmp_path, classifier):
    path = save_adapters(trained(copy.deepcopy(classifier)), tmp_path / "adapter.safetensors")
    weights = save_weights(classifier, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="holds adapters alone: vizoo.vision.lora.load_adapters"):
        load_weights(path)
    with pytest.raises(ValueError, match="weights of image_classifier, and no adapters"):
        load_adapters(classifier, weights)
    with pytest.raises(FileNotFoundError, match="no such weight file"):
        load_adapters(classifier, tmp_path / "gone.safetensors")
    small = create_model("fadnet_plus_micro")
    with pytest.raises(ValueError, match="trained on image_classifier, not fadnet_plus_micro"):
        load_adapters(small, path)
    other = create_model("image_classifier", backbone="test_vit", classes=3)
    with pytest.raises(ValueError, match=r"image_classifier, backbone .*, not test_vit \("):
        load_adapters(other, path)
    named = create_model("image_classifier", backbone="test_resnet", classes=3, unhalved=0).eval()
    named.load_state_dict(classifier.state_dict())
    named.body.conv1[0].weight.data[0, 0, 0, 0] += 1e-3
    with pytest.raises(ValueError, match="trained on image_classifier, with other weights"):
        load_adapters(named, path)  # a default that is given is no difference
    other = copy.deepcopy(classifier)
    other.body.conv1[0].weight.data[0, 0, 0, 0] += 1e-3
    state = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match="adapter.safetensors: trained on .* with other weights"):
        load_adapters(other, path)
    assert not is_adapted(other) and state.keys() == other.state_dict().keys()


@pytest.mark.parametrize("fault", ["missing", "misshapen", "nan", "settings"])
def test_a_damaged_file_leaves_the_network_as_it_was(tmp_path, classifier, fault):
    path = save_adapters(trained(copy.deepcopy(classifier)), tmp_path / "adapter.safetensors")
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}
    name = next(iter(tensors))
    if fault == "missing":
        del tensors[name]
    elif fault == "misshapen":
        tensors[name] = tensors[name][:1].clone()
    elif fault == "nan":
        name = next(name for name in tensors if name.endswith("lora_b"))
        tensors[name].fill_(float("nan"))
    else:
        text = json.loads(header["vizoo"])
        text["facts"]["adapter"]["rank"] = "two"
        header["vizoo"] = json.dumps(text)
    save_file(tensors, path, header)
    state = copy.deepcopy(classifier.state_dict())
    with pytest.raises(ValueError, match=r"adapter\.safetensors: "):
        load_adapters(classifier, path)
    assert not is_adapted(classifier)
    after = classifier.state_dict()
    assert state.keys() == after.keys() and all(torch.equal(after[k], state[k]) for k in state)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_types(kind):
    """Weights of the type, and autocast."""
    x = torch.randn(2, 16, 8, 8)
    net = trained(block().to(kind), LoRA(rank=2, corrected=True))
    net(x.to(kind)).float().square().mean().backward()
    assert net[0].lora_b.grad.dtype == kind and net[0].lora_b.grad.any()
    net = trained(block(), LoRA(rank=2))
    with torch.autocast("cpu", kind):
        y = net(x.requires_grad_())
    y.float().square().mean().backward()
    assert y.dtype == kind and x.grad.dtype == torch.float32 and net[0].lora_b.grad.any()
    wanted = torch.autograd.grad(net(x).square().mean(), x)[0]
    assert F.cosine_similarity(x.grad.flatten(), wanted.flatten(), 0) > 0.99


def test_it_compiles_and_copies():
    net = trained(block().eval(), LoRA(rank=2, corrected=True))
    x = torch.randn(1, 16, 8, 8)
    wanted = net(x)
    assert torch.equal(copy.deepcopy(net)(x), wanted)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), wanted)  # as for processes of a trainer
    traced = torch.compile(net, backend="eager", fullgraph=True)
    y = traced(x.requires_grad_())
    y.sum().backward()
    assert torch.allclose(y, wanted, atol=1e-6) and net[0].lora_b.grad.any()
