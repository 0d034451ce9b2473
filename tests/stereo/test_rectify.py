"""Rectified pictures of rendered rigs: straight lines, equal rows, true depth, there and back."""

import functools

import cv2
import numpy as np
import pytest
from raw_rigs import HEIGHT, LENSES, WIDTH, Board, chessboard, lines, make_rig, noise, rolled

from vizoo.datasets.stereo.rigs import StereoRig
from vizoo.stereo.rectification import check_pair, measure_pair
from vizoo.stereo.rectify import RigRectifier, check_rows, rectify
from vizoo.vision.lenses import Lens

EVERY = pytest.mark.parametrize("name", LENSES)


@functools.cache
def rectifier_of(name):
    return RigRectifier(make_rig(name), HEIGHT, WIDTH)


def shown(rectifier, points):
    """Pixels in both rectified images of points before the left camera, and their depth."""
    focal, cx, cy = rectifier.camera
    rig, found = rectifier.rig, []
    for turn, own in (
        (rectifier.turns[0], points),
        (rectifier.turns[1], points @ rig.rotation.T + rig.translation),
    ):
        x, y, z = np.moveaxis(own @ turn.T, -1, 0)
        found.append(np.stack([focal * x / z + cx, focal * y / z + cy], -1))
    return found[0], found[1], z


def virtual_camera(rectifier):
    """The pinhole lens of the rectified left image, and where it looks, seen from the raw one."""
    focal, cx, cy = rectifier.camera
    pose = np.eye(4)
    pose[:3, :3] = rectifier.turns[0]
    return Lens("pinhole", (focal, focal), (cx, cy), width=WIDTH, height=HEIGHT), pose


def inside(pixels, margin=6):
    return ((pixels > margin) & (pixels < np.array([WIDTH, HEIGHT]) - 1 - margin)).all(-1)


@EVERY
def test_points_come_to_lie_in_one_row_at_the_disparity_of_their_depth(name):
    rectifier, generator = rectifier_of(name), np.random.default_rng(0)
    rig = rectifier.rig
    points = generator.uniform((-0.6, -0.4, 0.8), (0.6, 0.4, 5), (300, 3))
    raw = [rig.left.project(points), rig.right.project(points @ rig.rotation.T + rig.translation)]
    left, right, depth = shown(rectifier, points)
    assert left[:, 1] == pytest.approx(right[:, 1], abs=1e-9)
    c = rectifier.calibration
    assert c.focal * c.baseline / (left - right)[:, 0] == pytest.approx(depth, rel=1e-6)
    assert c.baseline == pytest.approx(0.1) and (c.width, c.height) == (WIDTH, HEIGHT)
    for pixels, places, expected in zip((left, right), rectifier.maps, raw, strict=True):
        there = inside(pixels)
        assert there.sum() > 50
        looked_up = cv2.remap(places, pixels[there][:, None].astype(np.float32), None, 1)
        assert looked_up[:, 0] == pytest.approx(expected[there], abs=0.1)


@EVERY
def test_every_pixel_shows_something(name):
    rectifier = rectifier_of(name)
    for places in rectifier.maps:
        assert places.min() > -1 and (places.reshape(-1, 2).max(0) < (WIDTH, HEIGHT)).all()
    assert rectifier.kept > 0.4


ROLLS = [(0, 90, ""), (0, -90, ""), (0, 180, ""), (15, 195, "")]
ROLLS += [(90, 90, " clockwise"), (-90, -90, " counterclockwise"), (90, -90, " clockwise")]


@pytest.mark.parametrize(
    ("name", "left", "right", "turned"),
    [("radtan", *roll) for roll in ROLLS] + [("fisheye", *roll) for roll in ROLLS[3:6]],
)
def test_cameras_that_are_rolled(name, left, right, turned):
    rig = rolled(make_rig(name), left, right)
    rectifier = RigRectifier(rig, HEIGHT, WIDTH)
    one, two = rectifier(*Board((0, 0, 0.9), (0.2, 0.3, 0)).pair(rig, noise()))
    assert one.shape[:2] == ((WIDTH, HEIGHT) if turned else (HEIGHT, WIDTH))
    found = measure_pair(one, two)
    assert found.row_offset < 0.3 and found.row_trend < 0.5 and found.swapped_share == 0
    points = rig.left.unproject(np.random.default_rng(0).uniform(60, 180, (50, 2))) * 0.9
    first, second, depth = shown(rectifier, points)
    assert first[:, 1] == pytest.approx(second[:, 1], abs=1e-9)
    c = rectifier.calibration
    assert c.focal * c.baseline / (first - second)[:, 0] == pytest.approx(depth, rel=1e-6)
    for places in rectifier.maps:
        assert places.min() > -1 and (places.reshape(-1, 2).max(0) < (WIDTH, HEIGHT)).all()
    assert rectifier.kept > 0.3
    # Else upright as the left camera sees it.
    (end,) = [note.partition("degrees")[2] for note in rectifier.notes] or [""]
    right = np.diff(rectifier.maps[0][100, 50:-50], axis=0).mean(0)
    along = {"": (1, 0), " clockwise": (0, -1), " counterclockwise": (0, 1)}[end]
    assert end == turned and right @ along > 0.7 * np.linalg.norm(right)


def test_cameras_upside_down_are_swapped():
    with pytest.raises(ValueError, match="are swapped, or both upside down"):
        rolled(make_rig(), 180, 180)


@EVERY
@pytest.mark.parametrize("along", [0, 1])
def test_straight_lines_are_straight(name, along):
    board, rectifier = Board(), rectifier_of(name)
    pictures = rectifier(*board.pair(rectifier.rig, lines(along)))
    step, checked = np.arange(-1.5, 2.5, 0.02), 0
    for value in np.arange(-8, 12) * 0.25:
        places = np.stack([step, np.full_like(step, value)], -1)
        points = board.points(places if along == 0 else places[:, ::-1])
        line = shown(rectifier, points[points[:, 2] < 1.1])  # beyond, lines run into each other
        for picture, pixels in zip(pictures, line, strict=False):
            measured = crossings(picture, pixels, along)
            if len(measured) > 10:
                checked += 1
                slope, start = np.polyfit(*measured.T, 1)
                off = measured[:, 1] - slope * measured[:, 0] - start
                assert np.abs(off).max() / np.hypot(1, slope) < 0.2
    assert checked >= 4


def crossings(picture, pixels, along):
    """Where a dark line crosses columns (along 0) or rows: the peak of its Gaussian darkness."""
    image = 255.0 - picture[..., 0]
    image, pixels = (image, pixels) if along == 0 else (image.T, pixels[:, ::-1])
    pixels, found = pixels[np.argsort(pixels[:, 0])], []
    limit = np.array(image.shape[::-1]) - 12
    pixels = pixels[((pixels > 12) & (pixels < limit)).all(1)]
    for at in range(int(pixels[0, 0]) + 1, int(pixels[-1, 0]) - 1, 4) if len(pixels) > 1 else ():
        expected = round(float(np.interp(at, *pixels.T)))
        rows = np.arange(expected - 5, expected + 6)
        curve = np.polyfit(rows - expected, np.log(image[rows, at] + 1), 2, w=image[rows, at] ** 2)
        found.append((at, expected - curve[1] / curve[0] / 2))
    return np.array(found).reshape(-1, 2)


def corners(picture, size):
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    found, at = cv2.findChessboardCornersSB(grey, size, flags=cv2.CALIB_CB_EXHAUSTIVE)
    assert found
    at = at.reshape(-1, 2)
    return at if at[0, 0] < at[-1, 0] else at[::-1]


@EVERY
def test_corners_found_in_the_pictures_have_one_row_and_true_depth(name):
    near = {"fisheye": 0.36, "ds": 0.36, "mei": 0.4, "eucm": 0.4, "fov": 0.5}.get(name, 0.6)
    board = Board((-0.5 * near, -0.36 * near, near), (0.1, -0.15, 0.03))
    rig, square = make_rig(name, baseline=0.05), 0.1 * near
    left, right, calibration = rectify(rig, *board.pair(rig, chessboard(9, 6, square)))
    one, two = corners(left, (8, 5)), corners(right, (8, 5))
    assert np.abs(one[:, 1] - two[:, 1]).max() < 0.3
    grid = np.stack(np.meshgrid(np.arange(1, 9), np.arange(1, 6)), -1).reshape(-1, 2) * square
    expected, _, depth = shown(RigRectifier(rig, HEIGHT, WIDTH), board.points(grid))
    assert np.abs(one - expected).max() < 0.3
    found = calibration.focal * calibration.baseline / (one - two)[:, 0]
    assert np.median(np.abs(found / depth - 1)) < 0.01
    assert np.abs(found / depth - 1).max() < 0.03


def test_raw_pairs_are_doubted_and_rectified_ones_are_not():
    board, rig = Board((0, 0, 1.2)), make_rig()
    pair = board.pair(rig, noise())
    (doubt,) = check_pair(*pair)
    assert "not rectified" in doubt and "vizoo rectify" in doubt and "--auto-rectify" in doubt
    left, right, _ = rectify(rig, *pair)
    assert check_pair(left, right) == []
    assert measure_pair(left, right).row_offset < 0.3
    assert check_rows(left, right)[1] == []
    assert [note[:26] for note in check_rows(right, left)[1]] == ["left and right look swappe"]


@EVERY
def test_depth_comes_back_to_the_raw_image(name):
    board, rectifier = Board((0, 0, 1.0), (0.3, -0.4, 0)), rectifier_of(name)
    with np.errstate(invalid="ignore"):
        depth = np.nan_to_num(board.seen(*virtual_camera(rectifier), fine=1)[1]).astype(np.float32)
        truth = board.seen(rectifier.rig.left, fine=1)[1]
    depth[:40, :50] = 0  # unknown
    found = rectifier.depth_in_raw(depth)
    assert found.shape == (HEIGHT, WIDTH) and found.dtype == np.float32
    known = (found > 0) & (truth < 4)
    assert known.mean() > 0.3 and (found == 0).any()
    assert np.abs(found[known] / truth[known] - 1).max() < 0.01


@EVERY
def test_surfaces_stay_apart_in_the_raw_depth(name):
    """No depth between two surfaces, and each to within what interpolation gives."""
    rectifier = rectifier_of(name)
    far, near = Board((0, 0, 2.0), (0.2, -0.1, 0)), Board((0, 0, 1.0), (-0.1, 0.2, 0))

    def two(*camera):
        with np.errstate(invalid="ignore"):
            (_, behind), (places, before) = (board.seen(*camera, fine=1) for board in (far, near))
            hit = (np.abs(places) < 0.15).all(-1)
        return np.where(hit, before, behind), behind, before

    truth = two(rectifier.rig.left)
    found = rectifier.depth_in_raw(two(*virtual_camera(rectifier))[0].astype(np.float32))
    known = found > 0
    off = np.stack([np.abs(found / depth - 1)[known] for depth in truth])
    assert known.mean() > 0.4 and off[1:].min(0).max() < 0.005
    assert (off[0] > 0.005).mean() < 0.01  # beside the step alone, by less than a pixel


@EVERY
def test_other_maps_come_back_to_the_raw_image(name):
    rectifier = rectifier_of(name)
    focal, cx, cy = rectifier.camera
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    found = np.stack([rectifier.in_raw(x), rectifier.in_raw(y)], -1)
    raw = np.stack(np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT)), -1)
    rays = rectifier.rig.left.unproject(raw) @ rectifier.turns[0].T
    places = rays[..., :2] / rays[..., 2:] * focal + [cx, cy]
    shown_there = ((places >= 0) & (places <= (WIDTH - 1, HEIGHT - 1))).all(-1)
    assert np.abs(found - places)[shown_there].max() < 0.02 and 0.4 < shown_there.mean() < 1
    assert not found[~shown_there].any()
    left = rectifier.in_raw(x < 100, beyond=1)
    assert left.dtype == bool and left[~shown_there].all()
    sure = np.abs(places[..., 0] - 99.5) > 0.6
    assert (left == (places[..., 0] < 99.5))[sure & shown_there].all()


def test_maps_for_the_raw_image_have_the_rectified_size():
    rectifier, metres = rectifier_of("plain"), np.full((HEIGHT, WIDTH), 3)
    for depth in (metres, metres.astype(np.uint16), metres.astype(np.float64)):
        found = rectifier.depth_in_raw(depth)
        assert found.dtype == np.float32 and found.max() == pytest.approx(3, rel=0.3)
    for call in (rectifier.depth_in_raw, rectifier.in_raw):
        with pytest.raises(ValueError, match=rf"is \({HEIGHT}, {WIDTH}\), got \(5, {WIDTH}\)"):
            call(metres[:5])


def test_field_of_view_and_size():
    rig = make_rig("fisheye")
    wide = RigRectifier(rig, HEIGHT, WIDTH, fov=110, size=(300, 500))
    assert [places.shape for places in wide.maps] == [(300, 500, 2)] * 2
    assert wide.calibration.focal == pytest.approx(250 / np.tan(np.radians(55)))
    assert (wide.calibration.width, wide.calibration.height) == (500, 300)
    assert RigRectifier(rig, HEIGHT, WIDTH, fov=40).kept < wide.kept
    with pytest.raises(ValueError, match="1 to 170 degrees, got 180"):
        RigRectifier(rig, HEIGHT, WIDTH, fov=180)
    with pytest.raises(ValueError, match="the size 99999x99999 has more than 4 times .* 240x320"):
        RigRectifier(rig, HEIGHT, WIDTH, size=(99999, 99999))


def test_scaled_calibrations_and_other_sizes():
    board, rig = Board(), make_rig()
    half = RigRectifier(rig, HEIGHT // 2, WIDTH // 2)
    assert half.calibration.focal == pytest.approx(
        RigRectifier(rig, HEIGHT, WIDTH).calibration.focal / 2, rel=0.01
    )
    assert "scaled to 120x160" in half.notes[0]
    with pytest.raises(ValueError, match="not the same picture"):
        RigRectifier(rig, HEIGHT, HEIGHT)
    with pytest.raises(ValueError, match="left image has 240x320 pixels, not 120x160"):
        half(*board.pair(rig, lines(), fine=1))


def test_files_of_twelve_bits_are_as_bright_as_the_pair(tmp_path):
    """A camera of 12 bits leaves the upper ones of its files empty."""
    rig, files = make_rig(), [tmp_path / "left.png", tmp_path / "right.png"]
    pair = Board().pair(rig, noise(1), fine=1)
    for file, view in zip(files, pair, strict=True):
        cv2.imwrite(str(file), 16 * view[..., ::-1].astype(np.uint16))
    for rectified, other in zip(rectify(rig, *files)[:2], rectify(rig, *pair)[:2], strict=True):
        assert np.abs(rectified.astype(int) - other).max() <= 3


def test_cameras_that_look_apart_have_nothing_in_common():
    lens = Lens("pinhole", (900, 900), (160, 120), width=WIDTH, height=HEIGHT)
    apart = cv2.Rodrigues(np.array([0, 0.9, 0]))[0]
    rig = StereoRig(lens, lens, apart, -apart @ [0.1, 0, 0])
    assert RigRectifier(rig, HEIGHT, WIDTH, fov=60).maps[0].shape == (HEIGHT, WIDTH, 2)
    high = Lens("pinhole", (900, 900), (160, -2000), width=WIDTH, height=HEIGHT)
    with pytest.raises(ValueError, match="nothing in common.*or a field of view wanted"):
        RigRectifier(StereoRig(lens, high, np.eye(3), np.array([-0.1, 0, 0])), HEIGHT, WIDTH)
