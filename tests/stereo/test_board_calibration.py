"""Rigs are found again by pictures of boards, and what is wrong with pictures is said."""

import functools
import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
from raw_rigs import Board as Plane
from raw_rigs import chessboard, make_rig

from vizoo.datasets.stereo.rigs import StereoRig, read_rig
from vizoo.stereo.board_calibration import Board, calibrate_rig, write_calibrated
from vizoo.vision.io.images import read_image, write_image

SQUARE = 0.05
CHESS = Board("chessboard", 9, 6, SQUARE)
DEPTHS = {"radtan": 0.5, "rational": 0.4, "fisheye": 0.27}
CHARUCO = Board("charuco", 9, 6, SQUARE, 0.037)


def charuco(board):
    image = board.charuco().generateImage((540, 360)).astype(np.float32) / 255

    def texture(places):
        at = np.nan_to_num(places / SQUARE * 60 - 0.5, nan=-1e4).astype(np.float32)
        return cv2.remap(image, at, None, cv2.INTER_LINEAR, borderValue=0.95)

    return texture


def photographed(folder, rig, texture, depth):
    """Files of a board in 14 positions; about one is not whole in both pictures."""
    generator, pairs = np.random.default_rng(3), []
    for number in range(14):
        turn = generator.uniform(-0.5, 0.5, 3)
        middle = generator.uniform((-0.16, -0.11, 0.9), (0.2, 0.11, 1.35)) * depth / 0.5
        middle[2] = middle[2] * 0.5
        directions = cv2.Rodrigues(turn)[0][:, :2]
        plane = Plane(middle - directions @ [4.5 * SQUARE, 3 * SQUARE], turn)
        files = [folder / side / f"{number:02d}.png" for side in ("left", "right")]
        for file, picture in zip(files, plane.pair(rig, texture), strict=True):
            write_image(file, picture)
        pairs.append(tuple(files))
    return pairs


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Files of a board before a rig, by its name; each is rendered once."""

    @functools.cache
    def take(board, name):
        texture = chessboard(9, 6, SQUARE) if board is CHESS else charuco(board)
        folder = tmp_path_factory.mktemp(f"{board.kind}-{name}")
        return photographed(folder, make_rig(name), texture, DEPTHS[name])

    return take


def near(found: StereoRig, truth: StereoRig) -> None:
    for ours, theirs in ((found.left, truth.left), (found.right, truth.right)):
        assert ours.focal == pytest.approx(theirs.focal, rel=0.01)
        # What lens it is shows where pixels look.
        pixels = np.stack(np.meshgrid(np.arange(60, 261, 20), np.arange(50, 191, 20)), -1)
        turned = (ours.unproject(pixels) * theirs.unproject(pixels)).sum(-1)
        assert np.degrees(np.arccos(np.clip(turned, -1, 1))).mean() < 0.4
    assert found.baseline == pytest.approx(truth.baseline, rel=0.01)
    assert np.linalg.norm(cv2.Rodrigues(found.rotation @ truth.rotation.T)[0]) < 0.006


@pytest.mark.parametrize(
    ("board", "name", "lens"),
    [
        (CHESS, "radtan", "pinhole"),
        (CHARUCO, "rational", "rational"),
        (CHESS, "fisheye", "fisheye"),
        # Boards and lenses of those above.
        pytest.param(CHARUCO, "radtan", "pinhole", marks=pytest.mark.slow),
        pytest.param(CHARUCO, "fisheye", "fisheye", marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_a_rendered_rig_is_found_again(photographs, board, name, lens):
    pairs, counted = photographs(board, name), []
    found = calibrate_rig(pairs, board, lens, lambda *words: counted.append(words))
    assert counted[-1] == ("pairs", len(pairs), len(pairs))
    assert len(found.views) >= 8 and found.error < 0.25
    assert len(found.views) + len(found.skipped) == len(pairs)
    for reason in found.skipped.values():
        assert "no board found in" in reason or "share" in reason
    near(found.rig, make_rig(name))


@pytest.fixture(scope="module")
def pictures(photographs):
    return photographs(CHESS, "radtan")[:7]


@pytest.fixture(scope="module")
def found(pictures):
    return calibrate_rig(pictures, CHESS)


def test_files(tmp_path, found):
    named = replace(found, views=(replace(found.views[0], name="a$^$.png"), *found.views[1:]))
    yml, report, picture = write_calibrated(named, tmp_path)
    again = read_rig(yml)
    assert again.left == found.rig.left and again.right == found.rig.right
    assert again.translation == pytest.approx(found.rig.translation) and again.notes == ()
    report = json.loads(report.read_text())
    assert report["error"] == found.error and report["size"] == [240, 320]
    assert report["views"][0].keys() == {"name", "corners", "left", "right"}
    assert read_image(picture).shape[1:] == (400, 1300)
    assert any("few; 15 and more" in note for note in report["warnings"])


def test_a_board_turned_by_half_is_the_same_board(tmp_path, pictures, found):
    """Both pictures are turned, so that corners may be counted from the other end."""
    for left, right in pictures:
        for file in (left, right):
            turned = np.ascontiguousarray(cv2.imread(str(file))[::-1, ::-1, ::-1])
            write_image(tmp_path / file.parent.name / file.name, turned)
    # Turned cameras change sides.
    sides = [tmp_path / side for side in ("right", "left")]
    pairs = [(sides[0] / left.name, sides[1] / left.name) for left, _ in pictures]
    assert calibrate_rig(pairs, CHESS).error == pytest.approx(found.error, abs=0.05)


def test_a_square_board_on_its_corner(tmp_path):
    """Which of its corners comes first there, may differ from one picture to the other."""
    rig, texture, pairs = make_rig("plain"), chessboard(7, 7, SQUARE), []
    for number, roll in enumerate((38, 40, 42, 44, 46, 48)):
        tilt = np.array([0.3 * (-1) ** number, 0.15 * number - 0.4, 0])
        turned = cv2.Rodrigues(tilt)[0] @ cv2.Rodrigues(np.radians([0.0, 0, roll]))[0]
        middle = np.array([0.02 * number, 0.03 - 0.01 * number, 0.55])
        origin = middle - turned[:, :2] @ [3.5 * SQUARE, 3.5 * SQUARE]
        plane = Plane(origin, cv2.Rodrigues(turned)[0].ravel())
        files = [tmp_path / side / f"{number}.png" for side in ("left", "right")]
        for file, picture in zip(files, plane.pair(rig, texture), strict=True):
            write_image(file, picture)
        pairs.append(tuple(files))
    found = calibrate_rig(pairs, Board("chessboard", 7, 7, SQUARE))
    assert len(found.views) > 3 and max(max(view.errors) for view in found.views) < 0.5


def test_a_view_that_fits_worse_is_named(tmp_path, pictures):
    (left, right), *rest = pictures
    shifted = tmp_path / "moved.png"
    write_image(shifted, np.roll(cv2.imread(str(right))[..., ::-1], 6, axis=0))
    found = calibrate_rig([(left, shifted), *rest], CHESS)
    worst = max(found.views, key=lambda view: max(view.errors))
    assert worst.name == str(left) and any(str(left) in note for note in found.notes)


def test_swapped_pictures(pictures):
    with pytest.raises(ValueError, match="cameras are swapped"):
        calibrate_rig([(right, left) for left, right in pictures[:4]], CHESS)


def test_too_few_views(tmp_path, pictures):
    blank = tmp_path / "blank.png"
    write_image(blank, np.full((240, 320, 3), 200, np.uint8))
    pairs = [pictures[0], pictures[0], (blank, blank)]
    said = "9x6 squares, 8x5 inner corners.* found in 2 of 3 pairs.* no board found in .*blank.png"
    with pytest.raises(ValueError, match=said):
        calibrate_rig(pairs, CHESS)
    with pytest.raises(ValueError, match="found in 0 of 1"):
        calibrate_rig(pictures[:1], Board("chessboard", 10, 8, SQUARE))
    with pytest.raises(ValueError, match="found in 1 of 1 pairs, and 3 are needed, better 15$"):
        calibrate_rig(pictures[:1], CHESS)
    with pytest.raises(ValueError, match="0 of 0 pairs"):
        calibrate_rig([], CHESS)
    with pytest.raises(ValueError, match="one of 9x6 squares, .* count squares, not inner corners"):
        calibrate_rig([(blank, blank), pictures[0]], Board("chessboard", 8, 5, SQUARE))
    with pytest.raises(ValueError, match="100x5 squares.* found in 0 of 1"):  # the widest
        calibrate_rig([(blank, blank)], Board("chessboard", 100, 5, SQUARE))
    with pytest.raises(ValueError, match="8x5 inner corners, DICT_4X4_50. was found in 0"):
        calibrate_rig([(blank, blank)], CHARUCO)
    other = replace(CHARUCO, dictionary="DICT_5X5_100")
    write_image(blank, np.repeat(other.charuco().generateImage((540, 360))[..., None], 3, 2))
    with pytest.raises(ValueError, match="; but one of 9x6 squares, .* DICT_5X5_1000 is there$"):
        calibrate_rig([(blank, blank)], CHARUCO)


def test_pictures_of_two_sizes(tmp_path, pictures):
    small = tmp_path / "small.png"
    write_image(small, np.zeros((100, 120, 3), np.uint8))
    with pytest.raises(ValueError, match="small.png: 100x120 pixels.*have 240x320"):
        calibrate_rig([pictures[0], (small, small)], CHESS)


def test_one_position_does_not_determine_a_camera(pictures):
    try:
        found = calibrate_rig([pictures[0]] * 4, CHESS)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert found.notes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("circles", 9, 6, 0.05), "unknown board 'circles': chessboard, charuco"),
        (("chessboard", 3, 6, 0.05), "3x6 squares; from 4x4"),
        (("chessboard", 9, 6, 25), "25 m; is that the right unit"),
        (("charuco", 9, 6, 0.05), "give the side of a ChArUco"),
        (("charuco", 9, 6, 0.05, 0.06), "less than its squares"),
        (("charuco", 9, 6, 0.05, 0.03, "DICT_9"), "unknown dictionary 'DICT_9'; such as DICT_4X4"),
    ],
)
def test_impossible_boards(values, message):
    with pytest.raises(ValueError, match=message):
        Board(*values)


def test_unknown_lens(pictures):
    with pytest.raises(ValueError, match="unknown lens 'mirror': pinhole, rational, fisheye"):
        calibrate_rig(pictures, CHESS, "mirror")
