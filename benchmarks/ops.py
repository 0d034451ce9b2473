"""Cost-volume operators against the published loop over displacements, on this machine's CPU.

`vizoo bench ops --device cuda` measures their kernels on a GPU.

    python -m benchmarks.ops [--threads 1] [--repeat 9] [--only NAME …]

Per shape and number type: milliseconds for the forward pass and for forward and backward, process
CPU time and wall time, each the median of ``--repeat`` calls that the two take in turns, so that
other work on the machine disturbs both alike; and the memory that forward and backward take at
their peak beyond what was held before (Linux only), outputs and gradients included.
"""

import time
from collections.abc import Callable
from itertools import product
from statistics import median

import torch
from torch import Tensor

from benchmarks._machine import apart, arguments, in_turns, start
from vizoo.common.memory import PeakMemory
from vizoo.vision.ops import concat_volume, correlation, correlation_2d, group_wise_correlation


def correlation_loop(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """As FADNet, FADNet++, GwcNet and EASNet build it: one slice written per displacement."""
    out = left.new_zeros(left.shape[0], displacements, *left.shape[2:])
    for d in range(displacements):
        if d:
            out[:, d, :, d:] = (left[..., d:] * right[..., :-d]).mean(dim=1)
        else:
            out[:, d] = (left * right).mean(dim=1)
    return out.contiguous()


def group_wise_loop(left: Tensor, right: Tensor, displacements: int, groups: int) -> Tensor:
    """The same, in groups (GwcNet)."""
    out = left.new_zeros(left.shape[0], groups, displacements, *left.shape[2:])
    for d in range(displacements):
        product = left[..., d:] * right[..., : right.shape[3] - d]
        out[:, :, d, :, d:] = product.unflatten(1, (groups, -1)).mean(dim=2)
    return out.contiguous()


def square_loop(left: Tensor, right: Tensor, radius: int) -> Tensor:
    """A padded right view, one product per place of the window, stacked (PWC-Net ports)."""
    height, width = left.shape[2:]
    right = torch.nn.functional.pad(right, (radius,) * 4)
    places = product(range(2 * radius + 1), repeat=2)
    slices = (right[..., y : y + height, x : x + width] for y, x in places)
    return torch.stack([(left * part).mean(dim=1) for part in slices], dim=1)


def concat_loop(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """As PSMNet builds it."""
    channels = left.shape[1]
    out = left.new_zeros(left.shape[0], 2 * channels, displacements, *left.shape[2:])
    for d in range(displacements):
        out[:, :channels, d, :, d:] = left[..., d:]
        out[:, channels:, d, :, d:] = right[..., : right.shape[3] - d]
    return out.contiguous()


PAIRS = {
    "correlation": (correlation_loop, correlation),
    "group_wise": (group_wise_loop, group_wise_correlation),
    "correlation_2d": (square_loop, correlation_2d),
    "concat": (concat_loop, concat_volume),
}
# Name, (B, C, H, W), further arguments, type.
CASES = [
    ("correlation", (1, 256, 72, 120), (24,), torch.float32),
    ("correlation", (1, 128, 40, 156), (40,), torch.float32),
    ("correlation", (1, 32, 64, 128), (40,), torch.float32),
    ("correlation", (1, 64, 135, 240), (48,), torch.float32),
    ("correlation", (4, 16, 40, 80), (40,), torch.float32),  # fadnet_plus_tiny, 320x640
    ("correlation", (1, 16, 48, 160), (40,), torch.float32),  # fadnet_plus_tiny, 384x1280
    ("correlation", (1, 128, 40, 156), (40,), torch.bfloat16),
    ("correlation", (4, 16, 40, 80), (40,), torch.bfloat16),
    ("group_wise", (1, 320, 32, 64), (24, 40), torch.float32),
    ("group_wise", (1, 128, 40, 80), (24, 8), torch.float32),
    ("correlation_2d", (1, 32, 96, 112), (4,), torch.float32),
    ("correlation_2d", (1, 128, 24, 28), (4,), torch.float32),
    ("concat", (1, 32, 32, 64), (24,), torch.float32),
]


def both_times(function: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of process CPU time and of wall time."""
    cpu, wall = time.process_time(), time.perf_counter()
    function()
    return 1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)


def calls(name: str, shape: tuple, arguments: tuple, dtype) -> list[tuple[Callable, Callable]]:
    """For the published form and ours a forward pass, and a forward and backward pass."""
    torch.manual_seed(0)
    plain = tuple(torch.randn(shape).to(dtype) for _ in range(2))
    left, right = (x.clone().requires_grad_() for x in plain)

    def train(function):
        out = function(left, right, *arguments)
        return torch.autograd.grad(out, (left, right), out)

    return [(lambda f=f: f(*plain, *arguments), lambda f=f: train(f)) for f in PAIRS[name]]


def measure_times(case: tuple, repeat: int) -> list[tuple[float, ...]]:
    """For the published form and ours CPU and wall time forward, the same forward and backward."""
    forms = calls(*case)
    rows: list[tuple[float, ...]] = [() for _ in forms]
    for functions in zip(*forms, strict=True):
        for which, times in in_turns(dict(enumerate(functions)), repeat, both_times).items():
            rows[which] += tuple(map(median, zip(*times, strict=True)))
    return rows


def measure_peak(case: tuple, which: int) -> float:
    """Peak megabytes of one form."""
    torch.set_num_threads(1)
    name, shape, arguments, _ = case
    small = torch.zeros(1, shape[1], 2, shape[3], requires_grad=True)
    PAIRS[name][which](small, small, *arguments).sum().backward()  # loads the libraries
    train = calls(*case)[which][1]
    with PeakMemory(torch.device("cpu")) as memory:
        train()
    return memory.bytes / 2**20


def main() -> None:
    parser = arguments(__doc__, threads=1, repeat=9)
    parser.add_argument("--only", nargs="*", choices=PAIRS, help="names of operators")
    options, _ = start(parser)
    print(f"median of {options.repeat}")
    columns = ("fwd cpu", "fwd wall", "f+b cpu", "f+b wall", "peak MB")
    head = f"{'operator':15}{'B x C x H x W':>17} {'args':>8} {'type':>9} {'':>9}"
    print(head + "".join(f"{c:>10}" for c in columns))
    for case in CASES:
        name, shape, more, dtype = case
        if options.only and name not in options.only:
            continue
        times = apart(measure_times, case, options.repeat)
        rows = [(*times[which], apart(measure_peak, case, which)) for which in range(2)]
        size = "x".join(map(str, shape))
        label = f"{name:15}{size:>17} {','.join(map(str, more)):>8} {str(dtype)[6:]:>9} "
        for kind, row in zip(("published", "ours"), rows, strict=True):
            print(f"{label}{kind:>9}" + "".join(f"{x:10.2f}" for x in row))
        ratios = (a / b if b else float("nan") for a, b in zip(*rows, strict=True))
        print(f"{label}{'ratio':>9}" + "".join(f"{x:9.1f}x" for x in ratios), flush=True)


if __name__ == "__main__":
    main()
