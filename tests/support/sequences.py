"""Stereo sequences that tests write, and a network that finds the same everywhere."""

import cv2
import numpy as np
import torch
from torch import nn

SIZE = (48, 80)


class Constant(nn.Module):
    """Finds 5 px everywhere."""

    def forward(self, left, right):
        return torch.full_like(left[:, :1], 5.0)


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


def write_video(path, pictures, rate=20.0):
    """Write pictures (H, W, 3) uint8 RGB as MPEG-4."""
    writer = None
    for picture in pictures:
        if writer is None:
            coding = cv2.VideoWriter.fourcc(*"mp4v")
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
        self.now = next(self.left, None)
        return self.now is not None

    def retrieve(self):
        return True, np.ascontiguousarray(self.now[:, :, ::-1])

    def release(self):
        self.released.append(self.source)
