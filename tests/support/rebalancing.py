"""Builders of disruption states: hot cards, their pods, cool cards. Tests give what matters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import (
    CardHeat,
    CardReading,
    CardUsage,
    Heat,
    ReadingQuality,
)
from fracgpu.disruption.load_history import LoadHistory
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.scheduling.constraints import ANYWHERE, SchedulingConstraints
from fracgpu.request.need import DEFAULT_STRATEGY, ContainerNeed, PodNeed, Rebalance
from fracgpu.state.allocation import PodRecord, Slice
from fracgpu.state.cluster_state import PlacedPod, scheduling_by_cards, settled_workloads
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import (
    CARRIED_OUT,
    CardReference,
    Ending,
    Move,
    MoveMode,
    MovePhase,
    MoveReason,
    MoveSpec,
    OwnerReference,
    PodReference,
    Replacement,
    RequestedShare,
    Transition,
    new_move,
)
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.fakes.clock import NOON

CARD_MIB: Final = 24_000
LONG_AGO: Final = NOON - timedelta(days=1)
ACTIVE: Final = RebalancerPolicy(mode=Mode.ACTIVE)
HOT_CARD: Final = CardUuid("GPU-hot")
COOL_CARD: Final = CardUuid("GPU-cool")


def a_reading(level: float = 0.1, *, pods: Mapping[str, float] | None = None) -> CardReading:
    """Return a reading constantly at *level*; *pods* are busy shares by UID."""
    hot = 1.0 if level > ACTIVE.hot_ratio else 0.0
    return CardReading(
        level_ratio=level,
        slow_level_ratio=level,
        fast_hot_ratio=hot,
        slow_hot_ratio=hot,
        history_ratio=1.0,
        free_mib=Mib(CARD_MIB),
        latest_ratio=level,
        pods=dict(pods or {}),
    )


def a_history(loads: Mapping[str, Sequence[float]]) -> LoadHistory:
    """Return a history of pods on cards that had time left, span by span."""
    busy = np.array(list(loads.values()))
    return LoadHistory(
        rows={uid: row for row, uid in enumerate(loads)},
        busy=busy,
        full=np.zeros(busy.shape, np.bool_),
    )


def usage_of(card: CardUuid, reading: CardReading | None) -> CardUsage:
    """Return a trusted reading, or an unknown card."""
    if reading is None:
        return CardUsage(card=card, quality=ReadingQuality.UNKNOWN, why="no sample of a card")
    return CardUsage(card=card, quality=ReadingQuality.OK, reading=reading)


def a_placed_pod(  # noqa: PLR0913 - a pod has many facts, each with a default
    uid: str,
    card: CardUuid = HOT_CARD,
    *,
    node: str = "n1",
    mib: int = 4000,
    limit_mib: int = 0,
    owner: tuple[str, str, str] | None = ("ReplicaSet", "web", "owner-1"),
    rules: SchedulingConstraints | None = None,
    record: Mapping[str, Any] | None = None,
    **info: Any,
) -> PlacedPod:
    """Return a pod that could be moved: old, ready, owned, on one card."""
    assigned = PodRecord(
        uid=uid,
        namespace="ml",
        name=uid,
        node=node,
        containers=(ContainerSpec(name="main"),),
        assignment={"main": (Slice(card=card, mib=Mib(mib), own_limit_mib=Mib(limit_mib)),)},
    )
    container = ContainerNeed(name="main", mib=Mib(mib), limit_mib=Mib(limit_mib) or None)
    facts: dict[str, Any] = {
        "need": PodNeed(containers=(container,)),
        "phase": "Running",
        "ready": True,
        "started_at": LONG_AGO,
        "owner": owner,
        "scheduler_name": names.SCHEDULER_NAME,
    }
    facts |= info
    return PlacedPod(
        info=PodInfo(record=replace(assigned, **(record or {})), **facts),
        scheduling_constraints=rules or ANYWHERE,
    )


def a_node(
    name: str,
    *cards: str,
    model: str = "A30",
    labels: Mapping[str, str] | None = None,
    shared: bool = True,
    limits_mib: int = 0,
) -> NodeCards:
    """Return a node with shared cards of one model."""
    return NodeCards(
        node=name,
        shared=shared,
        labels=labels or {},
        cards=tuple(
            Card(
                uuid=CardUuid(uuid),
                index=index,
                model=model,
                total_mib=Mib(CARD_MIB),
                limits_mib=Mib(limits_mib),
            )
            for index, uuid in enumerate(cards)
        ),
    )


def a_disruption_state(
    *,
    nodes: Sequence[NodeCards] | None = None,
    pods: Sequence[PlacedPod] | None = None,
    readings: Mapping[str, CardReading | None] | None = None,
    heat: Mapping[str, Heat] | None = None,
    past: Sequence[Move] = (),
    leading_since: datetime = LONG_AGO,
) -> DisruptionState:
    """By default: two pods of one owner make GPU-hot on n1 hot, and GPU-cool on n2 is idle.

    Cards without an entry in *heat* are hot or cool by their reading; *readings* and *heat*
    override the defaults card by card.
    """
    placed = pods if pods is not None else two_busy_pods()
    busy = {pod.uid: 0.45 for pod in placed if HOT_CARD in _cards(pod)}
    read: dict[str, CardReading | None] = {
        HOT_CARD: a_reading(0.9, pods=busy),
        COOL_CARD: a_reading(0.05),
    }
    read |= readings or {}
    ledger = Ledger()
    shown = nodes or (a_node("n1", HOT_CARD), a_node("n2", COOL_CARD))
    for node in shown:
        ledger.set_node(node)
    for pod in placed:
        ledger.set_pod(pod.info.record)
    heats = {uuid: _heat_of(reading) for uuid, reading in read.items()} | dict(heat or {})
    return DisruptionState(
        snapshot=ledger.snapshot(now=NOON),
        usage={CardUuid(uuid): usage_of(CardUuid(uuid), reading) for uuid, reading in read.items()},
        heat={
            CardUuid(uuid): CardHeat(heat=state, since=LONG_AGO) for uuid, state in heats.items()
        },
        pods={pod.uid: pod for pod in placed},
        scheduling=scheduling_by_cards(shown, placed),
        workloads=settled_workloads(placed),
        past=past,
        strategy=DEFAULT_STRATEGY,
        scheduler_name=names.SCHEDULER_NAME,
        leading_since=leading_since,
    )


def two_busy_pods() -> tuple[PlacedPod, PlacedPod]:
    """Return two replicas on the hot card."""
    return a_placed_pod("pod-a"), a_placed_pod("pod-b")


def a_move(**changes: Any) -> MoveSpec:
    """Return a move from the hot card to the cool one, decided at noon; its parts by their names.

    Those of a pod are ``pod_uid``, ``name`` and ``namespace``, of a card ``source`` and
    ``source_node``; what a share, a reason or the spec itself consists of is named as it is.
    """
    defaults: dict[str, Any] = {
        "pod_uid": "pod-x",
        "namespace": "ml",
        "name": "pod-x",
        "owner_uid": "owner-x",
        "source": HOT_CARD,
        "source_node": "n1",
        "target": COOL_CARD,
        "target_node": "n2",
        "mib": Mib(4000),
        "busy_ratio": 0.45,
        "level_ratio": 0.9,
        "gain_points": 10.0,
        "mode": MoveMode.SURGE,
        "method": "hot-card",
        "reserved_until": NOON + timedelta(seconds=ACTIVE.plan_ttl_s + ACTIVE.replacement_ttl_s),
        "source_denied_until": NOON + timedelta(seconds=ACTIVE.return_cooldown_s),
    }
    given = defaults | changes

    def part(shape: type[Any], **renamed: str) -> Any:
        fields = {field: renamed.get(field, field) for field in shape.__struct_fields__}
        return shape(**{to: given.pop(key) for to, key in fields.items() if key in given})

    def card(end: str) -> CardReference:
        uuid, node = given.pop(end), given.pop(f"{end}_node")
        return CardReference(node=node, card=CardUuid(uuid), index=0, display=f"{node}/0")

    owner = OwnerReference(
        api_version="apps/v1", kind="ReplicaSet", name="web", uid=given.pop("owner_uid")
    )
    return MoveSpec(
        pod=part(PodReference, uid="pod_uid"),
        owner=owner,
        source=card("source"),
        target=card("target"),
        request=part(RequestedShare),
        reason=part(MoveReason),
        **given,
    )


def begun(
    spec: MoveSpec,
    *,
    minutes_ago: float = 1,
    phase: MovePhase = MovePhase.SURGING,
    disturbed_at: datetime | None = None,
    **status: Any,
) -> Move:
    """Return a move that was begun and came to a phase at once."""
    started = NOON - timedelta(minutes=minutes_ago)
    before = (MovePhase.PLANNED, MovePhase.RESERVED, MovePhase.NOTICED, MovePhase.RECOMMENDED)
    passed = () if phase in before else (MovePhase.SURGING,)
    move = new_move(
        spec, now=started, phase=phase if phase is MovePhase.RECOMMENDED else MovePhase.PLANNED
    )
    there = Replacement(name="", uid="")
    changes: dict[str, Any] = {
        "phase": phase,
        "replacement": there if phase in (MovePhase.VERIFYING, MovePhase.DONE) else None,
        "transitions": (
            *move.status.transitions,
            *(Transition(phase=each, at=disturbed_at or started) for each in passed),
        ),
    }
    return move.with_status(**(changes | status))


def a_past_move(  # noqa: PLR0913 - what tests vary about a move
    *,
    minutes_ago: float = 1,
    under_way: bool = False,
    disturbed: bool = True,
    disturbed_at: datetime | None = None,
    ended_at: datetime | None = None,
    ending: Ending | None = None,
    landed: CardUuid | None = None,
    replacement_uid: str = "",
    **changes: Any,
) -> Move:
    """Return a move begun that many minutes before noon; by default between other cards.

    It is verified now unless it is under way or has ended, and has disturbed its pod.
    """
    elsewhere: dict[str, Any] = {
        "source": CardUuid("GPU-elsewhere"),
        "source_node": "n9",
        "target": CardUuid("GPU-nowhere"),
        "target_node": "n9",
    }
    phase = MovePhase.VERIFYING
    if ended_at is not None or ending is not None:
        carried_out = ending in {None, Ending.DRY_RUN} | CARRIED_OUT
        phase = MovePhase.DONE if carried_out else MovePhase.ABORTED
    elif under_way:
        phase = MovePhase.SURGING if disturbed else MovePhase.PLANNED
    move = begun(
        a_move(**(elsewhere | changes)),
        minutes_ago=minutes_ago,
        phase=phase,
        disturbed_at=disturbed_at,
        result=ending.value if ending else "",
    )
    if landed or replacement_uid:
        replacement = Replacement(
            name=replacement_uid, uid=replacement_uid, card=landed or CardUuid("")
        )
        move = move.with_status(replacement=replacement)
    if not disturbed:
        move = move.with_status(transitions=move.status.transitions[:1], replacement=None)
    return move.with_status(phase_since=ended_at) if ended_at else move


def _cards(pod: PlacedPod) -> set[CardUuid]:
    assignment = pod.info.record.assignment or {}
    return {part.card for slices in assignment.values() for part in slices}


def _heat_of(reading: CardReading | None) -> Heat:
    return Heat.HOT if reading and reading.level_ratio > ACTIVE.hot_ratio else Heat.COOL


def avoiding(state: DisruptionState, *cards: str) -> DisruptionState:
    """Return the state as it is while *cards* are avoided."""
    nodes = {
        name: replace(
            info,
            cards={
                uuid: structs.replace(card_info, avoided=uuid in cards)
                for uuid, card_info in info.cards.items()
            },
        )
        for name, info in state.snapshot.nodes.items()
    }
    return replace(state, snapshot=replace(state.snapshot, nodes=nodes))


AN_HOUR_AGO = NOON - timedelta(hours=1)


def a_waiting_pod(
    uid: str = "big", *, cards: int = 1, mib: int = CARD_MIB, node: str = "", **info: Any
) -> PlacedPod:
    """Return a pod that kube-scheduler has found no node for since an hour."""
    need = PodNeed(containers=(ContainerNeed(name="main", cards=cards, mib=Mib(mib)),))
    facts: dict[str, Any] = {"need": need, "phase": "Pending", "unschedulable_since": AN_HOUR_AGO}
    pod = a_placed_pod(uid, owner=("Job", uid, f"owner-{uid}"), ready=False, **(facts | info))
    record = PodRecord(uid=uid, namespace="ml", name=uid, node=node)
    return replace(pod, info=replace(pod.info, record=record))


def a_small_pod(uid: str, card: str, *, node: str, mib: int = 4000, **info: Any) -> PlacedPod:
    """Return a pod that may be moved, the only one of its owner."""
    facts: dict[str, Any] = {"rebalance": Rebalance.EVICT} | info
    owner = ("ReplicaSet", uid, f"owner-{uid}")
    return a_placed_pod(uid, CardUuid(card), node=node, mib=mib, owner=owner, **facts)


def a_cluster(
    held: Mapping[str, Mapping[str, int]], *waiting: PlacedPod, **state: Any
) -> DisruptionState:
    """Return cool nodes: the cards of each by name, with the MiB that a pod holds of it.

    A pod is named after its card: ``p-a0`` on the card ``a0``.
    """
    pods = [
        a_small_pod(f"p-{card}", card, node=node, mib=mib)
        for node, cards in held.items()
        for card, mib in cards.items()
        if mib
    ]
    readings = {card: a_reading(0.1) for cards in held.values() for card in cards}
    given = {
        "nodes": [a_node(node, *cards) for node, cards in held.items()],
        "pods": [*pods, *waiting],
        "readings": readings | state.pop("readings", {}),
    }
    return a_disruption_state(**(given | state))
