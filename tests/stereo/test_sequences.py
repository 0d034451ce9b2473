"""Sequences of pairs from videos, folders and cameras: what is read, and what is refused."""

import contextlib
import os
import threading

import cv2
import numpy as np
import pytest
from sequences import SIZE, Camera, views, write_video

from vizoo.stereo import captures
from vizoo.stereo.sequences import StereoSequence, open_sequence
from vizoo.vision.io.images import write_image


@pytest.fixture
def camera(monkeypatch):
    """Cameras 0 and 1."""
    pairs = list(views(5))
    monkeypatch.setattr(Camera, "pictures", {0: [x for x, _ in pairs], 1: [y for _, y in pairs]})
    monkeypatch.setattr(Camera, "released", [])
    monkeypatch.setattr(captures.cv2, "VideoCapture", Camera)
    return Camera


def write_folders(root, count=12, size=SIZE):
    for index, pair in enumerate(views(count, size)):
        for side, picture in zip(("left", "right"), pair, strict=True):
            write_image(root / side / f"{index}.png", picture)
    return root


def check(sequence, count=6, tolerance=12):
    """The frames are those of `views`, in order."""
    frames = list(sequence)
    assert len(frames) == count
    for frame, (left, right) in zip(frames, views(count), strict=True):
        for found, wanted in ((frame.left, left), (frame.right, right)):
            assert found.dtype == np.uint8 and found.shape == wanted.shape
            assert np.abs(found.astype(float) - wanted).mean() < tolerance
    return frames


@pytest.mark.parametrize("layout", ["two", "side-by-side", "top-bottom"])
def test_videos(tmp_path, layout):
    """The layout of a video that holds both views shows by itself, or is said."""
    pairs = list(views(6))
    if layout == "two":
        left = write_video(tmp_path / "l.mp4", [pair[0] for pair in pairs])
        sequence = open_sequence(left, write_video(tmp_path / "r.mp4", [p[1] for p in pairs]))
        assert "layout" not in sequence.facts and sequence.name == "l"
    else:
        stack = np.hstack if layout == "side-by-side" else np.vstack
        file = write_video(tmp_path / "both.mp4", [stack(pair) for pair in pairs])
        check(open_sequence(file, layout=layout))
        sequence = open_sequence(str(file))
        assert sequence.facts["layout"] == layout
    assert (sequence.rate, sequence.length, sequence.live) == (20, 6, False)
    frames = check(sequence)
    assert [frame.name for frame in frames] == [f"{i:06d}" for i in range(6)]
    assert [frame.time for frame in frames] == pytest.approx([i / 20 for i in range(6)])
    assert sequence.notes == []


@pytest.mark.parametrize("given", ["side-by-side", "top-bottom"])
def test_a_layout_that_does_not_look_like_it_is_said(tmp_path, given):
    stack = {"side-by-side": np.vstack, "top-bottom": np.hstack}[given]
    file = write_video(tmp_path / "both.mp4", [stack(pair) for pair in views(3)])
    (note,) = open_sequence(file, layout=given).notes
    other = {"side-by-side": "top-bottom", "top-bottom": "side-by-side"}[given]
    assert note == f"{file}: taken as {given}, but its halves look like {other}"


@pytest.mark.parametrize("sources", ["two", "halves"])
def test_one_picture_twice_is_said(tmp_path, sources):
    """Also where its codings differ a little."""
    pictures = [left for left, _ in views(3, (96, 160))]
    if sources == "two":
        left = write_video(tmp_path / "l.mp4", pictures)
        softer = [cv2.GaussianBlur(picture, (3, 3), 0.5) for picture in pictures]
        sequence = open_sequence(left, write_video(tmp_path / "r.mp4", softer))
    else:
        doubled = [np.hstack([picture] * 2) for picture in pictures]
        sequence = open_sequence(write_video(tmp_path / "both.mp4", doubled), layout="side-by-side")
    assert "both views are the same picture" in sequence.notes[0]


def test_a_pipe(tmp_path):
    """Every frame counts, and it ends where the pipe does."""
    file = write_video(tmp_path / "both.avi", [np.hstack(pair) for pair in views(6)], code="MJPG")
    data = file.read_bytes()
    for name, part, least, most in (("whole", data, 6, 6), ("cut", data[: len(data) // 2], 1, 5)):
        os.mkfifo(tmp_path / name)
        threading.Thread(target=pour, args=(tmp_path / name, part), daemon=True).start()
        sequence = open_sequence(tmp_path / name, layout="side-by-side")
        assert not sequence.live
        assert least <= len(list(sequence)) <= most
        assert len(sequence.notes) == (name == "cut")


def pour(pipe, data):
    with contextlib.suppress(BrokenPipeError):
        pipe.write_bytes(data)


def test_a_device_is_a_camera(camera):
    with pytest.raises(ValueError, match="/dev/null: no stream comes from this address"):
        open_sequence("/dev/null")


def test_folders_in_the_order_of_numbers(tmp_path):
    root = write_folders(tmp_path)
    sequence = open_sequence(root)
    assert (sequence.rate, sequence.length) == (None, 12)
    frames = check(sequence, 12, tolerance=0.1)
    assert [frame.name for frame in frames] == [str(i) for i in range(12)]
    for right in (root / "right", f"{root}/right/*.png", f"{root}/**/right/*.png"):
        check(open_sequence(root / "left", right), 12, tolerance=0.1)


def test_a_damaged_image_is_passed_over_and_said(tmp_path):
    root = write_folders(tmp_path)
    (root / "right/3.png").write_bytes((root / "right/3.png").read_bytes()[:90])
    sequence = open_sequence(root)
    assert [frame.name for frame in sequence] == [str(i) for i in range(12) if i != 3]
    assert len(sequence.notes) == 1
    assert sequence.notes[0].startswith("1 frame passed over: ") and "3.png" in sequence.notes[0]


def test_cameras(camera):
    for source, right in (("camera:0", "camera:1"), (0, 1), ("0", "1")):
        sequence = open_sequence(source, right)
        assert (sequence.name, sequence.live, sequence.length) == ("camera0", True, None)
        frames = check(sequence, 5, tolerance=0.1)
        assert all(a.time <= b.time for a, b in zip(frames, frames[1:], strict=False))
    assert sorted(camera.released) == [0, 0, 0, 1, 1, 1]


def test_one_camera_of_two_views(camera):
    camera.pictures[2] = [np.hstack(pair) for pair in views(3)]
    sequence = open_sequence("camera:2")
    assert sequence.facts["layout"] == "side-by-side"
    check(sequence, 3, tolerance=0.1)


def test_a_camera_that_stops_ends_the_sequence(camera):
    camera.pictures[1] = camera.pictures[1][:2]
    sequence = open_sequence(0, 1)
    check(sequence, 2, tolerance=0.1)
    assert sequence.notes == ["camera:0 and camera:1: ends after 2 frames: no more pictures come"]


def test_a_damaged_picture_of_a_camera_is_passed_over(camera):
    camera.pictures[1][2] = None
    sequence = open_sequence(0, 1)
    kept = [pair for index, pair in enumerate(views(5)) if index != 2]
    for frame, (left, right) in zip(sequence, kept, strict=True):
        np.testing.assert_array_equal(frame.left, left)
        np.testing.assert_array_equal(frame.right, right)
    names = "camera:0 and camera:1"
    assert f"{names}: 1 of 5 frames passed over: damaged" in sequence.notes
    assert f"{names}: ends after 5 frames: no more pictures come" in sequence.notes


@pytest.mark.parametrize(("damaged", "kept"), [(10, 5), (11, 2)])
def test_a_camera_with_no_more_than_damaged_pictures_has_ended(camera, damaged, kept):
    camera.pictures[0][2:2] = camera.pictures[0][:1] * damaged
    camera.pictures[1][2:2] = [None] * damaged
    sequence = open_sequence(0, 1)
    assert len(list(sequence)) == kept
    assert any("frames passed over: damaged" in note for note in sequence.notes) == (kept == 5)


def test_a_video_cut_short_is_said(tmp_path, monkeypatch):
    left = write_video(tmp_path / "l.mp4", [pair[0] for pair in views(6)])
    monkeypatch.setattr(
        captures, "_number", lambda capture, key: 300 if key == cv2.CAP_PROP_FRAME_COUNT else 20
    )
    right = write_video(tmp_path / "r.mp4", [pair[1] for pair in views(6)])
    sequence = open_sequence(left, right)
    assert len(list(sequence)) == 6
    assert [note for note in sequence.notes if "ends after 6 of 300 frames" in note]


def test_videos_of_different_lengths_are_said(tmp_path):
    left = write_video(tmp_path / "l.mp4", [pair[0] for pair in views(6)])
    right = write_video(tmp_path / "r.mp4", [pair[1] for pair in views(4)])
    sequence = open_sequence(left, right)
    check(sequence, 4)
    assert "has 6 frames" in sequence.notes[0] and "r.mp4 4" in sequence.notes[0]


def test_a_transform_is_applied_to_each_pair(tmp_path):
    root = write_folders(tmp_path, 3)
    turned = open_sequence(root)
    turned.transform(lambda left, right: (right[::-1], left[::-1]))
    for frame, plain in zip(turned, open_sequence(root), strict=True):
        np.testing.assert_array_equal(frame.left, plain.right[::-1])
        np.testing.assert_array_equal(frame.right, plain.left[::-1])


def test_looking_ahead_takes_nothing_away(tmp_path):
    sequence = open_sequence(write_folders(tmp_path, 4))
    for looks in (2, 3):
        ahead = sequence.peek()
        assert [next(ahead).name for _ in range(looks)] == list("012")[:looks]
        ahead.close()
    assert [frame.name for frame in sequence] == list("0123")


def test_the_source_is_closed_with_the_frames(camera):
    sequence = open_sequence(0, 1)
    ahead = sequence.peek()
    next(ahead)
    ahead.close()
    assert camera.released == []
    next(sequence.frames)
    sequence.frames.close()
    assert camera.released == [0, 1]


def test_own_sequences():
    sequence = StereoSequence("mine", iter([]))
    assert list(sequence) == [] and sequence.notes == [] and sequence.facts == {}


REFUSED = {
    "gone.mp4": (("gone.mp4",), "gone.mp4: no such file or folder"),
    "an image": (("l/0.png", "r/0.png"), "vizoo infer stereo"),
    "no video": (("text.mp4",), "text.mp4: no video"),
    "cut off": (("cut.mp4", "r.mp4"), "cut.mp4: no video, or one whose end was never written"),
    "one view": (("l.mp4",), "l.mp4: neither its halves"),
    "sizes": (("l.mp4", "small.mp4"), "48x80 pixels and small.mp4 24x40"),
    "rates": (("l.mp4", "fast.mp4"), "20 frames a second and fast.mp4 50"),
    "kinds": (("l.mp4", "l"), "left is a video and right is a folder"),
    "counts": (("l", "few"), "l holds 3 images and few 2"),
    "empty": (("empty", "r"), "empty: no image there"),
    "alone": (("l",), "l: RIGHT is missing"),
    "one twice": (("l.mp4", "l.mp4"), "l.mp4: named for both views"),
    "one stream": (("rtsp://me:s@cret@a/x?key=1#k",) * 2, "rtsp://a/x: named for both views"),
    "no camera": (("camera:7",), "camera:7: no such camera"),
    "no stream": (("rtsp://127.0.0.1:1/x",), "no stream comes from this address"),
}


@pytest.fixture(scope="module")
def sources_of_all_kinds(tmp_path_factory):
    root, pairs = tmp_path_factory.mktemp("sources"), list(views(3))
    for name, side in (("l", 0), ("r", 1)):
        write_video(root / f"{name}.mp4", [pair[side] for pair in pairs])
        for index, pair in enumerate(pairs):
            write_image(root / f"{name}/{index}.png", pair[side])
            if name == "r" and index < 2:
                write_image(root / f"few/{index}.png", pair[side])
    write_video(root / "fast.mp4", [pair[1] for pair in pairs], rate=50)
    write_video(root / "small.mp4", [pair[1][::2, ::2] for pair in pairs])
    (root / "cut.mp4").write_bytes((root / "l.mp4").read_bytes()[:-300])
    (root / "text.mp4").write_text("no video\n")
    (root / "empty").mkdir()
    return root


@pytest.mark.parametrize(("sources", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(sources_of_all_kinds, monkeypatch, sources, words):
    monkeypatch.chdir(sources_of_all_kinds)
    with pytest.raises((ValueError, FileNotFoundError), match=".") as error:
        open_sequence(*sources)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_opencv_before_4_13_is_quietened_too(tmp_path, monkeypatch):
    levels = []
    monkeypatch.delattr(cv2.utils, "logging", raising=False)
    monkeypatch.setattr(cv2, "setLogLevel", lambda level: levels.append(level) or 3, raising=False)
    (tmp_path / "text.mp4").write_text("no video\n")
    with pytest.raises(ValueError, match="no video"):
        open_sequence(tmp_path / "text.mp4")
    assert levels == [0, 3] * (len(levels) // 2) and levels


@pytest.mark.parametrize("layout", ["side-by-side", "auto"])
def test_an_odd_picture_cannot_be_halved(camera, layout):
    left, right = next(views(1))
    camera.pictures[2] = [np.hstack([left, right, right[:, :1]])]
    with pytest.raises(ValueError, match="camera:2: an odd width of 161 pixels"):
        open_sequence("camera:2", layout=layout)
    assert camera.released == [2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "cube"}, "layout 'cube'"),
        ({"layout": "side-by-side"}, "a layout is of pictures that hold both views, and"),
        ({"topics": ("a", "b")}, "topics are for bags"),
    ],
)
def test_options_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        open_sequence(write_folders(tmp_path, 2), **options)
    two, other = (
        write_video(tmp_path / f"{side}.mp4", [pair[side] for pair in views(2)]) for side in (0, 1)
    )
    with pytest.raises(ValueError, match="not for two"):
        open_sequence(two, other, layout="side-by-side")


def test_a_folder_of_twelve_bits_keeps_its_brightness(tmp_path):
    """Also where a frame is darker than ten bits would show."""
    for number, most in enumerate((1030, 1000, 1030)):
        for side, view in zip(("left", "right"), next(views(1)), strict=True):
            deep = (view[:, :, 0].astype(np.float64) * most / view.max()).astype(np.uint16)
            (tmp_path / side).mkdir(exist_ok=True)
            cv2.imwrite(str(tmp_path / side / f"{number}.png"), deep)
    brightness = [frame.left.mean() for frame in open_sequence(tmp_path)]
    np.testing.assert_allclose(brightness, brightness[0], rtol=0.05)
