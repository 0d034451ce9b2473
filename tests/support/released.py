"""What a released folder says of itself."""

from vizoo.vision.hub.released import open_released


def read_record(folder):
    return open_released(f"local-dir:{folder}")[1]
