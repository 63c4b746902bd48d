"""Owners are obeyed, and people have their moves made, on a real control plane.

The rebalancer is a process, and so are kube-scheduler with our extender and
kube-controller-manager; kubelets and what is measured are played.
"""

from contextlib import nullcontext
from typing import Any

import pytest

from fracgpu import names
from fracgpu.disruption.move import Ending
from fracgpu.state.move_object import MovePhase
from kube.kinds import DEPLOYMENTS, MOVES, NODES, PDBS
from tests.support.moving import NAMESPACE
from tests.support.real_moves import EVERY_WRITE, MovingCluster, a_workload, card_of
from tests.support.waiting import until_true

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]


async def forbid(cluster: MovingCluster, app: str, **spec: Any) -> None:
    body = {
        "metadata": {"name": app, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
    }
    await cluster.kube.create(PDBS, body)


async def assert_held(cluster: MovingCluster, app: str, reason: str) -> None:
    """Assert that a hot card's pod is held for a reason, and that no Move is made."""
    leader = await cluster.leading()
    await cluster.heat(app)

    def said() -> bool:
        lines = leader.process.tail(400).splitlines()
        return any(reason in line and f"/{app}-" in line for line in lines)

    await until_true(said, what=f"{app} is held for {reason}", limit_s=60)
    assert await cluster.moves(app) == []
    cluster.cool()


async def assert_moved(cluster: MovingCluster, app: str) -> None:
    (move,) = await cluster.settle(app)
    assert move.status.result == Ending.RELIEVED.value, move.status
    assert cluster.fewest_ready[app] == 1


async def test_a_budget_that_forbids_disruptions_holds_and_an_only_replica_is_replaced_first(
    cluster: MovingCluster,
) -> None:
    app = await cluster.add(DEPLOYMENTS, a_workload("forbidden"))
    await forbid(cluster, app, maxUnavailable=0)
    await assert_held(cluster, app, "budget_forbids")

    app = await cluster.add(DEPLOYMENTS, a_workload("only"))
    await forbid(cluster, app, minAvailable=1)
    await cluster.heat(app)
    await assert_moved(cluster, app)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_recommended_move_is_made_once_it_is_approved(
    cluster: MovingCluster, killed: bool
) -> None:
    app = await cluster.add(DEPLOYMENTS, a_workload("approved"))
    await cluster.configure(mode="recommend")
    victim = await cluster.heat(app)
    shown = await cluster.wait_move(
        app, lambda move: move.status.phase is MovePhase.RECOMMENDED, what="it is recommended"
    )
    (pod,) = await cluster.pods(app)
    assert pod.record.uid == victim.record.uid
    leader = await cluster.leading()
    cluster.restarting = killed

    approval = {"metadata": {"annotations": {names.APPROVED: "true"}}}
    with leader.killed_at_every_write() if killed else nullcontext(EVERY_WRITE) as writes:
        await cluster.kube.patch(MOVES, shown.name, approval)
        await cluster.wait_move(
            app, lambda move: bool(move.status.result), what="it is made", limit_s=300
        )
        await until_true(lambda: {*writes} >= EVERY_WRITE, what=f"it died at each: {writes}")
    assert (await cluster.move(app)).spec.approved
    await cluster.configure()  # in the mode recommend, cordons of before are left to lapse
    await assert_moved(cluster, app)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_drained_card_is_left_by_its_pods_however_cool_it_is(
    cluster: MovingCluster, killed: bool
) -> None:
    app = await cluster.add(DEPLOYMENTS, a_workload("drained"))
    (pod,) = await cluster.pods(app)
    card, node = card_of(pod), pod.record.node
    leader = await cluster.leading()
    cluster.restarting = killed

    drain = {"metadata": {"annotations": {names.NODE_DRAIN: card}}}
    try:
        with leader.killed_at_every_write() if killed else nullcontext(EVERY_WRITE) as writes:
            await cluster.kube.patch(NODES, node, drain)
            await cluster.wait_move(
                app, lambda move: bool(move.status.result), what="it is moved", limit_s=300
            )
            await until_true(lambda: {*writes} >= EVERY_WRITE, what=f"it died at each: {writes}")
        await assert_moved(cluster, app)
        (pod,) = await cluster.pods(app)
        assert card_of(pod) != card
        assert (await cluster.move(app)).spec.method == "requested"
    finally:
        undo = {"metadata": {"annotations": {names.NODE_DRAIN: None}}}
        await cluster.kube.patch(NODES, node, undo)
