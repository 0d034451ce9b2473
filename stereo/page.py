"""A page to try stereo on: two images in; disparity, confidence, a cloud and times out.

Example:
    >>> with page_folder() as folder, served(build_page(folder), folder) as address:
    ...     input(f"{address} is there until Enter is pressed")
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..common.extras import from_extra
from ..datasets.stereo.scenes import GeneratedStereo
from ..datasets.worlds.stereo import WorldStereo
from ..vision.io.images import write_image
from .trials import Trials

__all__ = ["build_page", "write_examples"]

_EXAMPLE = (240, 384)  # height and width
_ROOM: dict[str, Any] = {"layouts": ("room",), "floating": 0, "photometric": False}
_STYLE: dict[str, Any] = {"analytics_enabled": False, "title": "vizoo: stereo", "fill_width": True}
_GIVEN: dict[str, Any] = {"type": "filepath", "image_mode": None, "height": 220, "min_width": 140}
_GIVEN |= {"sources": ["upload", "clipboard"]}
_SHOWN: dict[str, Any] = {"interactive": False, "buttons": ["download", "fullscreen"]}
_SHOWN |= {"min_width": 240}
_VIEW: dict[str, Any] = {
    "camera_position": (90, 90, 1.4),  # ahead, from a little behind where the left camera was
    "clear_color": (0.07, 0.08, 0.1, 1.0),
    "height": 420,
}
_WORDS = """\
# Stereo

Drop the left and the right image of a pair, or take an example, and press Match. Images stay on the
machine that runs this page, and are deleted within two hours."""


def write_examples(folder: str | Path) -> list[tuple[str, str, float, float]]:
    """Write a generated room and a layered scene as pairs.

    Returns:
        For each pair its left and right file, focal length and baseline, 0 where there are none.
        The room is left out where Open3D, which casts its rays, cannot be loaded.
    """
    height, width = _EXAMPLE
    scene = GeneratedStereo(1, height, width, seed=3, max_disparity=40.0, photometric=False)[0]
    pairs: list[tuple[str, Any, float, float]] = [("scene", scene, 0.0, 0.0)]
    with suppress(ImportError):
        room, rig = WorldStereo(1, height, width, seed=1, max_disparity=40.0, **_ROOM).pair(0)
        pairs.insert(0, ("room", room, round(rig.focal, 1), round(rig.baseline, 4)))
    rows = []
    for name, pair, focal, baseline in pairs:
        files = [Path(folder) / f"{name}_{side}.png" for side in ("left", "right")]
        for file, side in zip(files, ("left", "right"), strict=True):
            write_image(file, pair[side])
        rows.append((str(files[0]), str(files[1]), focal, baseline))
    return rows


def build_page(
    folder: str | Path,
    models: Sequence[str] = (),
    device: str = "auto",
    max_pixels: int = 4_000_000,
) -> Any:
    """Build the page; `vizoo.vision.serving.served` serves it.

    Args:
        folder: of `vizoo.vision.serving.page_folder`: examples, uploads and results.
        models: networks to choose from, as `StereoPredictor` takes them; by default all that have
            trained weights. Of a supernet the page also cuts subnets for a time limit.
        device: as `StereoPredictor` takes it.
        max_pixels: of an image; larger ones are refused.

    Returns:
        ``gradio.Blocks``.

    Raises:
        ImportError: Gradio is not installed; the message says how to get it.
        FileNotFoundError, ValueError: as `StereoPredictor`, of any model.
    """
    gradio = from_extra("serve", "gradio", "the page")
    trials = Trials(models, device, max_pixels)

    def find(
        left: str | None,
        right: str | None,
        focal: float | None,
        baseline: float | None,
        calibration: str | None,
        model: str,
        limit: float | None,
        both: bool,
        rectify: bool,
        least: float,
        progress: Any = gradio.Progress(),  # noqa: B008 (how Gradio is told to give one)
    ) -> list[Any]:
        how: dict[str, Any] = {"both": both, "rectify": rectify, "least": least, "model": model}
        how |= {"calibration": calibration, "focal": focal, "baseline": baseline, "limit": limit}
        try:
            result = trials.find(
                left,
                right,
                folder,
                report=lambda what, done, total: progress((done, total), desc=what),
                **how,
            )
        except ValueError as error:
            raise gradio.Error(str(error), duration=20, print_exception=False) from error
        pictures = (result.disparity, result.confidence, result.occluded)
        shown = [None if path is None else str(path) for path in (*pictures, result.cloud)]
        shown[2] = gradio.update(value=shown[2], visible=result.occluded is not None)
        return [result.facts, *shown, str(result.results)]

    rows = [list(row) for row in write_examples(folder)]
    of_examples = [tuple(row[2:]) for row in rows]

    def own(focal: float | None, baseline: float | None) -> list[float | None]:
        """The calibration of a pair of the user's own, which no example's is."""
        return [0, 0] if (focal, baseline) in of_examples else [focal, baseline]

    with gradio.Blocks(**_STYLE) as page:
        gradio.Markdown(_WORDS)
        with gradio.Row():
            with gradio.Column(scale=5, min_width=300):
                with gradio.Row():
                    left = gradio.Image(label="Left", elem_id="left", **_GIVEN)
                    right = gradio.Image(label="Right", elem_id="right", **_GIVEN)
                for picture in (left, right):  # the library's own reader judges what was dropped
                    picture.preprocess = lambda payload: payload and payload.path
                examples = gradio.Column()
                offered = trials.choices.offered
                model = gradio.Dropdown(
                    offered, value=offered[0], label="Network", elem_id="model", filterable=False
                )
                limit = gradio.Number(
                    500,
                    label="Time limit, ms for a pair",
                    info="measured on the machine that runs this page, which may take a minute "
                    "before the first pair",
                    elem_id="limit",
                    visible=False,
                )
                run = gradio.Button("Match", variant="primary", elem_id="match")
                with gradio.Group():
                    both = gradio.Checkbox(
                        label="Match both views", info="surer, and twice the time"
                    )
                    rectify = gradio.Checkbox(
                        label="Rectify first", info="by what matches, where the cameras are raw"
                    )
                    least = gradio.Slider(0, 1, 0, step=0.05, label="Least confidence")
                with gradio.Accordion("Calibration, for depth in metres", open=False):
                    with gradio.Row():
                        focal = gradio.Number(
                            0, label="Focal length, pixels", min_width=140, elem_id="focal"
                        )
                        baseline = gradio.Number(0, label="Baseline, metres", min_width=140)
                    calibration = gradio.File(
                        label="or calib.txt of Middlebury, ETH3D or KITTI",
                        file_types=[".txt"],
                        height=120,
                    )
                inputs = [left, right, focal, baseline]
                with examples:
                    gradio.Examples(rows, inputs, cache_examples=False, visible_columns=[0, 1])
            with gradio.Column(scale=7, min_width=300):
                facts = gradio.Markdown("Results come here.", elem_id="facts")
                with gradio.Row():
                    disparity = gradio.Image(label="Disparity", elem_id="disparity", **_SHOWN)
                    confidence = gradio.Image(label="Confidence", elem_id="confidence", **_SHOWN)
                occluded = gradio.Image(
                    label="Not seen by the right image", visible=False, elem_id="occluded", **_SHOWN
                )
                cloud = gradio.Model3D(label="Cloud", elem_id="cloud", **_VIEW)
                results = gradio.File(
                    label="All results", interactive=False, elem_id="results", height=90
                )
        silent = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        model.change(
            lambda name: gradio.update(visible=name in trials.choices.timed), model, limit, **silent
        )
        for picture in (left, right):
            picture.upload(own, [focal, baseline], [focal, baseline], **silent)
        run.click(
            find,
            [*inputs, calibration, model, limit, both, rectify, least],
            [facts, disparity, confidence, occluded, cloud, results],
            api_name="match",
            scroll_to_output=True,
        )
    return page
