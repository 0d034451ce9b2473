"""How the files of calibration programs are written: their texts, and the cameras in them.

Each format's function returns cameras: a lens, and the 4x4 pose that brings points of a world that
both share before the camera, in the file's unit of length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import cv2
import numpy as np
import yaml

from ...vision.lenses import Lens

#: Models by the words of Kalibr, ROS and EuRoC: those of the camera, and of its distortion.
_WORDS = {
    **{("pinhole", d): "pinhole" for d in ("none", "radtan", "radial-tangential")},
    **{("pinhole", d): "pinhole" for d in ("plumb_bob", "rational_polynomial", "thin_prism")},
    **{("pinhole", d): "fisheye" for d in ("equidistant", "equi", "fisheye", "kannala_brandt")},
    ("pinhole", "fov"): "fov",
    **{(c, d): "mei" for c in ("omni", "mei") for d in ("none", "radtan", "radial-tangential")},
    ("ds", "none"): "ds",
    ("eucm", "none"): "eucm",
}
#: What the lens of an OpenCV file may be called.
LENSES = ("pinhole", "fisheye", "mei")
_MATRIX = "m k cm cameramatrix intrinsicmatrix cammatrix mtx".split()
_DISTORTION = "d dist distcoeffs distcoefs distortion distortioncoefficients".split()
_KITTI = {"S": 2, "K": 9, "D": None, "R": 9, "T": 3}  # how many numbers
_SIDES = (("1", "left", "l"), ("2", "right", "r"))

_POSES = (
    "r rotation rotationmatrix om rvec".split(),
    "t translation translationvector tvec".split(),
)

Camera = tuple[Lens, np.ndarray]


class Cameras(NamedTuple):
    """The cameras of a rig, their numbers, and notes of what was taken for granted."""

    left: Camera
    right: Camera
    numbers: Sequence[int] = (0, 1)
    notes: tuple[str, ...] = ()


def two(first: Camera, second: Camera, cameras: Sequence[int] | None, start: int = 0) -> Cameras:
    """The cameras of a format that has two, numbered from `start`, in the order asked for."""
    both = {start: first, start + 1: second}
    numbers = list(both) if cameras is None else cameras
    if set(numbers) != set(both):
        raise ValueError(f"the cameras are {start} and {start + 1}, not {list(numbers)}")
    return Cameras(both[numbers[0]], both[numbers[1]], numbers)


def _pose(rotation: Any, translation: Any) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = np.reshape(rotation, (3, 3)), np.ravel(translation)
    return matrix


def parse(text: str) -> dict[str, Any]:
    """YAML, XML or JSON as a mapping whose values are texts, lists and mappings.

    Raises:
        ValueError: it is damaged, or no mapping.
    """
    try:
        if text.lstrip().startswith("<"):
            if "<!" in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL):
                raise ValueError("damaged XML: definitions (<!) are not read")
            data: Any = {node.tag: _node(node) for node in ElementTree.fromstring(text)}
        else:
            text = re.sub(r"^%YAML.*$", "", text, count=1, flags=re.MULTILINE)
            if text.lstrip().startswith("{"):
                text = text.replace("\t", " ")  # by which JSON is indented, but no YAML
            # Every value stays a text, and tags such as OpenCV's are passed over.
            data = next(iter(yaml.load_all(text, yaml.BaseLoader)), None)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        reason = getattr(error, "problem", None) or "no YAML"
        raise ValueError(f"damaged YAML{line}: {reason}") from None
    except ElementTree.ParseError as error:
        raise ValueError(f"damaged XML: {error}") from None
    except RecursionError:
        raise ValueError("damaged: nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(
            "not a calibration: neither OpenCV's, Kalibr's, ROS's, EuRoC's, KITTI's nor "
            "Middlebury's"
        )
    return data


def _node(node: ElementTree.Element) -> Any:
    return {inner.tag: inner.text or "" for inner in node} or node.text or ""


def mapping(value: Any) -> Mapping[str, Any]:
    """The value, or an empty mapping."""
    return value if isinstance(value, dict) else {}


def numbers(value: Any, name: str, count: int | None = None) -> np.ndarray:
    """The numbers of a text, a list, a list of lists, or a matrix with rows, cols and data."""
    words: list[Any] = [value.get("data") if isinstance(value, dict) else value]
    for _ in range(3):
        words = [w for word in words for w in (word if isinstance(word, list) else [word])]
    try:
        values = np.array([float(w) for word in words for w in re.split(r"[\s,]+", word.strip())])
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{name} holds something that is no number") from None
    if count is not None and len(values) != count:
        raise ValueError(f"{name} has {len(values)} numbers, it should have {count}")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} is not finite")
    return values


def find(data: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first key that is one of the names but for capitals, points and bars."""
    keys = {re.sub(r"[\W_]", "", key).lower(): key for key in data if isinstance(key, str)}
    return next((data[keys[name]] for name in names if name in keys), None)


def _size(value: Any, name: str) -> dict[str, int]:
    if value is None:
        return {}
    width, height = numbers(value, name, 2).tolist()
    if min(width, height) < 1 or (width % 1, height % 1) != (0, 0):
        raise ValueError(f"{name} is {height:g}x{width:g} pixels (height x width)")
    return {"width": int(width), "height": int(height)}


def _sides(data: Mapping[str, Any]) -> list[Any] | None:
    """Width and height that have keys of their own."""
    sides = [find(data, [f"image{side}", side]) for side in ("width", "height")]
    return None if None in sides else sides


def _named_lens(data: Mapping[str, Any], own: np.ndarray, d: Any, size: Any) -> Lens:
    """A lens by the words of Kalibr, ROS and EuRoC; `own` ends on fu fv pu pv."""
    camera = str(data.get("camera_model", "pinhole")).lower()
    words = (camera, str(data.get("distortion_model", "none")).lower() or "none")
    if words not in _WORDS:
        known = sorted({"-".join(pair) for pair in _WORDS})
        raise ValueError(f"unknown lens model {'-'.join(words)}: {', '.join(known)}")
    if len(own) < 4:
        raise ValueError(f"intrinsics has {len(own)} numbers, it ends on fu fv pu pv")
    *first, fu, fv, pu, pv = own.tolist()
    rest = [] if words[1] == "none" else numbers(d, "distortion").tolist()
    sizes = _size(size, "resolution")
    return Lens(_WORDS[words], (fu, fv), (pu, pv), (*first, *rest), **sizes)


def kalibr(data: Mapping[str, Any], cameras: Sequence[int] | None) -> Cameras:
    """Two cameras of a chain."""
    there = sorted(int(key[3:]) for key in data if re.fullmatch(r"cam\d{1,3}", key))
    notes: tuple[str, ...] = ()
    if cameras is None:
        cameras = there[:2]
        if len(there) > 2:
            notes = (f"cameras {there[0]} and {there[1]} of {len(there)} were taken",)
    missing = [number for number in cameras if number not in there]
    if missing or len(cameras) < 2:
        raise ValueError(
            f"one camera is missing: there is no cam{missing[0] if missing else 1} in the file, "
            f"which has {' '.join(f'cam{number}' for number in there)}"
        )
    both, pose = {}, np.eye(4)
    for place, number in enumerate(there[: there.index(max(cameras)) + 1]):
        camera = mapping(data[f"cam{number}"])
        if place:
            pose = _step(data, there[place - 1], number) @ pose
        if number in cameras:
            own = numbers(camera.get("intrinsics"), f"intrinsics of cam{number}")
            d, size = camera.get("distortion_coeffs"), camera.get("resolution")
            both[number] = _named_lens(camera, own, d, size), pose
    left, right = (both[number] for number in cameras)
    return Cameras(left, right, cameras, notes)


def _step(data: Mapping[str, Any], before: int, number: int) -> np.ndarray:
    """The pose of a Kalibr camera before the previous one."""
    one, two = mapping(data[f"cam{before}"]), mapping(data[f"cam{number}"])
    if "T_cn_cnm1" in two:
        return numbers(two["T_cn_cnm1"], f"T_cn_cnm1 of cam{number}", 16).reshape(4, 4)
    if "T_cam_imu" in one and "T_cam_imu" in two:
        first, second = (numbers(c["T_cam_imu"], "T_cam_imu", 16).reshape(4, 4) for c in (one, two))
        if abs(np.linalg.det(first)) > 1e-6:
            return second @ np.linalg.inv(first)
    raise ValueError(
        f"T_cn_cnm1 of cam{number} is missing: how it stands to cam{before} is not in the file "
        "(calibrate the cameras as a chain, in one run of kalibr_calibrate_cameras)"
    )


def euroc(data: Mapping[str, Any]) -> Camera:
    """The camera of a sensor.yaml."""
    if "T_BS" not in data:
        raise ValueError("T_BS is missing: where the camera stands is not in the file")
    pose = numbers(data["T_BS"], "T_BS", 16).reshape(4, 4)
    if abs(np.linalg.det(pose)) < 1e-6:
        raise ValueError("T_BS cannot be inverted")
    own = numbers(data.get("intrinsics", ""), "intrinsics")
    d, size = data.get("distortion_coefficients"), data.get("resolution")
    return _named_lens(data, own, d, size), np.linalg.inv(pose)


def ros(data: Mapping[str, Any]) -> Camera:
    """The camera of a camera_info, in the world of the rectified pair."""
    parts = []
    for names, count in (
        (["k", "cameramatrix"], 9),
        (["p", "projectionmatrix"], 12),
        (["r", "rectificationmatrix"], 9),
    ):
        if (value := find(data, names)) is None:
            raise ValueError(f"no {names[1]} in the camera_info")
        parts.append(numbers(value, names[1], count))
    matrix, projection, rotation = parts
    model = {"distortion_model": find(data, ["distortionmodel"]) or "none"}
    d = find(data, ["d", "distortioncoefficients"])
    lens = _named_lens(model, matrix[[0, 4, 2, 5]], d, _sides(data))
    if projection[0] <= 0:
        raise ValueError("projectionmatrix has no positive focal length")
    turned = rotation.reshape(3, 3).T
    return lens, _pose(turned, turned @ [projection[3] / projection[0], 0, 0])


def opencv_whole(data: Mapping[str, Any]) -> bool:
    """Whether both cameras and how they stand to each other are there."""
    cameras = [find(data, _sided(_MATRIX, side)) for side in _SIDES]
    return None not in (*cameras, *(find(data, names) for names in _POSES))


def opencv_matrices(data: Mapping[str, Any]) -> list[np.ndarray | None]:
    """The cameras' matrices as far as they are there."""
    values = [find(data, _sided(_MATRIX, side)) for side in _SIDES]
    if values == [None, None]:
        return []
    return [None if value is None else numbers(value, "camera matrix", 9) for value in values]


def _sided(names: Sequence[str], side: Sequence[str]) -> list[str]:
    return [word for name in names for s in side for word in (name + s, s + name)]


def opencv(data: Mapping[str, Any], cameras: Sequence[int] | None, model: str | None) -> Cameras:
    """The cameras of a file of OpenCV's ``FileStorage``."""
    both: list[Camera] = []
    notes: list[str] = []
    matrices = opencv_matrices(data)
    if not matrices:
        raise ValueError(
            "not a calibration: neither M1 and M2 (OpenCV), cam0 and cam1 (Kalibr), "
            "projection_matrix (ROS), T_BS (EuRoC), P2: (KITTI) nor cam0= (Middlebury) is in it"
        )
    pose = np.eye(4)
    for side, matrix in zip(_SIDES, matrices, strict=True):
        if matrix is None:
            raise ValueError(f"one camera is missing: there is no matrix of the {side[1]} one")
        both.append((_opencv_lens(data, side, matrix, model, notes), pose))
        pose = _opencv_pose(data)
    return two(both[0], both[1], cameras, 1)._replace(notes=tuple(dict.fromkeys(notes)))


def _opencv_lens(
    data: Mapping[str, Any],
    side: Sequence[str],
    matrix: np.ndarray,
    model: str | None,
    notes: list[str],
) -> Lens:
    value, xi = (find(data, _sided(names, side)) for names in (_DISTORTION, ["xi"]))
    d = [] if value is None else numbers(value, f"distortion of the {side[1]} camera").tolist()
    if xi is not None:
        d = [*numbers(xi, "xi", 1).tolist(), *d]
    said = find(data, [*_sided(["lensmodel"], side), "lensmodel"])
    model = model or said or ("pinhole" if xi is None else "mei")
    if said is None and model == "pinhole" and len(d) == 4 and any(d):
        notes.append(
            "4 numbers of distortion are taken as k1 k2 p1 p2 (lens fisheye: as cv2.fisheye's)"
        )
    fx, skew, cx, zero, fy, cy, *last = matrix.tolist()
    if zero or last != [0, 0, 1]:
        raise ValueError(f"the matrix of the {side[1]} camera is not [fx 0 cx; 0 fy cy; 0 0 1]")
    size = find(data, ["imagesize", "size", "resolution"])
    size = _sides(data) if size is None else size
    return Lens(model, (fx, fy), (cx, cy), tuple(d), **_size(size, "image size"), skew=skew)


def _opencv_pose(data: Mapping[str, Any]) -> np.ndarray:
    rotation, translation = (find(data, names) for names in _POSES)
    for name, value in (("R", rotation), ("T", translation)):
        if value is None:
            raise ValueError(f"{name} is missing: how the cameras stand to each other")
    turn = numbers(rotation, "R")
    turn = cv2.Rodrigues(turn)[0] if len(turn) == 3 else numbers(rotation, "R", 9)
    return _pose(turn, numbers(translation, "T", 3))


def kitti(text: str, cameras: Sequence[int] | None) -> Cameras | None:
    """Two raw cameras of a ``calib_cam_to_cam.txt``; None where it has rectified ones alone."""
    rows = dict(re.findall(r"^(\w+): *(.*)$", text, re.MULTILINE))
    there = sorted(int(key[2:]) for key in rows if re.fullmatch(r"K_\d\d", key))
    if not there:
        return None
    if cameras is None:
        cameras = (2, 3) if {2, 3} <= set(there) else there[:2]
    both = []
    for number in cameras:
        named = {key: f"{key}_{number:02d}" for key in _KITTI}
        missing = [name for name in named.values() if name not in rows]
        if missing:
            raise ValueError(f"one camera is missing: there is no {missing[0]} in the file")
        values = {key: numbers(rows[name], name, _KITTI[key]) for key, name in named.items()}
        fx, _, cx, _, fy, cy, *_ = values["K"].tolist()
        size = _size(rows[named["S"]], named["S"])
        lens = Lens("pinhole", (fx, fy), (cx, cy), tuple(values["D"].tolist()), **size)
        both.append((lens, _pose(values["R"], values["T"])))
    if len(both) < 2:
        raise ValueError("one camera is missing: the file has one")
    return Cameras(both[0], both[1], cameras)
