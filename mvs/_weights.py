"""Records of the trained multi-view weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

DISPMVS_TINY = {
    "worlds": WeightsRecord(
        sources=("package:mvs/weights/dispmvs_tiny.safetensors",),
        sha256="9ed92b031841120c0665df8a60c7b85f94ae7aa3c58b3851115ff9e67a5d5fbe",
        size=5_365_256,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "HoloLens": {"rel_median": 0.058, "within_5%": 0.45},
            "HoloLens, guided": {"rel_median": 0.043, "within_5%": 0.55},
            "SUN3D": {"rel_median": 0.111, "within_5%": 0.18},
            "SUN3D, guided": {"rel_median": 0.106, "within_5%": 0.19},
        },
        command="python -m benchmarks.mvs_transfer --data DIR dispmvs_tiny",
        training="vizoo fit --config mvs/dispmvs_tiny_world.yaml --model.lr_schedule cosine, "
        "1,300 steps of two samples of 160x208, 700 more from a rate of 0.002, 1,400 distinct; "
        "from there 2,200 of 2,400 of two samples of 192x256, from a rate of 0.002, 1,600 others; "
        "weights kept in float16",
    )
}
