"""Speed of the stereo scene generator: pairs per second at 320x640.

python benchmarks/scenes.py --threads 2
"""

import argparse
import time

import torch
from torch.utils.data import DataLoader

from vizoo.datasets.stereo.scenes import GeneratedStereo, generate_scenes


def measure(work, scenes: int, device: str) -> str:
    work(2)
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work(scenes)
    if device != "cpu":
        torch.cuda.synchronize()
    return f"{scenes / (time.perf_counter() - start):6.2f} pairs/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scenes", type=int, default=40)
    parser.add_argument("--size", type=int, nargs=2, default=(320, 640))
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    size, device = arguments.size, arguments.device

    def direct(count: int) -> None:
        generate_scenes(count, *size, seed=0, device=device)

    print(f"one process, {arguments.threads} threads, {device}: ", end="")
    print(measure(direct, arguments.scenes, device))
    if device != "cpu":
        return
    workers = arguments.threads
    loader = DataLoader(GeneratedStereo(arguments.scenes, *size), batch_size=4, num_workers=workers)
    for _ in loader:  # starts the workers once outside the clock, so that their bank is inherited
        break
    start = time.perf_counter()
    for _ in loader:
        pass
    rate = arguments.scenes / (time.perf_counter() - start)
    print(f"{workers} loader workers of 1 thread: {rate:6.2f} pairs/s")


if __name__ == "__main__":
    main()
