"""Arguments that are held to annotations."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch

import vizoo
from vizoo.common.arguments import checked


@checked("path", "word", "tell", "size", count=1)
def draw(
    path: str,
    word: Literal["all", "none"] = "all",
    tell: Callable[[int], None] | None = None,
    count: int | None = None,
    size: tuple[int, int] = (1, 2),
    other: int = 0,
) -> tuple:
    """Give all of it back."""
    return path, word, tell, count, other


def test_what_fits_is_passed_on():
    assert draw("a") == ("a", "all", None, None, 0)
    assert draw("a", "none", print, count=1, size=[3, 4], other="unchecked")[2:] == (
        print,
        1,
        "unchecked",
    )
    assert draw.__doc__ == "Give all of it back."


@pytest.mark.parametrize(
    ("args", "given", "says"),
    [
        ((None,), {}, "draw: path must be of type str, not None"),
        (("a", "some"), {}, r"draw: word must be of type Literal\['all', 'none'\], not 'some'"),
        (("a",), {"tell": "print"}, "draw: tell must be of type .*Callable.*, not 'print'"),
        (("a",), {"count": True}, r"draw: count must be of type int \| None, not True"),
        (("a",), {"size": [3]}, r"draw: size must be of type tuple\[int, int\], not \[3\]"),
        (("a",), {"count": 0}, "draw: count must be at least 1, not 0"),
    ],
)
def test_what_does_not_fit_is_refused(args, given, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        draw(*args, **given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        draw("a", foo=1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda net: vizoo.benchmark("easnet_small", 64, 96), "benchmark: net must be of type nn"),
        (lambda net: vizoo.benchmark(net, "64", 96), "benchmark: height must be of type int"),
        (lambda net: vizoo.export(net, "x.onnx", to="onnx", size="64x96"), "export: size must be"),
        (lambda net: vizoo.export(net, "x.onnx", to=None), "export: to must be of type str"),
        (lambda net: vizoo.push_to_hub(net, None), "push_to_hub: repository must be of type str"),
        (lambda net: vizoo.create_model("easnet_small", weights=3), "create_model: weights must"),
        (lambda net: vizoo.from_pretrained(None), "from_pretrained: source must be of type str"),
        (lambda net: vizoo.save_weights(net, None), "save_weights: path must be of type str"),
        (lambda net: vizoo.load_weights(3), "load_weights: path must be of type str"),
        (lambda net: vizoo.list_models(3), "list_models: pattern must be of type str"),
        (lambda net: vizoo.StereoPredictor(3), "load_network: model must be of type str"),
        (lambda net: vizoo.ImagePredictor(None), "ImagePredictor: model must be of type str"),
        (lambda net: vizoo.reconstruct(None, None, "out"), "reconstruct: predictor must be of"),
    ],
)
def test_public_functions_refuse_other_types(call, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        call(torch.nn.Identity())
