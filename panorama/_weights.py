"""Records of the trained panorama weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

SPHEREDEPTH_SMALL = {
    "worlds": WeightsRecord(
        sources=("package:panorama/weights/spheredepth_small.safetensors",),
        sha256="cfd3db02c3bb9692cae1137d17280dceab7a86e72b14fabcdde899a7366c6b67",
        size=3_321_768,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "3d60_1": {"absrel": 0.291, "d1": 0.54},
            "3d60_10": {"absrel": 0.313, "d1": 0.43},
        },
        command="python -m benchmarks.panorama_transfer",
        training="vizoo fit --config panorama/spheredepth_small_world.yaml --model.lr_schedule "
        "cosine, 2,000 steps of four; weights kept in float16",
        input={"size": [256, 512]},
    )
}
