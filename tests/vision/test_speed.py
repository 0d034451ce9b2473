"""How fast a network runs, and what measuring leaves."""

import torch

import vizoo


def test_a_network_stays_as_it_is():
    net = vizoo.create_model("fadnet_plus_micro")  # in training mode, as it is made
    before = {name: value.clone() for name, value in net.state_dict().items()}
    report = vizoo.benchmark(net, 64, 64, seconds=0)
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert report["model"] == "fadnet_plus_micro" and report["size"] == [64, 64]
    assert report["runs"].keys() == {"plain", "optimised"}
    assert all(run["median_ms"] > 0 for run in report["runs"].values())
