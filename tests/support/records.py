"""Builds Moves as the rebalancer keeps them."""

from datetime import datetime
from typing import Any

from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.state.move_object import Move, MovePhase, MoveSpec, Replacement, Transition, new_move
from tests.fakes.clock import NOON
from tests.support.rebalancing import a_move


def a_record(
    phase: MovePhase = MovePhase.PLANNED,
    *,
    move: MoveSpec | None = None,
    now: datetime = NOON,
    created: datetime | None = None,
    **status: Any,
) -> Move:
    """Return a Move that came to a phase at once; by default of ``a_move()``."""
    stored = new_move(move or a_move(), now=now)
    metadata = structs.replace(stored.metadata, creation_timestamp=created)
    stored = structs.replace(stored, metadata=metadata)
    if phase is not MovePhase.PLANNED:
        passed = (*stored.status.transitions, Transition(phase=phase, at=now))
        stored = stored.with_status(phase=phase, transitions=passed)
    return stored.with_status(**status)


def a_replacement(name: str, uid: str, *, node: str, card: CardUuid) -> Replacement:
    """Return the pod that took the place of a moved one."""
    return Replacement(name=name, uid=uid, node=node, card=card)
