"""The training of `vizoo demo --train`: minutes on generated scenes, then a test on others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from ..infer import StereoPredictor

__all__ = ["clearest", "train"]

_CONFIG = "stereo/fadnet_demo.yaml"


def train(out: Path, epochs: int | None, device: str) -> tuple[Path, Dataset]:
    """Train FADNet++ tiny, print how well it does, and return its weights and the test scenes.

    Args:
        out: gets ``training`` and ``fadnet_demo.safetensors``.
        epochs: instead of what the config says.
        device: of the test, as `StereoPredictor` takes it.

    Raises:
        ValueError: the training failed; it has said why.
    """
    from ...vision.commands import fit
    from ...vision.hub.weights import load_weights, save_weights
    from ..infer import StereoPredictor

    config = _config(out, epochs)
    print("1. Training FADNet++ tiny on generated scenes")
    if fit.run(["fit", "--config", str(_write(config, out / "training.yaml"))]):
        raise ValueError("the training failed")
    checkpoints = (out / "training").glob("version_*/checkpoints/last.ckpt")
    weights = out / "fadnet_demo.safetensors"
    newest = max(checkpoints, key=lambda path: path.stat().st_mtime)
    save_weights(load_weights(newest), weights, trained_on="generated scenes")
    scenes = _unseen_scenes(config)
    print(f"\n2. Testing on {len(scenes)} scenes that it has not seen")
    _report(StereoPredictor(weights, device=device), scenes)
    print(f"weights: {weights}\n\n3. The page")
    return weights, scenes


def clearest(scenes: Dataset) -> dict[str, Any]:
    """The scene with the most relief and contrast."""
    samples = (scenes[index] for index in range(len(scenes)))
    return max(samples, key=lambda scene: scene["disparity"].std() * scene["left"].std())


def _config(out: Path, epochs: int | None) -> dict[str, Any]:
    """The demo's config, with all that it writes under `out`."""
    import yaml

    from ...vision.configs import resolve_config

    config = yaml.safe_load(Path(resolve_config(_CONFIG)).read_text(encoding="utf-8"))
    config["trainer"]["logger"]["init_args"]["save_dir"] = str(out)
    if epochs is not None:
        config["trainer"]["max_epochs"] = epochs
        config["model"]["init_args"]["round_epochs"] = [epochs]
    return config


def _write(config: dict[str, Any], path: Path) -> Path:
    import yaml

    from ...vision.io.files import atomic_write

    with atomic_write(path) as temporary:
        temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def _unseen_scenes(config: dict[str, Any]) -> Dataset:
    from ...datasets.stereo import GeneratedStereo

    return GeneratedStereo(**config["data"]["init_args"]["test"][0]["init_args"])


def _report(predictor: StereoPredictor, scenes: Dataset) -> None:
    """Print a table: the network, the best constant disparity, StereoSGBM."""
    import torch
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from ..classical import semi_global_matching
    from ..metrics import DisparityMetrics

    samples = [scenes[index] for index in range(len(scenes))]
    known = torch.cat([sample["disparity"][sample["valid"]] for sample in samples])
    methods = {
        "FADNet++ tiny, trained here": lambda left, right: predictor(left, right).disparity,
        "StereoSGBM (OpenCV)": semi_global_matching,
        f"best constant, {known.median():.1f} px": lambda left, right: known.median().expand(
            left.shape[1:]
        ),
    }
    table = Table("method", "EPE [px]", "bad-1", "bad-2", "bad-3", "D1")
    for name, method in methods.items():
        metrics = DisparityMetrics()
        for sample in track(samples, name, transient=True):
            found = torch.as_tensor(method(sample["left"], sample["right"]))[None, None]
            metrics.update(found, sample["disparity"][None], sample["valid"][None])
        values = {key: value.item() for key, value in metrics.compute().items()}
        shares = [f"{100 * values[key]:.1f} %" for key in ("bad1", "bad2", "bad3", "d1")]
        table.add_row(name, f"{values['epe']:.2f}", *shares)
    Console().print(table)
