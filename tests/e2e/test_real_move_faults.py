"""The API server fails in the middle of a move: a real one, and the rebalancer as a process.

What else can fail is tried with a simulated API server, below tests/rebalancer.
"""

from typing import Any, Final

import pytest

from fracgpu.state.move_object import Ending, MovePhase
from fracgpu.state.pod_info import PodInfo
from kube.kinds import DEPLOYMENTS
from tests.support.api_gate import Trigger, entering
from tests.support.real_moves import (
    MovingCluster,
    Replica,
    a_workload,
    card_of,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]

SURGING: Final[Trigger] = entering(MovePhase.SURGING)


class Held:
    """A move whose surge is announced, while the rebalancer waits for the answer to that."""

    def __init__(self, app: str, leader: Replica, victim: PodInfo, go_on: Any) -> None:
        self.app, self.leader, self.victim, self.go_on = app, leader, victim, go_on


async def hold(cluster: MovingCluster, app: str, trigger: Trigger = SURGING, **body: Any) -> Held:
    """Create a workload and begin its move up to a write of the rebalancer."""
    await cluster.add(DEPLOYMENTS, a_workload(app, **body))
    leader = await cluster.leading()
    go_on = leader.hold_at(trigger)
    victim = await cluster.heat(app)
    await cluster.wait_sprung(leader)
    return Held(app, leader, victim, go_on)


async def assert_relieved(cluster: MovingCluster, held: Held) -> None:
    (move,) = await cluster.settle(held.app)
    assert move.status.result == Ending.RELIEVED.value, move.status
    (pod,) = await cluster.pods(held.app)
    assert card_of(pod) == move.spec.target.card
    assert cluster.fewest_ready[held.app] == 1


@pytest.mark.parametrize("outage_s", [3, 25])
async def test_a_move_survives_a_restart_of_the_api_server(
    cluster: MovingCluster, outage_s: float
) -> None:
    """An outage that is longer than the Lease ends the leader; kubelet starts it again."""
    held = await hold(cluster, f"outage-{outage_s}")
    cluster.restarting = True
    await cluster.outage(outage_s)
    held.go_on.set()

    await assert_relieved(cluster, held)
