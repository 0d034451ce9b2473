"""Pairs of ROS bags that the tests write: encodings, times, topics, and what is refused."""

import shutil
import sys
import weakref
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from sequences import STEP, TOPICS, compressed, image, views, write_bag
from sequences import bag_rows as rows

from vizoo.stereo import bags
from vizoo.stereo.bags import Bag, decode
from vizoo.stereo.sequences import open_sequence


def picture(size=(24, 32)):
    return next(views(1, size))[0]


GREY = cv2.cvtColor(picture(), cv2.COLOR_RGB2GRAY)
DEEP = GREY.astype(np.uint16) * 257


@pytest.mark.parametrize(
    ("message", "wanted", "most"),
    [
        (image(picture()), picture(), 0),
        (image(picture()[..., ::-1], "bgr8"), picture(), 0),
        (image(np.dstack([picture(), GREY]), "rgba8"), picture(), 0),
        (image(np.dstack([picture()[..., ::-1], GREY]), "bgra8"), picture(), 0),
        (image(GREY, "mono8"), GREY, 0),
        (image(DEEP, "mono16"), DEEP, 0),
        (image(DEEP.astype(">u2"), "16UC1", is_bigendian=1), DEEP, 0),
        (image(np.dstack([DEEP] * 3), "rgb16"), np.dstack([DEEP] * 3), 0),
        (compressed(picture()), picture(), 0),
        (compressed(picture(), ".jpg"), picture(), 12),
    ],
)
def test_encodings(message, wanted, most):
    found = decode(message)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= most


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
@pytest.mark.parametrize("order", ["rggb", "bggr", "gbrg", "grbg"])
def test_a_bayer_pattern_is_named_by_its_first_pixels(order, depth):
    """A red picture is red whichever pixel comes first."""
    cells = np.array([[order[0], order[1]], [order[2], order[3]]])
    mosaic = np.tile(np.where(cells == "r", 200, 20), (12, 16)).astype(depth)
    found = decode(image(mosaic, f"bayer_{order}{8 * mosaic.itemsize}"))[4:-4, 4:-4].reshape(-1, 3)
    np.testing.assert_allclose(found.mean(axis=0), [200, 20, 20], atol=2)


@pytest.mark.parametrize(
    ("encoding", "order"),
    [("yuv422", "uyvy"), ("yuv422_yuy2", "yuyv"), ("uyvy", "uyvy"), ("yuyv", "yuyv")],
)
def test_yuv(encoding, order):
    """A grey of 90 and a colour difference that makes it red."""
    values = {"y": 90, "u": 100, "v": 180}
    row = np.array([values[name] for name in order], np.uint8)
    red, green, blue = decode(image(np.tile(row, (8, 6)).reshape(8, 12, 2), encoding))[4, 6]
    assert red > 130 and green < 90 and blue < 80


def test_rows_may_be_padded():
    padded = np.zeros((24, 40, 3), np.uint8)
    padded[:, :32] = picture()
    np.testing.assert_array_equal(decode(image(padded, width=32)), picture())


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (image(picture(), "32FC1"), "encoding '32FC1' is none of mono8"),
        (image(picture(), height=25), "2304 bytes cannot hold 25x32 pixels of rgb8"),
        (image(picture(), step=10), "cannot hold"),
        (image(picture(), height=0), "cannot hold"),
        (image(np.zeros((8, 5, 2), np.uint8), "yuv422"), "8x5 pixels of yuv422 cannot be decoded"),
        (SimpleNamespace(format="jpeg", data=np.arange(9, dtype=np.uint8)), "cannot be decoded"),
        (SimpleNamespace(format="jpeg", data=np.zeros(0, np.uint8)), "cannot be decoded"),
    ],
)
def test_damaged_pictures(message, words):
    with pytest.raises(ValueError, match=words):
        decode(message)


@pytest.fixture
def write(tmp_path):
    return lambda rows, name="bag", **options: write_bag(tmp_path / name, rows, **options)


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
def test_a_bag(write, storage):
    bag = write(rows(), storage=storage)
    cut_short = shutil.copytree(bag, bag.with_name("cut"))
    (cut_short / "metadata.yaml").unlink()  # a recorder writes it when it ends
    for path in (bag, cut_short, next(bag.glob("*.mcap"), bag)):
        sequence = open_sequence(path)
        assert sequence.rate == pytest.approx(20) and sequence.length == 6
        assert sequence.facts["topics"] == list(TOPICS)
        frames = list(sequence)
        for index, (frame, (left, right)) in enumerate(zip(frames, views(6), strict=True)):
            np.testing.assert_array_equal(frame.left, left)
            np.testing.assert_array_equal(frame.right, right)
            assert frame.time == pytest.approx(1 + index * STEP / 1e9)
        assert sequence.notes == []
    (file,) = cut_short.iterdir()
    shutil.copy(file, cut_short / f"{file.stem}_1{file.suffix}")
    assert open_sequence(cut_short).notes == []
    shutil.copy(file, cut_short / f"other_0{file.suffix}")
    (note,) = open_sequence(cut_short).notes
    assert note == f"{cut_short}: 2 recordings are read as one, by time: bag, other"


def test_pictures_belong_together_by_their_times(write):
    """Half a frame late is no pair; what is lost on one side is passed over on the other."""
    lost = [row for row in rows(late=4_000_000) if row[:2] != (TOPICS[0], 10**9 + 2 * STEP)]
    sequence = open_sequence(write(lost))
    assert [round(frame.time * 20) - 20 for frame in sequence] == [0, 1, 3, 4, 5]
    assert sequence.notes[0].endswith("1 pictures have no partner of their time, beside 5 pairs")
    apart = open_sequence(write(rows(late=STEP // 2), "apart"))
    assert list(apart) == []


def test_a_camera_that_is_back_is_paired_at_once(write):
    gap = [row for index, row in enumerate(rows()) if index not in (3, 5, 7, 9)]  # of the right one
    sequence = open_sequence(write(gap))
    assert [round(frame.time * 20) - 20 for frame in sequence] == [0, 5]
    assert sequence.notes[0].endswith("4 pictures have no partner of their time, beside 2 pairs")


def test_a_camera_that_is_dead_does_not_fill_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(bags, "_WAITING", 5)
    kept, most = [], []

    class Message(SimpleNamespace):
        pass

    def messages(path, topics):
        for index in range(60):
            for side in (0, 1) if index < 3 else (0,):
                message = Message(**vars(image(picture())))
                kept.append(weakref.ref(message))
                yield side, index * STEP, message
                most.append(sum(one() is not None for one in kept))

    monkeypatch.setattr(bags, "_messages", messages)
    bag = Bag(tmp_path / "bag", TOPICS, 3, 20.0)
    assert len(list(bag.pairs())) == 3
    assert max(most) <= 5 + 4  # those that wait, and those in hand
    assert bag.notes[0].endswith("57 pictures have no partner of their time, beside 3 pairs")


def test_logged_in_bursts(write):
    """A log that fell behind: pictures belong together, and have their rate, by their headers."""
    burst = [(topic, 10**9 + 1000 * i, p) for i, (topic, _, p) in enumerate(rows(late=9_000_000))]
    stamps = iter(time for _, time, _ in rows(late=9_000_000))
    sequence = open_sequence(write(burst, stamp=lambda logged: next(stamps)))
    assert sequence.rate == pytest.approx(20)
    assert [frame.time for frame in sequence] == pytest.approx([1 + i / 20 for i in range(6)])
    assert sequence.notes == []


def test_times_of_the_log_where_headers_have_none(write):
    sequence = open_sequence(write(rows(), stamp=lambda time: 0))
    assert [frame.time for frame in sequence] == pytest.approx([1 + i / 20 for i in range(6)])


def test_twelve_bits_in_sixteen_fill_eight(write):
    deep = [(topic, time, cv2.cvtColor(p, cv2.COLOR_RGB2GRAY)) for topic, time, p in rows(3)]
    scaled = [(topic, time, p.astype(np.uint16) * 16) for topic, time, p in deep]
    sequence = open_sequence(write(scaled, encoding="mono16"))
    for frame, (_, _, wanted) in zip(sequence, deep[::2], strict=True):
        np.testing.assert_array_equal(frame.left[:, :, 1], wanted)
    (note,) = sequence.notes
    assert note.endswith("bag: 16-bit pictures were taken as of 12 bits")


def test_a_bag_that_begins_in_the_dark(write):
    deep = [(topic, time, cv2.cvtColor(p, cv2.COLOR_RGB2GRAY)) for topic, time, p in rows(3)]
    scaled = [
        (topic, time, p.astype(np.uint16) * (1 if index < 2 else 16))
        for index, (topic, time, p) in enumerate(deep)
    ]
    first, *later = open_sequence(write(scaled, encoding="mono16"))
    assert first.left.max() <= 64
    for frame, (_, _, wanted) in zip(later, deep[2::2], strict=True):
        np.testing.assert_array_equal(frame.left[:, :, 1], wanted)


def test_a_damaged_picture_is_passed_over(write):
    shown = [(topic, time, bytes(compressed(p).data)) for topic, time, p in rows(4)]
    shown[3] = (*shown[3][:2], shown[3][2][:40])
    sequence = open_sequence(write(shown))
    assert len(list(sequence)) == 3
    assert "1 pairs passed over: a compressed picture (jpeg)" in sequence.notes[0]


def test_topics(write):
    """Those that are clearly left and right are taken; else they are to be named."""
    names = ("/a/image", "/b/image", "/cam0/image", "/cam1/image")
    bag = write([*rows(2, names[:2]), *rows(3, names[2:])])
    assert open_sequence(bag).facts["topics"] == list(names[2:])
    assert len(list(open_sequence(bag, topics=names[:2]))) == 2
    with pytest.raises(ValueError, match=r"no image of the topic /c; there are: /a/image \(2\)"):
        open_sequence(bag, topics=("/a/image", "/c"))
    with pytest.raises(ValueError, match="left and right are both /a/image; there are: /a/image"):
        open_sequence(bag, topics=("/a/image", "/a/image"))
    more = write([*rows(2, names[:2]), *rows(2, ("/d", "/e"))], "more")
    with pytest.raises(ValueError, match=r"name the topics, left and right, of: /a/image \(2\)"):
        open_sequence(more)
    one = write([row for row in rows(2) if "left" in row[0]], "one")
    with pytest.raises(ValueError, match="no two topics"):
        open_sequence(one)


def test_damaged_bags(write, tmp_path):
    bag = write(rows())
    with pytest.raises(ValueError, match="give one bag"):
        open_sequence(bag, bag)
    (bag / "metadata.yaml").write_text("rosbag2_bagfile_information: [")
    with pytest.raises(ValueError, match="no ROS bag that can be read") as error:
        open_sequence(bag)
    assert "\n" not in str(error.value)
    (tmp_path / "text.bag").write_text("no bag")
    with pytest.raises(ValueError, match="no ROS bag that can be read"):
        open_sequence(tmp_path / "text.bag")


def test_without_rosbags(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rosbags", None)
    monkeypatch.setitem(sys.modules, "rosbags.highlevel", None)
    (tmp_path / "x.mcap").touch()
    with pytest.raises(ImportError, match=r"needs rosbags: pip install 'vizoo\[ros\]'"):
        open_sequence(tmp_path / "x.mcap")
