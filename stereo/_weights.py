"""Records of the trained stereo weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

__all__ = ["EASNET_LIGHT", "EASNET_SMALL", "FADNET_PLUS_TINY"]

EASNET_LIGHT = {
    "generated": WeightsRecord(
        sources=("package:stereo/weights/easnet_light.safetensors",),
        sha256="8ccc348f642d70f7023d93f289da8fb340ca35a211c93660f9a8b640066824ff",
        size=4_773_588,
        licence="Apache-2.0",
        trained_on="generated scenes alone",
        metrics={
            "playground": {"epe": 0.627, "bad1": 0.138, "bad2": 0.049},
            "cones": {"epe": 1.501, "bad1": 0.391, "bad2": 0.188},
        },
        command="python -m benchmarks.stereo_transfer",
        training="vizoo fit --config search/easnet_light_generated.yaml, then the batch norms of "
        "the largest subnet recalibrated on 64 of its training scenes",
        input={"max_disparity": 96},
        reach=56,
        architecture={"max_disparity": 96},
    )
}

EASNET_SMALL = {
    "generated": WeightsRecord(
        sources=("package:stereo/weights/easnet_small.safetensors",),
        sha256="51df4877d3e440f3ff787bbbb99bce3f3ea8e34a1ee7114087e3e5f9820cf3fe",
        size=1_370_340,
        licence="Apache-2.0",
        trained_on="generated scenes alone",
        metrics={
            "playground": {"epe": 0.495, "bad1": 0.068, "bad2": 0.028},
            "cones": {"epe": 1.081, "bad1": 0.188, "bad2": 0.109},
        },
        command="python -m benchmarks.stereo_transfer",
        training="vizoo fit --config search/easnet_generated.yaml, its core by vizoo subnet "
        "--architecture --recalibrate, then vizoo fit --config stereo/easnet_small_generated.yaml "
        "--model.init_weights in the parts that this config names",
        input={"max_disparity": 96},
        reach=72,
        architecture={"max_disparity": 96},
    )
}

FADNET_PLUS_TINY = {
    "generated": WeightsRecord(
        sources=("package:stereo/weights/fadnet_plus_tiny.safetensors",),
        sha256="59a33be1c17950d1b9fa4384de861b9e77e494e25c0f0688a6026e9ec7cc8d3b",
        size=3_365_704,
        licence="Apache-2.0",
        trained_on="generated scenes alone",
        metrics={
            "playground": {"epe": 2.981, "bad1": 0.700, "bad2": 0.489},
            "cones": {"epe": 2.843, "bad1": 0.664, "bad2": 0.456},
        },
        command="python -m benchmarks.stereo_transfer",
        training="vizoo fit --config stereo/fadnet_tiny_generated.yaml",
        input={"max_disparity": 96},
        reach=24,
    )
}
