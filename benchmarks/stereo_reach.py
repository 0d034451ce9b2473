"""Up to which disparity stereo networks work: errors by bands of 8 px on fresh generated scenes.

    python -m benchmarks.stereo_reach [--guided] [MODEL ...] [--limit PX] [--size 256 512]

A pixel counts where the place that it matches lies inside the right image. It is wrong by more than
3 px and 5 % of the truth (D1). A network's reach, as its record states it, is the upper end of the
last band before the first one in which over a third of the pixels are wrong.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks._machine import arguments, start, table
from vizoo.datasets.stereo import GeneratedStereo
from vizoo.stereo.infer import StereoPredictor
from vizoo.vision.hub.registry import list_models

_BAND, _MOST_WRONG = 8, 1 / 3


def main() -> None:
    parser = arguments(__doc__, scenes=90, size=(256, 512))
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--guided", action="store_true", help="networks guided, not alone")
    parser.add_argument("--seed", type=int, default=19, help="none that trained the networks")
    parser.add_argument("--limit", type=int, default=96, help="px, of the scenes (default 96)")
    options, console = start(parser)
    names = options.models or list_models("stereo/*", pretrained=True)
    predictors = [StereoPredictor(name, "cpu", guided=options.guided) for name in names]
    scenes = GeneratedStereo(
        options.scenes, *options.size, seed=options.seed, max_disparity=options.limit, clutter=0.3
    )
    bands = options.limit // _BAND
    pixels, wrong = np.zeros((2, len(names), bands))
    for index in range(len(scenes)):
        scene = scenes[index]
        truth = scene["disparity"][0].numpy()
        seen = scene["valid"][0].numpy() & (np.arange(truth.shape[1]) >= truth)
        band = np.clip(truth[seen] // _BAND, 0, bands - 1).astype(int)
        for row, predictor in enumerate(predictors):
            found = predictor(scene["left"], scene["right"], scale=1, check=False).disparity
            error = np.abs(found - truth)[seen]
            bad = (error > 3) & (error > 0.05 * truth[seen])
            pixels[row] += np.bincount(band, minlength=bands)
            wrong[row] += np.bincount(band, bad, bands)
    shares = wrong / np.maximum(pixels, 1)
    columns = ["true disparity", "pixels", *(Path(name).name for name in names)]
    shown = table(columns, title="share of pixels wrong by more than 3 px and 5 %, in %", left=0)
    for k in range(bands):
        values = (f"{100 * share:.1f}" for share in shares[:, k])
        shown.add_row(f"{k * _BAND} to {(k + 1) * _BAND}", f"{pixels[0, k]:,.0f}", *values)
    reaches = (_BAND * int(np.argmax([*(row > _MOST_WRONG), True])) for row in shares)
    shown.add_row("reach", "", *map(str, reaches), style="bold")
    console.print(shown)


if __name__ == "__main__":
    main()
