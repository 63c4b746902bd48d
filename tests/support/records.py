"""Builds records of moves as the rebalancer keeps them."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from fracgpu.disruption.move import Move
from fracgpu.state.move_object import MovePhase, Transition
from rebalancer.moves.record import MoveRecord, new_record, spec_of
from tests.fakes.clock import NOON
from tests.support.rebalancing import ACTIVE, a_disruption_state, a_move


def a_record(
    phase: MovePhase = MovePhase.PLANNED,
    *,
    move: Move | None = None,
    now: datetime = NOON,
    created: datetime | None = None,
    **status: Any,
) -> MoveRecord:
    """Return a record that came to a phase at once; by default of ``a_move()``."""
    spec = spec_of(move or a_move(), a_disruption_state(), policy=ACTIVE, now=now)
    record = new_record(spec, now=now, dry_run=False)
    metadata = msgspec.structs.replace(record.object.metadata, creation_timestamp=created)
    stored = replace(record, object=msgspec.structs.replace(record.object, metadata=metadata))
    if phase is not MovePhase.PLANNED:
        passed = (*stored.status.transitions, Transition(phase=phase, at=now))
        stored = stored.with_status(phase=phase, transitions=passed)
    return stored.with_status(**status)
