"""Modules by the names that they had before, for configs and checkpoints that hold those."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["REPLACED", "install", "present_name"]

_DISTRIBUTED = {
    "compression": ("lowrank", "signs", "sparse"),
    "curvature": ("eva", "factors", "kfac", "layers", "second_order"),
    "gradients": ("callbacks", "hooks", "norm", "regions", "sharded", "strategy"),
    "recovery": ("buffers", "parity", "payload", "snapshot", "store"),
    "schedule": ("dear", "link", "merging", "simulator", "timing"),
    "search": ("executor", "population", "ray"),
}
_WITHIN = {
    "classification": "activation:cam compare:comparison.compare confusion:reports occlusion:cam",
    "datasets.ct": "dicom_writer:writers generated:chest lists:layouts "
    "pictures:reading sampling:preparation",
    "datasets.images": "generated:lesions splits:layouts",
    "datasets.mvs": "colmap_writer:colmap_model eth3d:colmap ranges:cameras scenes:layouts "
    "sparse:scene",
    "datasets.panorama": "matterport3d:base stanford2d3d:base threed60:base",
    "datasets.stereo": "eth3d:middlebury folders:pairs generated:scenes scene_masks:scene_layers",
    "mvs": "presets:fusion",
    "nas.differentiable": "skips:logits",
    "nas.distributed": "persist:recovery.store recovery.persist:recovery.store "
    "placement:curvature.factors curvature.placement:curvature.factors "
    "planner:schedule.simulator schedule.planner:schedule.simulator "
    "registry:gradients.strategy gradients.registry:gradients.strategy",
    "nas.elastic": "linear:conv operation:containers squeeze:conv",
    "nas.lid": "similarities:partitions",
    "nas.search": "pareto:evolution",
    "panorama": "outputs:infer",
    "stereo": "callbacks:task easnet_light:easnet_elastic",
    "vision": "bfloat16:callbacks complexity:inputs",
    "vision.configs": "parts:task",
    "vision.hub": "card:sharing sources:create",
    "vision.io": "pointcloud:ply",
}
"""Of a folder the modules, old name to new, that stayed below it."""
_PACKAGE = __name__.partition(".")[0]
_ROOMS = "vizoo.datasets.worlds.panorama.WorldPanoramas (length, height, seed, cache)"
_VIEWS = "vizoo.datasets.worlds.views.WorldViews (length, height, width, views, seed, cache)"
_SPACES = ("mbnet", "nasbench201", "ofa_mobilenet", "proxyless")

_RENAMED: dict[str, str] = {
    "nas.distributed.ranks": "common.ranks",
    **{
        f"nas.distributed.{name}": f"nas.distributed.{folder}.{name}"
        for folder, names in _DISTRIBUTED.items()
        for name in names
    },
    **{
        f"{room}.{old}": f"{room}.{new}"
        for room, pairs in _WITHIN.items()
        for old, new in (pair.split(":") for pair in pairs.split())
    },
    "nas.efficiency.counts": "common.counts",
    "nas.efficiency.measure": "common.timing",
    "nas.files": "common.files",
    "nas.lid.ranking": "nas.search.predictor",
    "vision.cameras": "datasets.mvs.cameras",
    "vision.classification": "classification",
    "vision.classification.baselines": "classification.ct_baselines",
    "vision.classification.infer": "classification.ct_infer",
    **{f"vision.classification.{name}": f"classification.spaces.{name}" for name in _SPACES},
    "vision.device": "common.devices",
    "vision.extras": "common.extras",
    "vision.geometry": "stereo.geometry",
    "vision.io.calibration": "datasets.stereo.calibration",
    "vision.io.files": "common.files",
    "vision.memory": "common.memory",
    "vision.system": "common.system",
    "vision.viz.confusion": "classification.reports",
}
"""Old name to new, inside the package; a package's modules go with it unless named themselves."""

REPLACED: dict[str, str] = {
    "vizoo.datasets.mvs.GeneratedMVS": _VIEWS,
    "vizoo.datasets.mvs.generated": _VIEWS,
    "vizoo.datasets.mvs.generator": _VIEWS,
    "vizoo.datasets.mvs.meshes": _VIEWS,
    "vizoo.datasets.panorama.GeneratedRooms": _ROOMS,
    "vizoo.datasets.panorama.generated": _ROOMS,
    "vizoo.datasets.panorama.rooms": _ROOMS,
}
"""Name that is no longer there to what does its work today, with arguments of its own."""


def present_name(name: str) -> str:
    """What a dotted name of ours is called today; any other text stays as it is.

    Example:
        >>> present_name("vizoo.vision.classification.task.ClassificationTask")
        'vizoo.classification.task.ClassificationTask'
    """
    package, _, inner = name.partition(".")
    if package != _PACKAGE:
        return name
    old, below = inner, ""
    while old and old not in _RENAMED:
        old, _, last = old.rpartition(".")
        below = f".{last}{below}"
    return f"{package}.{_RENAMED[old]}{below}" if old else name


class _Finder(MetaPathFinder):
    """Finds a module by its old name: the same module object as by the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in REPLACED:
            raise ModuleNotFoundError(
                f"{fullname} is no longer there; take {REPLACED[fullname]}", name=fullname
            )
        name = present_name(fullname)
        if name == fullname or importlib.util.find_spec(name) is None:
            return None
        return ModuleSpec(fullname, _Loader(name))


class _Loader(Loader):
    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # creating gave it that of the old name


def install() -> None:
    """Let modules be imported by their old names, too."""
    # Before the finder of files, which would load a renamed package's modules a second time.
    sys.meta_path.insert(0, _Finder())
