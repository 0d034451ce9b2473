"""The whole network commutes with all 60 rotations of the mesh; the mesh is one piece."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sphere import moves, rotations

from vizoo.panorama.mesh import level_of, spherical_mesh
from vizoo.panorama.spheredepth import SphereDepthNet


@pytest.mark.parametrize("level", range(5))
def test_every_face_is_reached_from_every_other(level):
    near = spherical_mesh(level).neighbours
    own = np.repeat(np.arange(len(near)), 3)
    graph = coo_matrix((np.ones(own.size), (own, near.ravel())), shape=(len(near),) * 2)
    assert connected_components(graph)[0] == 1


def test_all_60_rotations():
    """Its sums are taken in another order, so that float64 leaves their rounding alone."""
    torch.manual_seed(0)
    small = {"widths": (4, 6, 8, 8, 10), "blocks": 1, "decoder_convs": 1}
    net = SphereDepthNet(mesh_level=4, texture_level=0, **small).double()
    texture = torch.rand(1, 5120, 3, dtype=torch.float64)
    with torch.no_grad():
        net.head.last.weight.mul_(10)
        for _ in range(3):
            net.forward_faces(texture)
        net.eval()
        depth = net.forward_faces(texture)
        assert depth[0].std() > 0.01
        where = {x.shape[1]: moves(rotations(), level_of(x.shape[1])) for x in depth}
        for index in range(60):
            turned = texture.new_empty(texture.shape)
            turned[:, where[5120][index]] = texture
            for found, want in zip(net.forward_faces(turned), depth, strict=True):
                assert (found[:, where[want.shape[1]][index]] - want).abs().max() < 1e-10
