"""Room is made for a pod that waits, with a real control plane, scheduler and rebalancer.

Kubelets and what is measured are played; all else is real. Once the cluster's own kube-scheduler
allocates the cards, from our claims: then the webhook and the agents are played as well.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from fracgpu import names
from fracgpu.cards.card import Card
from fracgpu.state.move_object import Move, MovePhase, decode_move
from fracgpu.state.pod_info import PodInfo
from kube.kinds import DEPLOYMENTS, MOVES, PDBS, PODS
from tests.support.gpu import a_gpu_pod, some_cards
from tests.support.moving import NAMESPACE, end_pod
from tests.support.objects import a_budget
from tests.support.real_moves import (
    CARD_MIB,
    MovingCluster,
    a_moving_cluster,
    a_workload,
    cards_of,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(540)]

A30, L4 = "NVIDIA A30", "NVIDIA L4"
HALF_NODES: Final = ("a30-1", "a30-2")


class App(NamedTuple):
    """A Deployment with a disruption budget; its pods want a third of a card."""

    name: str
    replicas: int = 1
    min_available: int = 1
    model: str = A30
    rebalance: str = "surge"

    def deployment(self) -> dict[str, Any]:
        notes = {
            names.MODEL: self.model,
            names.REBALANCE: self.rebalance,
            names.PLACEMENT: "spread",
        }
        body = a_workload(self.name, replicas=self.replicas, mib=8_000, annotations=notes)
        (container,) = body["spec"]["template"]["spec"]["containers"]
        container["resources"]["requests"]["cpu"] = "4"
        return body


APPS: Final = (
    App("web", replicas=3, min_available=3),
    App("api", replicas=2, min_available=2),
    App("queue", replicas=2),
    App("db", rebalance="never"),
    App("vision", model=L4),
)


def a_fragmented_fleet() -> dict[str, tuple[Card, ...]]:
    """Return two nodes of A30, and one of L4, one card of which will be idle."""
    found = {name: some_cards(name, mib=CARD_MIB) for name in HALF_NODES}
    other = some_cards("l4-1", count=2, mib=CARD_MIB)
    return {**found, "l4-1": tuple(replace(card, model=L4) for card in other)}


@pytest.fixture
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MovingCluster]:
    """Yield the cluster with one pod on each card of the A30 nodes.

    One app after the other, so that on each node pods of two apps may be moved: an app rests after
    a move, and no room for two cards could be made where all pods are of one.
    """
    async with a_moving_cluster(
        tmp_path,
        fleet=a_fragmented_fleet(),
        companions=False,
        by_claims=getattr(request, "param", False),
        makeRoom="active",
        # So long that no room is made for the competitors as well.
        makeRoomAfterS=30,
        times={
            "make_room_hold_s": 300,
            "plan_ttl_s": 60,
            "ready_s": 0,
            "max_per_owner_per_day": 100,
            "owner_cooldown_s": 1,
            "give_up_cooldown_s": 1,
        },
    ) as started:
        for app in APPS:
            budget = a_budget(app.name, app=app.name, min_available=app.min_available)
            await started.kube.create(PDBS, budget, namespace=NAMESPACE)
            await started.add(DEPLOYMENTS, app.deployment(), pods=app.replicas)
        await occupy(started)
        yield started


async def occupy(cluster: MovingCluster) -> None:
    """Put a pod that is never moved on each A30 card that has none, which is seldom more than one.

    To spread is only preferred: kube-scheduler takes a node by what else it knows.
    """
    taken = {card for pod in await cluster.pods() for card in cards_of(pod)}
    for node in HALF_NODES:
        for index in range(4):
            if f"GPU-{node}-{index}" not in taken:
                name, on = f"filler-{node}-{index}", {"kubernetes.io/hostname": node}
                notes = {names.PLACEMENT: "spread"}
                body = a_gpu_pod(
                    name, mib=8_000, namespace=NAMESPACE, annotations=notes, nodeSelector=on
                )
                await cluster.kube.create(PODS, body)
                await until(partial(placed, cluster, name), what="it is placed", limit_s=60)


async def pod_of(cluster: MovingCluster, name: str) -> PodInfo:
    (found,) = [pod for pod in await cluster.pods() if pod.record.name == name]
    return found


async def ask(
    cluster: MovingCluster, name: str, *, cpu: str = "1", cards: int = 1, mib: int = CARD_MIB
) -> None:
    """Create a pod that asks for A30 cards; it has no owner, so it is never moved."""
    notes = {names.MODEL: A30}
    body = a_gpu_pod(name, mib=mib, cards=cards, namespace=NAMESPACE, annotations=notes)
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    await cluster.kube.create(PODS, body)


async def refused(cluster: MovingCluster, name: str) -> bool:
    return (await pod_of(cluster, name)).unschedulable_since is not None


async def placed(cluster: MovingCluster, name: str) -> bool:
    return bool((await pod_of(cluster, name)).record.node)


async def complete(cluster: MovingCluster) -> bool:
    """Report whether each app has exactly its pods, all Ready."""
    for app in APPS:
        pods = await cluster.pods(app.name)
        if len(pods) != app.replicas or not all(pod.ready for pod in pods):
            return False
    return True


async def moves(cluster: MovingCluster) -> list[Move]:
    return [decode_move(bytes(raw)) for raw in (await cluster.kube.list(MOVES)).items]


async def moves_for(cluster: MovingCluster, pod: str) -> list[Move]:
    uid = (await pod_of(cluster, pod)).record.uid
    return [
        move
        for move in await moves(cluster)
        if move.spec.beneficiary is not None and move.spec.beneficiary.uid == uid
    ]


async def competitors(cluster: MovingCluster, pod: str) -> list[str]:
    """Create pods that would take a freed card, once moves for *pod* have begun; return them."""

    async def begun() -> bool:
        return bool(await moves_for(cluster, pod))

    await until(begun, what="a plan has begun", limit_s=120)
    small, large, cpu = (
        [f"{kind}-{number}" for number in range(3)] for kind in ("small", "large", "cpu")
    )
    for name in small:
        await ask(cluster, name, mib=2_000)
    for name in large:  # more than is free on any card
        await ask(cluster, name, mib=CARD_MIB - 2_000)
    for name in cpu:  # with its CPU taken the pod would not fit
        await ask(cluster, name, mib=2_000, cpu="12")
    return [*small, *large, *cpu]


async def all_done(cluster: MovingCluster) -> bool:
    """Report whether all moves have ended; none was given up once it had disturbed a pod."""
    disturbed = [move for move in await moves(cluster) if has_disturbed(move)]
    assert not [move for move in disturbed if move.status.phase is MovePhase.ABORTED], disturbed
    return all(move.status.phase is MovePhase.DONE for move in disturbed)


def has_disturbed(move: Move) -> bool:
    return MovePhase.SURGING in {step.phase for step in move.status.transitions}


@pytest.mark.parametrize("cluster", [False, True], indirect=True, ids=["extender", "claims"])
async def test_make_room_lets_a_whole_card_pod_in_on_a_fragmented_cluster(
    cluster: MovingCluster,
) -> None:
    taken = {card for pod in await cluster.pods() for card in cards_of(pod)}
    assert {f"GPU-{node}-{index}" for node in HALF_NODES for index in range(4)} <= taken
    (db,) = await cluster.pods("db")
    await cluster.leading()
    for name, cards in (("one", 1), ("two", 2)):
        await ask(cluster, name, cards=cards, cpu="40")
        await until(partial(refused, cluster, name), what="it waits", limit_s=60)
        others = await competitors(cluster, name)
        await until(partial(placed, cluster, name), what="it is placed", limit_s=180)

        pod = await pod_of(cluster, name)
        made = await moves_for(cluster, name)
        assert 1 <= len(made) <= 3
        assert len(cards_of(pod)) == cards
        for move in made:
            assert move.spec.beneficiary is not None
            assert cards_of(pod) == set(move.spec.beneficiary.cards)
            assert move.spec.source.card in cards_of(pod)
        await until(lambda: all_done(cluster), what="its moves have ended", limit_s=60)
        for other in others:
            await end_pod(cluster.kube, other)
        await until(partial(complete, cluster), what="every app has its pods", limit_s=120)

    for app in APPS:
        assert cluster.fewest_ready[app.name] >= app.min_available, app.name
    assert [pod.record.uid for pod in await cluster.pods("db")] == [db.record.uid]
