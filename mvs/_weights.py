"""Records of the trained multi-view weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

DISPMVS_TINY = {
    "worlds": WeightsRecord(
        sources=("package:mvs/weights/dispmvs_tiny.safetensors",),
        sha256="aeca148d49cbc39af82c87f36a6c0c140b5886cc2dc9d17ff255e8773a7ceb9a",
        size=5_365_256,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "HoloLens": {"rel_median": 0.084, "within_5%": 0.337},
            "HoloLens, guided": {"rel_median": 0.046, "within_5%": 0.519},
            "SUN3D": {"rel_median": 0.12, "within_5%": 0.165},
            "SUN3D, guided": {"rel_median": 0.116, "within_5%": 0.168},
        },
        command="python -m benchmarks.mvs_transfer",
        training="vizoo fit --config mvs/dispmvs_tiny_world.yaml --model.lr_schedule cosine, "
        "1,300 steps of two samples of 160x208, 1,000 distinct; weights kept in float16",
    )
}
