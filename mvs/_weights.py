"""Records of the trained multi-view weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

DISPMVS_TINY = {
    "worlds": WeightsRecord(
        sources=("package:mvs/weights/dispmvs_tiny.safetensors",),
        sha256="ccd1beaf0d2755d5d77f159fbad8c0b848670f9dbb0edca2a39e6ce60bdc9428",
        size=5_365_256,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "HoloLens": {"rel_median": 0.051, "within_5%": 0.49},
            "HoloLens, guided": {"rel_median": 0.040, "within_5%": 0.57},
            "SUN3D": {"rel_median": 0.109, "within_5%": 0.18},
            "SUN3D, guided": {"rel_median": 0.107, "within_5%": 0.18},
        },
        command="python -m benchmarks.mvs_transfer --data DIR dispmvs_tiny",
        training="vizoo fit --config mvs/dispmvs_tiny_world.yaml --model.lr_schedule cosine, "
        "1,300 steps of two samples of 160x208, 700 more from a rate of 0.002, 1,400 distinct; "
        "from there 2,200 of two samples of 192x256, from a rate of 0.002, 1,600 others; from "
        "there 2,800 more, likewise, 2,400 others; weights kept in float16",
    )
}
