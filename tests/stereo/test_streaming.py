"""A predictor over a sequence: what is written, at which scale, and how it ends."""

import sys
import threading
import time

import numpy as np
import pytest
import torch
from sequences import SIZE, Constant, read_video, views
from torch import nn

from vizoo.stereo import sinks, streaming
from vizoo.stereo.infer import StereoPredictor
from vizoo.stereo.sequences import StereoFrame, StereoSequence
from vizoo.stereo.streaming import disparities, settle, stream
from vizoo.vision.io.disparity import read_disparity
from vizoo.vision.viz.colour import colourise


@pytest.fixture
def predictor():
    return StereoPredictor(Constant())


def frames(count=6, size=SIZE, rate=None):
    for index, (left, right) in enumerate(views(count, size)):
        yield StereoFrame(left, right, f"{index:03d}", index / rate if rate else None)


def sequence(count=6, **known):
    return StereoSequence("mine", frames(count), length=count, **known)


def run(predictor, source, out, **options):
    return stream(predictor, source, out, settled=settle(predictor, source, check=False), **options)


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
    """Each stage takes a tenth of a second; together they take far less than one after another."""
    spent = []

    def sleeping(call):
        def slept(*args, **options):
            begin = time.perf_counter()
            time.sleep(0.1)
            result = call(*args, **options)
            spent.append(time.perf_counter() - begin)
            return result

        return slept

    shown = frames(8)
    slow = iter(sleeping(lambda: next(shown, None)), None)
    monkeypatch.setattr(sinks, "write_disparity", sleeping(sinks.write_disparity))
    monkeypatch.setattr(StereoPredictor, "__call__", sleeping(StereoPredictor.__call__))
    source = StereoSequence("mine", slow)
    first = settle(predictor, source, check=False)
    spent.clear()
    report = stream(predictor, source, tmp_path, settled=first, formats=["png"])
    assert report.frames == 8 and len(spent) == 8 + 8 + 8
    assert report.seconds < 0.75 * sum(spent)


class Near(nn.Module):
    """Finds 48 px of 600, and nothing beyond its 20 px of reach."""

    reach = 20
    widths = []

    def forward(self, left, right):
        self.widths.append(left.shape[3])
        true = 48 * left.shape[3] / 600
        return torch.full_like(left[:, :1], true if true <= 30 else 1.0)


def test_the_scale_is_found_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Near, "widths", [])
    predictor = StereoPredictor(Near())
    source = StereoSequence("mine", frames(5, (60, 600)))
    with pytest.warns(UserWarning, match="beyond the network's 20 px"):
        report = stream(predictor, source, tmp_path, formats=["png"])
    assert 0 < report.scale < 0.5 and report.frames == 5
    looks = sum(width in (288, 144) for width in Near.widths[:2])
    small = round(600 * report.scale)
    assert looks and Near.widths[looks] == small  # then the first frame in full
    assert Near.widths[-5:] == [small] * 5
    for file in (tmp_path / "mine_disparity").iterdir():
        assert read_disparity(file)[0].numpy() == pytest.approx(48, abs=0.1)


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
    assert note.startswith("3 frames passed over: frame 000: ") and "same picture" in note


def test_a_sequence_without_content_is_refused(predictor, tmp_path):
    source = StereoSequence("mine", (black(frame) for frame in frames()))
    with pytest.raises(ValueError, match="mine, frame 005: left and right are the same picture"):
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


def test_pictures_of_another_size_end_it(predictor, tmp_path):
    shown = [*frames(3), *frames(2, (40, 64))]
    report = run(predictor, StereoSequence("mine", iter(shown)), tmp_path)
    assert report.frames == 3
    assert report.error == "mine, frame 000: the pictures have 64x40 pixels, the first 80x48"


def test_a_limit(predictor, tmp_path):
    report = run(predictor, sequence(), tmp_path, limit=2)
    assert report.frames == 2 and report.error is None
    assert len(read_video(report.files[0])[0]) == 2


def endless():
    """A camera with a picture every 20 ms."""
    index = 0
    while True:
        for frame in frames(6):
            time.sleep(0.02)
            yield frame._replace(name=f"{index:06d}", time=index / 50)
            index += 1


def test_a_camera_does_not_wait_for_the_network(predictor, tmp_path, monkeypatch):
    """What the network has no time for is passed over; the video keeps the camera's time."""
    call = StereoPredictor.__call__

    def slow(self, *args, **options):
        time.sleep(0.1)
        return call(self, *args, **options)

    monkeypatch.setattr(StereoPredictor, "__call__", slow)
    source = StereoSequence("mine", endless(), rate=50, live=True)
    report = run(predictor, source, tmp_path, limit=12, formats=["video", "png"])
    assert report.frames == 12 and report.dropped > 10
    last = int(max(file.stem for file in report.files[1].iterdir()))
    assert len(read_video(report.files[0])[0]) == last + 1 > 20


def test_a_camera_that_is_silent_ends_it(predictor, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_SILENCE", 1.0)
    gone = threading.Event()

    def stuck():
        yield from frames(3)
        gone.wait(30)

    try:
        source = StereoSequence("camera0", stuck(), live=True)
        report = run(predictor, source, tmp_path)
    finally:
        gone.set()
    assert report.frames == 3 and report.error == "camera0: no picture for 1 seconds"
    assert len(read_video(report.files[0])[0]) == 3


def test_gaps_of_time_are_gaps_of_the_video(predictor, tmp_path):
    times = [0.0, 0.1, 0.4, 0.5, 3600.0]
    shown = [frame._replace(time=t) for frame, t in zip(frames(5), times, strict=True)]
    report = run(predictor, StereoSequence("mine", iter(shown), rate=10), tmp_path)
    assert len(read_video(report.files[0])[0]) == 6 + 100  # ten seconds at most


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


def test_without_rerun(predictor, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ImportError, match=r"needs rerun: pip install 'vizoo\[viewer\]'"):
        run(predictor, sequence(), tmp_path, formats=["rrd"])


def test_unknown_formats(predictor, tmp_path):
    with pytest.raises(ValueError, match="unknown format 'gif': video, png, rrd"):
        run(predictor, sequence(), tmp_path, formats=["gif"])
