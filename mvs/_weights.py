"""Records of the trained multi-view weights that come with the package."""

from __future__ import annotations

from ..vision.hub.record import WeightsRecord

DISPMVS_TINY = {
    "worlds": WeightsRecord(
        sources=("package:mvs/weights/dispmvs_tiny.safetensors",),
        sha256="f3d147464130dea970b3a0b20d257b4b43acd272663deccecf4f819d39e3f19b",
        size=5_365_176,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "HoloLens": {"rel_median": 0.048, "within_5%": 0.51},
            "HoloLens, guided": {"rel_median": 0.037, "within_5%": 0.63},
            "SUN3D": {"rel_median": 0.090, "within_5%": 0.23},
            "SUN3D, guided": {"rel_median": 0.090, "within_5%": 0.21},
        },
        command="python -m benchmarks.mvs_transfer --data DIR dispmvs_tiny",
        training="vizoo fit --config mvs/dispmvs_tiny_world.yaml with views: 4, exact poses, no "
        "vary_sources and --model.lr_schedule cosine, 1,300 steps of two samples of 160x208, 700 "
        "more from a rate of 0.002, 1,400 distinct; from there 2,200 of two samples of 192x256, "
        "from a rate of 0.002, 1,600 others; from there 2,800 more, likewise, 2,400 others; from "
        "there 1,669 of six samples, likewise, 1,300 others, averaged; from there 1,739 of two as "
        "the configuration has them, from 8e-4 falling to zero, 2,566 others, averaged; from there "
        "1,683 and 1,997 with guided: 0.6, each from 4e-4 falling to zero, of the same, averaged; "
        "the mean of these and of 1,700 steps more, from 6e-4 falling to zero, averaged, of 3,400 "
        "others with layouts: [home, room, home, table, street]; weights kept in float16",
    )
}

DEPTH_FUSION = {
    "worlds": WeightsRecord(
        sources=("package:mvs/weights/depth_fusion.safetensors",),
        sha256="00c060f30c39203f5774d78c68cfdf209319d32a41b97cbe326e49babdbdd9ef",
        size=279_088,
        licence="Apache-2.0",
        trained_on="generated worlds with public-domain photographs as textures",
        metrics={
            "HoloLens, with dispmvs_tiny": {"rel_median": 0.037, "within_5%": 0.63},
            "SUN3D, with dispmvs_tiny": {"rel_median": 0.090, "within_5%": 0.21},
        },
        command="python -m benchmarks.mvs_transfer --data DIR dispmvs_tiny",
        training="4,720 steps of four crops of 160x224, mirrored at random, of what vizoo fit "
        "--config mvs/depth_fusion_world.yaml sees of 767 views, from a rate of 3e-3 falling to "
        "zero, averaged; from there 14,490 likewise, of 1,492 others, from 2e-3",
    )
}
