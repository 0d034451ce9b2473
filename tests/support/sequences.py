"""Stereo sequences that tests write: videos, folders, cameras and bags."""

import time
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

SIZE = (48, 80)
STEP = 50_000_000  # nanoseconds between the frames of a bag
TOPICS = ("/left/image_raw", "/right/image_raw")


def views(count, size=SIZE, shift=5):
    """Smooth pairs (H, W, 3) uint8 RGB, 5 px apart; the red of frame i is about 20 i."""
    height, width = size
    noise = np.random.default_rng(0).random((height, width + shift, 3), dtype=np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), 3)
    picture = np.uint8(255 * (noise - noise.min()) / (noise.max() - noise.min()))
    for index in range(count):
        shown = picture.copy()
        shown[:, :, 0] = 20 * index
        yield shown[:, :width], shown[:, shift:]


def write_video(path, pictures, rate=20.0, code="mp4v"):
    """Write pictures (H, W, 3) uint8 RGB, as MPEG-4 by default."""
    writer = None
    for picture in pictures:
        if writer is None:
            coding = cv2.VideoWriter.fourcc(*code)
            writer = cv2.VideoWriter(str(path), coding, rate, picture.shape[1::-1])
        writer.write(np.ascontiguousarray(picture[:, :, ::-1]))
    writer.release()
    return path


def read_video(path):
    """The pictures of a video, RGB, and its rate."""
    capture = cv2.VideoCapture(str(path))
    rate, pictures = capture.get(cv2.CAP_PROP_FPS), []
    while (read := capture.read())[0]:
        pictures.append(read[1][:, :, ::-1])
    capture.release()
    return pictures, rate


class Camera:
    """Stands in for `cv2.VideoCapture`: pictures of a list, then nothing more.

    ``Camera.pictures`` holds those of each number; a number that it lacks is no camera.
    """

    pictures = {}
    rate = 30.0
    pause = 0.0  # seconds before each
    released = []

    def __init__(self, source):
        self.source = source
        self.left = iter(self.pictures.get(source, ()))
        self.now = None

    def isOpened(self):
        return self.source in self.pictures

    def get(self, key):
        return self.rate if key == cv2.CAP_PROP_FPS else -1.0

    def grab(self):
        time.sleep(self.pause)
        self.now = next(self.left, None)
        return self.now is not None

    def retrieve(self):
        return True, np.ascontiguousarray(self.now[:, :, ::-1])

    def release(self):
        self.released.append(self.source)


def image(picture, encoding="rgb8", **other):
    """A message of `sensor_msgs/Image`, as far as it is read."""
    data = np.ascontiguousarray(picture)
    step = data.strides[0]
    fields = {"height": len(data), "width": data.shape[1], "step": step, "is_bigendian": 0}
    fields |= {"encoding": encoding, "data": np.frombuffer(data.tobytes(), np.uint8), **other}
    return SimpleNamespace(**fields)


def compressed(picture, suffix=".png"):
    """A message of `sensor_msgs/CompressedImage`, likewise."""
    data = cv2.imencode(suffix, np.ascontiguousarray(picture[..., ::-1]))[1]
    return SimpleNamespace(format=suffix[1:], data=data.ravel())


def bag_rows(count=6, names=TOPICS, late=0):
    """(topic, nanoseconds, picture) of `views`; the right one so much later."""
    for index, pair in enumerate(views(count)):
        for side in (0, 1):
            yield names[side], 10**9 + index * STEP + side * late, pair[side]


def write_bag(path, rows, encoding="rgb8", storage="SQLITE3", stamp=lambda time: time):
    """Write a ROS 2 bag of rows (topic, nanoseconds, picture or bytes of a compressed one).

    They are logged at these times; `stamp` gives that of the header.
    """
    rosbag2 = pytest.importorskip("rosbags.rosbag2")
    typesys = pytest.importorskip("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    kinds = store.types
    plugin = rosbag2.StoragePlugin[storage]
    with rosbag2.Writer(path, version=9, storage_plugin=plugin) as bag:
        connections = {}
        for topic, moment, shown in rows:
            kind = "Image" if isinstance(shown, np.ndarray) else "CompressedImage"
            kind = f"sensor_msgs/msg/{kind}"
            if topic not in connections:
                connections[topic] = bag.add_connection(topic, kind, typestore=store)
            sec, nanosec = divmod(stamp(moment), 10**9)
            when = kinds["builtin_interfaces/msg/Time"](sec=sec, nanosec=nanosec)
            header = kinds["std_msgs/msg/Header"](stamp=when, frame_id="")
            if kind.endswith("CompressedImage"):
                data = np.frombuffer(shown, np.uint8)
                message = kinds[kind](header=header, format="jpeg", data=data)
            else:
                message = kinds[kind](header=header, **vars(image(shown, encoding)))
            bag.write(connections[topic], moment, store.serialize_cdr(message, kind))
    return path
