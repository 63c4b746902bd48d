from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube.errors import TooManyRequests
from kube.kinds import DEPLOYMENTS, PDBS, PODS, REPLICASETS
from tests.simulator.controllers.harness import Harness, an_owner
from tests.support.waiting import until

if TYPE_CHECKING:
    from simulator.objects import Json


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


async def test_a_pod_that_is_not_ready_is_not_healthy(harness: Harness) -> None:
    await harness.kube.create(PDBS, a_budget(minAvailable=1), namespace=harness.namespace)
    await harness.kube.create(REPLICASETS, an_owner("a", replicas=1), namespace=harness.namespace)

    await harness.wait_count(1)

    await harness.wait_status(PDBS, "b", expectedPods=1, currentHealthy=0, disruptionsAllowed=0)


async def test_an_eviction_takes_its_share_of_the_budget(harness: Harness) -> None:
    await harness.kube.create(PDBS, a_budget(minAvailable=1), namespace=harness.namespace)
    await harness.kube.create(REPLICASETS, an_owner("a", replicas=2), namespace=harness.namespace)
    one, other = await harness.ready_all(2)
    await harness.wait_status(PDBS, "b", disruptionsAllowed=1)

    await evict(harness, one)

    await harness.wait_status(PDBS, "b", currentHealthy=1, disruptionsAllowed=0)
    with pytest.raises(TooManyRequests):
        await evict(harness, other)


async def test_a_ready_successor_lets_the_only_pod_of_a_full_budget_go(harness: Harness) -> None:
    """The surge on which the rebalancer relies: change the hash, wait for the successor, evict."""
    await harness.kube.create(PDBS, a_budget(minAvailable=1), namespace=harness.namespace)
    await harness.kube.create(DEPLOYMENTS, an_owner("web", replicas=1), namespace=harness.namespace)
    (old,) = await harness.ready_all(1)
    await harness.wait_status(PDBS, "b", currentHealthy=1, disruptionsAllowed=0)
    with pytest.raises(TooManyRequests):
        await evict(harness, old)

    await harness.kube.patch(
        PODS,
        old["metadata"]["name"],
        {"metadata": {"labels": {"pod-template-hash": "moving"}}},
        namespace=harness.namespace,
    )
    await harness.ready_all(2)
    await harness.wait_status(PDBS, "b", currentHealthy=2, disruptionsAllowed=1)
    await evict(harness, old)

    (left,) = await harness.wait_count(1)
    assert left["metadata"]["uid"] != old["metadata"]["uid"]
    await harness.wait_status(PDBS, "b", currentHealthy=1, disruptionsAllowed=0)


async def evict(harness: Harness, pod: Json) -> None:
    """Evict; retry after the Retry-After of a budget that is still being counted."""

    async def asked() -> bool:
        meta = pod["metadata"]
        try:
            await harness.kube.evict(
                namespace=harness.namespace, name=meta["name"], uid=meta["uid"]
            )
        except TooManyRequests as error:
            if error.retry_after_s is None:
                raise
            return False
        return True

    await until(asked, what="an answer to the eviction")
