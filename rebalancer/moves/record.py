"""The record of a move: its phases, the allowed transitions, and its JSON.

A record is written before the step that it announces, so that after a crash it shows what may have
happened: a ``planned`` move has evicted no pod; an ``evicting`` one may have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import Ending as PastEnding
from fracgpu.disruption.move import Move, PastMove
from kube.objects import decode, encode

KEPT: Final = timedelta(hours=25)  # the longest budget covers a day
_MOST: Final = 1000  # records of some 700 bytes; a ConfigMap holds 1 MiB
_VERSION: Final = 1


class MovePhase(Enum):
    """The phase of a move."""

    PLANNED = "planned"  # the source is cordoned; no pod was evicted
    EVICTING = "evicting"  # the pod may have been evicted
    EVICTED = "evicted"  # the pod was evicted; its replacement is not ready yet
    VERIFYING = "verifying"  # the replacement is ready; did the source cool down?
    DONE = "done"
    ABORTED = "aborted"


NEXT: Final[Mapping[MovePhase, frozenset[MovePhase]]] = {
    MovePhase.PLANNED: frozenset({MovePhase.EVICTING, MovePhase.DONE, MovePhase.ABORTED}),
    MovePhase.EVICTING: frozenset({MovePhase.EVICTED, MovePhase.ABORTED}),
    MovePhase.EVICTED: frozenset({MovePhase.VERIFYING, MovePhase.ABORTED}),
    MovePhase.VERIFYING: frozenset({MovePhase.DONE}),
    MovePhase.DONE: frozenset(),
    MovePhase.ABORTED: frozenset(),
}
UNDER_WAY: Final = frozenset({MovePhase.PLANNED, MovePhase.EVICTING, MovePhase.EVICTED})
ENDED: Final = frozenset({MovePhase.DONE, MovePhase.ABORTED})


class Ending(Enum):
    """How a move ended; also a metric label."""

    RELIEVED = "relieved"
    USELESS = "useless"  # carried out, and the source stayed as busy as before
    UNVERIFIED = "unverified"  # carried out, and the source could not be measured afterwards
    DRY_RUN = "dry_run"
    OUTDATED = "outdated"  # checked again, the move was not right any more
    EXPIRED = "expired"  # the eviction did not begin in time
    PAUSED = "paused"  # the mode was changed
    REFUSED = "refused"  # the API server does not allow this eviction
    BLOCKED = "blocked"  # a disruption budget did not allow it in time
    OTHER_POD = "other_pod"  # the name belongs to another pod now
    LOST = "lost"  # no replacement became ready in time


_PAST_ENDINGS: Final = {ending.value: ending for ending in PastEnding}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """One move, as it is persisted.

    Attributes:
        id: unique, for people and logs.
        phase_since: when the phase began.
        policy: hash of the policy under which it was planned.
        siblings: UIDs of the owner's pods when the eviction began; a pod that is none of them is
            the replacement. Removed once that is known: an owner may have a thousand pods, and
            the records of a day must fit into one ConfigMap.
        failures: number of evictions refused so far.
        retry_at: not before this time.
        landed: the card of the replacement.
    """

    id: str
    move: Move
    phase: MovePhase
    planned_at: datetime
    phase_since: datetime
    policy: str
    dry_run: bool = False
    siblings: tuple[str, ...] = ()
    failures: int = 0
    retry_at: datetime | None = None
    landed: CardUuid | None = None
    replacement: str = ""
    ending: Ending | None = None
    detail: str = ""

    def to(self, phase: MovePhase, *, now: datetime) -> "MoveRecord":
        """Return the record in the next phase; a transition not in the table is a bug."""
        assert phase in NEXT[self.phase], f"{self.phase.value} -> {phase.value}"  # noqa: S101
        siblings = self.siblings if phase is MovePhase.EVICTED else ()
        return replace(
            self, phase=phase, phase_since=now, siblings=siblings, failures=0, retry_at=None
        )

    def ended(self, ending: Ending, *, now: datetime, detail: str = "") -> "MoveRecord":
        """Return the record with its final phase, by *ending*."""
        carried_out = self.phase is MovePhase.VERIFYING or ending is Ending.DRY_RUN
        last = self.to(MovePhase.DONE if carried_out else MovePhase.ABORTED, now=now)
        return replace(last, ending=ending, detail=detail)

    def age(self, *, now: datetime) -> timedelta:
        """Return how long the phase has lasted."""
        return now - self.phase_since

    @property
    def disturbed(self) -> bool:
        """Whether the pod was evicted, or may have been."""
        if self.phase is MovePhase.ABORTED:
            return self.ending is Ending.LOST
        return not self.dry_run and self.phase is not MovePhase.PLANNED

    def past(self) -> PastMove:
        """Return the move as the budgets count it."""
        return PastMove(
            move=self.move,
            started_at=self.planned_at,
            under_way=self.phase in UNDER_WAY,
            ended_at=self.phase_since if self.phase in ENDED else None,
            useless=self.ending is Ending.USELESS,
            landed=self.landed,
            disturbed=self.disturbed,
            ending=_PAST_ENDINGS.get(self.ending.value) if self.ending else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredMoves:
    version: int
    moves: tuple[MoveRecord, ...] = ()


def plan_record(move: Move, *, policy: str, dry_run: bool, now: datetime) -> MoveRecord:
    """Return the first record of a move."""
    return MoveRecord(
        id=f"{move.pod_uid[:8]}-{now:%Y%m%dT%H%M%S}",
        move=move,
        phase=MovePhase.PLANNED,
        planned_at=now,
        phase_since=now,
        policy=policy,
        dry_run=dry_run,
    )


def kept(records: Sequence[MoveRecord], *, now: datetime) -> tuple[MoveRecord, ...]:
    """Return the records that a budget still counts, the newest thousand at most, in order."""
    young = [
        record for record in records if record.phase not in ENDED or now - record.phase_since < KEPT
    ]
    return tuple(young[-_MOST:])


def read_records(text: str) -> tuple[MoveRecord, ...]:
    """Parse what :func:`write_records` wrote.

    Raises:
        ValueError: the text is not such JSON.
    """
    stored = decode(text.encode(), _StoredMoves)
    if stored.version != _VERSION:
        raise ValueError(f"version {stored.version}; want {_VERSION}")
    return stored.moves


def write_records(records: Sequence[MoveRecord]) -> str:
    """Return records as JSON."""
    return encode(_StoredMoves(version=_VERSION, moves=tuple(records))).decode()
