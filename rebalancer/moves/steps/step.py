"""What a move does next: a step is one of three values, chosen without any I/O.

======== =====================================================================
step     what the executor does
======== =====================================================================
Wait     nothing until the next cycle; the reason is shown to people
Enter    writes the record, then asks for the next step
Do       one side effect, which the record's phase has already announced
======== =====================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from fracgpu.cards.card import NodeCards
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import Ending
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from rebalancer.moves.record import MoveRecord


class Action(Enum):
    """A side effect."""

    PREFLIGHT = "preflight"  # a dry run of what follows; changes nothing
    NOTICE = "notice"  # tell the pod when it will be disturbed
    RELEASE = "release"  # change the label, so that the ReplicaSet makes a replacement
    EVICT = "evict"
    # Change the pod, so that no eviction takes effect that was sent before and may be under way.
    WITHDRAW = "withdraw"
    DEMOTE = "demote"  # let the ReplicaSet delete the replacement first
    RESTORE = "restore"  # give the pod its label back, so that the ReplicaSet adopts it again
    UNMARK = "unmark"  # take the mark of the move off the pod, which has its ReplicaSet again


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step depends on besides the record and the facts.

    Attributes:
        state: the disruption state of this cycle, with *every* past move.
        nodes: the nodes as the API server shows them, with their cordons.
    """

    state: DisruptionState
    nodes: Mapping[str, NodeCards]
    policy: RebalancerPolicy
    now: datetime


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before the next cycle."""

    why: str


@dataclass(frozen=True, slots=True)
class Enter:
    """The record changes, as a rule to another phase."""

    record: MoveRecord


@dataclass(frozen=True, slots=True)
class Do:
    """A side effect is due.

    Attributes:
        then: what follows once the API server has done it; None if its answer decides that.
    """

    action: Action
    then: "Enter | None" = None


Step = Wait | Enter | Do


def why_stopped(policy: RebalancerPolicy) -> str:
    """Return why a move that has begun is undone; empty while the mode is active."""
    return "" if policy.mode is Mode.ACTIVE else f"mode is {policy.mode.value}"


def end(record: MoveRecord, ending: Ending, detail: str, *, now: datetime) -> Enter:
    """Return the step that ends a move."""
    return Enter(record.ended(ending, now=now, detail=detail))
