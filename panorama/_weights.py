"""Records of the trained panorama weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

SPHEREDEPTH_SMALL = {
    "worlds": WeightsRecord(
        sources=("package:panorama/weights/spheredepth_small.safetensors",),
        sha256="ae2f57b7454c4a59d6b2d8e2d65104e26241d2ec2e522981f55939f5c3b7f720",
        size=3_321_768,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "3d60_1, scaled": {"absrel": 0.300, "d1": 0.55},
            "3d60_10, scaled": {"absrel": 0.202, "d1": 0.72},
        },
        command="python -m benchmarks.panorama_transfer --data DIR spheredepth_small",
        training="vizoo fit --config panorama/spheredepth_small_world.yaml, but that half of each "
        "step were pictures of the last 800; then 1,800 steps as the configuration has them, from "
        "a rate of 6e-3; then 2,469 of eight pictures, of 3,900 others, likewise; averaged "
        "weights, kept in float16",
        input={"size": [256, 512]},
    )
}
