"""The record of one move, and the store that keeps the records as Moves in the API server.

A record is written before the step that it announces, so that after a crash it shows what may have
happened: a planned move has disturbed nobody; an evicting one may have evicted its pod.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates import startup_s
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.methods import requested
from fracgpu.disruption.move import (
    DISTURBING,
    ENDED,
    FAILURES,
    UNDER_WAY,
    Ending,
    Move,
    PastMove,
)
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.errors import WireError
from fracgpu.state.move_object import (
    CardReference,
    MoveMeta,
    MoveMode,
    MoveObject,
    MovePhase,
    MoveReason,
    MoveSpec,
    MoveStatus,
    OwnerReference,
    PodReference,
    Replacement,
    RequestedShare,
    Transition,
    decode_move,
)
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.reservation import claims_of
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import (
    CUSTOM_RESOURCE_DEFINITIONS,
    JOBS,
    MOVES,
    REPLICASETS,
    REPLICATION_CONTROLLERS,
    STATEFULSETS,
)
from kube.objects import encode, identity

OWNER_KINDS: Final = {
    kind.kind: kind for kind in (REPLICASETS, STATEFULSETS, JOBS, REPLICATION_CONTROLLERS)
}

_DEFINITION: Final = f"{CUSTOM_RESOURCE_DEFINITIONS.kind} moves.fracgpu.io"

KEPT: Final = timedelta(days=7)  # the longest budget covers a day; people look back a week
MOST_KEPT: Final = 1000  # objects of some 2 KiB
_MOST_TRANSITIONS: Final = 32  # maxItems in the schema
_LONGEST_MESSAGE: Final = 1024  # maxLength in the schema

NEXT: Final[dict[MovePhase, frozenset[MovePhase]]] = {
    MovePhase.RECOMMENDED: frozenset(),
    MovePhase.PLANNED: frozenset({MovePhase.RESERVED, MovePhase.DONE, MovePhase.ABORTED}),
    MovePhase.RESERVED: frozenset({MovePhase.NOTICED, MovePhase.ABORTED}),
    MovePhase.NOTICED: frozenset({MovePhase.SURGING, MovePhase.EVICTING, MovePhase.ABORTED}),
    MovePhase.SURGING: frozenset(
        {
            MovePhase.REPLACEMENT_READY,
            MovePhase.EVICTED,  # the pod ended by itself
            MovePhase.ROLLING_BACK,
            MovePhase.ABORTED,
        }
    ),
    MovePhase.REPLACEMENT_READY: frozenset(
        {
            MovePhase.EVICTING,
            MovePhase.SURGING,  # the replacement is not Ready any more
            MovePhase.EVICTED,
            MovePhase.ROLLING_BACK,
        }
    ),
    MovePhase.EVICTING: frozenset(
        {MovePhase.EVICTED, MovePhase.SURGING, MovePhase.ROLLING_BACK, MovePhase.ABORTED}
    ),
    MovePhase.EVICTED: frozenset({MovePhase.VERIFYING, MovePhase.ABORTED}),
    MovePhase.VERIFYING: frozenset({MovePhase.DONE}),
    MovePhase.ROLLING_BACK: frozenset({MovePhase.ABORTED}),
    MovePhase.DONE: frozenset(),
    MovePhase.ABORTED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """One move.

    Attributes:
        object: the Move; its metadata is the name alone until it is created.
        dry_run: the move is only rehearsed; its object is created with its end.
    """

    object: MoveObject
    dry_run: bool = False

    @property
    def id(self) -> str:
        """The name of the Move."""
        return self.object.name

    @property
    def spec(self) -> MoveSpec:
        return self.object.spec

    @property
    def status(self) -> MoveStatus:
        return self.object.status

    @property
    def move(self) -> Move:
        return move_of(self.spec)

    @property
    def mode(self) -> MoveMode:
        return self.spec.mode

    @property
    def phase(self) -> MovePhase:
        return self.status.phase

    @property
    def planned_at(self) -> datetime:
        """When the move was planned, by the clock of the rebalancer."""
        first = next(iter(self.status.transitions), None)
        created = self.object.metadata.creation_timestamp
        return first.at if first else created or self.spec.reserved_until

    @property
    def phase_since(self) -> datetime:
        return self.status.phase_since or self.planned_at

    @property
    def attempts(self) -> int:
        """How often the eviction was refused so far."""
        return self.status.attempts

    @property
    def retry_at(self) -> datetime | None:
        """When a step may be tried again; None at once."""
        return self.status.retry_at

    @property
    def replacement(self) -> str:
        """``namespace/name`` of the replacement; empty until it is known."""
        found = self.status.replacement
        return f"{self.spec.pod.namespace}/{found.name}" if found else ""

    @property
    def landed(self) -> CardUuid | None:
        """The card that the replacement got, if it is known."""
        found = self.status.replacement
        return CardUuid(found.card) if found and found.card else None

    @property
    def ending(self) -> Ending | None:
        """How the move ended, or will have ended once it is rolled back.

        A word that this version does not know counts as a failure, as unknown is never good.
        """
        if not self.status.result:
            return None
        try:
            return Ending(self.status.result)
        except ValueError:
            return Ending.INTERFERED

    @property
    def detail(self) -> str:
        """What the move waits for, or why it ended."""
        return self.status.message

    @property
    def disturbed(self) -> bool:
        """Whether a step was announced that the pod's users could notice.

        A surge without a replacement that neither failed nor goes on has left all as it was.
        """
        passed = {each.phase for each in self.status.transitions} & DISTURBING
        undone = self.phase in ENDED and self.ending not in FAILURES
        if passed == {MovePhase.SURGING} and undone:
            return self.status.replacement is not None
        return bool(passed)

    def first_in(self, phase: MovePhase) -> datetime | None:
        """Return when a phase was entered for the first time."""
        return next(
            (passed.at for passed in self.status.transitions if passed.phase is phase), None
        )

    def age(self, *, now: datetime) -> timedelta:
        """Return how long the phase has lasted."""
        return now - self.phase_since

    def with_status(self, **changes: Any) -> "MoveRecord":
        """Return the record with parts of its status changed."""
        if "message" in changes:
            changes["message"] = changes["message"][:_LONGEST_MESSAGE]
        status = msgspec.structs.replace(self.status, **changes)
        return replace(self, object=msgspec.structs.replace(self.object, status=status))

    def to(
        self, phase: MovePhase, *, now: datetime, message: str = "", **changes: Any
    ) -> "MoveRecord":
        """Return the record in the next phase; a transition not in the table is a bug."""
        assert phase in NEXT[self.phase], f"{self.phase.value} -> {phase.value}"  # noqa: S101
        passed = Transition(phase=phase, at=now, message=message[:_LONGEST_MESSAGE])
        return self.with_status(
            **{"attempts": 0, "retry_at": None, "message": message, **changes},
            phase=phase,
            phase_since=now,
            transitions=_shortened((*self.status.transitions, passed)),
        )

    def ended(self, ending: Ending, *, now: datetime, detail: str = "") -> "MoveRecord":
        """Return the record with its final phase, by *ending*."""
        carried_out = self.phase is MovePhase.VERIFYING or ending is Ending.DRY_RUN
        last = MovePhase.DONE if carried_out else MovePhase.ABORTED
        return self.to(last, now=now, message=detail, result=ending.value)

    def past(self) -> PastMove:
        """Return the move as budgets and breakers count it."""
        return PastMove(
            move=self._move_with_hold(),
            started_at=self.planned_at,
            under_way=self.phase in UNDER_WAY,
            ended_at=self.phase_since if self.phase in ENDED else None,
            landed=self.landed,
            id=self.id,
            phase=self.phase,
            ending=self.ending if self.phase in ENDED else None,
            disturbed=self.disturbed,
            disturbed_at=next(
                (passed.at for passed in self.status.transitions if passed.phase in DISTURBING),
                None,
            ),
            replacement_uid=self.status.replacement.uid if self.status.replacement else "",
            claims=claims_of(self.object),
        )

    def _move_with_hold(self) -> Move:
        """Return the move; its beneficiary with the time when the hold really ends."""
        move, ended_at = self.move, self.status.held_until
        if move.beneficiary is None or ended_at is None:
            return move
        beneficiary = msgspec.structs.replace(move.beneficiary, held_until=ended_at)
        return replace(move, beneficiary=beneficiary)


def a_replacement(
    name: str, uid: str, *, node: str = "", card: CardUuid | None = None
) -> Replacement:
    """Return the status's part on the pod that took the place of the moved one."""
    return Replacement(name=name, uid=uid, node=node, card=card or "")


def spec_of(
    move: Move,
    state: DisruptionState,
    *,
    policy: RebalancerPolicy,
    now: datetime,
    holds: bool = True,
) -> MoveSpec:
    """Return the spec of a move planned on *state*.

    Args:
        move: the decision.
        state: on which it was made.
        policy: by which it was made.
        now: the time of the plan.
        holds: the move reserves its target; one that is only rehearsed or shown does not.
    """
    pod = state.pods.get(move.pod_uid)
    grace_s = grace_of(pod.info) if pod else 0.0
    kind, owner, _ = (pod.info.owner if pod else None) or ("ReplicaSet", "unknown", "")
    source = _card(state, move.source, node=move.source_node)
    target = _card(state, move.target, node=move.target_node)
    beneficiary = move.beneficiary
    why = f"card {source.display} is busy {move.level_ratio:.0%} of the time"
    if beneficiary is not None:
        why = f"pod {beneficiary.namespace}/{beneficiary.name} waits for card {source.display}"
    elif move.method == requested.NAME:
        why = f"people want it off card {source.display}"
    message = f"{why}; card {target.display} has room"
    if beneficiary is not None and not holds:
        beneficiary = msgspec.structs.replace(beneficiary, held_until=now)
    return MoveSpec(
        pod=PodReference(namespace=move.namespace, name=move.name, uid=move.pod_uid),
        owner=OwnerReference(
            api_version=OWNER_KINDS[kind].group_version if kind in OWNER_KINDS else "v1",
            kind=kind,
            name=owner,
            uid=move.owner_uid,
        ),
        source=source,
        target=target,
        request=RequestedShare(
            mib=move.mib, cores=move.cores, slots=move.slots, limit_mib=move.limit_mib
        ),
        mode=move.mode,
        method=move.method,
        plan=move.plan,
        reason=MoveReason(
            message=message,
            busy_ratio=move.busy_ratio,
            level_ratio=move.level_ratio,
            gain_points=move.gain_points,
        ),
        reserved_until=now + longest_before_bound(move.mode, policy, grace_s=grace_s)
        if holds
        else now,
        source_denied_until=now + timedelta(seconds=policy.return_cooldown_s) if holds else now,
        beneficiary=beneficiary,
        startup_s=round(startup_s(state, pod), 3) if pod else 0.0,
        grace_s=grace_s,
        approved=move.method == requested.NAME,
        config_hash=policy.digest,
    )


def approved(record: MoveRecord, *, policy: RebalancerPolicy, now: datetime) -> MoveRecord:
    """Return the planned move that a recommended one becomes once people have approved it."""
    spec = record.spec
    spec = msgspec.structs.replace(
        spec,
        approved=True,
        reserved_until=now + longest_before_bound(spec.mode, policy, grace_s=spec.grace_s),
        source_denied_until=now + timedelta(seconds=policy.return_cooldown_s),
    )
    return new_record(spec, now=now)


_LONGEST_GRACE_S: Final = 3600.0


def grace_of(pod: PodInfo) -> float:
    """Return how many seconds before its move a pod wants to be told; 0 without a number."""
    wish = pod.annotations.get(names.MOVE_GRACE, "")
    return min(float(wish), _LONGEST_GRACE_S) if wish.isascii() and wish.isdecimal() else 0.0


def longest_before_bound(
    mode: MoveMode, policy: RebalancerPolicy, *, grace_s: float = 0.0
) -> timedelta:
    """Return how long after its plan a move may still need the reservation."""
    before = policy.plan_ttl_s + policy.notice_s + grace_s + policy.replacement_ttl_s
    return timedelta(seconds=before + (policy.evict_ttl_s if mode is MoveMode.EVICT else 0.0))


def move_of(spec: MoveSpec) -> Move:
    """Return the decision in a spec."""
    return Move(
        pod_uid=spec.pod.uid,
        namespace=spec.pod.namespace,
        name=spec.pod.name,
        owner_uid=spec.owner.uid,
        source=CardUuid(spec.source.card),
        source_node=spec.source.node,
        target=CardUuid(spec.target.card),
        target_node=spec.target.node,
        mib=Mib(spec.request.mib),
        cores=spec.request.cores,
        slots=spec.request.slots,
        limit_mib=Mib(spec.request.limit_mib),
        busy_ratio=spec.reason.busy_ratio,
        level_ratio=spec.reason.level_ratio,
        gain_points=spec.reason.gain_points,
        method=spec.method,
        mode=spec.mode,
        plan=spec.plan,
        beneficiary=spec.beneficiary,
    )


def new_record(
    spec: MoveSpec,
    *,
    now: datetime,
    dry_run: bool = False,
    phase: MovePhase = MovePhase.PLANNED,
) -> MoveRecord:
    """Return the first record of a move: planned, or only recommended."""
    name = f"{now:%Y%m%d-%H%M%S}-{spec.pod.uid[:8].lower()}"
    first = Transition(phase=phase, at=now)
    status = MoveStatus(phase=phase, phase_since=now, transitions=(first,))
    return MoveRecord(
        object=MoveObject(metadata=MoveMeta(name=name), spec=spec, status=status), dry_run=dry_run
    )


def outlived(records: Sequence[MoveRecord], *, now: datetime) -> list[MoveRecord]:
    """Return the ended moves to forget: those older than a week, and the oldest beyond 1000."""
    ended = sorted(
        (record for record in records if record.phase in ENDED),
        key=lambda record: (record.phase_since, record.id),
    )
    surplus = max(0, len(records) - MOST_KEPT)
    return [
        record
        for place, record in enumerate(ended)
        if place < surplus or now - record.phase_since >= KEPT
    ]


def _shortened(transitions: tuple[Transition, ...]) -> tuple[Transition, ...]:
    """Return the first transitions and the last, as many as an object may have.

    A replacement that becomes Ready and unready again and again passes the same phases each time.
    """
    if len(transitions) <= _MOST_TRANSITIONS:
        return transitions
    half = _MOST_TRANSITIONS // 2
    return (*transitions[:half], *transitions[-half:])


def _card(state: DisruptionState, card: CardUuid, *, node: str) -> CardReference:
    info = state.snapshot.card(card)
    index = info.card.index if info is not None else 0
    return CardReference(node=node, card=card, index=index, display=f"{node}/{index}")


class MovesUnreadable(Exception):  # noqa: N818 - says what it is
    """A Move cannot be parsed, or none can be read, so past moves are unknown."""


class MoveStore:
    """The Moves; read by :meth:`load`, then written through.

    Only the leader writes Moves, and reads them all at the start of each cycle: a Move that
    somebody deleted is then forgotten.

    Args:
        client: reaches the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._records: dict[str, MoveRecord] = {}

    @property
    def records(self) -> tuple[MoveRecord, ...]:
        """The records, oldest first."""
        return tuple(
            sorted(self._records.values(), key=lambda record: (record.planned_at, record.id))
        )

    async def load(self) -> None:
        """Read all Moves.

        Raises:
            MovesUnreadable: a Move of another version, or there is no such resource.
            KubeError: the API server did not answer.
        """
        try:
            listed = await self._client.list(MOVES)
        except NotFound as error:
            raise MovesUnreadable(f"{_DEFINITION} is not installed: {error}") from error
        found = [_readable(bytes(raw)) for raw in listed.items]
        self._records = {record.id: record for record in found}

    async def put(self, record: MoveRecord) -> MoveRecord:
        """Create a Move, or replace its status; when this returns it is persisted.

        Returns:
            The record with the resourceVersion that the next write needs.

        Raises:
            Conflict: the Move changed since it was read, or its name is taken; load again.
            NotFound: the Move was deleted meanwhile; load again.
            KubeError: the outcome is unknown; load again.
        """
        known = self._records.get(record.id)
        if known is None:
            created = await self._client.create(MOVES, object_of(record))
            # A new object has no status: the API server drops it.
            known = self._keep(record, created)
        stored = await self._client.replace(
            MOVES, object_of(_with_metadata_of(record, known.object)), subresource="status"
        )
        return self._keep(record, stored)

    async def forget(self, record: MoveRecord) -> None:
        """Delete a Move; one that is gone already is no error.

        Raises:
            KubeError: the outcome is unknown; load again.
        """
        uid = record.object.metadata.uid or None
        with suppress(NotFound):
            await self._client.delete(MOVES, record.id, uid=uid)
        self._records.pop(record.id, None)

    def _keep(self, record: MoveRecord, stored: dict[str, Any]) -> MoveRecord:
        kept = _with_metadata_of(record, decode_move(encode(stored)))
        self._records[kept.id] = kept
        return kept


def object_of(record: MoveRecord) -> dict[str, Any]:
    """Return a record as the JSON object that the API server stores."""
    found: dict[str, Any] = msgspec.to_builtins(record.object)
    found["status"]["phase"] = record.phase.value  # shown even where it is the default
    return found


def _with_metadata_of(record: MoveRecord, stored: MoveObject) -> MoveRecord:
    """Return a record with the metadata under which it was stored."""
    merged = msgspec.structs.replace(record.object, metadata=stored.metadata)
    return MoveRecord(object=merged, dry_run=record.dry_run)


def _readable(body: bytes) -> MoveRecord:
    try:
        return MoveRecord(object=decode_move(body))
    except WireError as error:
        name = identity(body).name
        raise MovesUnreadable(f"Move {name}: {error}; delete it to forget it") from error
