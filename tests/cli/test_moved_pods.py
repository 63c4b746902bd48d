"""Uninstalled amid a surge, on the embedded API server with its controllers."""

from collections.abc import AsyncIterator

import pytest

from cli.moved_pods import find_moved, give_back
from cli.removal import Removal, make_plan
from fracgpu import names
from fracgpu.state.move_object import MovePhase
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import PODS, REPLICASETS
from process.clock import SystemClock
from rebalancer.moves.steps import DELETION_COST, LOWEST_COST
from simulator.apiserver.server import ApiServer
from tests.fakes.clock import VirtualClock
from tests.support.moving import HASH, NAMESPACE, OWNER, SurgeCluster, a_surge_cluster, schedule
from tests.support.waiting import until

HASH_LABEL = "pod-template-hash"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[SurgeCluster]:
    """A cluster whose time is the rebalancer's."""
    async with (
        ApiServer.start(clock=clock) as api,
        connect_to(api.url) as kube,
        a_surge_cluster(kube, clock=clock) as cluster,
    ):
        yield cluster


async def uninstall(kube: KubeClient) -> list[str]:
    """Remove everything; returns what was told."""
    lines: list[str] = []
    removal = Removal(kube, SystemClock(), on_progress=lines.append, limit_s=60)
    left = await removal.run(await make_plan(kube))
    assert not left.moved
    return lines


async def two_owned(cluster: SurgeCluster) -> bool:
    pods = (await cluster.pods()).values()
    staying = [pod for pod in pods if not pod.record.terminating]
    return len(staying) == 2 and all(
        pod.owner and pod.labels[HASH_LABEL] == HASH and names.MOVED_BY not in pod.annotations
        for pod in staying
    )


@pytest.mark.parametrize("ready", [False, True])
async def test_an_uninstallation_amid_a_surge_gives_the_released_pod_back_to_its_replicaset(
    cluster: SurgeCluster, ready: bool
) -> None:
    replacement = await cluster.surge()
    if ready:
        await schedule(cluster.kube)
        await cluster.rig.tick()
        assert cluster.rig.record().phase is MovePhase.REPLACEMENT_READY

    plan = await make_plan(cluster.kube)
    lines = await uninstall(cluster.kube)

    assert list(plan.moved) == [f"{NAMESPACE}/pod-a"]
    assert f"pod {NAMESPACE}/pod-a: given back to its ReplicaSet" in lines
    await until(lambda: two_owned(cluster), what="the ReplicaSet has its two pods")
    assert (await cluster.pod("pod-a")).owner is not None
    assert replacement not in [
        name for name, pod in (await cluster.pods()).items() if not pod.record.terminating
    ]


async def test_the_mark_of_a_replacement_that_was_to_be_deleted_goes_too_and_nobody_elses(
    cluster: SurgeCluster,
) -> None:
    replacement = await cluster.surge_until_ready()
    cost = {"metadata": {"annotations": {DELETION_COST: LOWEST_COST}}}
    for name in (replacement, "pod-b"):
        await cluster.kube.patch(PODS, name, cost, namespace=NAMESPACE)

    moved = await find_moved(cluster.kube)

    assert {pod.record.name for pod in moved} == {"pod-a", replacement}

    async def given_back() -> bool:
        return await give_back(cluster.kube, on_progress=lambda _: None) == []

    await until(given_back, what="the pod has its ReplicaSet again")
    assert await find_moved(cluster.kube) == []
    assert DELETION_COST in (await cluster.pod("pod-b")).annotations


async def test_a_released_pod_whose_replicaset_is_gone_is_named(cluster: SurgeCluster) -> None:
    await cluster.surge()
    await cluster.kube.delete(REPLICASETS, OWNER, namespace=NAMESPACE)
    lines: list[str] = []

    assert await give_back(cluster.kube, on_progress=lines.append) == []

    assert lines == [
        f"pod {NAMESPACE}/pod-a: its ReplicaSet is gone; delete the pod if nobody needs it"
    ]


async def test_nothing_is_moved_where_nothing_was_installed(kube: KubeClient) -> None:
    assert await find_moved(kube) == []
    assert not await make_plan(kube)
