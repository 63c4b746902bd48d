"""The custom resource ``Move``: one move of one pod, from plan to verification, as JSON.

The rebalancer writes Moves; the extender reads the reservation in them. Its schema for the API
server is deploy/crds/moves.yaml.
"""

from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Final

import msgspec

from fracgpu import names
from fracgpu.errors import decode_wire

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
    card: str
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

    mib: int
    cores: int = 0
    slots: int = 1
    limit_mib: int = 0


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
    cards: tuple[str, ...]
    held_until: datetime
    cpu_milli: int = 0
    memory_mib: int = 0


class MoveReason(_Shape, frozen=True, kw_only=True):
    """Why the move was planned, in words, and the figures at that time.

    Attributes:
        busy_ratio: the pod's measured share of the source's time, 0..1.
        level_ratio: how busy the source was, 0..1.
        gain_points: what the move relieves less what it costs, in per cent of one card.
    """

    message: str = ""
    busy_ratio: float = 0.0
    level_ratio: float = 0.0
    gain_points: float = 0.0


class MoveSpec(_Shape, frozen=True, kw_only=True):
    """The decision; it never changes.

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
    card: str = ""


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


class MoveObject(_Shape, frozen=True, kw_only=True):
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


_decoder: Final = msgspec.json.Decoder(MoveObject)


def decode_move(body: bytes) -> MoveObject:
    """Decode a Move from the API server.

    Raises:
        WireError: *body* is no Move of this version.
    """
    return decode_wire(_decoder.decode, body, what=KIND)
