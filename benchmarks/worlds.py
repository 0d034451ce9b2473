"""How fast generated worlds are made on one core.

    python -m benchmarks.worlds [--stock DIR] [--count 8]

DIR has textures/, meshes/ and panoramas/; without it worlds are of what is drawn. The first sample
of each is not counted: it reads the stock. Seconds are those of the core, so that other programs
count little. The floor is what casting the primary rays of all pixels
alone takes.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks._machine import arguments, start, table
from vizoo.datasets.draws import Draws
from vizoo.datasets.worlds.cameras import Pinhole, frame
from vizoo.datasets.worlds.layouts import LAYOUTS, build_place
from vizoo.datasets.worlds.panorama import WorldPanoramas
from vizoo.datasets.worlds.stereo import WorldStereo
from vizoo.datasets.worlds.stock import stock
from vizoo.datasets.worlds.views import WorldViews


def floor(folders: dict[str, str]) -> float:
    """Primary rays a second, mean over the layouts."""
    rates = []
    for layout in LAYOUTS:
        place = build_place(layout, Draws("floor"), stock(**folders), 0)
        camera = Pinhole.centred(place.eye, frame(place.gaze), 320, 640, 500.0)
        y, x = torch.meshgrid(torch.arange(320.0), torch.arange(640.0), indexing="ij")
        origin = torch.from_numpy(place.eye).float()[:, None]
        rays = camera.rays(x.flatten(), y.flatten())
        place.world.cast(origin, rays)
        start = time.process_time()
        for _ in range(5):
            place.world.cast(origin, rays)
        rates.append(5 * rays.shape[1] / (time.process_time() - start))
    return sum(rates) / len(rates)


def main() -> None:
    parser = arguments(__doc__, threads=1, count=8)
    parser.add_argument("--stock", type=Path)
    options, console = start(parser, width=100)
    folders = {}
    if options.stock is not None:
        folders = {name: str(options.stock / name) for name in ("textures", "meshes", "panoramas")}
    length = options.count + 1
    title = f"worlds; {floor(folders) / 1e6:.1f} million primary rays a second"
    shown = table(["picture", "layout", "a second of the core"], title=title, left=2)
    for layout in LAYOUTS:
        common = {"seed": 8, "layouts": (layout,), **folders}
        sets = {
            "pairs of 320x640": (WorldStereo(length, 320, 640, **common), 1),
            "views of 512x640": (WorldViews(length, 512, 640, **common), 5),
            "panoramas of 512x1024": (WorldPanoramas(length, 512, **common), 1),
        }
        for name, (worlds, each) in sets.items():
            worlds[0]
            begin = time.process_time()
            for index in range(1, length):
                worlds[index]
            rate = each * options.count / (time.process_time() - begin)
            shown.add_row(name, layout, f"{rate:.2f}")
    console.print(shown)


if __name__ == "__main__":
    main()
