"""The trained panorama weights that come with the package."""

import json

import numpy as np

from vizoo.__main__ import main
from vizoo.datasets.worlds.panorama import WorldPanoramas
from vizoo.panorama import DEFAULT_MODEL
from vizoo.panorama.infer import PanoramaPredictor
from vizoo.vision.hub.registry import model_info
from vizoo.vision.io.images import write_image


def test_they_know_unseen_rooms(tmp_path, capsys, monkeypatch, small_views):
    """Nearer than the best constant of each room; the command takes them, too."""
    assert model_info(DEFAULT_MODEL).record.size <= 8e6
    predictor, errors, constant = PanoramaPredictor(device="cpu"), [], []
    for room in map(WorldPanoramas(2, 64, seed=71).__getitem__, range(2)):
        known = room["valid"][0].numpy()
        truth = room["depth"][0].numpy()[known]
        depth = predictor(room["image"]).depth[known]
        errors.append(np.mean(np.abs(depth - truth) / truth))
        constant.append(np.mean(np.abs(np.median(truth) - truth) / truth))
    assert np.mean(errors) < 0.9 * np.mean(constant)
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "room.png", room["image"])
    words = ["infer", "panorama", "room.png", "--out", "out", "--device", "cpu", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["model"] == DEFAULT_MODEL
    assert np.allclose(np.load("out/room_depth.npy"), predictor("room.png").depth)
