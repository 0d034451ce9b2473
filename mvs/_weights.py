"""Records of the trained multi-view weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

DISPMVS_TINY = {
    "worlds": WeightsRecord(
        sources=("package:mvs/weights/dispmvs_tiny.safetensors",),
        sha256="55bda1ca4a0b3ef6ece53dd249ecaf635f52dc5ed4a854ae0f3de44743abe05c",
        size=5_365_256,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "HoloLens": {"rel_median": 0.097, "within_5%": 0.31},
            "HoloLens, guided": {"rel_median": 0.046, "within_5%": 0.52},
            "SUN3D": {"rel_median": 0.116, "within_5%": 0.18},
            "SUN3D, guided": {"rel_median": 0.111, "within_5%": 0.18},
        },
        command="python -m benchmarks.mvs_transfer --data DIR dispmvs_tiny",
        training="vizoo fit --config mvs/dispmvs_tiny_world.yaml --model.lr_schedule cosine, "
        "1,300 steps of two samples of 160x208, 700 more from a rate of 0.002, 1,400 distinct; "
        "weights kept in float16",
    )
}
