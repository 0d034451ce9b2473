"""Speed of the stereo scene generator: pairs per second at 320x640.

python -m benchmarks.scenes --threads 2
"""

from collections import deque

from torch.utils.data import DataLoader

from benchmarks._machine import arguments, start
from vizoo.common.timing import milliseconds
from vizoo.datasets.stereo.scenes import GeneratedStereo, generate_scenes


def measure(work, scenes: int, device: str) -> str:
    work(2)
    return f"{1e3 * scenes / milliseconds(lambda: work(scenes), device):6.2f} pairs/s"


def main() -> None:
    parser = arguments(__doc__, scenes=40, size=(320, 640), device="cpu")
    options, _ = start(parser)
    size, device = options.size, options.device

    def direct(count: int) -> None:
        generate_scenes(count, *size, seed=0, device=device)

    print(f"one process, {options.threads} threads, {device}: ", end="")
    print(measure(direct, options.scenes, device))
    if device != "cpu":
        return
    workers = options.threads
    loader = DataLoader(GeneratedStereo(options.scenes, *size), batch_size=4, num_workers=workers)
    for _ in loader:  # starts the workers once outside the clock, so that their bank is inherited
        break
    rate = 1e3 * options.scenes / milliseconds(lambda: deque(loader, 0))
    print(f"{workers} loader workers of 1 thread: {rate:6.2f} pairs/s")


if __name__ == "__main__":
    main()
