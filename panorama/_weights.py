"""Records of the trained panorama weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

SPHEREDEPTH_SMALL = {
    "worlds": WeightsRecord(
        sources=("package:panorama/weights/spheredepth_small.safetensors",),
        sha256="62a12f05084500d54dcc233118b391a330963956b3d235d41a7d40565c61d9f3",
        size=3_321_768,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "3d60_1, scaled": {"absrel": 0.291, "d1": 0.54},
            "3d60_10, scaled": {"absrel": 0.313, "d1": 0.43},
        },
        command="python -m benchmarks.panorama_transfer --data DIR spheredepth_small",
        training="vizoo fit --config panorama/spheredepth_small_world.yaml --model.lr_schedule "
        "cosine, the first 600 of 2,000 steps of four, 3,000 distinct; weights kept in float16",
        input={"size": [256, 512]},
    )
}
