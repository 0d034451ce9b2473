"""Records of the trained panorama weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

SPHEREDEPTH_SMALL = {
    "worlds": WeightsRecord(
        sources=("package:panorama/weights/spheredepth_small.safetensors",),
        sha256="69791a49bda7b5362085f8e6449d112cfa62bc2688bf810806e53da1d18cb1a3",
        size=3_321_768,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "3d60_1, scaled": {"absrel": 0.250, "d1": 0.56},
            "3d60_10, scaled": {"absrel": 0.290, "d1": 0.50},
        },
        command="python -m benchmarks.panorama_transfer --data DIR spheredepth_small",
        training="vizoo fit --config panorama/spheredepth_small_world.yaml, but that half of each "
        "step were pictures of the last 800; then 1,800 steps as the configuration has them, from "
        "a rate of 6e-3; weights kept in float16",
        input={"size": [256, 512]},
    )
}
