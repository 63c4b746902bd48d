"""The leader dies, or stands still, at each boundary of a move; another replica goes on.

On a real control plane, with rebalancers that are processes with the permissions of ``deploy/``. A
leader ends exactly after a write of its own has succeeded, before it learns of that.
"""

import signal
from pathlib import Path
from typing import Final

import pytest

from fracgpu.state.move_object import Ending, MovePhase
from kube.kinds import DEPLOYMENTS
from tests.support.api_gate import (
    Trigger,
    entering,
    evicting,
    releasing,
)
from tests.support.real_moves import (
    MovingCluster,
    Replica,
    a_moving_cluster,
    a_workload,
    card_of,
)
from tests.support.waiting import until_true

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(540)]


SURGING: Final = (
    ("surging", entering(MovePhase.SURGING)),
    ("released", releasing),
    ("ready", entering(MovePhase.REPLACEMENT_READY)),
)
EVICTING: Final = (
    ("evicting", entering(MovePhase.EVICTING)),
    ("eviction", evicting),
    ("evicted", entering(MovePhase.EVICTED)),
    ("verifying", entering(MovePhase.VERIFYING)),
)


async def die_at(cluster: MovingCluster, app: str, trigger: Trigger, *, heir: str) -> None:
    """Let the leader die at its first such write; *heir* becomes the leader then."""
    await cluster.start(heir)
    leader = cluster.replicas[await cluster.leader()]
    leader.kill_at(trigger)
    source = card_of(await cluster.heat(app))
    await cluster.wait_sprung(leader)
    assert await leader.process.wait_end() == -signal.SIGKILL
    await cluster.wait_leader(heir)
    (move,) = await cluster.settle(app)
    assert move.status.result == Ending.RELIEVED.value, move
    (pod,) = await cluster.pods(app)
    assert card_of(pod) == move.spec.target.card != source == move.spec.source.card


async def test_a_leader_killed_at_a_boundary_of_a_move_has_an_heir_that_finishes_it(
    tmp_path: Path,
) -> None:
    async with a_moving_cluster(tmp_path) as cluster:
        await cluster.start("first")
        await cluster.wait_leader("first")
        for boundary, trigger in SURGING:
            app = await cluster.add(DEPLOYMENTS, a_workload(boundary))
            await die_at(cluster, app, trigger, heir=f"after-{boundary}")
            assert cluster.fewest_ready[app] == 1, boundary
            cluster.cool()


@pytest.mark.parametrize(
    ("boundary", "trigger"), [*SURGING, *EVICTING], ids=[name for name, _ in (*SURGING, *EVICTING)]
)
async def test_a_leader_that_stood_still_while_another_took_over_writes_nothing_and_ends(
    tmp_path: Path, boundary: str, trigger: Trigger
) -> None:
    async with a_moving_cluster(tmp_path) as cluster:
        first = await cluster.start("first")
        await cluster.wait_leader("first")
        heir = await cluster.start("heir")
        app = await cluster.add(DEPLOYMENTS, a_workload(boundary))
        first.pause_at(trigger)
        await cluster.heat(app)
        await cluster.wait_sprung(first)
        await cluster.wait_leader("heir")
        await until_true(lambda: has_gone_on(heir), what="the heir goes on", limit_s=60)

        before = len(first.gate.writes)
        first.send(signal.SIGCONT)

        assert await first.process.wait_end() == 1
        assert [str(write) for write in first.gate.writes[before:] if write.succeeded] == []
        assert "process_ended" in first.process.tail()
        (move,) = await cluster.settle(app)
        assert move.status.result == Ending.RELIEVED.value, move
        assert cluster.fewest_ready[app] == 1


def has_gone_on(replica: Replica) -> bool:
    """Report whether a replica has written something besides its Lease."""
    return any(write.succeeded and not write.of_lease for write in replica.gate.writes)
