"""Preempt: which victims are chosen."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from kube.informer import ChangeType
from scheduler.extender.api import PreemptionArgs
from tests.scheduler.harness import Harness
from tests.support.gpu import a_bound_gpu_pod, a_gpu_pod
from tests.support.moves import a_beneficiary, move_of


def bound(  # noqa: PLR0913 - the facts that tests vary
    cluster: Harness,
    name: str,
    *,
    card: int = 0,
    mib: int,
    priority: int = 0,
    node: str = "n",
    memory: str = "0",
    started: str = "2026-01-01T00:00:00Z",
    **meta: Any,
) -> str:
    pod = a_bound_gpu_pod(name, node=node, card=card, mib=mib, priority=priority)
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = memory
    pod["status"] = {"startTime": started}
    pod["metadata"] |= meta
    cluster.api.put(pod)
    return cluster.see(name, ChangeType.ADDED).record.uid


def asked(
    *proposed: str,
    mib: int = 20_000,
    priority: int = 10,
    memory: str = "0",
    nodes: Sequence[str] = ("n",),
) -> PreemptionArgs:
    body = a_gpu_pod("p", mib=mib, priority=priority)
    body["spec"]["containers"][0]["resources"]["requests"]["memory"] = memory
    pod = decode_pod_info(json.dumps(body).encode())
    return PreemptionArgs(pod=pod, proposed=dict.fromkeys(nodes, frozenset(proposed)))


def a_full_cluster(count: int, *, guarded: int = 0) -> tuple[Harness, Sequence[str]]:
    """Return nodes of one card that one pod holds, and their names; the first have a budget."""
    nodes = [f"n{number:03d}" for number in range(count)]
    cluster = Harness(*nodes, cards=1)
    for number, node in enumerate(nodes):
        app = "guarded" if number < guarded else "free"
        bound(cluster, f"on-{node}", card=0, mib=20_000, node=node, labels={"app": app})
    cluster.budgets.append(
        PodDisruptionBudget(namespace="default", name="b", allowed=0, labels={"app": "guarded"})
    )
    return cluster, nodes


async def test_pods_of_the_same_or_higher_priority_are_never_taken() -> None:
    cluster = Harness(cards=1)
    uid = bound(cluster, "boss", card=0, mib=12_000, priority=10)

    assert await cluster.preemptor.preempt(asked(uid)) == {}


async def test_where_a_pod_is_already_going_one_only_has_to_wait() -> None:
    cluster = Harness(cards=1)
    uid = bound(cluster, "going", card=0, mib=20_000, deletionTimestamp="2026-01-01T00:00:00Z")

    assert await cluster.preemptor.preempt(asked(uid)) == {}


@pytest.mark.parametrize("days", [("01", "02"), ("02", "01")])
async def test_victims_come_in_kube_schedulers_order(days: tuple[str, str]) -> None:
    """It compares nodes by their first victim: of one priority, the one that started first."""
    cluster = Harness(cards=1)
    started = {
        bound(cluster, name, card=0, mib=12_000, started=f"2026-01-{day}T00:00:00Z"): day
        for name, day in zip("ab", days, strict=True)
    }

    (victims,) = (await cluster.preemptor.preempt(asked(*started))).values()

    assert [started[uid] for uid in victims.uids] == ["01", "02"]


async def test_the_hosts_memory_that_a_pod_leaves_counts_and_a_victim_leaves_the_rest() -> None:
    """The node has 256 GiB: with what is going 1 GiB is missing, and a victim has 30."""
    cluster = Harness(cards=2)
    leaving = "2026-01-02T00:00:00Z"
    bound(cluster, "going", card=0, mib=20_000, memory="200Gi", deletionTimestamp=leaving)
    low = bound(cluster, "low", card=1, mib=20_000, memory="30Gi")

    found = await cluster.preemptor.preempt(asked(low, memory="227Gi"))
    fits = await cluster.preemptor.preempt(asked(low, memory="226Gi"))

    assert [victims.uids for victims in found.values()] == [(low,)]
    assert fits == {}, "it has room once the other has gone"


async def test_nobody_leaves_where_a_move_keeps_the_memory_for_another_pod() -> None:
    """Filter would refuse the node although the victims are gone: of 256 GiB 56 are left."""
    cluster = Harness(cards=2)
    low = bound(cluster, "low", card=1, mib=20_000, memory="30Gi")
    kept = a_beneficiary(
        "GPU-n-0",
        uid="uid-waits",
        held_until=cluster.clock.now() + timedelta(hours=1),
        memory_mib=200 * 1024,
    )
    cluster.see_move(move_of(source=("n", "GPU-n-0"), target=("x", "GPU-x"), beneficiary=kept))

    found = await cluster.preemptor.preempt(asked(low, memory="56Gi"))
    in_vain = await cluster.preemptor.preempt(asked(low, memory="57Gi"))

    assert [victims.uids for victims in found.values()] == [(low,)]
    assert in_vain == {}


async def test_a_binding_under_way_is_not_taken_back() -> None:
    cluster = Harness(cards=1)
    cluster.create("new", mib=20_000)
    cluster.ledger.assume(
        cluster.see("new").record,
        node="n",
        assignment={"train": ()},
        until=cluster.clock.now(),
    )

    assert await cluster.preemptor.preempt(asked("nobody")) == {}


async def test_unknown_nodes_and_pods_without_a_need_are_left_out() -> None:
    cluster = Harness(cards=1)
    args = asked("x")
    plain = decode_pod_info(b'{"metadata":{"name":"p","namespace":"d"},"spec":{"priority":5}}')

    elsewhere = PreemptionArgs(pod=args.pod, proposed={"m": frozenset()})
    assert await cluster.preemptor.preempt(elsewhere) == {}
    assert await cluster.preemptor.preempt(PreemptionArgs(pod=plain, proposed=args.proposed)) == {}


async def test_nodes_are_tried_until_one_breaks_no_budget() -> None:
    cluster, nodes = a_full_cluster(120, guarded=119)

    found = await cluster.preemptor.preempt(asked(nodes=nodes))

    assert len(found) >= 100
    assert found["n119"].violations == 0
    assert {victims.violations for victims in found.values()} == {0, 1}


async def test_a_node_gets_the_same_victims_whoever_else_is_asked_about() -> None:
    cluster, nodes = a_full_cluster(30, guarded=10)
    for node in nodes[5:20]:
        bound(cluster, f"boss-{node}", card=0, mib=1000, priority=50, node=node)
    cluster.annotate_node({"cards": "unreadable"}, node=nodes[0])

    together = await cluster.preemptor.preempt(asked(mib=23_500, nodes=nodes))

    alone = [await cluster.preemptor.preempt(asked(mib=23_500, nodes=[node])) for node in nodes]
    assert together == {node: victims for one in alone for node, victims in one.items()}
    assert together.keys() == {*nodes[1:5], *nodes[20:]}


@pytest.mark.parametrize(("nodes", "containers", "turns"), [(140, 1, 2), (20, 2, 20)])
async def test_others_are_answered_while_victims_are_looked_for(
    nodes: int, containers: int, turns: int
) -> None:
    cluster, names = a_full_cluster(nodes)
    args = asked(nodes=names)
    assert args.pod.need is not None
    (part,) = args.pod.need.containers
    parts = tuple(structs.replace(part, name=f"c{n}", mib=Mib(5_000)) for n in range(containers))
    need = structs.replace(args.pod.need, containers=parts)
    args = replace(args, pod=replace(args.pod, need=need))
    taken: list[int] = []

    async def other() -> None:
        for turn in count():
            taken.append(turn)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        talking = group.create_task(other())
        found = await cluster.preemptor.preempt(args)
        talking.cancel()

    assert len(found) == min(nodes, 100)
    assert len(taken) >= turns
