"""One move from plan to proof: its phases, the only ways between them, and its record.

A record is written before the step that it announces, so that whoever reads it after a crash knows
what may have happened: a ``planned`` move has disturbed nobody; an ``evicting`` one may have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import Move, PastMove
from kube.objects import decode, encode

KEPT: Final = timedelta(hours=25)  # the longest budget looks back a day
_MOST: Final = 1000  # records of some 700 bytes; a ConfigMap holds 1 MiB
_VERSION: Final = 1


class MovePhase(Enum):
    """How far a move has come."""

    PLANNED = "planned"  # the source is cordoned; nobody was disturbed
    EVICTING = "evicting"  # the pod may have been evicted
    EVICTED = "evicted"  # it was; its replacement is not ready yet
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
    OUTDATED = "outdated"  # looked at again, it was not right any more
    EXPIRED = "expired"  # not begun in time
    PAUSED = "paused"  # the mode was changed
    REFUSED = "refused"  # the API server does not allow this eviction
    BLOCKED = "blocked"  # a disruption budget did not allow it in time
    OTHER_POD = "other_pod"  # the name belongs to another pod by now
    LOST = "lost"  # no replacement became ready in time


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """What is known of one move, as it is persisted.

    Attributes:
        id: unique, for people and logs.
        phase_since: when the phase began.
        policy: hash of the policy it was made under.
        siblings: UIDs of the owner's pods when the eviction began; a pod that is none of them is
            the replacement. Forgotten once that is known: an owner may have a thousand pods, and
            the records of a day must fit into one ConfigMap.
        failures: evictions refused for the time being.
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
        """Advance; what the table does not list is our own mistake."""
        assert phase in NEXT[self.phase], f"{self.phase.value} -> {phase.value}"  # noqa: S101
        siblings = self.siblings if phase is MovePhase.EVICTED else ()
        return replace(
            self, phase=phase, phase_since=now, siblings=siblings, failures=0, retry_at=None
        )

    def ended(self, ending: Ending, *, now: datetime, detail: str = "") -> "MoveRecord":
        """End well or not, by what *ending* says."""
        carried_out = self.phase is MovePhase.VERIFYING or ending is Ending.DRY_RUN
        last = self.to(MovePhase.DONE if carried_out else MovePhase.ABORTED, now=now)
        return replace(last, ending=ending, detail=detail)

    def age(self, *, now: datetime) -> timedelta:
        """How long the phase has lasted."""
        return now - self.phase_since

    def past(self) -> PastMove:
        """Give what the budgets count of it."""
        return PastMove(
            move=self.move,
            started_at=self.planned_at,
            under_way=self.phase in UNDER_WAY,
            ended_at=self.phase_since if self.phase in ENDED else None,
            useless=self.ending is Ending.USELESS,
            landed=self.landed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredMoves:
    version: int
    moves: tuple[MoveRecord, ...] = ()


def plan_record(move: Move, *, policy: str, dry_run: bool, now: datetime) -> MoveRecord:
    """Begin the record of a move."""
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
    """Drop what no budget looks at any more; of the rest the newest thousand, in order."""
    young = [it for it in records if it.phase not in ENDED or now - it.phase_since < KEPT]
    return tuple(young[-_MOST:])


def read_records(text: str) -> tuple[MoveRecord, ...]:
    """Read what :func:`write_records` wrote.

    Raises:
        ValueError: it is something else.
    """
    book = decode(text.encode(), _StoredMoves)
    if book.version != _VERSION:
        raise ValueError(f"version {book.version}; want {_VERSION}")
    return book.moves


def write_records(records: Sequence[MoveRecord]) -> str:
    """Write records as JSON."""
    return encode(_StoredMoves(version=_VERSION, moves=tuple(records))).decode()
