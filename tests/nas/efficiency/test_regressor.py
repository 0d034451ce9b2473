"""Costs predicted from measured architectures."""

import pytest

from vizoo.nas.efficiency.regressor import CostRegressor
from vizoo.nas.space import Choice, SearchSpace


def test_of_a_space_that_is_known_whole_nothing_is_predicted():
    width, kernel = Choice("width", (8, 16)), Choice("kernel", (3, 5))
    space = SearchSpace([width, kernel], {"kernel": [{"width": (16,)}]})
    whole, costs = list(space.enumerate()), [1.0, 100.0, 300.0]
    regressor = CostRegressor.fit(space, whole, costs)
    assert regressor.predict(whole).tolist() == costs
    assert regressor.refined({whole[0]: 7.0}).predict(whole).tolist() == costs
    with pytest.raises(ValueError, match="at least three"):
        CostRegressor.fit(space, whole[:2], costs[:2])


def test_of_networks_that_cost_nothing():
    """Such as those without any layer: their relative error is that of the cheapest others."""
    space = SearchSpace([Choice(f"depth.{i}", (0, 1, 2)) for i in range(3)])
    whole = list(space.enumerate())
    costs = [float(sum(architecture.values())) for architecture in whole]
    regressor = CostRegressor.fit(space, whole[::2], costs[::2])
    assert regressor.predict(whole) == pytest.approx(costs, abs=0.1)
    nothing = CostRegressor.fit(space, whole[:9], [0.0] * 9)
    assert nothing.predict(whole).tolist() == [0.0] * len(whole)
    with pytest.raises(ValueError, match="positive or 0"):
        CostRegressor.fit(space, whole[:3], [1.0, 2.0, -1.0])
