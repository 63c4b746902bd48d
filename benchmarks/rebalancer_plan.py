"""What a plan costs in a large cluster with a hundred hot cards.

With nowhere to go each pod of each hot card is looked at, and no move ends the search. With every
other card equally cool the strategy decides among thousands of targets; what least-waste has to
learn before is measured apart, because it is kept from cycle to cycle. The cluster is made in
memory; CPU time and memory are those of ``plan_moves``, or of learning, alone.
"""

import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zlib import crc32

from benchmarks.figure import Figure
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import (
    CardHeat,
    CardReading,
    CardUsage,
    Heat,
    MeasuredPodUse,
    ReadingQuality,
)
from fracgpu.disruption.move import Move, PastMove, Plan
from fracgpu.disruption.planner import plan_moves
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.scheduling.constraints import ANYWHERE
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.need import DEFAULT_STRATEGY, ContainerNeed, PodNeed
from fracgpu.state.allocation import PodRecord, Slice
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.cluster_state import PlacedPod, scheduling_by_cards, settled_workloads
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import allocation_of
from fracgpu.units import Mib

_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
_LONG_AGO: Final = _NOW - timedelta(days=1)
_POLICY: Final = RebalancerPolicy(mode=Mode.ACTIVE)
# As many moves at once as may be configured, so that as many targets are chosen in one plan.
_MANY: Final = RebalancerPolicy(
    mode=Mode.ACTIVE,
    max_in_flight=20,
    max_per_hour=1_000,
    max_per_day=10_000,
    max_per_namespace_per_hour=1_000,
)
_CARD_MIB: Final = 81_920
_POD_MIB: Final = 8_000
_MEBI: Final = 1 << 20
_PAST: Final = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the cluster is.

    Attributes:
        pods: on each node, in turn on its cards.
        hot: how many cards are hot; at most one a node.
        room: no card is too busy for a pod, but each lacks the memory.
        targets: each card is as cool as the next and has room; pods are of many sizes.
    """

    nodes: int = 1_000
    cards: int = 8
    pods: int = 20
    hot: int = 100
    room: bool = False
    targets: bool = False


def figures() -> Iterator[Figure]:
    """Plan once for each reason that there is no target."""
    for name, size in (("all_warm", Size()), ("no_memory", Size(room=True))):
        took_s = planning_s(a_state(size))
        peak_mib = planning_mib(a_state(size))
        note = (
            f"{size.nodes} nodes x {size.cards} cards, {size.nodes * size.pods} pods, {size.hot} "
            f"hot cards, {_PAST} past moves, no target; load average {os.getloadavg()[0]:.1f}"
        )
        yield Figure(
            name=f"rebalancer_plan.{name}_cpu", value=round(took_s, 3), unit="s", note=note
        )
        yield Figure(
            name=f"rebalancer_plan.{name}_memory", value=round(peak_mib, 1), unit="MiB", note=note
        )
    yield from _with_targets(Size(targets=True))


def _with_targets(size: Size) -> Iterator[Figure]:
    """Learn the mix of pods, then plan as many moves as there may be at once, twice."""
    state = a_state(size)
    took_s = {
        "learning": cpu_s(state.learn),
        "first_targets": cpu_s(lambda: plan_many(state)),
        "targets": cpu_s(lambda: plan_many(state)),
    }
    again = a_state(size)
    tracemalloc.start()
    again.learn()
    plan_many(again)
    peak_mib = tracemalloc.get_traced_memory()[1] / _MEBI
    tracemalloc.stop()
    note = (
        f"{size.nodes} nodes x {size.cards} cards, {size.nodes * size.pods} pods, {size.hot} hot "
        f"cards, {_MANY.max_in_flight} moves, least-waste; load average {os.getloadavg()[0]:.1f}"
    )
    for name, value in took_s.items():
        yield Figure(name=f"rebalancer_plan.{name}_cpu", value=round(value, 3), unit="s", note=note)
    yield Figure(
        name="rebalancer_plan.targets_memory", value=round(peak_mib, 1), unit="MiB", note=note
    )


def cpu_s(run: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    run()
    return time.process_time() - began


def plan_many(state: DisruptionState) -> Plan:
    """Return the plan, which must move as many pods as may be moved at once."""
    found = plan_moves(state, policy=_MANY, now=_NOW)
    assert len(found.moves) == _MANY.max_in_flight, "as many moves as there may be"  # noqa: S101
    return found


def planning_s(state: DisruptionState) -> float:
    """Return the CPU seconds of one plan, the first one of a state."""
    return cpu_s(lambda: plan(state))


def planning_mib(state: DisruptionState) -> float:
    """Return the most memory that a plan takes beyond the state."""
    tracemalloc.start()
    try:
        plan(state)
        return tracemalloc.get_traced_memory()[1] / _MEBI
    finally:
        tracemalloc.stop()


def plan(state: DisruptionState) -> Plan:
    """Return the plan, which must not move anything."""
    found = plan_moves(state, policy=_POLICY, now=_NOW)
    assert not found.moves, "a benchmark of the search for a target that is not there"  # noqa: S101
    return found


def a_state(size: Size) -> DisruptionState:
    """Return a cluster in which nothing can be moved."""
    ledger = Ledger()
    pods: dict[str, PlacedPod] = {}
    usage: dict[CardUuid, CardUsage] = {}
    heat: dict[CardUuid, CardHeat] = {}
    for number in range(size.nodes):
        node = f"node-{number:04d}"
        cards = [CardUuid(f"GPU-{number:04d}-{index}") for index in range(size.cards)]
        ledger.set_node(
            NodeCards(
                node=node,
                cards=tuple(
                    Card(uuid=uuid, index=index, model="H100", total_mib=Mib(_CARD_MIB))
                    for index, uuid in enumerate(cards)
                ),
            )
        )
        hot = cards[0] if number < size.hot else None
        for uuid in cards:
            here = _pods_of_card(node, uuid, cards, hot, size)
            for pod in here:
                pods[pod.uid] = pod
                ledger.set_pod(pod.info.record)
            room = size.room or size.targets
            usage[uuid] = _usage(uuid, [pod.uid for pod in here], hot=uuid == hot, room=room)
            heat[uuid] = CardHeat(heat=Heat.HOT if uuid == hot else Heat.COOL, since=_LONG_AGO)
    index = SnapshotIndex()
    index.observe({pod.uid: _bound(pod) for pod in pods.values()})
    return DisruptionState(
        index=index,
        snapshot=ledger.snapshot(now=_NOW),
        usage=usage,
        heat=heat,
        pods=pods,
        past=_past_moves(),
        scheduling=scheduling_by_cards(ledger.nodes.values(), pods.values()),
        workloads=settled_workloads(pods.values()),
        strategy=DEFAULT_STRATEGY,
        scheduler_name=names.SCHEDULER_NAME,
        leading_since=_LONG_AGO,
    )


def _pods_of_card(
    node: str, card: CardUuid, cards: list[CardUuid], hot: CardUuid | None, size: Size
) -> list[PlacedPod]:
    """Return the pods on one card: all of a node on its hot card, else in turn."""
    if card == hot:
        mib = _CARD_MIB // size.pods
        return [_pod(f"{node}-{count}", node, card, count, mib=mib) for count in range(size.pods)]
    numbers = range(cards.index(card), size.pods, size.cards) if hot is None else ()
    sizes = [1_000 * (1 + crc32(f"{card}-{count}".encode()) % 20) for count in numbers]
    pods = [
        _pod(f"{node}-{count}", node, card, count, mib=mib if size.targets else 1_000)
        for count, mib in zip(numbers, sizes, strict=True)
    ]
    if size.room:
        filler = _CARD_MIB - 1_000 * len(pods) - _POD_MIB // 2
        pods.append(_pod(f"{card}-filler", node, card, 0, mib=filler))
    return pods


def _bound(pod: PlacedPod) -> BoundPod:
    record = pod.info.record
    return BoundPod(namespace=record.namespace, name=record.name, allocation=allocation_of(record))


def _pod(uid: str, node: str, card: CardUuid, count: int, *, mib: int) -> PlacedPod:
    name = f"web-{count % 7}"
    record = PodRecord(
        uid=uid,
        namespace="ml",
        name=uid,
        node=node,
        containers=(ContainerSpec(name="main"),),
        assignment={"main": (Slice(card=card, mib=Mib(mib)),)},
    )
    info = PodInfo(
        record=record,
        need=PodNeed(containers=(ContainerNeed(name="main", mib=Mib(_POD_MIB)),)),
        phase="Running",
        ready=True,
        started_at=_LONG_AGO,
        owner=("ReplicaSet", name, f"{name}-{node}"),
        labels={"pod-template-hash": "5d4f"},
        scheduler_name=names.SCHEDULER_NAME,
    )
    return PlacedPod(info=info, scheduling_constraints=ANYWHERE)


def _usage(card: CardUuid, pods: list[str], *, hot: bool, room: bool) -> CardUsage:
    level = 0.98 if hot else 0.05 if room else 0.59
    each = 0.12 if hot else level / max(1, len(pods))
    reading = CardReading(
        level_ratio=level,
        slow_level_ratio=level,
        fast_hot_ratio=float(hot),
        slow_hot_ratio=float(hot),
        forecast_ratio=level,
        remembered_ratio=level,
        history_ratio=1.0,
        free_mib=Mib(_CARD_MIB),
        latest_ratio=level,
        pods={uid: MeasuredPodUse(busy_ratio=each, high_ratio=each) for uid in pods},
    )
    return CardUsage(card=card, quality=ReadingQuality.OK, reading=reading)


def _past_moves() -> list[PastMove]:
    """Return moves of other pods, long enough ago to be in no budget."""
    return [
        PastMove(
            move=Move(
                pod_uid=f"gone-{number}",
                namespace="past",
                name=f"gone-{number}",
                owner_uid=f"owner-{number % 50}",
                source=CardUuid("GPU-past"),
                source_node="node-past",
                target=CardUuid("GPU-past-too"),
                target_node="node-past",
                mib=Mib(_POD_MIB),
                cores=0,
                busy_ratio=0.3,
                level_ratio=0.9,
                gain_points=10.0,
            ),
            started_at=_NOW - timedelta(hours=30, minutes=number),
            under_way=False,
            ended_at=_NOW - timedelta(hours=29, minutes=number),
        )
        for number in range(_PAST)
    ]
