"""What it costs to find a split: local intrinsic dimensions against gradients, on one supernet.

NASBench-201's supernet, one batch, the candidates of one edge on the same path: NAS-LID runs each
forward and keeps one number a layer, gradient matching runs each forward and backward and keeps a
gradient of all shared weights.

    python -m benchmarks.lid                         # small: seconds on a CPU
    python -m benchmarks.lid --channels 16 --cells 5 --size 224 --count        # published size
    python -m benchmarks.lid --channels 16 --cells 1 --size 224 --candidates 2  # a minute on a CPU
    python -m benchmarks.lid --channels 16 --cells 5 --size 224 --device cuda
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from vizoo import create_model
from vizoo.common.counts import count
from vizoo.nas import extract, search_space
from vizoo.nas.lid import Splitter, named_layers
from vizoo.nas.tabular import cell_architecture

from ._machine import arguments, in_turns, seconds, start, table
from .dnas import peak_bytes

PATH = cell_architecture(
    "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_3x3~1|nor_conv_1x1~2|"
)
EDGE = "edges.0_3"


def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def counted_bytes(net: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[int, int, int]:
    """Bytes of activations of the path's network, on the meta device, without weights.

    Returns:
        What is kept for a backward pass; what a forward pass alone holds at its worst moment; the
        largest output of a profiled layer.
    """
    net = extract(net, PATH).to("meta")
    alone = count(net, batch[0]).memory
    own = {id(p) for p in net.parameters()}
    kept: dict[int, Tensor] = {}
    largest = 0

    def pack(tensor: Tensor) -> Tensor:
        if id(tensor) not in own:
            kept[id(tensor.untyped_storage())] = tensor  # held, so that no identity comes twice
        return tensor

    def measure(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal largest
        largest = max(largest, output.numel() * output.element_size())

    hooks = [m.register_forward_hook(measure) for m in named_layers(net, ["cells.*"]).values()]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(net.train(), tuple(tensor.to("meta") for tensor in batch))
    for hook in hooks:
        hook.remove()
    return sum(t.numel() * t.element_size() for t in kept.values()), alone, largest


def measured(
    net: nn.Module, batch: tuple[Tensor, Tensor], k: int, candidates: int, repeat: int
) -> Table:
    values = search_space(net).choices[EDGE].values[-candidates:]
    paths = [PATH.replace({EDGE: value}) for value in values]

    def run(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return net(batch[0])

    gradient = Splitter("gradient")
    lid = Splitter("lid", layers=["cells.*"], k=k, batch_size=len(batch[0]))
    ways: dict[str, Callable[[], object]] = {
        "gradients": lambda: gradient.compare(net, paths, batch, loss=loss),
        "dimensions": lambda: lid.compare(net, paths, batch, forward=run),
    }
    device = batch[0].device
    peaks = {name: peak_bytes(way, str(device)) for name, way in ways.items()}
    times = in_turns(ways, repeat, partial(seconds, device=device), warmup=0)
    s = {name: median(taken) for name, taken in times.items()}
    rows = [
        [
            name,
            f"{s[name]:.2f}",
            f"{peaks[name] / 1e6:.0f}",
            f"{s[name] / s['gradients']:.2f}",
            f"{peaks[name] / peaks['gradients']:.3f}",
        ]
        for name in ways
    ]
    title = f"{EDGE}: {len(paths)} candidates, a batch of {tuple(batch[0].shape)}"
    return table(["criterion", "s", "peak MB", "time", "memory"], rows, title)


def main() -> None:
    parser = arguments(
        __doc__, threads=1, channels=4, cells=2, size=64, batch=32, k=20, repeat=1, device="cpu"
    )
    parser.add_argument("--candidates", type=int, default=5, help="of the edge's five")
    parser.add_argument("--count", action="store_true", help="do not run, only count bytes")
    options, console = start(parser, width=110)
    torch.manual_seed(0)
    net = create_model("nasbench201", channels=options.channels, cells=options.cells)
    shape = (options.batch, 3, options.size, options.size)
    if options.count:
        batch = (torch.rand(shape, device="meta"), torch.zeros(options.batch, dtype=torch.long))
        kept, alone, largest = (number / 1e6 for number in counted_bytes(net, batch))
        console.print(f"NASBench-201's best cell at {shape}, MB of activations")
        console.print(f"  gradients: {kept:.0f} kept for the backward pass")
        console.print(f"  dimensions: {alone:.0f} alive at once in the forward pass alone")
        console.print(f"  (ratio {alone / kept:.3f}; the largest profiled output: {largest:.0f})")
        return
    net.to(options.device)
    batch = (
        torch.rand(shape, device=options.device),
        torch.randint(10, (options.batch,), device=options.device),
    )
    console.print(measured(net, batch, options.k, options.candidates, options.repeat))


if __name__ == "__main__":
    main()
