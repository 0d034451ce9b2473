"""Speed of the stereo scene generator: pairs per second at 320x640.

python -m benchmarks.scenes --threads 2
"""

from collections import deque

from torch.utils.data import DataLoader

from benchmarks._machine import arguments, start
from vizoo.common.timing import milliseconds
from vizoo.datasets.stereo.scenes import GeneratedStereo, generate_scenes


def main() -> None:
    options, _ = start(arguments(__doc__, scenes=40, size=(320, 640), device="cpu"))
    size, device = options.size, options.device

    def direct(count: int) -> None:
        generate_scenes(count, *size, seed=0, device=device)

    direct(2)
    rate = 1e3 * options.scenes / milliseconds(lambda: direct(options.scenes), device)
    print(f"one process, {options.threads} threads, {device}: {rate:6.2f} pairs/s")
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
