from typing import Any

import pytest

from kube.kinds import PDBS, REPLICASETS
from simulator.objects import Json
from tests.simulator.controllers.harness import Harness, an_owner


def a_budget(**spec: Any) -> Json:
    return {
        "metadata": {"name": "b"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, **spec},
    }


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 2, 1),
        ({"minAvailable": 3}, 3, 0),
        ({"minAvailable": "50%"}, 2, 1),
        ({"maxUnavailable": 1}, 2, 1),
        ({"maxUnavailable": "50%"}, 1, 2),  # half of three rounds up
        ({"maxUnavailable": 0}, 3, 0),
    ],
)
async def test_what_may_go_follows_from_the_budget(
    harness: Harness, spec: Json, desired: int, allowed: int
) -> None:
    await harness.kube.create(PDBS, a_budget(**spec), namespace=harness.namespace)
    await harness.kube.create(REPLICASETS, an_owner("a", replicas=3), namespace=harness.namespace)

    await harness.ready_all(3)

    await harness.wait_status(
        PDBS,
        "b",
        expectedPods=3,
        currentHealthy=3,
        desiredHealthy=desired,
        disruptionsAllowed=allowed,
        observedGeneration=1,
    )
