"""Records of the trained stereo weights that come with the package."""

from __future__ import annotations

from functools import partial

from ..vision.hub.record import WeightsRecord

_record = partial(
    WeightsRecord,
    licence="Apache-2.0",
    trained_on="generated worlds with public-domain photographs as textures, layered scenes",
    command="python -m benchmarks.stereo_transfer",
)

DISPARITY_FUSION = {
    "worlds": _record(
        sources=("package:stereo/weights/disparity_fusion.safetensors",),
        sha256="61a19e75f605d013ae2a96bb86ccd712d9c8a7da93616b83e2cb2b6b1f31bd22",
        size=418_640,
        metrics={
            "playground, with easnet_scaled": {"epe": 0.33, "bad1": 0.028, "bad2": 0.010},
            "cones, with easnet_scaled": {"epe": 0.78, "bad1": 0.108, "bad2": 0.078},
            "ETH3D, with easnet_scaled": {"epe": 0.50, "bad1": 0.082, "bad2": 0.025},
            "Middlebury, with easnet_scaled": {"epe": 1.12, "bad1": 0.129, "bad2": 0.088},
            "larger, with easnet_scaled": {"epe": 1.12, "bad1": 0.095, "bad2": 0.046},
            "KITTI, with easnet_scaled": {"epe": 1.80, "d1": 0.118},
        },
        command="python -m benchmarks.stereo_transfer --data DIR easnet_scaled",
        training="5,750 steps of vizoo fit --config stereo/disparity_fusion_world.yaml at one "
        "size; then 4,500, of which two thirds go from coarse to fine; then the mean of 5,250 as "
        "the configuration has them and of 2,800 in another order; rates of 3e-3 at first, then "
        "of at most 1.5e-3, that fall to zero (the last: to a tenth); then 1,500 of its odds "
        "alone; then 8,900 of all, 3,000 worlds and as many layered scenes, from 1e-3, averaged",
    )
}

EASNET_LIGHT = {
    "generated": _record(
        sources=("package:stereo/weights/easnet_light.safetensors",),
        sha256="802d0f9c3fdc4601f423d7f5f67b8c681734fa71e1a4d3c333469e2c45803386",
        size=2_475_256,
        trained_on="generated scenes alone",
        metrics={
            "playground": {"epe": 0.627, "bad1": 0.138, "bad2": 0.049},
            "cones": {"epe": 1.501, "bad1": 0.391, "bad2": 0.188},
        },
        training="vizoo fit --config search/easnet_light_generated.yaml, then the batch norms of "
        "the largest subnet recalibrated on 64 of its training scenes",
        input={"max_disparity": 96},
        reach=56,
        architecture={"max_disparity": 96},
    )
}

EASNET_SCALED = {
    "worlds": _record(
        sources=("package:stereo/weights/easnet_scaled.safetensors",),
        sha256="5ef451c5ad5faa377d2c77121575b5ec908a2d8a6e81f56c156b796d71f959d8",
        size=2_705_844,
        metrics={
            "playground": {"epe": 0.41, "bad1": 0.060, "bad2": 0.022},
            "cones": {"epe": 0.98, "bad1": 0.162, "bad2": 0.093},
            "ETH3D": {"epe": 1.36, "bad1": 0.167, "bad2": 0.092},
            "Middlebury": {"epe": 1.47, "bad1": 0.207, "bad2": 0.134},
            "larger": {"epe": 1.86, "bad1": 0.194, "bad2": 0.118},
            "KITTI": {"epe": 2.27, "d1": 0.145},
        },
        training="easnet_small.worlds by scripts/scaled_weights.py, then 770, 1,000 and 1,500 "
        "steps of vizoo fit --config search/easnet_scaled_world.yaml, each from what came out "
        "before, the last two at a rate of 8e-4 that falls to zero, on the first 1,200 worlds and "
        "at last on 2,000; the mean of that and what 1,712 steps more gave, in float32 on a GPU, "
        "of twelve crops of 216x504 of 7,500 other worlds, half of them without a camera's faults, "
        "and 4,700 layered scenes, at a rate of 1.2e-3 that falls to zero; four tenths of that "
        "mean and six of what 4,000 steps more of the configuration gave, 2,000 at a rate of "
        "5e-4 and 2,000 at 8e-4 that fall to zero, each on 1,200 worlds of their own",
        input={"max_disparity": 192},
        reach=80,
    ),
    "two_thirds": _record(
        sources=("package:stereo/weights/easnet_scaled_two_thirds.safetensors",),
        sha256="2c7b56f737bd547ae4fc39c0a72a75663bd1830111781629db8776aa041f9409",
        size=1_338_964,
        metrics={
            "playground": {"epe": 0.53, "bad1": 0.109, "bad2": 0.037},
            "cones": {"epe": 1.16, "bad1": 0.232, "bad2": 0.126},
            "ETH3D": {"epe": 0.93, "bad1": 0.173, "bad2": 0.080},
            "Middlebury": {"epe": 1.73, "bad1": 0.281, "bad2": 0.168},
            "larger": {"epe": 2.22, "bad1": 0.262, "bad2": 0.153},
            "KITTI": {"epe": 2.45, "d1": 0.171},
        },
        training="easnet_scaled.worlds, the subnet that matches at 2/3 of the size and is largest "
        "else, convolutions in float16",
        input={"max_disparity": 192},
        reach=112,
        subnet={
            "version": 1,
            "choices": {
                "stages.1.depth": 2,
                "stages.2.depth": 2,
                "candidates": "all",
                "aggregation.depth": 3,
                "refinement.blocks": 6,
                "size": "2/3",
            },
        },
    ),
}

EASNET_SMALL = {
    "generated": _record(
        sources=("package:stereo/weights/easnet_small.safetensors",),
        sha256="51df4877d3e440f3ff787bbbb99bce3f3ea8e34a1ee7114087e3e5f9820cf3fe",
        size=1_370_340,
        trained_on="generated scenes alone",
        metrics={
            "playground": {"epe": 0.495, "bad1": 0.068, "bad2": 0.028},
            "cones": {"epe": 1.081, "bad1": 0.188, "bad2": 0.109},
            "ETH3D": {"epe": 0.65, "bad1": 0.146, "bad2": 0.066},
            "Middlebury": {"epe": 1.7, "bad1": 0.229, "bad2": 0.153},
            "larger": {"epe": 14.71, "bad1": 0.394, "bad2": 0.325},
            "KITTI": {"epe": 3.92, "d1": 0.199},
        },
        training="vizoo fit --config search/easnet_generated.yaml, its core by vizoo subnet "
        "--architecture --recalibrate, then vizoo fit --config stereo/easnet_small_generated.yaml "
        "--model.init_weights in the parts that this config names",
        input={"max_disparity": 96},
        reach=72,
        architecture={"max_disparity": 96},
    ),
    "worlds": _record(
        sources=("package:stereo/weights/easnet_small_worlds.safetensors",),
        sha256="d109dd0d4132416b680d74fd98ab1cbfdff4646dac26a270e6b12abeee840e72",
        size=1_352_180,
        metrics={
            "playground": {"epe": 0.432, "bad1": 0.068, "bad2": 0.024},
            "cones": {"epe": 1.034, "bad1": 0.183, "bad2": 0.104},
            "ETH3D": {"epe": 1.35, "bad1": 0.171, "bad2": 0.097},
            "Middlebury": {"epe": 1.62, "bad1": 0.233, "bad2": 0.147},
            "larger": {"epe": 2.0, "bad1": 0.218, "bad2": 0.131},
            "KITTI": {"epe": 2.29, "d1": 0.16},
        },
        training="easnet_small.generated by scripts/double_range.py, 1,000 steps by vizoo fit "
        "--config benchmarks/trainings/stereo.yaml --config benchmarks/trainings/range.yaml, 1,750 "
        "by vizoo fit --config stereo/easnet_small_world.yaml --model.lr_schedule cosine, all on "
        "the first 1,600 worlds",
        input={"max_disparity": 192},
        reach=96,
        architecture={"max_disparity": 192},
    ),
}

FADNET_PLUS_TINY = {
    "worlds": _record(
        sources=("package:stereo/weights/fadnet_plus_tiny_worlds.safetensors",),
        sha256="da03ef304c521c1a621de25cec8a25a3769e70bbd5d291422d1c6c4f91012aa1",
        size=3_365_800,
        metrics={
            "playground": {"epe": 0.89, "bad1": 0.258, "bad2": 0.110},
            "cones": {"epe": 1.84, "bad1": 0.426, "bad2": 0.251},
            "ETH3D": {"epe": 1.13, "bad1": 0.274, "bad2": 0.150},
            "Middlebury": {"epe": 2.39, "bad1": 0.425, "bad2": 0.268},
            "larger": {"epe": 3.37, "bad1": 0.494, "bad2": 0.310},
            "KITTI": {"epe": 2.85, "d1": 0.224},
        },
        command="python -m benchmarks.stereo_transfer --data DIR fadnet_plus_tiny.worlds",
        training="fadnet_plus_tiny.generated, 10,800 steps on worlds by the loss `pooled`, the "
        "second stage and the first one's layers at 1/32 and 1/64 drawn anew, 4,000 more, 8,400 of "
        "vizoo fit --config stereo/fadnet_tiny_world.yaml without log_weight, then 3,689 in "
        "batches of 16 crops of 256x512 on fresh worlds; from the mean of what came out and 3,200 "
        "more in batches of 8, with log_weight and rates that fall to zero, 2,553 in batches of "
        "16 on other fresh worlds, 5,492 in batches of 8, and from their averaged weights 5,893 "
        "and 8,671 in batches of 8",
        input={"max_disparity": 192},
        reach=112,
    ),
    "generated": _record(
        sources=("package:stereo/weights/fadnet_plus_tiny.safetensors",),
        sha256="59a33be1c17950d1b9fa4384de861b9e77e494e25c0f0688a6026e9ec7cc8d3b",
        size=3_365_704,
        trained_on="generated scenes alone",
        metrics={
            "playground": {"epe": 2.981, "bad1": 0.700, "bad2": 0.489},
            "cones": {"epe": 2.843, "bad1": 0.664, "bad2": 0.456},
        },
        training="vizoo fit --config stereo/fadnet_tiny_generated.yaml",
        input={"max_disparity": 96},
        reach=24,
    ),
}
