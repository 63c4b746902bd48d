from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube.errors import TooManyRequests
from kube.kinds import DEPLOYMENTS, PDBS, PODS, REPLICASETS
from tests.simulator.controllers.world import World, an_owner
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
    world: World, spec: Json, desired: int, allowed: int
) -> None:
    await world.kube.create(PDBS, a_budget(**spec), namespace=world.namespace)
    await world.kube.create(REPLICASETS, an_owner("a", replicas=3), namespace=world.namespace)

    await world.ready_all(3)

    await world.wait_status(
        PDBS,
        "b",
        expectedPods=3,
        currentHealthy=3,
        desiredHealthy=desired,
        disruptionsAllowed=allowed,
        observedGeneration=1,
    )


async def test_a_pod_that_is_not_ready_is_not_healthy(world: World) -> None:
    await world.kube.create(PDBS, a_budget(minAvailable=1), namespace=world.namespace)
    await world.kube.create(REPLICASETS, an_owner("a", replicas=1), namespace=world.namespace)

    await world.wait_count(1)

    await world.wait_status(PDBS, "b", expectedPods=1, currentHealthy=0, disruptionsAllowed=0)


async def test_an_eviction_takes_its_share_of_the_budget(world: World) -> None:
    await world.kube.create(PDBS, a_budget(minAvailable=1), namespace=world.namespace)
    await world.kube.create(REPLICASETS, an_owner("a", replicas=2), namespace=world.namespace)
    one, other = await world.ready_all(2)
    await world.wait_status(PDBS, "b", disruptionsAllowed=1)

    await evict(world, one)

    await world.wait_status(PDBS, "b", currentHealthy=1, disruptionsAllowed=0)
    with pytest.raises(TooManyRequests):
        await evict(world, other)


async def test_a_ready_successor_lets_the_only_pod_of_a_full_budget_go(world: World) -> None:
    """The surge on which the rebalancer relies: change the hash, wait for the successor, evict."""
    await world.kube.create(PDBS, a_budget(minAvailable=1), namespace=world.namespace)
    await world.kube.create(DEPLOYMENTS, an_owner("web", replicas=1), namespace=world.namespace)
    (old,) = await world.ready_all(1)
    await world.wait_status(PDBS, "b", currentHealthy=1, disruptionsAllowed=0)
    with pytest.raises(TooManyRequests):
        await evict(world, old)

    await world.kube.patch(
        PODS,
        old["metadata"]["name"],
        {"metadata": {"labels": {"pod-template-hash": "moving"}}},
        namespace=world.namespace,
    )
    await world.ready_all(2)
    await world.wait_status(PDBS, "b", currentHealthy=2, disruptionsAllowed=1)
    await evict(world, old)

    (left,) = await world.wait_count(1)
    assert left["metadata"]["uid"] != old["metadata"]["uid"]
    await world.wait_status(PDBS, "b", currentHealthy=1, disruptionsAllowed=0)


async def evict(world: World, pod: Json) -> None:
    """Evict; retry after the Retry-After of a budget that is still being counted."""

    async def asked() -> bool:
        meta = pod["metadata"]
        try:
            await world.kube.evict(namespace=world.namespace, name=meta["name"], uid=meta["uid"])
        except TooManyRequests as error:
            if error.retry_after_s is None:
                raise
            return False
        return True

    await until(asked, what="an answer to the eviction")
