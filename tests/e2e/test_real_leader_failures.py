"""The leader dies, or stands still, at each boundary of a move; another replica goes on.

On a real control plane, with rebalancers that are processes with the permissions of ``deploy/``. A
leader ends exactly after a write of its own has succeeded, before it learns of that.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from fracgpu.disruption.move import ENDED, Ending
from fracgpu.state.move_object import MovePhase
from fracgpu.state.pod_info import PodInfo
from kube.kinds import DEPLOYMENTS
from tests.support.api_gate import (
    Trigger,
    creating,
    entering,
    evicting,
    releasing,
    restoring,
    unmarking,
)
from tests.support.real_moves import (
    EVICT,
    MovingCluster,
    Replica,
    a_moving_cluster,
    a_workload,
    card_of,
)
from tests.support.waiting import until_true

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(540)]

CONFLICT: Final = 409

BEFORE: Final = (
    ("created", creating),
    ("planned", entering(MovePhase.PLANNED)),
    ("reserved", entering(MovePhase.RESERVED)),
    ("noticed", entering(MovePhase.NOTICED)),
)
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

ROLLING_BACK: Final = (
    ("rolling-back", entering(MovePhase.ROLLING_BACK)),
    ("restored", restoring),
    ("unmarked", unmarking),
    ("aborted", entering(MovePhase.ABORTED)),
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


@pytest.mark.parametrize(
    ("boundaries", "notes"),
    [(BEFORE, {}), (SURGING, {}), (EVICTING, {}), (EVICTING, EVICT)],
    ids=["before", "surging", "evicting", "without a surge"],
)
async def test_a_leader_killed_at_a_boundary_of_a_move_has_an_heir_that_finishes_it(
    tmp_path: Path, boundaries: Sequence[tuple[str, Trigger]], notes: Mapping[str, str]
) -> None:
    async with a_moving_cluster(tmp_path) as cluster:
        await cluster.start("first")
        await cluster.wait_leader("first")
        for boundary, trigger in boundaries:
            app = await cluster.add(DEPLOYMENTS, a_workload(boundary, annotations=notes))
            await die_at(cluster, app, trigger, heir=f"after-{boundary}")
            assert notes or cluster.fewest_ready[app] == 1, boundary
            cluster.cool()


def all_but(victim: PodInfo) -> Callable[[PodInfo], bool]:
    return lambda pod: pod.record.uid != victim.record.uid


async def test_a_leader_killed_while_it_rolls_a_surge_back_has_an_heir_that_does(
    tmp_path: Path,
) -> None:
    async with a_moving_cluster(tmp_path, times={"replacement_ttl_s": 6}) as cluster:
        await cluster.start("first")
        await cluster.wait_leader("first")
        for boundary, trigger in ROLLING_BACK:
            app = await cluster.add(DEPLOYMENTS, a_workload(boundary))
            heir = await cluster.start(f"after-{boundary}")
            leader = cluster.replicas[await cluster.leader()]
            leader.kill_at(trigger)
            victim = await cluster.heat(app)
            cluster.unready = all_but(victim)
            await cluster.wait_sprung(leader, limit_s=90)
            await cluster.wait_leader(heir.name)
            move = await cluster.wait_move(
                app, lambda move: move.status.phase in ENDED, what="the move ends", limit_s=90
            )
            assert move.status.result == Ending.NOT_READY.value, boundary

            cluster.cool()
            await cluster.settle(app)
            (pod,) = await cluster.pods(app)
            assert pod.record.uid == victim.record.uid, boundary
            assert cluster.fewest_ready[app] == 1, boundary
            cluster.unready = lambda _: False


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


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "stands"])
async def test_an_eviction_that_arrives_after_an_heir_gave_the_move_up_evicts_nobody(
    tmp_path: Path, signal_sent: signal.Signals
) -> None:
    async with a_moving_cluster(tmp_path) as cluster:
        first = await cluster.start("first")
        await cluster.wait_leader("first")
        await cluster.start("heir")
        app = await cluster.add(DEPLOYMENTS, a_workload("delayed", annotations=EVICT))
        first.gate.delay(evicting)
        victim = await cluster.heat(app)
        await cluster.wait_sprung(first)
        first.send(signal_sent)
        await cluster.configure(mode="recommend")
        await cluster.wait_leader("heir")
        move = await cluster.wait_move(
            app, lambda move: move.status.phase in ENDED, what="the move ends", limit_s=90
        )
        assert move.status.result == Ending.PAUSED.value, move

        assert await first.gate.arrive() == CONFLICT

        cluster.cool()
        await cluster.configure()  # only then are cards opened again
        await cluster.settle(app)
        (pod,) = await cluster.pods(app)
        assert pod.record.uid == victim.record.uid
        assert cluster.fewest_ready[app] == 1


def has_gone_on(replica: Replica) -> bool:
    """Report whether a replica has written something besides its Lease."""
    return any(write.succeeded and not write.of_lease for write in replica.gate.writes)
