"""Layers on faces: reference numbers, exact symmetry, gradients, tables, folding."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sphere import REFLECTIONS, find, moves, rotations

from vizoo.nas.recalibration import recalibrate
from vizoo.panorama._spheredepth_layers import ConvNorm, LinearNorm
from vizoo.panorama.layers import (
    FaceNorm,
    MeshConv,
    MeshTables,
    Ring,
    pool_faces,
    unpool_faces,
)
from vizoo.panorama.mesh import spherical_mesh

F64 = torch.float64
CONVS = {
    "k1": {"kernel": 1},
    "k3": {},
    "k5": {"kernel": 5},
    "k3_d2": {"dilation": 2},
    "k3_d3": {"dilation": 3},
    "k3_s2": {"stride": 2},
    "k5_s2": {"kernel": 5, "stride": 2},
    "k1_s2": {"kernel": 1, "stride": 2},
}


def tables_of(conv, level):
    rings = [ring for ring in (conv.ring(level),) if ring is not None]
    return MeshTables([*rings, Ring(level)], level)


def layer(weight, bias=None, dtype=F64, **settings):
    out_channels, in_channels, _ = weight.shape
    conv = MeshConv(in_channels, out_channels, bias=bias is not None, **settings).to(dtype)
    with torch.no_grad():
        conv.weight.copy_(torch.as_tensor(weight))
        if bias is not None:
            conv.bias.copy_(torch.as_tensor(bias))
    return conv


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
class TestGolden:
    @pytest.fixture
    def case(self, golden, level):
        found = golden(f"meshconv_level{level}")
        own = find(found["centroid"], spherical_mesh(level).centroids)
        coarse = find(found["coarse_centroid"], spherical_mesh(level - 1).centroids)
        return found, own, coarse

    @staticmethod
    def ours(values, order, dtype):
        """(1, F, C) in our numbering."""
        x = np.empty_like(values)
        x[order] = values
        return torch.from_numpy(x)[None].to(dtype)

    def test_convolutions(self, case, level, dtype):
        want, own, coarse = case
        x = self.ours(want["x"], own, dtype)
        for name, settings in CONVS.items():
            if f"y_{name}" in want:
                conv = layer(want["w"], want["b"], dtype, **settings)
                y = conv(x, tables_of(conv, level), level)[0].detach().double().numpy()
                assert (y[coarse if name.endswith("s2") else own] == want[f"y_{name}"]).all(), name

    def test_pools(self, case, level, dtype):
        want, own, coarse = case
        x = self.ours(want["x_pool"], own, dtype)
        assert (pool_faces(x)[0, coarse].double().numpy() == want["pool_mean"]).all()
        z = self.ours(want["z_coarse"], coarse, dtype)
        tables = MeshTables([Ring(level - 1)], level).neighbours(Ring(level - 1))
        found = unpool_faces(z, *tables)[0, own].double().numpy()
        assert (found == want["unpool_bilinear"]).all()

    def test_gradients(self, case, level, dtype):
        if dtype != F64:
            return
        want, own, _ = case
        x = self.ours(want["grad_x"], own, dtype)
        for name in ("k3", "k5"):
            x = x.detach().requires_grad_()
            conv = layer(want["grad_w"], **CONVS[name])
            y = conv(x, tables_of(conv, level), level)
            assert np.abs(y[0, own].detach().numpy() - want[f"grad_{name}_y"]).max() < 1e-10
            y.backward(self.ours(want["grad_gy"], own, dtype))
            assert np.abs(x.grad[0, own].numpy() - want[f"grad_{name}_gx"]).max() < 1e-10
            assert np.abs(conv.weight.grad.numpy() - want[f"grad_{name}_gw"]).max() < 1e-10


def whole(*shape):
    """Small whole numbers, whose sums are exact."""
    return torch.randint(-9, 10, shape).to(F64)


def turned(x, move):
    """(1, F, C) as (R, F, C), moved by each of (R, F)."""
    move = torch.from_numpy(move)
    out = x.new_empty(len(move), *x.shape[1:])
    return out.scatter_(1, move[..., None].expand_as(out), x.expand_as(out))


def commutes(function, level, out_level, matrices):
    """Whether a function of faces gives moved results for moved inputs, to the last bit."""
    x = whole(1, 20 * 4**level, 3)
    found = function(turned(x, moves(matrices, level)))
    return torch.equal(found, turned(function(x), moves(matrices, out_level)))


@pytest.mark.parametrize("level", range(4))
def test_convolutions_commute_with_symmetries(level):
    weight, bias = whole(2, 3, 4), whole(2)
    settings = {**CONVS, **{f"d4 {s}": {"dilation": 4, "symmetric": s} for s in (False, True)}}
    settings["d2 both"] = {"dilation": 2, "symmetric": True}
    for name, arguments in settings.items():
        conv = layer(weight, bias, **arguments)
        stride = arguments.get("stride", 1)
        if level == 0 and stride == 2:
            continue
        tables = tables_of(conv, level)
        every = lambda x, conv=conv, tables=tables: conv(x, tables, level).detach()  # noqa: E731
        out = level - (stride == 2)
        assert commutes(every, level, out, rotations()), name
        handed = arguments.get("dilation", 1) > 1 and not arguments.get("symmetric")
        if not handed:
            assert commutes(every, level, out, REFLECTIONS), name
        elif arguments["dilation"] == 2 or level > 1:
            assert not commutes(every, level, out, REFLECTIONS), name


@pytest.mark.parametrize("level", range(3))
def test_pools_commute_with_symmetries(level):
    tables = MeshTables([Ring(level)], level).neighbours(Ring(level))
    both = np.concatenate((rotations(), REFLECTIONS))
    assert commutes(lambda x: unpool_faces(x, *tables), level, level + 1, both)
    assert commutes(pool_faces, level + 1, level, both)


def test_unpooling_keeps_constants_and_sums():
    tables = MeshTables([Ring(1)], 1).neighbours(Ring(1))
    x = torch.rand(2, 80, 3, dtype=F64, requires_grad=True)
    fine = unpool_faces(x, *tables)
    torch.testing.assert_close(fine.sum(1), 4 * x.sum(1))
    torch.testing.assert_close(unpool_faces(torch.ones_like(x), *tables), torch.ones_like(fine))
    assert torch.autograd.gradcheck(lambda x: unpool_faces(x, *tables), x, fast_mode=True)


@pytest.mark.parametrize("name", CONVS)
def test_layout_of_channels_does_not_matter(name):
    """The [N, C, F] form, term by term."""
    conv = MeshConv(4, 5, **CONVS[name])
    x = torch.randn(2, 320, 4)
    tables = tables_of(conv, 2)
    if conv.kernel == 1:
        near = np.empty((320, 0), int)
    else:
        near = spherical_mesh(2).ring(conv.kernel, conv.dilation)
    near = torch.tensor(near.astype(np.int64))
    own = torch.arange(320)
    if conv.stride == 2:
        near, own = near[3::4], own[3::4]
    columns = x.transpose(1, 2)
    around = columns[:, :, near]  # (N, C, G, n)
    centre = columns[:, :, own]
    terms = torch.stack(
        [
            centre,
            around.sum(3),
            (around.roll(-1, 3) - around).abs().sum(3),
            (around - centre[..., None]).abs().sum(3),
        ],
        2,
    )
    want = torch.einsum("nctg,oct->ngo", terms, conv.weight)
    torch.testing.assert_close(conv(x, tables, 2), want + conv.bias, rtol=1e-5, atol=1e-5)


def test_normalised_sums():
    """On a constant the sums of 9 and of 3 neighbours are then the same."""
    x = torch.ones(1, 80, 2, dtype=F64)
    weight = torch.randn(3, 2, 4, dtype=F64)
    found = []
    for kernel in (3, 5):
        conv = layer(weight, kernel=kernel, normalize=True)
        found.append(conv(x, tables_of(conv, 1), 1))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("shape", [(1, 20, 3), (2, 80, 5), (2, 20, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_norm_is_that_of_all_faces(shape, dtype):
    """Its gradients too, whatever the layout of what comes back."""
    x = torch.randn(shape, dtype=dtype)
    norms = FaceNorm(shape[2]).to(dtype), torch.nn.BatchNorm1d(shape[2]).to(dtype)
    share = torch.randn(shape, dtype=dtype)
    for given in (share, share.transpose(1, 2).contiguous().transpose(1, 2)):
        one, other = (x.clone().requires_grad_() for _ in range(2))
        found, want = norms[0](one), norms[1](other.flatten(0, 1)).view(shape)
        torch.testing.assert_close(found, want)
        found.backward(given)
        want.backward(given)
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_norm_is_recalibrated_by_its_channels():
    norm, x = FaceNorm(3), 2 * torch.randn(4, 20, 3) + 1
    recalibrate(norm, [x])
    torch.testing.assert_close(norm.running_mean, x.mean((0, 1)))
    torch.testing.assert_close(norm.eval()(x).var((0, 1), correction=0), torch.ones(3))


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_folding_the_norm_changes_nothing(kind):
    net = ConvNorm(3, 4, {})
    tables = tables_of(net.conv, 1), 1
    if kind == "linear":
        net, tables = LinearNorm(3, 4), ()
    x = torch.randn(2, 80, 3)
    for _ in range(3):
        net(2 * x + 1, *tables)
    net.eval()
    fused = copy.deepcopy(net).fused(torch.float32)
    assert not list(fused.buffers())
    torch.testing.assert_close(fused(x, *tables), net(x, *tables), rtol=1e-4, atol=1e-5)


class TestTables:
    def test_they_are_shared_and_stay_out_of_the_state(self):
        one, other = (MeshTables([Ring(2)], 3) for _ in range(2))
        assert one.neighbours(Ring(2))[0] is other.neighbours(Ring(2))[0]
        assert not one.state_dict() and one.coordinates.shape == (1280, 2)

    def test_casting_leaves_them(self):
        tables = MeshTables([Ring(1)], 2)
        before = tables.coordinates
        for cast in (tables.half(), tables.double(), tables.to("meta").to_empty(device="cpu")):
            assert cast.coordinates is before
        assert copy.deepcopy(tables).coordinates is before

    def test_a_copy_may_lie_elsewhere(self):
        tables = MeshTables([Ring(1)], 2)
        memo = {id(buffer): buffer.to("meta") for buffer in tables.buffers()}
        assert all(x.is_meta for x in copy.deepcopy(tables, memo).buffers())

    def test_they_may_start_on_another_device(self):
        with torch.device("meta"):
            tables = MeshTables([Ring(1)], 2)
        assert all(x.is_meta for x in tables.buffers())
        near, inverse = tables.to_empty(device="cpu").neighbours(Ring(1))
        assert (near.numpy() == spherical_mesh(1).neighbours).all() and inverse.max() == 239

    def test_what_is_missing_is_named(self):
        with pytest.raises(ValueError, match="lack Ring.level=2"):
            MeshTables([Ring(1)], 1).neighbours(Ring(2))


def test_refuses():
    for arguments, message in (
        ({"kernel": 4}, "kernel 4"),
        ({"kernel": 5, "dilation": 2}, "dilation 2, kernel 5"),
        ({"stride": 3}, "stride 3"),
    ):
        with pytest.raises(ValueError, match=message):
            MeshConv(1, 1, **arguments)
