"""Builds Moves as the API server would show them."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from fracgpu.cards.card import CardUuid
from fracgpu.state.move_object import (
    Beneficiary,
    CardReference,
    Move,
    MoveMeta,
    MoveMode,
    MovePhase,
    MoveSpec,
    MoveStatus,
    OwnerReference,
    PodReference,
    RequestedShare,
)
from fracgpu.units import Mib

RESERVED_UNTIL: Final = datetime(2026, 1, 1, 12, 10, tzinfo=UTC)


def move_of(  # noqa: PLR0913 - what tests vary about a Move
    name: str = "move-1",
    *,
    phase: MovePhase = MovePhase.PLANNED,
    pod: tuple[str, str, str] = ("team-a", "web-1", "uid-web-1"),
    owner_uid: str = "uid-web",
    source: tuple[str, str] = ("node-1", "GPU-source"),
    target: tuple[str, str] = ("node-2", "GPU-target"),
    mib: int = 8192,
    limit_mib: int = 0,
    mode: MoveMode = MoveMode.SURGE,
    reserved_until: datetime | None = None,
    source_denied_until: datetime = RESERVED_UNTIL,
    beneficiary: Beneficiary | None = None,
) -> Move:
    """Return a Move of one pod (namespace, name, UID) between two cards (node, UUID)."""
    namespace, pod_name, pod_uid = pod
    return Move(
        metadata=MoveMeta(name=name, uid=f"uid-{name}", resource_version="1"),
        spec=MoveSpec(
            pod=PodReference(namespace=namespace, name=pod_name, uid=pod_uid),
            owner=OwnerReference(
                api_version="apps/v1", kind="ReplicaSet", name="web", uid=owner_uid
            ),
            source=_card(*source),
            target=_card(*target),
            request=RequestedShare(mib=Mib(mib), limit_mib=Mib(limit_mib)),
            mode=mode,
            method="hot-card",
            reserved_until=RESERVED_UNTIL,
            source_denied_until=source_denied_until,
            beneficiary=beneficiary,
        ),
        status=MoveStatus(phase=phase, reserved_until=reserved_until),
    )


def move_body(move: Move) -> dict[str, Any]:
    """Return a Move as JSON for a create; its status takes a second write."""
    return {"metadata": {"name": move.name}, "spec": msgspec.to_builtins(move.spec)}


def status_body(status: MoveStatus) -> dict[str, Any]:
    """Return the merge patch of a Move's status."""
    return {"status": msgspec.to_builtins(status)}


def a_beneficiary(
    *cards: str,
    uid: str = "uid-big",
    held_until: datetime = RESERVED_UNTIL,
    cpu_milli: int = 0,
    memory_mib: int = 0,
) -> Beneficiary:
    """Return a waiting pod for which the source, or *cards*, are kept."""
    return Beneficiary(
        namespace="team-b",
        name="big",
        uid=uid,
        cards=tuple(map(CardUuid, cards or ("GPU-source",))),
        held_until=held_until,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )


def _card(node: str, uuid: str) -> CardReference:
    return CardReference(node=node, card=CardUuid(uuid), index=0, display=f"{node}/0")
