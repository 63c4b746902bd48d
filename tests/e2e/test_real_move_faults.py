"""What fails in the middle of a move, on a real control plane with the rebalancer as a process.

Mostly the rebalancer is held where it has just announced the surge and does not know that yet: what
the test does then happens before the pod is released.
"""

from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.disruption.move import ENDED, Ending
from fracgpu.state.move_object import MovePhase
from fracgpu.state.pod_info import PodInfo
from kube.kinds import CONFIGMAPS, DEPLOYMENTS
from tests.support.api_gate import Trigger, entering, evicting
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


async def assert_rolled_back(cluster: MovingCluster, held: Held, *endings: Ending) -> None:
    """Assert that the move ends so, and that the pod stays where it is and was Ready throughout."""
    move = await cluster.wait_move(
        held.app, lambda move: move.status.phase in ENDED, what="the move ends", limit_s=90
    )
    cluster.cool()
    assert move.status.result in {ending.value for ending in endings}, move.status
    assert move.status.phase is MovePhase.ABORTED
    await cluster.settle(held.app)
    (pod,) = await cluster.pods(held.app)
    assert pod.record.uid == held.victim.record.uid
    assert cluster.fewest_ready[held.app] == 1


async def assert_relieved(cluster: MovingCluster, held: Held) -> None:
    (move,) = await cluster.settle(held.app)
    assert move.status.result == Ending.RELIEVED.value, move.status
    (pod,) = await cluster.pods(held.app)
    assert card_of(pod) == move.spec.target.card
    assert cluster.fewest_ready[held.app] == 1


# The API server.


def status(reason: str, code: int, message: str, **details: Any) -> tuple[int, dict[str, Any]]:
    return code, {"reason": reason, "code": code, "message": message, "details": details}


async def test_an_eviction_whose_answer_is_lost_is_not_made_twice(cluster: MovingCluster) -> None:
    app = await cluster.add(DEPLOYMENTS, a_workload("lost"))
    leader = await cluster.leading()
    leader.gate.set_trap(evicting)
    await cluster.heat(app)

    (move,) = await cluster.settle(app)

    assert leader.gate.sprung.is_set()
    assert move.status.result == Ending.RELIEVED.value
    evictions = [write.status for write in leader.gate.writes if is_of(write, evicting, app)]
    assert evictions == [201]


def is_of(write: Any, trigger: Trigger, app: str) -> bool:
    return trigger(write) and f"/{app}-" in write.target


async def test_an_eviction_that_the_api_server_has_no_time_for_is_tried_again(
    cluster: MovingCluster,
) -> None:
    app = await cluster.add(DEPLOYMENTS, a_workload("busy"))
    leader = await cluster.leading()
    leader.gate.refuse(
        evicting,
        status("TooManyRequests", 429, "too many requests, please try again later"),
        status("ServiceUnavailable", 503, "the server is currently unable to handle the request"),
        status("InternalError", 500, "etcdserver: request timed out"),
    )
    await cluster.heat(app)

    (move,) = await cluster.settle(app)

    assert move.status.result == Ending.RELIEVED.value
    evictions = [write.status for write in leader.gate.writes if is_of(write, evicting, app)]
    assert evictions == [429, 503, 500, 201]
    assert cluster.fewest_ready[app] == 1


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


# The rebalancer's own inputs.


async def test_a_move_under_way_goes_on_without_measurements(cluster: MovingCluster) -> None:
    held = await hold(cluster, "blind")
    cluster.load.blind = True
    held.go_on.set()

    move = await cluster.wait_move(
        held.app, lambda move: move.status.phase in ENDED, what="the move ends", limit_s=90
    )

    assert move.status.result == Ending.UNVERIFIED.value
    cluster.load.blind = False
    await cluster.settle(held.app)
    assert cluster.fewest_ready[held.app] == 1


@pytest.mark.parametrize("edit", ["paused", "mistaken"])
async def test_a_move_under_way_is_finished_if_the_configuration_is(
    cluster: MovingCluster, edit: str
) -> None:
    held = await hold(cluster, edit)
    changes: dict[str, Any] = {"paused": True} if edit == "paused" else {"hotRatio": "very"}
    await cluster.configure(**changes)
    held.go_on.set()

    await assert_relieved(cluster, held)


async def test_a_move_that_is_switched_off_once_the_replacement_is_ready_is_rolled_back(
    cluster: MovingCluster,
) -> None:
    held = await hold(cluster, "off", entering(MovePhase.REPLACEMENT_READY))
    await cluster.configure(mode="off")
    held.go_on.set()
    await cluster.wait_move(
        held.app, lambda move: move.status.phase in ENDED, what="the move ends", limit_s=90
    )
    cluster.cool()
    await cluster.configure()  # only then are cards opened again

    await assert_rolled_back(cluster, held, Ending.PAUSED)


async def test_without_its_configuration_a_move_under_way_is_rolled_back(
    cluster: MovingCluster,
) -> None:
    """What runs without one is a dry run."""
    held = await hold(cluster, "unconfigured")
    cluster.unready = lambda pod: pod.record.uid != held.victim.record.uid
    name, namespace = names.CONFIG_MAP, names.SYSTEM_NAMESPACE
    found = await cluster.kube.get_object(CONFIGMAPS, name, namespace=namespace)
    await cluster.kube.delete(CONFIGMAPS, name, namespace=namespace)
    held.go_on.set()
    await cluster.wait_move(
        held.app, lambda move: move.status.phase in ENDED, what="the move ends", limit_s=90
    )
    created = {"metadata": {"name": name, "namespace": namespace}, "data": found["data"]}
    await cluster.kube.create(CONFIGMAPS, created)

    await assert_rolled_back(cluster, held, Ending.PAUSED)
