"""A predictor over a sequence: what is written, at which scale, and how it ends."""

import sys
import threading
import time
import tracemalloc
from contextlib import nullcontext
from itertools import count, cycle, islice
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from raw_rigs import HEIGHT, WIDTH, make_rig, two_planes
from sequences import SIZE, read_video, views
from stereo_fixtures import BlockMatcher, Constant, pair_of
from torch import nn

from vizoo.datasets.stereo.calibration import StereoCalibration, write_calibration
from vizoo.stereo import sinks, streaming
from vizoo.stereo.infer import StereoPredictor
from vizoo.stereo.rectify import RigRectifier
from vizoo.stereo.sequences import StereoFrame, StereoSequence
from vizoo.stereo.streaming import disparities, settle, stream
from vizoo.vision.io.disparity import read_disparity
from vizoo.vision.io.images import read_pixels, to_bytes
from vizoo.vision.viz.colour import colourise


@pytest.fixture
def predictor():
    return StereoPredictor(Constant())


def frames(count=6, size=SIZE, rate=None):
    for index, (left, right) in enumerate(views(count, size)):
        yield StereoFrame(left, right, f"{index:03d}", index / rate if rate else None)


def sequence(count=6, **known):
    return StereoSequence("mine", frames(count), length=count, **known)


def run(predictor, source, out, scale="auto", **options):
    first = settle(predictor, source, scale=scale, check=False)
    return stream(predictor, source, out, settled=first, **options)


def test_a_video_and_pictures(predictor, tmp_path):
    told = []
    report = run(
        predictor,
        sequence(rate=12.0),
        tmp_path / "out",
        formats=["video", "png"],
        colours=(0, 10),
        tell=lambda done, total, rate: told.append((done, total)),
    )
    assert report.files == [tmp_path / "out/mine_disparity.mp4", tmp_path / "out/mine_disparity"]
    pictures, rate = read_video(report.files[0])
    wanted = colourise(np.full(SIZE, 5, np.float32), low=0, high=10)[0, 0]
    assert len(pictures) == 6 and rate == pytest.approx(12)
    assert all(np.abs(p.reshape(-1, 3).mean(axis=0) - wanted).max() < 12 for p in pictures)
    files = sorted(report.files[1].iterdir())
    assert [file.name for file in files] == [f"{i:03d}.png" for i in range(6)]
    assert read_disparity(files[0])[0].unique().tolist() == [5.0]
    assert told == [(i, 6) for i in range(1, 7)]
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "mine_disparity",
        "mine_disparity.mp4",
    ]
    summary = report.summary()
    assert summary["disparity"] == {"min": 5, "median": 5, "max": 5}
    assert summary["size"] == list(SIZE) and summary["frames"] == 6 and summary["scale"] == 1
    assert summary["frames_per_second"]["network"] >= summary["frames_per_second"]["all"] > 0
    assert report.notes == [] and report.error is None


def test_the_network_works_while_frames_are_read_and_written(predictor, tmp_path, monkeypatch):
    """The third is read, the second matched and the first written: each waits for the others."""
    together = threading.Barrier(3)

    def meeting(call, which):
        numbers = count()

        def met(*args, **options):
            if next(numbers) == which:
                together.wait(60)
            return call(*args, **options)

        return met

    shown = frames(8)
    source = StereoSequence("mine", iter(meeting(lambda: next(shown, None), 2), None))
    first = settle(predictor, source, check=False)
    monkeypatch.setattr(StereoPredictor, "__call__", meeting(StereoPredictor.__call__, 1))
    monkeypatch.setattr(sinks, "write_disparity", meeting(sinks.write_disparity, 0))
    report = stream(predictor, source, tmp_path, settled=first, formats=["png"])
    assert report.error is None and report.frames == 8


def near(*disparities):
    """Pairs of 60x300, each of one disparity."""
    for index, disparity in enumerate(disparities):
        views = map(to_bytes, pair_of(torch.full((60, 300), float(disparity))))
        yield StereoFrame(*views, f"{index:03d}")


def test_the_scale_is_found_once_and_frames_are_matched_as_pairs(tmp_path):
    """What is beyond the reach is matched smaller, then in full around what was found."""
    predictor = StereoPredictor(BlockMatcher(16))
    shown = list(near(24, 24, 20))
    with pytest.warns(UserWarning, match="beyond the network's 16 px"):
        wanted = predictor(shown[0].left, shown[0].right, check=False)
    assert 0 < wanted.scale < 0.7
    source = StereoSequence("mine", iter(shown))
    with pytest.warns(UserWarning, match="beyond the network's 16 px"):
        settled = settle(predictor, source, check=False)
    assert settled.reach == pytest.approx(16 / wanted.scale)
    found = [disparity for _, disparity in disparities(predictor, source, settled)]
    np.testing.assert_array_equal(found[0], wanted.disparity)
    assert [np.median(disparity) for disparity in found] == pytest.approx([24, 24, 20], abs=0.3)
    source = StereoSequence("mine", near(20))  # a size of one's own is that of all, as of pairs
    settled = settle(predictor, source, scale=wanted.scale, check=False)
    ((_, coarse),) = disparities(predictor, source, settled)
    plain = predictor(shown[2].left, shown[2].right, scale=wanted.scale, check=False)
    np.testing.assert_array_equal(coarse, plain.disparity)


@pytest.mark.parametrize(("largest", "beyond"), [(None, 2), (40, 0)])
def test_what_comes_nearer_than_the_first_frame_allows_is_said(tmp_path, largest, beyond):
    predictor = StereoPredictor(BlockMatcher(16))
    source = StereoSequence("mine", near(8, 8, 30, 30, 8))
    settled = settle(predictor, source, max_disparity=largest, check=False)
    report = stream(predictor, source, tmp_path, settled=settled, formats=["png"])
    summary = report.summary()
    assert summary["beyond_reach"] == beyond
    assert summary["reach"] == pytest.approx(16 if largest is None else 40)
    if beyond:
        (note,) = report.notes
        assert note.startswith("2 of 5 frames that were looked at have disparities to about 30 px")
        assert note.endswith("give the largest of all by --max-disparity (max_disparity=)")
    else:
        far = read_disparity(tmp_path / "mine_disparity/003.png")[0]
        assert report.notes == [] and far.median() == pytest.approx(30, abs=0.5)


def test_what_networks_find_in_very_narrow_copies_is_not_said(tmp_path):
    class Lost(BlockMatcher):
        def forward(self, left, right):
            found = super().forward(left, right)
            return found if left.shape[-1] > 128 else found + left.shape[-1]

    shown = (frame for frame in near(8, 8))
    cut = (StereoFrame(left[:, :256], right[:, :256], name) for left, right, name, _ in shown)
    report = run(StereoPredictor(Lost(16)), StereoSequence("mine", cut), tmp_path)
    assert report.beyond == 0 and report.notes == []


def test_of_a_long_sequence_some_frames_are_looked_at(tmp_path):
    """The first eight and every eighth."""
    predictor = StereoPredictor(BlockMatcher(16))
    nearer = (7, 9, 16)  # of which the second is not looked at
    shown = near(*(30 if index in nearer else 8 for index in range(18)))
    report = run(predictor, StereoSequence("mine", shown), tmp_path, formats=["png"])
    (note,) = report.notes
    assert note.startswith("2 of 10 frames that were looked at have disparities to about 30 px")


def black(frame):
    return frame._replace(left=np.zeros_like(frame.left), right=np.zeros_like(frame.right))


def test_frames_without_content_keep_their_places(predictor, tmp_path):
    """A video that fades in, and out once more; disparities there are unknown."""
    shown = [black(f) if i in (0, 1, 4) else f for i, f in enumerate(frames())]
    source = StereoSequence("mine", iter(shown))
    report = run(predictor, source, tmp_path, formats=["video", "png"])
    assert report.frames == len(read_video(report.files[0])[0]) == 6
    known = [read_disparity(tmp_path / f"mine_disparity/{i:03d}.png")[1].any() for i in range(6)]
    assert known == [False, False, True, True, False, True]
    (note,) = report.notes
    assert note.startswith("3 frames passed over: frame 000: ") and "one colour" in note


def test_a_sequence_without_content_is_refused(predictor, tmp_path):
    source = StereoSequence("mine", (black(frame) for frame in frames()))
    with pytest.raises(ValueError, match="mine, frame 005: the left image is all of one colour"):
        stream(predictor, source, tmp_path / "out")
    with pytest.raises(ValueError, match="mine: no frame could be read; all are gone"):
        stream(predictor, StereoSequence("mine", iter(()), notes=["all are gone"]), tmp_path)
    assert not (tmp_path / "out").exists()


def broken(error, count=4):
    yield from frames(count)
    raise error


@pytest.mark.parametrize("form", ["video", "png"])
def test_a_source_that_fails_leaves_what_was_written(predictor, tmp_path, form):
    source = StereoSequence("mine", broken(OSError("the cable is out")))
    report = run(predictor, source, tmp_path, formats=[form])
    assert report.frames == 4 and report.error == "the cable is out"
    (path,) = report.files
    assert len(read_video(path)[0] if form == "video" else list(path.iterdir())) == 4


def test_ctrl_c_leaves_what_was_written(predictor, tmp_path):
    def interrupt(done, total, rate):
        if done == 3:
            raise KeyboardInterrupt

    report = run(predictor, sequence(), tmp_path, tell=interrupt)
    assert report.interrupted and report.error is None and report.frames == 3
    assert len(read_video(report.files[0])[0]) == 3
    assert not [t for t in threading.enumerate() if t.name == "vizoo-frames"]


def test_nothing_is_left_where_nothing_was_written(predictor, tmp_path):
    source = sequence()
    first = settle(predictor, source)
    source.frames = broken(OSError("the cable is out"), 0)
    with pytest.raises(OSError, match="the cable is out"):
        stream(predictor, source, tmp_path, settled=first)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_ends_it(predictor, tmp_path, monkeypatch):
    write = sinks.write_disparity

    def full(path, disparity):
        if path.stem == "003":
            raise OSError("no space left")
        write(path, disparity)

    monkeypatch.setattr(sinks, "write_disparity", full)
    report = run(predictor, sequence(40), tmp_path, formats=["png"])
    assert report.error == "no space left"
    assert {f"{i:03d}.png" for i in range(3)} <= {f.name for f in report.files[0].iterdir()}


def test_an_error_is_kept_where_a_signal_comes_after_it(predictor, tmp_path, monkeypatch):
    write, asked = sinks.write_disparity, []

    def full(path, disparity):
        if path.stem == "003":
            asked.append(1)
            raise OSError("no space left")
        write(path, disparity)

    monkeypatch.setattr(sinks, "write_disparity", full)
    report = run(predictor, sequence(), tmp_path, formats=["png"], stop=lambda: asked)
    assert report.interrupted and report.error == "no space left"


def test_pictures_of_another_size_end_it(predictor, tmp_path):
    shown = [*frames(3), *frames(2, (40, 64))]
    report = run(predictor, StereoSequence("mine", iter(shown)), tmp_path)
    assert report.frames == 3
    assert report.error == "mine, frame 000: the pictures have 40x64 pixels, the first 48x80"


def test_a_limit(predictor, tmp_path):
    report = run(predictor, sequence(), tmp_path, limit=2)
    assert report.frames == 2 and report.error is None
    assert len(read_video(report.files[0])[0]) == 2


def test_a_camera_does_not_wait_for_the_network(predictor, tmp_path, monkeypatch):
    """The newest picture is next, those before it are lost; the video keeps the camera's time.

    While the network is busy with one, five more come.
    """
    call = StereoPredictor.__call__
    wanted, delivered = threading.Semaphore(1), threading.Semaphore(0)

    def camera():
        for index, frame in enumerate(islice(cycle(frames(6)), 61)):
            if not wanted.acquire(timeout=60):
                return
            yield frame._replace(name=f"{index:06d}", time=index / 50)
            if index:
                delivered.release()

    def slow(*args, **options):
        wanted.release(5)
        assert all(delivered.acquire(timeout=60) for _ in range(5))
        return call(*args, **options)

    source = StereoSequence("mine", camera(), rate=50, live=True)
    first = settle(predictor, source, check=False)
    monkeypatch.setattr(StereoPredictor, "__call__", slow)
    how = {"limit": 12, "formats": ["video", "png"]}
    report = stream(predictor, source, tmp_path, settled=first, **how)
    assert report.error is None and report.frames == 12 and report.dropped == 12 * 4
    taken = sorted(int(file.stem) for file in report.files[1].iterdir())
    assert taken == [*range(0, 60, 5)]
    assert len(read_video(report.files[0])[0]) == taken[-1] + 1


def test_every_frame_of_a_file_counts(predictor, tmp_path, monkeypatch):
    call = StereoPredictor.__call__
    monkeypatch.setattr(
        StereoPredictor, "__call__", lambda *args, **how: time.sleep(0.03) or call(*args, **how)
    )
    report = run(predictor, sequence(12), tmp_path, formats=["png"])
    assert report.frames == 12 and report.dropped == 0


def test_a_camera_that_is_silent_ends_it(predictor, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_SILENCE", 1.0)
    monkeypatch.setattr(streaming, "_PARTING", 0.1)
    gone = threading.Event()

    def stuck():
        yield from frames(3)
        gone.wait(30)

    try:
        source = StereoSequence("camera0", stuck(), live=True)
        report = run(predictor, source, tmp_path)
    finally:
        gone.set()
    assert report.frames + report.dropped == 3
    assert report.error == "camera0: no picture for 1 seconds"
    assert len(read_video(report.files[0])[0]) == report.frames


def filmed(predictor, folder, times, rate):
    """Which frame each picture of the video shows, of frames at these times."""
    disparity = iter(range(1, 50))
    net = predictor.net
    net.forward = lambda left, right: torch.full_like(left[:, :1], 5.0 * next(disparity))
    shown = [frame._replace(time=t) for frame, t in zip(frames(len(times)), times, strict=True)]
    source = StereoSequence("mine", iter(shown), rate=rate)
    first = settle(predictor, source, check=False)
    disparity = iter(range(1, 50))
    high = 5.0 * len(times)
    report = stream(predictor, source, folder, settled=first, colours=(0, high))
    palette = [
        colourise(np.full((1, 1), 5.0 * (i + 1), np.float32), low=0, high=high)[0, 0]
        for i in range(len(times))
    ]
    means = [picture.reshape(-1, 3).mean(axis=0) for picture in read_video(report.files[0])[0]]
    return [int(np.abs(np.array(palette) - mean).sum(axis=1).argmin()) for mean in means]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([0.0, 0.1, 0.4, 0.5], [0, 1, 1, 1, 2, 3]),  # a picture stands until the next one's time
        ([i / 30 for i in range(10)], [*range(10)]),  # three times as fast: shown slower
        ([0.0, 0.1, 3600.0, 3600.1, 3600.2], [0, *[1] * 100, 2, 3, 4]),  # ten seconds at most
        ([5.0, 5.1, 0.0, 0.1], [0, 1, 2, 3]),  # a clock that was put back
    ],
)
def test_a_video_keeps_the_time_of_its_frames(predictor, tmp_path, times, wanted):
    assert filmed(predictor, tmp_path, times, rate=10.0) == wanted


def test_a_camera_faster_than_the_video_is_shown_in_part(tmp_path):
    pictures = []
    for live in (True, False):
        with sinks.video(tmp_path / "x.mp4", SIZE, 10.0, (0, 9), live) as write:
            for frame in frames(10, rate=30):
                write(frame, np.ones(SIZE, np.float32))
        pictures.append(len(read_video(tmp_path / "x.mp4")[0]))
    assert pictures == [4, 10]


def test_every_frame_is_shown_where_the_video_is_slower(predictor, tmp_path):
    source = StereoSequence("mine", frames(20, rate=10), rate=10.0)
    report = run(predictor, source, tmp_path, rate=5.0, limit=8)
    assert len(read_video(report.files[0])[0]) == report.frames == 8


def test_colours_follow_the_first_frame_and_stay(predictor, tmp_path, monkeypatch):
    spans = []
    draw = sinks.colourise
    monkeypatch.setattr(
        sinks, "colourise", lambda d, low, high: spans.append((low, high)) or draw(d, low=low)
    )
    run(predictor, sequence(), tmp_path)
    assert len(set(spans)) == 1 and spans[0][0] == 0 and 5 < spans[0][1] < 8


class Far(Constant):
    def forward(self, left, right):
        return torch.full_like(left[:, :1], 300.0)


def test_what_a_png_cannot_hold_is_its_most_and_said(tmp_path):
    report = run(StereoPredictor(Far()), sequence(2), tmp_path, formats=["png"])
    assert read_disparity(tmp_path / "mine_disparity/000.png")[0].max() == pytest.approx(256, abs=1)
    assert report.notes == ["disparities beyond 256 px are that in 16-bit PNG, where those end"]


def test_pictures_of_an_earlier_run_are_named(predictor, tmp_path):
    run(predictor, sequence(), tmp_path, formats=["png"])
    report = run(predictor, sequence(4), tmp_path, formats=["png"])
    (note,) = report.notes
    assert note.startswith("2 files in ") and note.endswith("are of an earlier run, not of this")


def test_disparities_in_a_loop(predictor):
    found = list(disparities(predictor, sequence()))
    assert [frame.name for frame, _ in found] == [f"{i:03d}" for i in range(6)]
    assert all(disparity.shape == SIZE and (disparity == 5).all() for _, disparity in found)
    loop = disparities(predictor, sequence(400))
    next(loop)
    loop.close()
    assert not [t for t in threading.enumerate() if t.name == "vizoo-frames"]


class Noisy(nn.Module):
    """Finds 5 to 6 px, each time other ones, smooth over some pixels."""

    def forward(self, left, right):
        coarse = torch.rand(1, 1, 7, 11)
        return 5 + nn.functional.interpolate(coarse, left.shape[2:], mode="bilinear")


def doubtful():
    """A pair of which the upper half matches."""
    left, right = (to_bytes(view) for view in pair_of(torch.full((60, 200), 8.0)))
    right[30:] = np.random.default_rng(0).integers(0, 256, right[30:].shape)
    return StereoFrame(left, right, "000")


def test_what_is_not_sure_is_left_out_as_of_pairs(tmp_path):
    predictor, frame = StereoPredictor(BlockMatcher(16)), doubtful()
    pair = predictor(frame.left, frame.right, scale=1.0, check=False)
    least = float(np.median(pair.confidence))
    wanted = pair.confident(least)
    source = StereoSequence("mine", iter([frame]))
    calibration = StereoCalibration(100.0, 0.1, 99.5, 29.5, width=200, height=60)
    report = run(
        predictor,
        source,
        tmp_path,
        scale=1.0,
        formats=["png", "video"],
        min_confidence=least,
        calibration=calibration,
    )
    disparity, known = read_disparity(tmp_path / "mine_disparity/000.png")
    sure = np.isfinite(wanted.disparity) & (wanted.disparity > 0)
    np.testing.assert_array_equal(known.numpy()[0], sure)
    assert 0.3 < known.float().mean() < 0.7
    depth = read_pixels(tmp_path / "mine_depth/000.png")
    np.testing.assert_allclose(depth, 1000 * wanted.depth(calibration), atol=0.51)
    mine, theirs = report.summary(), wanted.summary()
    for name in ("confidence", "left_out"):
        assert mine[name] == pytest.approx(theirs[name], abs=1e-4), name
    assert mine["disparity"]["median"] == np.median(wanted.disparity[sure])
    (shown,), _ = read_video(tmp_path / "mine_disparity.mp4")
    assert shown[40:].mean() < 0.5 * shown[:20].mean()
    source = StereoSequence("none", iter([frame]))
    report = run(predictor, source, tmp_path, scale=1.0, min_confidence=1.0)
    assert report.summary()["disparity"] is None and report.summary()["left_out"] == 1


def test_depth_is_written_with_a_calibration(predictor, tmp_path):
    """16-bit millimetres, 0 where unknown or too far; beside the pictures that they belong to."""
    shown = [black(f) if i == 1 else f for i, f in enumerate(frames(3))]
    calibration = StereoCalibration(100.0, 0.2, 39.5, 23.5, width=80, height=48)
    source = StereoSequence("mine", iter(shown))
    report = run(predictor, source, tmp_path, formats=["png"], calibration=calibration)
    names = ["mine_disparity", "mine_left", "mine_depth"]
    assert [path.name for path in report.files] == names
    depth = [read_pixels(tmp_path / f"mine_depth/00{i}.png") for i in range(3)]
    assert depth[0].dtype == np.uint16 and set(depth[0].flat) == {4000} and not depth[1].any()
    np.testing.assert_array_equal(read_pixels(tmp_path / "mine_left/002.png"), shown[2].left)
    far = StereoCalibration(100.0, 8.0, 79.0, 47.0, width=160, height=96)
    write_calibration(tmp_path / "far.txt", far)
    source = StereoSequence("far", frames(1))
    report = run(predictor, source, tmp_path, formats=["png"], calibration=tmp_path / "far.txt")
    assert not read_pixels(tmp_path / "far_depth/000.png").any()  # 80 m
    scaled = "the calibration is for 96x160 images (height x width) and was scaled to 48x80"
    assert report.notes == [scaled]
    other = StereoCalibration(100.0, 4.0, width=90, height=48)
    with pytest.raises(ValueError, match=r"48x90 \(height x width\), these have 48x80"):
        run(predictor, sequence(), tmp_path / "out", calibration=other)
    assert not (tmp_path / "out").exists()


def test_raw_frames(tmp_path):
    """Rectified on the way, by maps that are found once; depth also for the raw left picture."""
    rectifier, predictor = (
        RigRectifier(make_rig(), HEIGHT, WIDTH),
        StereoPredictor(BlockMatcher(40)),
    )
    raw = two_planes(rectifier.rig)
    source = StereoSequence("mine", iter([StereoFrame(*raw, f"{i}") for i in range(2)]))
    source.transform(rectifier)
    report = run(predictor, source, tmp_path, scale=1.0, formats=["png"], rectifier=rectifier)
    names = ["mine_disparity", "mine_left", "mine_depth", "mine_depth_raw"]
    assert [path.name for path in report.files] == names
    left, right = rectifier(*raw)
    result = predictor(left, right, scale=1.0, check=False)
    depth = result.depth(rectifier.calibration)
    for name, wanted in (("depth", depth), ("depth_raw", rectifier.depth_in_raw(depth))):
        found = read_pixels(tmp_path / f"mine_{name}/1.png")
        wanted = np.where(wanted <= 65.535, wanted, 0)
        np.testing.assert_allclose(found, 1000 * wanted, atol=0.51)
    np.testing.assert_array_equal(read_pixels(tmp_path / "mine_left/1.png"), left)


def test_what_is_kept_of_a_frame_is_a_few_numbers(predictor, tmp_path, monkeypatch):
    """A camera may run for days."""
    monkeypatch.setattr(
        streaming, "open_sinks", lambda *_: {tmp_path: nullcontext(lambda *_: None)}
    )
    held, own = [], [tracemalloc.Filter(True, streaming.__file__)]
    frame = next(frames(1))

    def many():
        for index in range(300):
            if index in (80, 90, 100, 280, 290, 299):
                statistics = tracemalloc.take_snapshot().filter_traces(own).statistics("filename")
                held.append(statistics[0].size)
            yield frame._replace(name=f"{index:06d}")

    first = settle(predictor, StereoSequence("mine", iter([frame])), check=False)
    tracemalloc.start()
    try:
        stream(predictor, StereoSequence("mine", many()), tmp_path, settled=first)
    finally:
        tracemalloc.stop()
    # The least of three moments: at some a frame is on its way.
    assert min(held[3:]) - min(held[:3]) < 40 * 200  # bytes


def test_asked_to_stop(predictor, tmp_path):
    """Between two frames, or while a camera is silent."""
    asked = []
    report = run(
        predictor, sequence(), tmp_path, stop=lambda: asked, tell=lambda n, *_: asked.append(n)
    )
    assert report.interrupted and report.frames == 1 and len(read_video(report.files[0])[0]) == 1
    told, turns, gone = [], [], threading.Event()

    def stuck():
        yield from frames(1)
        gone.wait(60)

    def stop():  # the third time that it is asked after the only frame, so in the silence
        turns.extend(told[:1])
        if len(turns) >= 3:
            gone.set()
        return gone.is_set()

    source = StereoSequence("camera0", stuck(), live=True)
    report = run(predictor, source, tmp_path, stop=stop, tell=lambda n, *_: told.append(n))
    assert report.interrupted and report.error is None and report.frames == 1
    with pytest.raises(KeyboardInterrupt):
        run(predictor, sequence(), tmp_path / "none", stop=lambda: True)
    assert list((tmp_path / "none").iterdir()) == []


@pytest.mark.parametrize("steady", [False, True])
def test_steady(steady):
    """Pictures that stay: what changes of the disparity is flicker."""
    still = [next(frames(1))] * 30
    loop = disparities(StereoPredictor(Noisy()), StereoSequence("s", iter(still)), steady=steady)
    found = np.array([disparity for _, disparity in loop])
    assert (np.abs(np.diff(found, axis=0)).mean() < 0.1) == steady


def test_a_recording(predictor, tmp_path):
    pytest.importorskip("rerun")
    report = run(predictor, sequence(rate=10), tmp_path, formats=["rrd"])
    assert report.files[0].read_bytes()[:3] == b"RRF"
    assert [file.name for file in tmp_path.iterdir()] == ["mine.rrd"]


def test_a_recording_that_cannot_be_written(predictor, tmp_path, monkeypatch):
    rerun = MagicMock()
    recording = rerun.RecordingStream.return_value
    recording.flush.side_effect = RuntimeError("its thread ended")
    monkeypatch.setitem(sys.modules, "rerun", rerun)
    with pytest.raises(OSError, match=r"mine\.rrd: cannot be written: its thread ended; is the di"):
        run(predictor, sequence(), tmp_path, formats=["rrd"])
    recording.disconnect.assert_called_once()
    assert list(tmp_path.iterdir()) == []


def test_without_rerun(predictor, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ImportError, match=r"needs rerun: pip install 'vizoo\[viewer\]'"):
        run(predictor, sequence(), tmp_path, formats=["rrd"])


def test_unknown_formats(predictor, tmp_path):
    with pytest.raises(ValueError, match="unknown format 'gif': video, png, rrd"):
        run(predictor, sequence(), tmp_path, formats=["gif"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_confidence": 50}, "least confidence 50: want 0 to 1"),
        ({"min_confidence": float("nan")}, "least confidence nan"),
        ({"rate": 0}, "rate 0: frames a second, above 0"),
        ({"rate": float("nan")}, "rate nan"),
        ({"colours": (9, 3)}, r"colours \(9, 3\): two disparities, the smaller one first"),
        ({"limit": 0}, "limit 0: must be at least 1"),
    ],
)
def test_what_is_asked_for_is_checked(predictor, tmp_path, options, message, monkeypatch):
    monkeypatch.setattr("vizoo.stereo.streaming.settle", None)  # before anything is matched
    with pytest.raises(ValueError, match=message):
        run(predictor, sequence(2), tmp_path, **options)
    assert not list(tmp_path.iterdir())
