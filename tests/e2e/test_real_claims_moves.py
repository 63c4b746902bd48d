"""Pods are moved where the cluster's own kube-scheduler allocates the cards, from our claims.

The control plane is real and has nothing of ours but the scheduler role, which makes claims. The
rebalancer is a process. Webhook, kubelets, agents and what is measured are played.
"""

from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.state.move_object import Ending, Move, MoveMode, MovePhase
from kube.kinds import DEPLOYMENTS, RESOURCE_CLAIMS
from tests.support.real_moves import (
    EVERY_WRITE,
    EVICT,
    MovingCluster,
    a_moving_cluster,
    a_workload,
    card_of,
)
from tests.support.waiting import until_true

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(500),
    pytest.mark.asyncio(loop_scope="module"),
]

# After each of these a rebalancer dies that is killed at every write of a move without a surge.
EVERY_WRITE_OF_AN_EVICTION: Final = EVERY_WRITE - {
    "releasing",
    f"entering {MovePhase.SURGING.value}",
    f"entering {MovePhase.REPLACEMENT_READY.value}",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MovingCluster]:
    """One cluster for the module, whose kube-scheduler allocates claims."""
    workdir: Path = tmp_path_factory.mktemp("moves")
    async with a_moving_cluster(workdir, by_claims=True) as cluster:
        yield cluster


async def claims_of(cluster: MovingCluster) -> dict[str, DeviceClaim]:
    """Return the claims by the UID of their pod."""
    listed = await cluster.kube.list(RESOURCE_CLAIMS)
    return {claim.holder: claim for claim in (decode_claim(bytes(raw)) for raw in listed.items)}


async def assert_relieved(cluster: MovingCluster, app: str, *, pods: int = 1) -> Move:
    """Assert that a workload's move ended well: a claim of the Move's has the reserved card."""
    (move,) = await cluster.settle(app, pods=pods)
    assert move.status.result == Ending.RELIEVED.value, move.status
    assert move.status.replacement is not None
    claim = (await claims_of(cluster))[move.status.replacement.uid]
    assert claim.move == move.name
    (found,) = [
        pod for pod in await cluster.pods(app) if pod.record.uid == move.status.replacement.uid
    ]
    assert card_of(found) == move.spec.target.card
    return move


@pytest.mark.parametrize("killed", [False, True])
async def test_a_surge_gets_the_reserved_card_although_the_rebalancer_is_killed_at_each_write(
    cluster: MovingCluster, killed: bool
) -> None:
    app = await cluster.add(DEPLOYMENTS, a_workload(f"surged-{killed}".lower()))
    leader = await cluster.leading()
    cluster.restarting = killed

    with leader.killed_at_every_write() if killed else nullcontext(EVERY_WRITE) as writes:
        await cluster.heat(app)
        await cluster.wait_move(
            app, lambda move: bool(move.status.result), what="it is moved", limit_s=400
        )
        await until_true(lambda: {*writes} >= EVERY_WRITE, what=f"it died at each: {writes}")

    move = await assert_relieved(cluster, app)
    assert move.spec.mode is MoveMode.SURGE
    assert cluster.fewest_ready[app] == 1


@pytest.mark.parametrize("killed", [False, True])
async def test_an_evicted_pod_is_replaced_on_the_reserved_card(
    cluster: MovingCluster, killed: bool
) -> None:
    name = f"evicted-{killed}".lower()
    workload = a_workload(name, replicas=2, annotations=EVICT)
    app = await cluster.add(DEPLOYMENTS, workload, pods=2)
    leader = await cluster.leading()
    cluster.restarting = killed

    wanted = EVERY_WRITE_OF_AN_EVICTION
    with leader.killed_at_every_write() if killed else nullcontext(wanted) as writes:
        await cluster.heat(app)
        await cluster.wait_move(
            app, lambda move: bool(move.status.result), what="it is moved", limit_s=400
        )
        await until_true(lambda: {*writes} >= wanted, what=f"it died at each: {writes}")

    move = await assert_relieved(cluster, app, pods=2)
    assert move.spec.mode is MoveMode.EVICT
