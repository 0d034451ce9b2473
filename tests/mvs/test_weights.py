"""The trained multi-view weights that come with the package."""

import functools
import json

import pytest
import torch

from vizoo.__main__ import main
from vizoo.datasets.mvs.writers import write_scene
from vizoo.datasets.worlds.views import WorldViews
from vizoo.mvs import DEFAULT_MODEL
from vizoo.mvs.classical import PlaneSweep
from vizoo.mvs.infer import MVSPredictor
from vizoo.vision.hub.registry import model_info


@functools.cache
def unseen(views):
    return [*map(WorldViews(2, 160, 208, views, seed=71).__getitem__, range(2))]


def test_they_know_unseen_scenes():
    """Within a sixth in the median, which no constant is, and nothing untrained."""
    assert model_info(DEFAULT_MODEL).record.size <= 8e6
    predictor, errors, constant = MVSPredictor(guided=False, device="cpu"), [], []
    for sample in unseen(4):
        truth = sample["depth"][0][sample["valid"][0]]
        depth = torch.from_numpy(predictor.predict_sample(sample).depth)[sample["valid"][0]]
        errors.append(((depth - truth).abs() / truth).median())
        constant.append(((truth.median() - truth).abs() / truth).median())
    assert sum(errors) / 2 < 1 / 6 < sum(constant) / 2


@pytest.mark.parametrize("views", [2, 4])
def test_guided_they_know_more_than_the_sweep_or_the_network(views):
    """And how sure they are ranks errors: of the surer half most are right."""
    shares, half = [], []
    guided = MVSPredictor(device="cpu")
    predictors = guided, MVSPredictor(guided=False, device="cpu"), MVSPredictor(PlaneSweep(), "cpu")
    for sample in unseen(views):
        truth, valid = sample["depth"][0], sample["valid"][0]
        results = [predictor.predict_sample(sample) for predictor in predictors]
        errors = [((torch.from_numpy(r.depth) - truth).abs() / truth)[valid] for r in results]
        shares.append([float((error < 0.05).float().mean()) for error in errors])
        sure = torch.from_numpy(results[0].confidence)[valid]
        half.append(float((errors[0][sure > sure.median()] < 0.05).float().mean()))
    fused, network, swept = (sum(share) / 2 for share in zip(*shares, strict=True))
    assert fused > max(network, swept)
    assert sum(half) / 2 > 1.2 * fused


def test_the_command_takes_them_guided(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_scene(WorldViews(1, 64, 96, 2, seed=72).scene(0), tmp_path / "scene", "dtu")
    words = ("infer", "mvs", "scene", "--out", "out", "--device", "cpu", "--json")
    assert main(list(words)) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["model"] == DEFAULT_MODEL and summary["guided"]
    assert main([*words, "--no-guided", "--restart"]) == 0
    assert json.loads(capsys.readouterr().out)["guided"] is False
