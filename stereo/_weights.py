"""Records of the trained stereo weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

__all__ = ["EASNET_SMALL", "FADNET_PLUS_TINY"]

EASNET_SMALL = {
    "generated": WeightsRecord(
        sources=("package:stereo/weights/easnet_small.safetensors",),
        sha256="2ca3fae5e2d4675d709be734492f955d0d4c87d071505b55d57119a423152ff3",
        size=1_023_708,
        licence="Apache-2.0",
        trained_on="generated scenes alone",
        metrics={
            "playground": {"epe": 0.556, "bad1": 0.109, "bad2": 0.041},
            "cones": {"epe": 1.490, "bad1": 0.353, "bad2": 0.195},
        },
        command="python -m benchmarks.stereo_transfer",
        training="vizoo fit --config search/easnet_generated.yaml, then its core by vizoo subnet "
        "--architecture --recalibrate search/easnet_generated.yaml",
        input={"max_disparity": 96},
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
            "playground": {"epe": 2.981, "bad1": 0.699, "bad2": 0.489},
            "cones": {"epe": 2.841, "bad1": 0.664, "bad2": 0.456},
        },
        command="python -m benchmarks.stereo_transfer",
        training="vizoo fit --config stereo/fadnet_tiny_generated.yaml",
        input={"max_disparity": 96},
    )
}
