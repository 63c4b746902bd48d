"""Builders for pods that wait for room on a fragmented cluster."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import UNDER_WAY, Move, PastMove
from fracgpu.request.need import ContainerNeed, PodNeed, Rebalance
from fracgpu.state.allocation import PodRecord
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MovePhase
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    CARD_MIB,
    a_disruption_state,
    a_node,
    a_placed_pod,
    a_reading,
)

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


def begun(move: Move, *, minutes_ago: float = 1, phase: MovePhase = MovePhase.SURGING) -> PastMove:
    """Return a move that was begun."""
    started = NOON - timedelta(minutes=minutes_ago)
    under_way = phase in UNDER_WAY
    return PastMove(
        move=move,
        started_at=started,
        under_way=under_way,
        ended_at=None if under_way else started,
        phase=phase,
    )
