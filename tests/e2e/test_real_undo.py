"""A move that made things worse is undone, once and at once, on a real control plane.

The rebalancer is a process, and so are kube-scheduler with our extender and
kube-controller-manager; kubelets and what is measured are played.
"""

from contextlib import nullcontext

import pytest

from fracgpu import names
from fracgpu.state.move_object import ENDED, Ending, MovePhase
from fracgpu.state.pod_info import PodInfo
from kube.kinds import DEPLOYMENTS
from tests.support.real_moves import (
    BUSY,
    EVERY_WRITE,
    MovingCluster,
    Replica,
    a_workload,
    card_of,
)
from tests.support.waiting import until, until_true

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]


async def a_useless_move(cluster: MovingCluster, app: str) -> Replica:
    """Let a pod be moved to a card whose other pod becomes as busy; returns the leader.

    So does the other pod of every other card, and the pod beside which it was has no work any more.
    """
    await cluster.add(DEPLOYMENTS, a_workload(app))
    leader = await cluster.leading()
    companions = {card_of(pod): pod.record.uid for pod in await cluster.pods("companion")}

    def wake(_: PodInfo) -> None:
        busy = {uid for card, uid in companions.items() if card != source}
        cluster.load.busy[companions[source]] = 0.0
        cluster.load.busy.update(dict.fromkeys(busy, BUSY))

    cluster.arrived = wake
    source = card_of(await cluster.heat(app))
    await cluster.wait_move(
        app, lambda move: move.status.phase is MovePhase.VERIFYING, what="it is moved"
    )
    return leader


async def wait_undone(cluster: MovingCluster, app: str) -> None:
    """Wait until a second move has ended as well."""

    async def over() -> bool:
        moves = await cluster.moves(app)
        return len(moves) == 2 and all(move.status.phase in ENDED for move in moves)

    await until(over, what=f"{app} is moved once more", limit_s=450)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_move_that_only_its_source_would_relieve_is_taken_back(
    cluster: MovingCluster, killed: bool
) -> None:
    """Its own Move keeps its owner off that card, but for the Move that takes it back."""
    app = f"back-{killed}".lower()
    leader = await a_useless_move(cluster, app)
    cluster.restarting = killed

    with leader.killed_at_every_write() if killed else nullcontext(EVERY_WRITE) as writes:
        await wait_undone(cluster, app)
        await until_true(lambda: {*writes} >= EVERY_WRITE, what=f"it died at each: {writes}")

    first, undo = await cluster.settle(app, moves=2)
    assert first.status.result == Ending.USELESS.value, first.status
    assert undo.status.result == Ending.RELIEVED.value, undo.status
    assert (undo.spec.source, undo.spec.target) == (first.spec.target, first.spec.source)
    (pod,) = await cluster.pods(app)
    assert card_of(pod) == undo.spec.target.card
    assert pod.annotations[names.MOVE] == undo.name
    assert cluster.fewest_ready[app] == 1
