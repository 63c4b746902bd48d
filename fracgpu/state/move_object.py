"""The custom resource ``Move``: one move of one pod, from plan to verification, as JSON.

The rebalancer decides on a spec and writes its Moves; budgets count them, and the extender reads
the reservation in them. Its schema for the API server is deploy/crds/moves.yaml.
"""

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Final

import msgspec

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.errors import decode_wire
from fracgpu.units import Mib

KIND: Final = "Move"


class MoveMode(Enum):
    """How the pod's replacement comes to be."""

    SURGE = "Surge"  # the replacement is Ready before the pod is evicted
    EVICT = "Evict"  # the pod is evicted, then replaced


class MovePhase(Enum):
    """How far a move has come. Each is written before the side effect that it announces."""

    RECOMMENDED = "Recommended"  # shown to people; nothing is reserved and nothing happens
    PLANNED = "Planned"  # the target is reserved; not yet checked again
    RESERVED = "Reserved"  # checked again, with the reservation in the ledger
    NOTICED = "Noticed"  # the pod is told of its disruption
    SURGING = "Surging"  # the pod is released from its ReplicaSet, which makes the replacement
    REPLACEMENT_READY = "ReplacementReady"  # the replacement is Ready on the target
    EVICTING = "Evicting"  # the pod may have been evicted
    EVICTED = "Evicted"  # the pod is gone; its replacement is not Ready yet (mode Evict)
    VERIFYING = "Verifying"  # the replacement runs; did the source cool, did the target stay cool?
    ROLLING_BACK = "RollingBack"  # the pod goes back to its ReplicaSet
    DONE = "Done"
    ABORTED = "Aborted"


# In these phases the target is held for the replacement. A pod that carries the move's name has
# consumed the reservation, whatever the phase.
RESERVING: Final = frozenset(
    {
        MovePhase.PLANNED,
        MovePhase.RESERVED,
        MovePhase.NOTICED,
        MovePhase.SURGING,
        MovePhase.REPLACEMENT_READY,
        MovePhase.EVICTING,
        MovePhase.EVICTED,
    }
)

ENDED: Final = frozenset({MovePhase.RECOMMENDED, MovePhase.DONE, MovePhase.ABORTED})
# The replacement is not Ready yet, or the pod does not belong to its owner again yet.
UNDER_WAY: Final = frozenset(MovePhase) - ENDED - {MovePhase.VERIFYING}
# From these phases on the pod's users could notice something.
DISTURBING: Final = frozenset({MovePhase.SURGING, MovePhase.EVICTING})

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


class Ending(Enum):
    """How a move ended; also a metric label, and the result of a Move."""

    RELIEVED = "relieved"
    USELESS = "useless"  # carried out, and the source is as busy as before or the target is hot
    UNVERIFIED = "unverified"  # carried out, and what the cards show afterwards tells nothing
    DRY_RUN = "dry_run"
    # Before anybody was disturbed, or after it.
    PAUSED = "paused"  # the mode was changed
    REFUSED = "refused"  # the API server does not allow it
    POD_GONE = "pod_gone"  # the pod ended by itself, or its name belongs to another pod now
    OWNER_GONE = "owner_gone"  # the controller was deleted
    ROLLOUT = "rollout"  # the owner is being rolled out
    TARGET_LOST = "target_lost"  # no pod can start on the target's node any more
    BLOCKED = "blocked"  # a disruption budget did not allow it in time
    # Only before.
    OUTDATED = "outdated"  # checked again, the move was not right any more
    EXPIRED = "expired"  # the first step did not come, or had no effect, in time
    # Only after. A surge is rolled back, so that the pod stays.
    NOT_CREATED = "not_created"  # the replacement could not be created: a quota, for example
    NOT_READY = "not_ready"  # the replacement did not become Ready
    LAPSED = "lapsed"  # the reservation lapsed before the replacement was bound
    MISPLACED = "misplaced"  # the replacement got a card that is not known to be cool
    SCALED_DOWN = "scaled_down"  # the owner needs no replacement any more
    INTERFERED = "interfered"  # somebody else changed the pod's label meanwhile
    LOST = "lost"  # the owner misses a pod since the eviction


# Carried out to the end.
CARRIED_OUT: Final = frozenset({Ending.RELIEVED, Ending.USELESS, Ending.UNVERIFIED})
# Once a pod was disturbed these are failures; a rollout or a scale-down meanwhile is none.
FAILURES: Final = frozenset(
    {
        Ending.REFUSED,
        Ending.TARGET_LOST,
        Ending.BLOCKED,
        Ending.NOT_CREATED,
        Ending.NOT_READY,
        Ending.LAPSED,
        Ending.MISPLACED,
        Ending.INTERFERED,
        Ending.LOST,
    }
)

_MOST_TRANSITIONS: Final = 32  # maxItems in the schema
_LONGEST_MESSAGE: Final = 1024  # maxLength in the schema
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all parts have in common: camel-cased keys, and defaults left out."""

    def __post_init__(self) -> None:
        """Take what the API server accepts from people: a time without a zone is UTC.

        And one to which nothing can be added is the nearest to which something can.
        """
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, datetime):
                zoned = value if value.tzinfo else value.replace(tzinfo=UTC)
                taken = min(max(zoned, _EARLIEST), _LATEST)
                if taken is not value:
                    msgspec.structs.force_setattr(self, field, taken)


class PodReference(_Shape, frozen=True, kw_only=True):
    """One very pod."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """``namespace/name``, for people."""
        return f"{self.namespace}/{self.name}"


class OwnerReference(_Shape, frozen=True, kw_only=True):
    """The controller of the pod, in the pod's namespace."""

    api_version: str
    kind: str
    name: str
    uid: str


class CardReference(_Shape, frozen=True, kw_only=True):
    """One card: its node, its UUID, and its index on the node, by which people know it.

    Attributes:
        display: ``node/index``, for ``kubectl get``, whose columns cannot join two fields.
    """

    node: str
    card: CardUuid
    index: int
    display: str


class RequestedShare(_Shape, frozen=True, kw_only=True):
    """What the pod holds of the source, and its replacement will hold of the target.

    Attributes:
        mib: memory.
        cores: per cent of a card's compute; 0 means that compute is shared freely.
        slots: the number of containers with a share.
        limit_mib: how much the replacement may use of the target; 0 for no more than *mib*.
    """

    mib: Mib
    cores: int = 0
    slots: int = 1
    limit_mib: Mib = Mib(0)


class Beneficiary(_Shape, frozen=True, kw_only=True):
    """The waiting pod for which cards are freed, and what is kept for it meanwhile.

    Attributes:
        cards: the cards of the source's node that take no new slice but this pod's, by UUID. The
            source is one of them; those that need no move any more are there as well.
        held_until: when that ends, unless the move is still under way.
        cpu_milli: what the pod requests of the node besides cards, in millicores; kept as well.
        memory_mib: the same in MiB of memory.
    """

    namespace: str
    name: str
    uid: str
    cards: tuple[CardUuid, ...]
    held_until: datetime
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def key(self) -> str:
        """``namespace/name``, for people."""
        return f"{self.namespace}/{self.name}"


class MoveReason(_Shape, frozen=True, kw_only=True):
    """Why the move was planned, in words, and the figures at that time.

    Attributes:
        busy_ratio: the pod's measured share of the source's time, 0..1.
        level_ratio: how busy the source was, 0..1.
        gain_points: what the move relieves less what it costs, in per cent of one card.
        saved_points: what it was forecast to save, whatever it costs and however far forecasts were
            believed, in per cent of one card.
    """

    message: str = ""
    busy_ratio: float = 0.0
    level_ratio: float = 0.0
    gain_points: float = 0.0
    saved_points: float = 0.0


class MoveSpec(_Shape, frozen=True, kw_only=True):
    """The decision to move one pod off one card, with a card where a replacement fits.

    It never changes.

    Attributes:
        method: the name of the method that planned the move.
        plan: what the moves of one plan have in common; empty if the plan is this one move.
        reserved_until: when the reservation lapses, unless the status extends it.
        source_denied_until: until when the owner's pods are kept off the source.
        beneficiary: the waiting pod that gets in; None if the move is for its source's own sake.
        startup_s: how long the owner's pods take from their start to Ready; 0 if nothing tells.
        grace_s: how long before it is disturbed the pod wants to be told, unless it says that it is
            ready.
        approved: people want it, so it is made in the mode ``recommend`` as well.
        config_hash: the hash of the policy under which the move was planned.
    """

    pod: PodReference
    owner: OwnerReference
    source: CardReference
    target: CardReference
    request: RequestedShare
    mode: MoveMode
    method: str
    plan: str = ""
    reason: MoveReason = MoveReason()
    reserved_until: datetime
    source_denied_until: datetime
    beneficiary: Beneficiary | None = None
    startup_s: _Seconds = 0.0
    grace_s: _Seconds = 0.0
    approved: bool = False
    config_hash: str = ""


class Replacement(_Shape, frozen=True, kw_only=True):
    """The pod that took the place of the moved one, and where it runs."""

    name: str
    uid: str
    node: str = ""
    card: CardUuid = CardUuid("")


class Transition(_Shape, frozen=True, kw_only=True):
    """When a phase began, and why."""

    phase: MovePhase
    at: datetime
    message: str = ""


class MoveStatus(_Shape, frozen=True, kw_only=True):
    """How far the move has come.

    Attributes:
        reserved_until: replaces the spec's.
        held_until: when the beneficiary was seen to be placed or gone, which ends what is kept for
            it; replaces the spec's.
        released_hash: the value of the pod's label ``pod-template-hash`` before a surge.
        attempts: how often the eviction was refused so far.
        retry_at: not before this time.
        result: how the move ended, one word; empty until then.
        transitions: every phase so far, oldest first.
    """

    phase: MovePhase = MovePhase.PLANNED
    phase_since: datetime | None = None
    reserved_until: datetime | None = None
    held_until: datetime | None = None
    replacement: Replacement | None = None
    released_hash: str = ""
    attempts: int = 0
    retry_at: datetime | None = None
    result: str = ""
    message: str = ""
    transitions: tuple[Transition, ...] = ()


class MoveMeta(_Shape, frozen=True, kw_only=True):
    """What we read of a Move's metadata."""

    name: str
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    annotations: dict[str, str] | None = None


class Move(_Shape, frozen=True, kw_only=True):
    """One Move. A new one has the status of its defaults: planned."""

    metadata: MoveMeta
    spec: MoveSpec
    status: MoveStatus = MoveStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def approved(self) -> bool:
        """Whether people have approved what it recommends."""
        return (self.metadata.annotations or {}).get(names.APPROVED) == "true"

    @property
    def reserved_until(self) -> datetime:
        """When the reservation lapses."""
        return self.status.reserved_until or self.spec.reserved_until

    @property
    def phase(self) -> MovePhase:
        return self.status.phase

    @property
    def planned_at(self) -> datetime:
        """When the move was planned, by the clock of the rebalancer."""
        first = next(iter(self.status.transitions), None)
        return first.at if first else self.metadata.creation_timestamp or self.spec.reserved_until

    @property
    def phase_since(self) -> datetime:
        return self.status.phase_since or self.planned_at

    @property
    def under_way(self) -> bool:
        """Whether the replacement is not Ready yet, or the pod not with its owner again."""
        return self.phase in UNDER_WAY

    @property
    def ended_at(self) -> datetime | None:
        """When it ended, successfully or not; None until then."""
        return self.phase_since if self.phase in ENDED else None

    @property
    def replacement(self) -> str:
        """``namespace/name`` of the replacement; empty until it is known."""
        found = self.status.replacement
        return f"{self.spec.pod.namespace}/{found.name}" if found else ""

    @property
    def replacement_uid(self) -> str:
        """The pod that took its place; empty until it is known."""
        return self.status.replacement.uid if self.status.replacement else ""

    @property
    def landed(self) -> CardUuid | None:
        """The card that the replacement got, if it is known."""
        found = self.status.replacement
        return found.card if found and found.card else None

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
    def disturbed(self) -> bool:
        """Whether a step was announced that the pod's users could notice.

        A surge without a replacement that neither failed nor goes on has left all as it was.
        """
        passed = {each.phase for each in self.status.transitions} & DISTURBING
        undone = self.phase in ENDED and self.ending not in FAILURES
        if passed == {MovePhase.SURGING} and undone:
            return self.status.replacement is not None
        return bool(passed)

    @property
    def disturbed_at(self) -> datetime | None:
        """When the first such step was announced."""
        return next((each.at for each in self.status.transitions if each.phase in DISTURBING), None)

    @property
    def only_shown(self) -> bool:
        """Whether it was a dry run or a recommendation: nothing happened."""
        return self.phase is MovePhase.RECOMMENDED or self.ending is Ending.DRY_RUN

    @property
    def useless(self) -> bool:
        """Whether it was carried out, and the source stayed as busy as before."""
        return self.ending is Ending.USELESS

    @property
    def failed(self) -> bool:
        """Whether it disturbed a pod for nothing, and neither the owner nor people wanted that."""
        return self.phase in ENDED and self.disturbed and self.ending in FAILURES

    @property
    def lost(self) -> bool:
        """Whether its owner misses a pod."""
        return self.disturbed and self.ending is Ending.LOST

    def first_in(self, phase: MovePhase) -> datetime | None:
        """Return when a phase was entered for the first time."""
        return next((each.at for each in self.status.transitions if each.phase is phase), None)

    def age(self, *, now: datetime) -> timedelta:
        """Return how long the phase has lasted."""
        return now - self.phase_since

    def with_status(self, **changes: Any) -> "Move":
        """Return the move with parts of its status changed."""
        if "message" in changes:
            changes["message"] = changes["message"][:_LONGEST_MESSAGE]
        status = msgspec.structs.replace(self.status, **changes)
        return msgspec.structs.replace(self, status=status)

    def to(self, phase: MovePhase, *, now: datetime, message: str = "", **changes: Any) -> "Move":
        """Return the move in the next phase; a transition not in the table is a bug."""
        assert phase in NEXT[self.phase], f"{self.phase.value} -> {phase.value}"
        passed = Transition(phase=phase, at=now, message=message[:_LONGEST_MESSAGE])
        return self.with_status(
            **{"attempts": 0, "retry_at": None, "message": message, **changes},
            phase=phase,
            phase_since=now,
            transitions=_shortened((*self.status.transitions, passed)),
        )

    def ended(self, ending: Ending, *, now: datetime, detail: str = "") -> "Move":
        """Return the move with its final phase, by *ending*."""
        carried_out = self.phase is MovePhase.VERIFYING or ending is Ending.DRY_RUN
        last = MovePhase.DONE if carried_out else MovePhase.ABORTED
        return self.to(last, now=now, message=detail, result=ending.value)


def new_move(spec: MoveSpec, *, now: datetime, phase: MovePhase = MovePhase.PLANNED) -> Move:
    """Return the Move of a decision: planned, or only recommended."""
    name = f"{now:%Y%m%d-%H%M%S}-{spec.pod.uid[:8].lower()}"
    first = Transition(phase=phase, at=now)
    status = MoveStatus(phase=phase, phase_since=now, transitions=(first,))
    return Move(metadata=MoveMeta(name=name), spec=spec, status=status)


_decoder: Final = msgspec.json.Decoder(Move)


def decode_move(body: bytes) -> Move:
    """Decode a Move from the API server.

    Raises:
        WireError: *body* is no Move of this version.
    """
    return decode_wire(_decoder.decode, body, what=KIND)


def object_of(move: Move) -> dict[str, Any]:
    """Return a Move as the JSON object that the API server stores."""
    found: dict[str, Any] = msgspec.to_builtins(move)
    found["status"]["phase"] = move.phase.value  # shown even where it is the default
    return found


def _shortened(transitions: tuple[Transition, ...]) -> tuple[Transition, ...]:
    """Return the first transitions and the last, as many as an object may have.

    A replacement that becomes Ready and unready again and again passes the same phases each time.
    """
    if len(transitions) <= _MOST_TRANSITIONS:
        return transitions
    half = _MOST_TRANSITIONS // 2
    return (*transitions[:half], *transitions[-half:])
