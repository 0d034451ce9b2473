"""Records of the trained multi-view weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

DISPMVS_TINY = {
    "worlds": WeightsRecord(
        sources=("package:mvs/weights/dispmvs_tiny.safetensors",),
        sha256="6b20d215c173c81afe22bf2b69d138f0a6e9f699d04c7bca93028c3bcf3e77fc",
        size=5_365_256,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "HoloLens": {"rel_median": 0.049, "within_5%": 0.51},
            "HoloLens, guided": {"rel_median": 0.041, "within_5%": 0.55},
            "SUN3D": {"rel_median": 0.090, "within_5%": 0.25},
            "SUN3D, guided": {"rel_median": 0.098, "within_5%": 0.21},
        },
        command="python -m benchmarks.mvs_transfer --data DIR dispmvs_tiny",
        training="vizoo fit --config mvs/dispmvs_tiny_world.yaml --model.lr_schedule cosine, "
        "1,300 steps of two samples of 160x208, 700 more from a rate of 0.002, 1,400 distinct; "
        "from there 2,200 of two samples of 192x256, from a rate of 0.002, 1,600 others; from "
        "there 2,800 more, likewise, 2,400 others; from there 1,669 of six samples, likewise, "
        "1,300 others, averaged; weights kept in float16",
    )
}

DEPTH_FUSION = {
    "worlds": WeightsRecord(
        sources=("package:mvs/weights/depth_fusion.safetensors",),
        sha256="a3ec1a63491a96c85e4ab2a050052e08d9057f819ccbe739fda1da5e48e970d3",
        size=279_088,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "HoloLens, with dispmvs_tiny": {"rel_median": 0.041, "within_5%": 0.55},
            "SUN3D, with dispmvs_tiny": {"rel_median": 0.098, "within_5%": 0.21},
        },
        command="python -m benchmarks.mvs_transfer --data DIR dispmvs_tiny",
        training="TODO",
    )
}
