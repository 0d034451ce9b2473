"""Conversion of architectures that timm and torchvision publish; weights are random."""

from __future__ import annotations

import itertools
import math
import random
import warnings

import pytest
import timm
import torch
import torchvision
from torch.utils._pytree import tree_leaves
from torchvision.models.detection.backbone_utils import mobilenet_backbone, resnet_fpn_backbone

from vizoo import nas

# Where a network takes one size of images alone, its side.
CHEAP = """
resnet18 mobilenetv3_small_050 convnext_atto vit_tiny_patch16_224 efficientvit_b0
tv/shufflenet_v2_x0_5 tv/squeezenet1_1
""".split()

SLOW = """
lcnet_035 ghostnet_050 regnetx_002 resnet50 resnet26d resnext26ts seresnext26d_32x4d resnest14d
wide_resnet50_2 ecaresnet26t skresnet18 res2net50_26w_4s resnetv2_50 nfnet_f0
nf_resnet50 dla34 hrnet_w18_small selecsls42b regnety_002
vovnet39a cspresnet50 cspdarknet53 darknet53 repvgg_a0 densenet121 inception_v3:128 xception41
mobilenetv2_050 mobilenetv3_large_100 mobilenetv4_conv_small mnasnet_small efficientnet_b0
efficientnet_lite0 tf_efficientnet_b0 tinynet_e fbnetc_100 hardcorenas_a mixnet_s rexnet_100
ghostnetv2_100 mobileone_s0 fastvit_t8 repghostnet_050 starnet_s1 convnextv2_atto convmixer_768_32
edgenext_xx_small efficientformer_l1:224 poolformer_s12 mobilevit_xxs inception_next_atto
deit_tiny_patch16_224 deit3_small_patch16_224 beit_base_patch16_224 cait_xxs24_224 levit_128s:224
swin_tiny_patch4_window7_224:224 swinv2_tiny_window8_256:256 pvt_v2_b0 twins_pcpvt_small:224
xcit_nano_12_p16_224 mixer_s32_224 gmixer_24_224 resmlp_12_224 coatnet_nano_rw_224:224
volo_d1_224:224
visformer_tiny:224 tv/vgg11_bn tv/alexnet tv/googlenet tv/mnasnet0_5 tv/vit_b_16:224 tv/swin_t
tv/maxvit_t:224 tv/mobilenet_v3_small tv/regnet_x_400mf tv/convnext_tiny seg/fcn_resnet50
seg/deeplabv3_mobilenet_v3_large seg/lraspp_mobilenet_v3_large det/resnet18 det/mobilenet_v3_large
video/r3d_18
""".split()


def build(name: str, side: int) -> torch.nn.Module:
    """A network of the list, untrained."""
    torch.manual_seed(0)
    source, _, bare = name.rpartition("/")
    if source == "det":
        if bare.startswith("resnet"):
            return resnet_fpn_backbone(backbone_name=bare, weights=None)
        return mobilenet_backbone(backbone_name=bare, weights=None, fpn=True)
    if source in ("tv", "seg", "video"):
        more = {"weights_backbone": None} if source == "seg" else {}
        more |= {"init_weights": False} if bare in ("googlenet",) else {}
        return torchvision.models.get_model(bare, weights=None, **more)
    try:
        return timm.create_model(name, img_size=side)
    except TypeError:  # takes any
        return timm.create_model(name)


def same(one: object, other: object) -> bool:
    return all(
        itertools.starmap(torch.equal, zip(tree_leaves(one), tree_leaves(other), strict=True))
    )


def parameters() -> list:
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in SLOW]
    return [*CHEAP, *slow]


def opened(published: str) -> tuple:
    """The network of an entry of the list, and a picture (or video) for it."""
    name, _, side = published.partition(":")
    size = int(side or 64)
    shape = (1, 3, 4, 32, 32) if name.startswith("video") else (1, 3, size, size)
    return build(name, size).eval(), torch.rand(shape)


def convert(published: str) -> tuple:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, image = opened(published)
        return net, image, nas.convert(net, image)


@pytest.mark.parametrize("published", parameters())
@torch.no_grad()
def test_published(published):
    net, image, made = convert(published)
    assert same(made.net(image), net(image))
    rng = random.Random(0)
    drawn = [made.space.smallest(), *(made.space.sample(rng) for _ in range(5))]
    for architecture in drawn:
        nas.activate(made.net, architecture)
        small = nas.extract(made.net, architecture)
        assert same(made.net(image), small(image))


@pytest.mark.slow
@pytest.mark.parametrize("published", [*CHEAP, *SLOW])
@torch.no_grad()
def test_a_subnet_is_exported(published, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    _, image, made = convert(published)
    small = nas.extract(made.net, made.space.sample(random.Random(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(small, (image,), tmp_path / "small.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    for one, wanted in zip(found, tree_leaves(small(image)), strict=True):
        span = float(wanted.abs().max())  # random weights make it 0.001 to 1e9
        assert math.isfinite(span)
        torch.testing.assert_close(torch.from_numpy(one), wanted, rtol=1e-4, atol=1e-5 * span)
