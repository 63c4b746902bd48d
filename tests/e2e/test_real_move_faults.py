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
from kube.kinds import CONFIGMAPS, DEPLOYMENTS, NODES, PODS, RESOURCE_QUOTAS
from tests.support.api_gate import Trigger, entering, evicting
from tests.support.gpu import a_gpu_pod
from tests.support.moving import NAMESPACE
from tests.support.moving_workloads import POD_MIB, a_workload
from tests.support.real_moves import (
    CARD_MIB,
    COMPANION_MIB,
    MovingCluster,
    card_of,
)
from tests.support.rebalancer_replicas import Replica
from tests.support.waiting import until

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


# The replacement.


async def test_a_replacement_that_is_never_ready_goes_and_the_pod_stays(
    cluster: MovingCluster,
) -> None:
    await cluster.configure(replacementTtlS=6)
    held = await hold(cluster, "unready")
    cluster.unready = lambda pod: pod.record.uid != held.victim.record.uid

    held.go_on.set()

    await assert_rolled_back(cluster, held, Ending.NOT_READY)


async def test_an_image_that_cannot_be_pulled_rolls_the_surge_back_at_once(
    cluster: MovingCluster,
) -> None:
    held = await hold(cluster, "image")
    cluster.unready = lambda pod: pod.record.uid != held.victim.record.uid
    held.go_on.set()
    move = await cluster.wait_move(
        held.app, lambda move: move.status.replacement is not None, what="a replacement"
    )
    assert move.status.replacement is not None

    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    status = {"containerStatuses": [{**A_CONTAINER, "state": {"waiting": waiting}}]}
    await cluster.kube.patch(
        PODS,
        move.status.replacement.name,
        {"status": {"phase": "Pending", **status}},
        namespace=NAMESPACE,
        subresource="status",
    )

    await assert_rolled_back(cluster, held, Ending.NOT_READY)
    assert "ImagePullBackOff" in (await cluster.move(held.app)).status.message


A_CONTAINER: Final = {
    "name": "train", "ready": False, "restartCount": 0, "image": "x", "imageID": "",
}  # fmt: skip


async def test_a_quota_that_is_full_meanwhile_rolls_the_surge_back(cluster: MovingCluster) -> None:
    held = await hold(cluster, "quota")
    pods = len(await cluster.pods())
    quota = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": str(pods)}}}
    await cluster.kube.create(RESOURCE_QUOTAS, quota, namespace=NAMESPACE)

    async def counted() -> bool:
        found = await cluster.kube.get_object(RESOURCE_QUOTAS, "full", namespace=NAMESPACE)
        used = (found.get("status") or {}).get("used") or {}
        return bool(used.get("pods") == str(pods))

    await until(counted, what="the quota is counted", limit_s=60)
    held.go_on.set()

    await assert_rolled_back(cluster, held, Ending.NOT_CREATED)


async def test_a_replacement_that_is_never_placed_releases_its_reservation(
    cluster: MovingCluster,
) -> None:
    """The extender stands still, so that kube-scheduler places nothing."""
    await cluster.configure(replacementTtlS=6)
    held = await hold(cluster, "unplaced")
    with cluster.without_extender():
        held.go_on.set()
        await cluster.wait_move(
            held.app, lambda move: move.status.phase in ENDED, what="the move ends", limit_s=90
        )

    await assert_rolled_back(cluster, held, Ending.LAPSED, Ending.NOT_READY)


async def test_if_the_reserved_card_is_taken_all_the_same_another_cool_one_will_do(
    cluster: MovingCluster,
) -> None:
    held = await hold(cluster, "elsewhere")
    target = (await cluster.move(held.app)).spec.target
    rest = CARD_MIB - COMPANION_MIB + 80  # more than fits, so that it is seen
    assigned = {names.ASSIGNMENT: f'{{"train":[{{"card":"{target.card}","mib":{rest}}}]}}'}
    rogue = a_gpu_pod("rogue", mib=rest, namespace=NAMESPACE, annotations=assigned)
    await cluster.kube.create(PODS, rogue | {"spec": rogue["spec"] | {"nodeName": target.node}})

    async def seen() -> bool:
        return await cluster.harness.metric("fracgpu_scheduler_overbooked_cards") > 0

    await until(seen, what="the extender knows of it", limit_s=60)
    held.go_on.set()

    (move,) = await cluster.settle(held.app)
    (pod,) = await cluster.pods(held.app)
    assert move.status.result == Ending.RELIEVED.value
    assert card_of(pod) not in (target.card, card_of(held.victim))
    assert cluster.fewest_ready[held.app] == 1


PLACES: Final = (CARD_MIB - COMPANION_MIB) // POD_MIB  # on one card, beside its companion


async def fill(cluster: MovingCluster, *, places: int, but_on: str = "") -> None:
    """Create more pods than there are places, and wait until that many are taken.

    Places on the node *but_on* do not count.
    """
    for index in range(20):
        racer = a_gpu_pod(f"racer-{index}", mib=POD_MIB, namespace=NAMESPACE)
        await cluster.kube.create(PODS, racer)

    async def full() -> bool:
        racers = [pod for pod in await cluster.pods() if pod.record.name.startswith("racer-")]
        waiting = [pod for pod in racers if not pod.record.node]
        told = all(pod.unschedulable_since is not None for pod in waiting)
        taken = sum(pod.record.node not in ("", but_on) for pod in racers)
        return told and bool(waiting) and taken == places

    await until(full, what="every other place is taken", limit_s=90)


async def test_pods_that_race_for_the_reserved_card_do_not_get_it(cluster: MovingCluster) -> None:
    held = await hold(cluster, "raced")

    # The source is closed to all, and one place is reserved.
    await fill(cluster, places=PLACES * (len(cluster.load.cards) - 1) - 1)
    held.go_on.set()

    await assert_relieved(cluster, held)


# The target's node.


@pytest.mark.parametrize("fault", ["cordoned", "not Ready"])
async def test_a_target_node_that_takes_no_pods_any_more_rolls_the_surge_back(
    cluster: MovingCluster, fault: str
) -> None:
    held = await hold(cluster, fault.replace(" ", "-").lower())
    node = (await cluster.move(held.app)).spec.target.node
    elsewhere = [card for card, its in cluster.load.cards.items() if its != node]
    await set_usable(cluster, node, fault=fault)
    try:
        # No other card will do; and kube-scheduler knows of the fault, or it would place more.
        places = PLACES * len(elsewhere) - (held.victim.record.node != node)
        await fill(cluster, places=places, but_on=node)
        held.go_on.set()
        await assert_rolled_back(cluster, held, Ending.TARGET_LOST)
    finally:
        await set_usable(cluster, node)


async def set_usable(cluster: MovingCluster, node: str, *, fault: str = "") -> None:
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    taints = [taint] if fault == "not Ready" else None
    spec = {"unschedulable": fault == "cordoned", "taints": taints}
    await cluster.kube.patch(NODES, node, {"spec": spec})
    ready = {"type": "Ready", "status": str(fault != "not Ready")}
    status = {"status": {"conditions": [ready]}}
    await cluster.kube.patch(NODES, node, status, subresource="status")


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
