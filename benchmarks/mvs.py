"""DispMVS's inference on the CPU against the plain form of the published program.

    python -m benchmarks.mvs [--sizes 256x320 512x640] [--views 3 5] [--threads 2] [--repeat 5]

The plain form extracts features view by view, works off the pairs one after the other, looks up
costs with one `grid_sample` for each offset, convolves the context anew in each iteration and
upsamples every iteration in full. Compared are the network as it is (`ours`) and as
`vision.inference.optimize` makes it (`optimised`). All take turns on the same views, so that a busy
machine disturbs all alike: median milliseconds, the median over the turns of how many times as fast
each is, the largest relative difference of depth, and the memory that inference takes at its peak
beyond what the process held before (Linux only). With `--threads 1` times are CPU times of the
process, which other work on the machine disturbs less. The second table does the same for one
lookup, with several settings of its memory.
"""

from __future__ import annotations

from functools import partial
from statistics import median

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._machine import (
    apart,
    arguments,
    gemm_rate,
    in_turns,
    measured,
    settled,
    start,
    table,
    times_as_fast,
)
from vizoo.common.memory import PeakMemory
from vizoo.mvs._dispmvs_geometry import (
    depth_to_flow,
    epipolar_lines,
    flow_to_inverse_depth,
    normalize_inverse_depth,
)
from vizoo.mvs.dispmvs import DispMVS, fuse, source_pyramid
from vizoo.vision.hub.create import create_model
from vizoo.vision.inference import optimize
from vizoo.vision.inputs import example_inputs
from vizoo.vision.layers import convex_upsample
from vizoo.vision.ops import epipolar_correlation


def plain_lookup(
    reference: Tensor,
    pyramid: list[Tensor],
    base: Tensor,
    direction: Tensor,
    flow: Tensor,
    radius: int,
) -> Tensor:
    """Costs of one pair: one `grid_sample`, product and mean for each offset and level."""
    planes = []
    for level, features in enumerate(pyramid):
        height, width = features.shape[-2:]
        for offset in range(-radius, radius + 1):
            place = (base + (flow + offset)[:, None] * direction) / 2**level
            x = 2 * place[:, 0] / max(width - 1, 1) - 1
            y = 2 * place[:, 1] / max(height - 1, 1) - 1
            sampled = F.grid_sample(features, torch.stack((x, y), -1), align_corners=True)
            planes.append((reference * sampled).mean(1))
    return torch.stack(planes, 1)


class PlainDispMVS(DispMVS):
    """The same network and weights, wired as published."""

    def _features(self, images: Tensor) -> list[Tensor]:
        views = [self.fnet(view) for view in images.unbind(1)]
        return [torch.stack(maps, 1) for maps in zip(*views, strict=True)]

    def _refine(self, scale, features, context, cameras, depth, every):
        intrinsics, extrinsics, depth_range = cameras
        coarse = scale == 16
        block = self.update_block_4 if coarse else self.update_block_2
        iterations = (self.coarse_iterations if coarse else self.fine_iterations).value
        radius = (self.coarse_radius if coarse else self.fine_radius).value
        lines = epipolar_lines(intrinsics, extrinsics, depth, scale)
        reference, pairs = features[:, 0], features.shape[1] - 1
        pyramids = []
        for pair in range(pairs):
            pyramid = [features[:, pair + 1]]
            for _ in range(3 if coarse else 1):
                pyramid.append(F.avg_pool2d(pyramid[-1], 2))
            pyramids.append(pyramid)
        hidden, context = context.chunk(2, 1)
        hidden, context = [hidden.tanh()] * pairs, F.relu(context)
        flow = torch.zeros_like(lines.base[:, :, 0])
        found: list[Tensor] = []
        for _ in range(iterations):
            logits, moved, masks = [], [], []
            for pair in range(pairs):
                line = lines.base[:, pair], lines.direction[:, pair], flow[:, pair]
                cost = plain_lookup(reference, pyramids[pair], *line, radius)
                hidden[pair], change, mask = plain_update(
                    block, hidden[pair], context, cost, flow[:, pair : pair + 1]
                )
                moved.append(flow[:, pair] + change[:, 0])
                logits.append(change[:, 1])
                masks.append(mask)
            inverse = flow_to_inverse_depth(lines, torch.stack(moved, 1))
            rho = normalize_inverse_depth(inverse, depth_range).unbind(1)
            maps = [
                convex_upsample(torch.stack(pair, 1), mask)
                for *pair, mask in zip(rho, logits, masks, strict=True)
            ]
            found.append(fuse(torch.stack(maps, 1), depth_range))
            flow = depth_to_flow(lines, found[-1][:, :, ::4, ::4])
        return found


def plain_update(
    block: nn.Module, hidden: Tensor, context: Tensor, cost: Tensor, flow: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One pair's update with whole convolutions of context and motion."""
    x = torch.cat((context, block.encoder(cost, flow)), 1)
    for index in (1, 2):
        convz, convr, convq = (getattr(block.gru, f"conv{gate}{index}") for gate in "zrq")
        both = torch.cat((hidden, x), 1)
        z, r = convz(both).sigmoid(), convr(both).sigmoid()
        candidate = convq(torch.cat((r * hidden, x), 1)).tanh()
        hidden = (1 - z) * hidden + z * candidate
    return hidden, block.flow_head(hidden), 0.25 * block.mask(hidden)


def forms() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    ours = settled(create_model("dispmvs"))
    plain = PlainDispMVS()
    plain.load_state_dict(ours.state_dict())
    return {"plain": plain.eval(), "ours": ours, "optimised": optimize(ours)}


def views(net: nn.Module, height: int, width: int, count: int) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    net.example_views = count
    return example_inputs(net, height, width)


@torch.inference_mode()
def peak(form: str, size: tuple[int, int], count: int) -> float:
    """Megabytes beyond what the process holds once the network has run on small views."""
    networks = forms()
    net = networks[form]
    net(*views(networks["ours"], 128, 128, 2))
    inputs = views(networks["ours"], *size, count)
    memory = PeakMemory(torch.device("cpu"))
    with memory:
        net(*inputs)
    return memory.bytes / 2**20


def lookups(size: tuple[int, int], repeat: int) -> Table:
    """Times of one lookup of one pair at both stages."""
    rows = []
    for stage, scale, channels, levels, radius in (("1/16", 16, 128, 4, 4), ("1/4", 4, 96, 2, 2)):
        height, width = size[0] // scale, size[1] // scale
        layout = torch.channels_last
        reference = torch.rand(1, channels, height, width).contiguous(memory_format=layout)
        pyramid = source_pyramid(torch.rand(1, 1, channels, height, width), levels)
        plain = [level[:, 0].contiguous() for level in pyramid]
        x = torch.arange(width).expand(height, -1)
        y = torch.arange(height)[:, None].expand(-1, width)
        base = (torch.stack((x, y))[None, None] + 0.3).float()
        angle = torch.rand(1, 1, height, width)
        direction, flow = torch.stack((angle.cos(), angle.sin()), 2), torch.rand_like(angle)
        lines = base, direction, flow
        calls = {
            "plain": lambda *a: plain_lookup(*a[:2], *(t[:, 0] for t in a[2:5]), a[5]),
            "16 MB": epipolar_correlation,
            "1 MB": lambda *a: epipolar_correlation(*a, memory=1 << 20),
        }
        inputs = dict.fromkeys(calls, (reference, pyramid, *lines, radius))
        inputs["plain"] = reference.contiguous(), plain, *lines, radius
        runs = {name: partial(call, *inputs[name]) for name, call in calls.items()}
        with torch.inference_mode():
            times = in_turns(runs, repeat)
        row = [f"{1e3 * median(times['plain']):.1f}"]
        for name in ("16 MB", "1 MB"):
            faster = times_as_fast(times["plain"], times[name])
            row += [f"{1e3 * median(times[name]):.1f}", f"{faster:.2f}"]
        rows.append([stage, *row])
    title = f"One lookup of one pair, images of {size[0]}x{size[1]}: median ms, times"
    return table(["stage", "plain", "16 MB", "times", "1 MB", "times"], rows, title)


def main() -> None:
    parser = arguments(__doc__, repeat=5)
    parser.add_argument("--sizes", nargs="*", default=["256x320", "512x640"], metavar="HxW")
    parser.add_argument("--views", nargs="*", type=int, default=[3, 5])
    parser.add_argument("--no-memory", action="store_true", help="leave out the peak memory")
    options, console = start(parser)
    console.print(f"{gemm_rate() / 1e9:.0f} GMAC/s in float32")
    columns = ["size", "views", "plain", "MB", "ours", "times", "MB", "optimised", "times", "MB"]
    networks, rows = forms(), []
    sizes = [tuple(map(int, text.split("x"))) for text in options.sizes]
    for size in sizes:
        for count in options.views:
            results = measured(networks, views(networks["ours"], *size, count), options.repeat)
            row, wanted = [], results["plain"][1]
            for form in networks:
                times = results[form][0]
                row.append(f"{1e3 * median(times):.0f}")
                if form != "plain":
                    row.append(f"{times_as_fast(results['plain'][0], times):.2f}")
                memory = not options.no_memory
                row.append(f"{apart(peak, form, size, count):.0f}" if memory else "-")
            difference = max(
                ((depth - wanted).abs() / wanted).max().item() for _, depth in results.values()
            )
            rows.append(["x".join(map(str, size)), str(count), *row, f"{difference:.0e}"])
    title = "DispMVS, batch 1, 8 + 2 iterations: median ms, times as fast, peak MB"
    console.print(table([*columns, "difference"], rows, title))
    for size in sizes:
        console.print(lookups(size, options.repeat))


if __name__ == "__main__":
    main()
