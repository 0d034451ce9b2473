"""Raw rigs: every format is read to the same rig, and what is wrong with a file is one line."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vizoo.datasets.stereo.rigs import StereoRig, read_rig, write_rig
from vizoo.vision.lenses import Lens

SIZE = {"width": 640, "height": 480}
ROTATION = cv2.Rodrigues(np.array([0.02, -0.03, 0.015]))[0]
TRANSLATION = np.array([-0.11, 0.004, -0.006])
TURNED = cv2.Rodrigues(np.array([0, -1.2, 0]))[0]
RADTAN = (-0.28, 0.07, 2e-4, 2e-5)


def lens(model="pinhole", numbers=RADTAN, shift=0.0):
    return Lens(model, (380.5 + shift, 379.0), (322.0 + shift, 241.5), numbers, **SIZE)


def rig(model="pinhole", numbers=RADTAN) -> StereoRig:
    return StereoRig(lens(model, numbers), lens(model, numbers, 3), ROTATION, TRANSLATION)


def same(found: StereoRig, expected: StereoRig) -> bool:
    for one, two in ((found.left, expected.left), (found.right, expected.right)):
        assert (one.model, one.width, one.height) == (two.model, two.width, two.height)
        for name in ("focal", "centre", "distortion"):
            ours, theirs = getattr(one, name), getattr(two, name)
            assert ours[: len(theirs)] == pytest.approx(theirs, abs=1e-9)
            assert not any(ours[len(theirs) :])
    assert found.rotation == pytest.approx(expected.rotation, abs=1e-9)
    assert found.translation == pytest.approx(expected.translation, abs=1e-9)
    return True


def matrix(of: Lens) -> np.ndarray:
    return np.array([[of.focal[0], 0, of.centre[0]], [0, of.focal[1], of.centre[1]], [0, 0, 1]])


def pose(rotation, translation) -> np.ndarray:
    return np.block([[rotation, np.reshape(translation, (3, 1))], [0, 0, 0, 1]])


def opencv(path, of, names=("M1", "D1", "M2", "D2", "R", "T"), unit=1.0, **more):
    file = cv2.FileStorage(str(path), cv2.FILE_STORAGE_WRITE)
    values = [matrix(of.left), np.array(of.left.distortion), matrix(of.right)]
    values += [np.array(of.right.distortion), of.rotation, of.translation * unit]
    for name, value in zip(names, values, strict=True):
        if name:
            file.write(name, value)
    for name, value in more.items():
        file.write(name, value)
    file.release()
    return path


KALIBR = {
    "pinhole": ("pinhole", "radtan"),
    "fisheye": ("pinhole", "equidistant"),
    "fov": ("pinhole", "fov"),
    "mei": ("omni", "radtan"),
    "ds": ("ds", "none"),
    "eucm": ("eucm", "none"),
}


def rows(values) -> str:
    return "\n".join(f"  - [{', '.join(map(repr, row))}]" for row in np.asarray(values).tolist())


def kalibr(path, of):
    text = ""
    own = {"mei": 1, "ds": 2, "eucm": 2}
    for number, camera in enumerate((of.left, of.right)):
        model, distortion = KALIBR[camera.model]
        first = own.get(camera.model, 0)
        intrinsics = [*camera.distortion[:first], *camera.focal, *camera.centre]
        text += f"cam{number}:\n  camera_model: {model}\n  distortion_model: {distortion}\n"
        text += f"  intrinsics: {list(intrinsics)}\n  cam_overlaps: [1]\n"
        text += f"  distortion_coeffs: {list(camera.distortion[first:])}\n"
        text += f"  resolution: [{camera.width}, {camera.height}]\n  rostopic: /cam{number}\n"
        if number:
            text += f"  T_cn_cnm1:\n{rows(pose(of.rotation, of.translation))}\n"
    path.write_text(text)
    return path


def euroc(folder, of):
    body = pose(cv2.Rodrigues(np.array([0.1, 1.5, -0.2]))[0], [0.3, -0.1, 0.2])
    poses = (body, body @ np.linalg.inv(pose(of.rotation, of.translation)))
    for number, camera in enumerate((of.left, of.right)):
        file = folder / f"cam{number}/sensor.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(
            "# General sensor definitions.\nsensor_type: camera\ncomment: VI-Sensor cam0\n"
            "T_BS:\n  cols: 4\n  rows: 4\n"
            f"  data: {poses[number].ravel().tolist()}\nrate_hz: 20\n"
            f"resolution: [{camera.width}, {camera.height}]\ncamera_model: pinhole\n"
            f"intrinsics: {[*camera.focal, *camera.centre]} #fu, fv, cu, cv\n"
            "distortion_model: radial-tangential\n"
            f"distortion_coefficients: {list(camera.distortion)}\n"
        )
    return folder / "cam0/sensor.yaml"


def turns(of):
    """Rotations onto the rectified frame, as cv2.stereoRectify finds them."""
    plain = np.eye(3)
    return cv2.stereoRectify(
        plain, None, plain, None, (640, 480), of.rotation, of.translation[:, None]
    )[:2]


def ros(folder, of, keys=("camera_matrix", "distortion_coefficients")):
    for name, camera, turn in zip(("left", "right"), (of.left, of.right), turns(of), strict=True):
        shift = 0 if name == "left" else -of.baseline * 400
        values = {
            keys[0]: matrix(camera),
            keys[1]: np.array([camera.distortion]),
            "rectification_matrix": turn,
            "projection_matrix": np.array([[400, 0, 320, shift], [0, 400, 240, 0], [0, 0, 1, 0]]),
        }
        text = f"image_width: {camera.width}\nimage_height: {camera.height}\ncamera_name: {name}\n"
        models = {"fisheye": "equidistant"}
        text += f"distortion_model: {models.get(camera.model, 'plumb_bob')}\n"
        for key, value in values.items():
            shape = "rows: {}\n  cols: {}".format(*value.shape)
            text += f"{key}:\n  {shape}\n  data: {value.ravel().tolist()}\n"
        (folder / f"{name}.yaml").write_text(text)
    return folder / "left.yaml"


def kitti(path, of):
    start = pose(cv2.Rodrigues(np.array([0.01, 0.02, 0]))[0], [0.06, 0, 0])
    text = "calib_time: 09-Jan-2012 13:57:47\ncorner_dist: 9.950000e-02\n"
    poses = (start, pose(of.rotation, of.translation) @ start)
    for number, camera, at in zip((2, 3), (of.left, of.right), poses, strict=True):
        for key, values in {
            "S": (camera.width, camera.height),
            "K": matrix(camera),
            "D": (*camera.distortion, 0),
            "R": at[:3, :3],
            "T": at[:3, 3],
            "P_rect": np.eye(3, 4),
        }.items():
            numbers = " ".join(f"{value:.17g}" for value in np.ravel(values))
            text += f"{key}_{number:02d}: {numbers}\n"
    path.write_text(text)
    return path


@pytest.mark.parametrize("suffix", ["yml", "xml", "json"])
def test_opencv(tmp_path, suffix):
    file = opencv(tmp_path / f"calib.{suffix}", rig(), image_width=640, image_height=480)
    found = read_rig(file)
    assert same(found, rig()) and found.baseline == pytest.approx(0.11024, abs=1e-4)
    notes = " ".join(found.notes)
    assert "taken as 0.1102 m" in notes and "(else give baseline_unit)" in notes
    assert "k1 k2 p1 p2 (lens fisheye: " in notes
    if suffix == "json":
        file.write_text(file.read_text().replace("    ", "\t"))
        assert same(read_rig(file), rig())


@pytest.mark.parametrize(
    "names",
    [
        ("K1", "D1", "K2", "D2", "R", "T"),
        ("cameraMatrix1", "distCoeffs1", "cameraMatrix2", "distCoeffs2", "R", "T"),
        ("camera_matrix_1", "distortion_coefficients_1", "camera_matrix_2")
        + ("distortion_coefficients_2", "R", "T"),
        ("left_camera_matrix", "left_distortion", "right_camera_matrix", "right_distortion")
        + ("rotation_matrix", "translation_vector"),
    ],
)
def test_opencv_by_other_names(tmp_path, names):
    assert same(
        read_rig(opencv(tmp_path / "a.yml", rig(), names, size=np.array([640, 480]))), rig()
    )


def test_opencv_in_two_files(tmp_path):
    size = {"image_width": 640, "image_height": 480}
    opencv(tmp_path / "intrinsics.yml", rig(), ("M1", "D1", "M2", "D2", "", ""), **size)
    opencv(tmp_path / "extrinsics.yml", rig(), ("", "", "", "", "R", "T"))
    for path in (tmp_path, tmp_path / "intrinsics.yml", tmp_path / "extrinsics.yml"):
        assert same(read_rig(path), rig())
    (tmp_path / "extrinsics.yml").rename(tmp_path / "b.yml")
    assert same(read_rig(tmp_path / "intrinsics.yml", tmp_path / "b.yml"), rig())
    with pytest.raises(ValueError, match="intrinsics.yml: R is missing"):
        read_rig(tmp_path / "intrinsics.yml")


@pytest.mark.parametrize("names", [("left.yml", "right.yml"), ("intrinsics.yml", "extrinsics.yml")])
def test_a_whole_file_is_taken_as_it_is(tmp_path, names):
    """Whatever lies beside it, even what cannot be read."""
    size = {"image_width": 640, "image_height": 480}
    other = StereoRig(lens(shift=40), lens(), np.eye(3), np.array([-0.5, 0, 0]))
    file = opencv(tmp_path / names[0], rig(), **size)
    opencv(tmp_path / names[1], other, **size)
    assert same(read_rig(file), rig())
    (tmp_path / names[1]).write_text("{")
    assert same(read_rig(file), rig())
    with pytest.raises(ValueError, match=": second is not for this file"):
        read_rig(file, tmp_path / names[1])


def test_the_named_file_comes_before_the_one_beside_it(tmp_path):
    size = {"image_width": 640, "image_height": 480}
    opencv(tmp_path / "intrinsics.yml", rig(), ("M1", "D1", "M2", "D2", "", ""), **size)
    opencv(tmp_path / "extrinsics.yml", rig(), ("M1", "", "", "", "R", "T"), image_width=320)
    assert same(read_rig(tmp_path / "intrinsics.yml"), rig())


def test_opencv_units(tmp_path):
    size = {"image_width": 640, "image_height": 480}
    file = opencv(tmp_path / "a.yml", rig(), unit=1000, **size)
    found = read_rig(file)
    assert same(found, rig()) and any("taken as 110.2 mm" in note for note in found.notes)
    found = read_rig(file, baseline_unit="cm")
    assert found.baseline == pytest.approx(1.1024, abs=1e-3) and "baseline" not in str(found.notes)
    with pytest.raises(ValueError, match="'inch' is none of m, cm, mm"):
        read_rig(file, baseline_unit="inch")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("unit: [m]", r"the unit \['m'\] is none of m, cm, mm \(else give baseline_unit"),
        ("unit: {m: 1}", "is none of m, cm, mm"),
        ("unit: inch", "the unit 'inch' is none of m, cm, mm"),
        ("image_size: [-640, -480]", "image size is -480x-640 pixels"),
        ("image_size: [0, 480]", "image size is 480x0 pixels"),
        ("image_size: [640.5, 480]", "image size is 480x640.5 pixels"),
        ("image_size: [640]", "image size has 1 numbers, it should have 2"),
    ],
)
def test_impossible_units_and_sizes(tmp_path, line, message):
    file = opencv(tmp_path / "a.yml", rig())
    file.write_text(f"{file.read_text()}{line}\n")
    with pytest.raises(ValueError, match=message):
        read_rig(file)


def test_units_of_the_file(tmp_path):
    file = opencv(tmp_path / "a.yml", rig())
    whole = file.read_text()
    file.write_text(f"{whole}unit: mm\n")
    assert read_rig(file).baseline == pytest.approx(rig().baseline / 1000)
    file.write_text(f"{whole}unit: inch\n")
    assert read_rig(file, baseline_unit="m").baseline == pytest.approx(rig().baseline)


def test_opencv_lenses(tmp_path):
    size = {"image_width": 640, "image_height": 480}
    four = rig("fisheye", (0.01, -0.02, 0.003, 0.001))
    file = opencv(tmp_path / "a.yml", four, **size)
    assert same(read_rig(file, lens="fisheye"), four)
    eight = rig("pinhole", (1.1, 0.3, 1e-4, 2e-4, 0.02, 1.4, 0.5, 0.1))
    assert same(read_rig(opencv(tmp_path / "b.yml", eight, **size)), eight)
    # cv2.omnidir writes xi beside four numbers, and a rotation vector.
    turn = cv2.Rodrigues(ROTATION)[0]
    names = ("camera_matrix_1", "D1", "camera_matrix_2", "D2", "", "T")
    file = opencv(tmp_path / "c.yml", rig(), names, xi_1=0.9, xi_2=0.9, om=turn, **size)
    assert same(read_rig(file), rig("mei", (0.9, *RADTAN)))
    with pytest.raises(ValueError, match="'tele' is none of pinhole, fisheye, mei"):
        read_rig(file, lens="tele")


def test_opencv_without_a_size(tmp_path):
    found = read_rig(opencv(tmp_path / "a.yml", rig()))
    assert found.left.width is None
    assert same(found.fitted(480, 640), rig())


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        ("pinhole", RADTAN),
        ("fisheye", (0.01, -0.02, 0.003, 0.001)),
        ("fov", (0.9,)),
        ("mei", (1.2, *RADTAN)),
        ("ds", (-0.2, 0.6)),
        ("eucm", (0.6, 1.1)),
    ],
)
def test_kalibr(tmp_path, model, numbers):
    found = read_rig(kalibr(tmp_path / "camchain.yaml", rig(model, numbers)))
    assert same(found, rig(model, numbers)) and found.notes == ()
    assert same(read_rig(tmp_path), found)


def test_kalibr_of_three(tmp_path):
    file = kalibr(tmp_path / "a.yaml", rig())
    step = pose(np.eye(3), [-0.2, 0, 0])
    text = file.read_text()
    third = text[text.index("cam1:") : text.index("  T_cn_cnm1")].replace("cam1", "cam2")
    file.write_text(f"{text}{third}  T_cn_cnm1:\n{rows(step)}\n")
    found = read_rig(file)
    assert same(found, rig()) and "cameras 0 and 1 of 3" in found.notes[0]
    far = read_rig(file, cameras=(0, 2))
    assert far.translation == pytest.approx(TRANSLATION + [-0.2, 0, 0]) and far.notes == ()
    assert read_rig(file, cameras=(1, 2)).translation == pytest.approx([-0.2, 0, 0])
    with pytest.raises(ValueError, match="the right one stands 0.2 m to the left of the left"):
        read_rig(file, cameras=(2, 1))
    with pytest.raises(ValueError, match="no cam4 in the file, which has cam0 cam1 cam2"):
        read_rig(file, cameras=(0, 4))
    with pytest.raises(ValueError, match="two cameras"):
        read_rig(file, cameras=(1, 1))


def test_kalibr_by_way_of_the_imu(tmp_path):
    file = kalibr(tmp_path / "a.yaml", rig())
    text = file.read_text().replace("T_cn_cnm1", "T_cam_imu")
    at = text.index("cam1:")
    file.write_text(f"{text[:at]}  T_cam_imu:\n{rows(np.eye(4))}\n{text[at:]}")
    assert same(read_rig(file), rig())


def test_euroc(tmp_path):
    file = euroc(tmp_path / "mav0", rig())
    for path in (file, tmp_path, tmp_path / "mav0"):
        assert same(read_rig(path), rig())
    assert same(read_rig(file, tmp_path / "mav0/cam1/sensor.yaml"), rig())
    with pytest.raises(ValueError, match=r"swapped.*\(cameras 1 0\)"):
        read_rig(tmp_path / "mav0/cam1/sensor.yaml")
    assert same(read_rig(tmp_path / "mav0/cam1/sensor.yaml", cameras=(1, 0)), rig())
    with pytest.raises(ValueError, match=r"the cameras are 0 and 1, not \[2, 3\]"):
        read_rig(file, cameras=(2, 3))


@pytest.mark.parametrize("model", [("pinhole", RADTAN), ("fisheye", (0.01, -0.02, 0.003, 0.001))])
def test_ros(tmp_path, model):
    file = ros(tmp_path, rig(*model))
    assert same(read_rig(file), rig(*model)) and same(read_rig(tmp_path), rig(*model))


def test_ros_as_echoed(tmp_path):
    """`rostopic echo` writes short names, plain lists and lines between messages."""
    names = {"camera_matrix": "K", "distortion_coefficients": "D"}
    names |= {"rectification_matrix": "R", "projection_matrix": "P"}
    ros(tmp_path, rig())
    for side in ("left", "right"):
        text = (tmp_path / f"{side}.yaml").read_text()
        for name, short in names.items():
            text = text.replace(f"{name}:", f"{short}:")
        lines = [line for line in text.splitlines() if "rows:" not in line and "cols:" not in line]
        text = "\n".join(lines).replace(":\n  data: ", ": ").replace("image_", "")
        (tmp_path / f"{side}.yaml").write_text(f"{text}\n---\n{text}\n")
    assert same(read_rig(tmp_path / "left.yaml"), rig())


def test_ros_calibrated_one_by_one(tmp_path):
    file = ros(tmp_path, rig())
    right = tmp_path / "right.yaml"
    right.write_text(file.read_text())
    with pytest.raises(ValueError, match="calibrated as a pair"):
        read_rig(file)
    right.unlink()
    with pytest.raises(ValueError, match="one camera is missing.*name it as second"):
        read_rig(file)
    right.write_text(file.read_text().replace("projection_matrix", "projection"))
    with pytest.raises(ValueError, match="right.yaml: no projectionmatrix"):
        read_rig(file)


def test_kitti(tmp_path):
    file = kitti(tmp_path / "calib_cam_to_cam.txt", rig())
    assert same(read_rig(file), rig()) and same(read_rig(tmp_path), rig())
    with pytest.raises(ValueError, match="there is no S_00"):
        read_rig(file, cameras=(0, 1))
    with pytest.raises(ValueError, match="swapped"):
        read_rig(file, cameras=(3, 2))


def test_rectified_files(tmp_path):
    (tmp_path / "calib.txt").write_text(
        "cam0=[400 0 320; 0 400 240; 0 0 1]\ncam1=[400 0 330; 0 400 240; 0 0 1]\n"
        "doffs=10\nbaseline=193\nwidth=640\nheight=480\n"
    )
    found = read_rig(tmp_path)
    assert found.baseline == pytest.approx(0.193)
    assert found.right.centre == (330, 240) and found.left.centre == (320, 240)
    (tmp_path / "k.txt").write_text("P2: 7 0 6 0 0 7 1 0 0 0 1 0\nP3: 7 0 6 -3.5 0 7 1 0 0 0 1 0\n")
    assert read_rig(tmp_path / "k.txt").baseline == pytest.approx(0.5)


@pytest.mark.parametrize("model", [("pinhole", RADTAN), ("pinhole", ()), ("mei", (1.2, *RADTAN))])
@pytest.mark.parametrize("suffix", ["yml", "xml"])
def test_written_and_read_again(tmp_path, model, suffix):
    write_rig(tmp_path / f"a.{suffix}", rig(*model))
    found = read_rig(tmp_path / f"a.{suffix}")
    assert same(found, rig(*model)) and found.notes == ()


def test_cameras_of_two_sizes_are_written_as_of_one(tmp_path):
    """The file has room for one size, the left one's."""
    twice = StereoRig(lens(), lens().resized(960, 1280), ROTATION, TRANSLATION)
    write_rig(tmp_path / "a.yml", twice)
    assert same(read_rig(tmp_path / "a.yml"), twice.fitted(480, 640))


def test_another_size():
    half = rig().fitted(240, 320)
    assert half.left.focal == (190.25, 189.5)
    scaled = "the calibration is for 480x640 images (height x width) and was scaled to 240x320"
    assert half.notes == (scaled,)
    assert rig().fitted(480, 640).notes == ()
    said = r"480x640 \(height x width\), these have 640x640: not the same picture"
    with pytest.raises(ValueError, match=said):
        rig().fitted(640, 640)


@pytest.mark.parametrize(
    ("rotation", "translation", "message"),
    [
        (np.eye(3) * 1.1, TRANSLATION, "no rotation matrix"),
        (np.diag([1, 1, -1]), TRANSLATION, "mirror image"),
        (np.full((3, 3), np.nan), TRANSLATION, "no rotation matrix"),
        (np.eye(3), [0, 0, 0], "baseline must be positive"),
        (np.eye(3), [np.inf, 0, 0], "baseline must be positive"),
        (np.eye(3), [0.11, 0, 0], "the right one stands 0.11 m to the left"),
        (np.eye(3), [0, 0, -0.11], "before or behind the other"),
        (TURNED, TURNED @ [-0.1, 0, 0], "60 degrees apart"),
    ],
)
def test_impossible_rigs(rotation, translation, message):
    with pytest.raises(ValueError, match=message):
        StereoRig(lens(), lens(), np.array(rotation), np.array(translation))


def test_a_translation_as_opencv_gives_it():
    rig = StereoRig(lens(), lens(), ROTATION, TRANSLATION[:, None])
    assert rig.translation.tolist() == TRANSLATION.tolist() and rig.position.shape == (3,)


def test_one_camera_above_the_other_is_a_rig():
    assert StereoRig(lens(), lens(), np.eye(3), np.array([0, -0.11, 0])).baseline == 0.11


def replaced(old, new):
    return lambda text: text.replace(old, new)


def exchanged(of):
    """The same cameras, the right one first."""
    turn = of.rotation.T
    swapped = object.__new__(StereoRig)
    values = {"left": of.right, "right": of.left, "rotation": turn, "notes": ()}
    for name, value in (values | {"translation": -turn @ of.translation}).items():
        object.__setattr__(swapped, name, value)
    return swapped


@pytest.mark.parametrize(
    ("write", "numbers"), [(opencv, (2, 1)), (kalibr, (1, 0)), (euroc, (1, 0)), (kitti, (3, 2))]
)
def test_swapped_cameras_by_what_the_message_says(tmp_path, write, numbers):
    file = write(tmp_path / "calibration", exchanged(rig()))
    with pytest.raises(
        ValueError, match=r"are swapped.*\(cameras {} {}".format(*numbers)
    ) as caught:
        read_rig(file)
    assert str(caught.value).startswith(f"{file}: ")
    found = read_rig(file, cameras=numbers, baseline_unit="m")
    assert found.translation == pytest.approx(TRANSLATION, abs=1e-9)
    assert found.left.focal == rig().left.focal


def test_swapped_ros_cameras(tmp_path):
    ros(tmp_path, rig())
    with pytest.raises(ValueError, match=r"swapped.*\(cameras 1 0\)"):
        read_rig(tmp_path / "right.yaml")
    assert same(read_rig(tmp_path / "right.yaml", cameras=(1, 0)), rig())


def test_options_that_are_not_for_a_file(tmp_path):
    chain, whole = kalibr(tmp_path / "a.yaml", rig()), tmp_path / "calib.txt"
    whole.write_text("cam0=[9 0 4; 0 9 3; 0 0 1]\nbaseline=10\n")
    for file, options in (
        (chain, {"second": chain}),
        (chain, {"lens": "mei"}),
        (euroc(tmp_path / "mav0", rig()), {"lens": "fisheye"}),
        (whole, {"cameras": (0, 1)}),
    ):
        with pytest.raises(ValueError, match=f": {next(iter(options))} is not for this file"):
            read_rig(file, **options)


def test_folders_of_every_kind(tmp_path):
    whole = tmp_path / "board"
    whole.mkdir()
    write_rig(whole / "calibration.yml", rig())
    ros(whole, StereoRig(lens(), lens(), np.eye(3), TRANSLATION))
    assert same(read_rig(whole), rig())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced("T_cn_cnm1", "T"), "T_cn_cnm1 of cam1 is missing.*kalibr_calibrate_cameras"),
        (replaced("radtan", "warp"), "unknown lens model pinhole-warp: .*omni-radtan"),
        (replaced("cam1:", "dam1:"), "there is no cam1 in the file, which has cam0"),
        (replaced("  intrinsics: [380.5, ", "  intrinsics: ["), "intrinsics has 3 numbers"),
        (replaced("  intrinsics: [380.5, ", "  intrinsics: [far, "), "no number"),
        (replaced("  intrinsics: [380.5, ", "  intrinsics: [.nan, "), "intrinsics of cam0"),
        (
            replaced("  intrinsics: [380.5, ", "  intrinsics: [-3, "),
            "focal length must be positive",
        ),
        (replaced("-0.28, ", ""), "pinhole has 0 or 4 or 5 or 8 or 12 or 14 numbers, got 3"),
        (replaced("[640, 480]", "[640, 0]"), "0x640"),
        (replaced("[640, 480]", "[640"), "damaged YAML in line"),
        (replaced("cam0", "- cam0"), "damaged YAML|not a calibration"),
        (lambda text: text[: len(text) // 3], "one camera is missing|damaged"),
    ],
)
def test_damaged_chains(tmp_path, change, message):
    file = kalibr(tmp_path / "chain.yaml", rig())
    text = file.read_text()
    assert change(text) != text
    file.write_text(change(text))
    with pytest.raises(ValueError, match=message) as caught:
        read_rig(file)
    assert str(caught.value).startswith(str(file)) and "\n" not in str(caught.value)


def test_damaged_opencv_files(tmp_path):
    file = opencv(tmp_path / "a.yml", rig(), ("M1", "D1", "", "D2", "R", "T"))
    with pytest.raises(ValueError, match="no matrix of the right one"):
        read_rig(file)
    file = opencv(tmp_path / "a.yml", rig(), ("M1", "D1", "M2", "D2", "R", "M3"))
    with pytest.raises(ValueError, match="T is missing"):
        read_rig(file)
    file = opencv(tmp_path / "a.xml", rig())
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ValueError, match="a.xml: damaged XML"):
        read_rig(file)
    file.write_text('<!DOCTYPE a [<!ENTITY b "c">]><opencv_storage>&b;</opencv_storage>')
    with pytest.raises(ValueError, match="definitions"):
        read_rig(file)


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.yaml: no such calibration file"):
        read_rig(tmp_path / "none.yaml")
    with pytest.raises(FileNotFoundError, match="no calibration in this folder"):
        read_rig(tmp_path)
    file = tmp_path / "a.yaml"
    for text in ("- 1\n- 2", "words", "a: 1", "!!python/object/apply:os.system ['true']"):
        file.write_text(text)
        with pytest.raises(ValueError, match="not a calibration"):
            read_rig(file)
    file.write_text("[" * 600)
    with pytest.raises(ValueError, match="damaged: nested too deeply"):
        read_rig(file)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rigs")
    files = [opencv(folder / f"a.{suffix}", rig(), image_width=640) for suffix in ("yml", "xml")]
    files += [kalibr(folder / "b.yaml", rig()), kitti(folder / "c.txt", rig())]
    return [file.read_bytes() for file in files]


@given(which=st.integers(0, 3), data=st.data())
def test_a_damaged_file_is_read_or_a_value_error(tmp_path_factory, samples, which, data):
    whole = samples[which]
    at = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(0, 40))
    path = tmp_path_factory.getbasetemp() / "fuzz.txt"
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=4)) + whole[at + length :])
    try:
        assert read_rig(path).baseline > 0
    except ValueError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1


PIECE = st.sampled_from(
    "M1: 1|M2: [1,2]|R:|T: {rows: 3}|cam0:|  intrinsics: [1,2,3,4]|cam1: 5|P: 3|K: a|T_BS: 1|"
    "K_02: 1 2|P2: 1|&a|*a|- [|{|cam0=[;]|%YAML:1.0|---|<a>|</a>|intrinsics: 3".split("|")
)


@given(text=st.one_of(st.text(max_size=60), st.lists(PIECE, max_size=8).map("\n".join)))
def test_any_text_is_read_or_a_value_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.txt"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ValueError) as caught:
        read_rig(path)
    assert str(path) in str(caught.value)
