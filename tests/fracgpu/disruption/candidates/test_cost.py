"""What it costs to disturb a pod."""

from typing import Any

import pytest

from fracgpu.disruption.candidates import disruption_cost
from tests.support.rebalancing import a_placed_pod

SURGE = {"labels": {"pod-template-hash": "5d4f8c"}}


@pytest.mark.parametrize(
    ("facts", "mib", "points"),
    [
        pytest.param(SURGE, 10 * 1024, 6.0, id="it is replaced first, and reloads 10 GiB"),
        pytest.param({**SURGE, "priority": 5}, 0, 10.0, id="someone gave it a priority"),
        pytest.param({}, 0, 15.0, id="it ends before the new one is ready"),
        pytest.param({"priority": 1}, 20 * 1024, 22.0, id="all of these"),
    ],
)
def test_the_cost_of_a_pod(facts: dict[str, Any], mib: int, points: float) -> None:
    pod = a_placed_pod("p", **facts).info

    assert disruption_cost(pod, mib=mib) == pytest.approx(points)
