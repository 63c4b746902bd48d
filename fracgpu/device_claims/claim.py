"""A ResourceClaim decoded: what it requests, what it was allocated, and whose it is."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims import devices
from fracgpu.device_claims.selectors import excluded_cards, listed_cards
from fracgpu.device_claims.taints import DeviceTaint
from fracgpu.errors import WireError, decode_wire
from fracgpu.k8s.pod import OwnerReference
from fracgpu.k8s.quantity import memory_mib, parse
from fracgpu.state.allocation import WHOLE_CARD, Assignment, CardAllocation, Slice
from fracgpu.units import FULL_CORES, MAX_MIB, Mib

_WHAT: Final = "ResourceClaim"
_MOST_SLOTS: Final = 2**31


class PodReference(msgspec.Struct, frozen=True):
    """A pod that a claim is owned by, or reserved for."""

    name: str
    uid: str


class DeviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a claim.

    Attributes:
        name: ours are named after the container.
        amounts: what is requested of each card; None where the claim says none.
        cards: its shortlist, the best first; empty for an open request.
        excluded: the cards that an open request leaves out.
        plain: of no other form than ours.
        tolerated: the taints of ours that it tolerates.
    """

    name: str
    device_class: str
    cards_wanted: int = 1
    amounts: CardAllocation | None = None
    cards: tuple[CardUuid, ...] = ()
    excluded: frozenset[CardUuid] = frozenset()
    plain: bool = True
    tolerated: tuple[DeviceTaint, ...] = ()


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of ours that kube-scheduler has allocated, and what was consumed of it."""

    request: str
    node: str
    device: str
    amounts: CardAllocation


class DeviceClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A ResourceClaim.

    Attributes:
        managed: it has a name that only FracGPU gives, and a pod controls it. Labels say nothing:
            whoever may change the claim may change them.
        owner: the pod that controls it.
        allocated: kube-scheduler has allocated it.
        devices: those of our driver that it was allocated.
        reserved_for: the pods that may use it.
        freed_on: the node that other pods have to leave, or have left, for its pod.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str = ""
    terminating: bool = False
    managed: bool = False
    owner: PodReference | None = None
    requests: tuple[DeviceRequest, ...] = ()
    allocated: bool = False
    devices: tuple[AllocatedDevice, ...] = ()
    reserved_for: tuple[PodReference, ...] = ()
    freed_on: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def node(self) -> str:
        """The node of its devices; empty before it is allocated."""
        return self.devices[0].node if self.devices else ""

    @property
    def holder(self) -> str:
        """The UID under which it is counted: of ours that of its pod, else its own."""
        return self.owner.uid if self.managed and self.owner is not None else self.uid

    @property
    def user(self) -> str:
        """The UID of the pod that has its cards: of users' own the first that it is reserved for.

        Its own UID while there is none.
        """
        if self.managed or not self.reserved_for:
            return self.holder
        return self.reserved_for[0].uid

    @property
    def tolerated(self) -> frozenset[DeviceTaint]:
        """The taints of ours that it tolerates; of a claim that users made they say nothing."""
        if not self.managed:
            return frozenset()
        return frozenset(taint for request in self.requests for taint in request.tolerated)

    @property
    def move(self) -> str:
        """The Move that reserves its card; empty without one. The spec of a claim never changes."""
        moves = (taint.value for taint in self.tolerated if taint.key == names.RESERVED_TAINT)
        return next(moves, "")

    @property
    def open(self) -> bool:
        """Whether some request has no shortlist."""
        return not all(request.cards for request in self.requests)

    @property
    def cards(self) -> frozenset[CardUuid]:
        """The cards that it lists."""
        return frozenset(card for request in self.requests for card in request.cards)

    @property
    def excluded(self) -> frozenset[CardUuid]:
        """The cards that it leaves out."""
        return frozenset(card for request in self.requests for card in request.excluded)

    @property
    def borrowing(self) -> frozenset[str]:
        """The containers that it lets use more than they are guaranteed."""
        requests = (one for one in self.requests if one.amounts and one.amounts.borrow_mib)
        return frozenset(request.name for request in requests)

    @property
    def first_choice(self) -> Assignment:
        """The first cards of each shortlist, which are on the best node; nothing if it is open."""
        if self.open:
            return {}
        return {
            request.name: tuple(
                _slice(card, request.amounts) for card in request.cards[: request.cards_wanted]
            )
            for request in self.requests
            if request.amounts is not None
        }


def _slice(card: CardUuid, amounts: CardAllocation) -> Slice:
    own_limit_mib = amounts.limit_mib if amounts.borrow_mib else Mib(0)
    return Slice(card=card, mib=amounts.mib, cores=amounts.cores, own_limit_mib=own_limit_mib)


def assignment_of(claim: DeviceClaim, cards: Mapping[str, CardUuid]) -> Assignment:
    """Return which cards each container was allocated; requests are named after containers.

    Args:
        claim: the claim.
        cards: those of its node, by device.

    Raises:
        WireError: a device is no card of the node, or a container has one twice.
    """
    found = defaultdict[str, list[Slice]](list)
    for one in claim.devices:
        card = cards.get(one.device)
        if card is None:
            message = f"{claim.key} has device {one.device}, which is no card of {one.node}"
            raise WireError(what=_WHAT, message=message)
        slices = found[one.request]
        if any(part.card == card for part in slices):
            message = f"{claim.key} has device {one.device} twice for '{one.request}'"
            raise WireError(what=_WHAT, message=message)
        slices.append(_slice(card, one.amounts))
    return {request: tuple(slices) for request, slices in found.items()}


def held_of_cards(
    claim: DeviceClaim, cards: Mapping[str, CardUuid]
) -> Mapping[CardUuid, CardAllocation]:
    """Return what a claim consumes of each card; an unknown one goes by the device's name."""
    found: dict[CardUuid, CardAllocation] = {}
    for one in claim.devices:
        card = cards.get(one.device, CardUuid(one.device))
        found[card] = held_together(found[card], one.amounts) if card in found else one.amounts
    return found


def held_together(one: CardAllocation, other: CardAllocation) -> CardAllocation:
    """Return what two parts of claims consume of a card."""
    return CardAllocation(
        mib=Mib(min(one.mib + other.mib, MAX_MIB)),
        borrow_mib=Mib(one.borrow_mib + other.borrow_mib),
        cores=one.cores + other.cores,
        slots=one.slots + other.slots,
    )


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None
    annotations: dict[str, str] | None = None


_Amounts = dict[str, str | int | float]


class _Capacity(msgspec.Struct):
    requests: _Amounts | None = None


class _Cel(msgspec.Struct):
    expression: str = ""


class _Selector(msgspec.Struct):
    cel: _Cel | None = None


class _Toleration(msgspec.Struct):
    key: str = ""
    operator: str = ""
    value: str = ""


class _Exactly(msgspec.Struct, rename="camel"):
    device_class_name: str = ""
    allocation_mode: str = ""
    count: int = 1
    capacity: _Capacity | None = None
    selectors: list[_Selector] | None = None
    admin_access: bool | None = None
    tolerations: list[_Toleration] | None = None


class _Request(msgspec.Struct):
    name: str = ""
    exactly: _Exactly | None = None


class _Devices(msgspec.Struct):
    requests: list[_Request] | None = None


class _Spec(msgspec.Struct):
    devices: _Devices | None = None


class _Result(msgspec.Struct, rename="camel"):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: _Amounts | None = None


class _Results(msgspec.Struct):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct):
    devices: _Results | None = None


class _Consumer(msgspec.Struct):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class _Claim(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder: Final = msgspec.json.Decoder(_Claim)


def decode_claim(body: bytes) -> DeviceClaim:
    """Return the ResourceClaim that *body* holds.

    Raises:
        WireError: *body* is no ResourceClaim.
    """
    wire = decode_wire(_decoder.decode, body, what=_WHAT)
    meta, allocation = wire.metadata, wire.status.allocation
    results = (allocation.devices.results if allocation and allocation.devices else None) or ()
    owners = [one for one in meta.owner_references or () if one.controller and one.kind == "Pod"]
    managed = names.is_made_for_a_pod(meta.name) and bool(owners)
    return DeviceClaim(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        terminating=meta.deletion_timestamp is not None,
        managed=managed,
        owner=PodReference(name=owners[0].name, uid=owners[0].uid) if owners else None,
        requests=tuple(
            _request(one, managed=managed)
            for one in (wire.spec.devices and wire.spec.devices.requests) or ()
        ),
        allocated=allocation is not None,
        devices=tuple(
            AllocatedDevice(
                request=one.request.partition("/")[0],  # without the name of a subrequest
                node=one.pool,
                device=one.device,
                amounts=_consumed(one.consumed_capacity, managed=managed),
            )
            for one in results
            if one.driver == names.DRA_DRIVER and not one.admin_access
        ),
        reserved_for=tuple(
            PodReference(name=one.name, uid=one.uid)
            for one in wire.status.reserved_for or ()
            if one.resource == "pods"
        ),
        freed_on=(meta.annotations or {}).get(names.FREED_ON, ""),
    )


def _request(wire: _Request, *, managed: bool) -> DeviceRequest:
    exactly = wire.exactly
    if exactly is None:  # alternatives, which are none of ours
        return DeviceRequest(name=wire.name, device_class="", plain=False)
    amounts = exactly.capacity.requests if exactly.capacity else None
    expressions = [one.cel.expression for one in exactly.selectors or () if one.cel is not None]
    return DeviceRequest(
        name=wire.name,
        device_class=exactly.device_class_name,
        cards_wanted=exactly.count,
        amounts=None if amounts is None else _amounts_of(amounts, managed=managed),
        cards=listed_cards(expressions[0]) if len(expressions) == 1 else (),
        excluded=frozenset(chain.from_iterable(map(excluded_cards, expressions))),
        plain=exactly.allocation_mode in ("", "ExactCount") and not exactly.admin_access,
        tolerated=tuple(
            DeviceTaint(one.key, one.value)
            for one in exactly.tolerations or ()
            if one.key.startswith(names.PREFIX) and one.operator in ("", "Equal")
        ),
    )


def _consumed(amounts: _Amounts | None, *, managed: bool) -> CardAllocation:
    """Return what was consumed of a device: all of it, where nothing says how much."""
    return WHOLE_CARD if not amounts else _amounts_of(amounts, managed=managed)


def _amounts_of(amounts: _Amounts, *, managed: bool) -> CardAllocation:
    """Return the amounts; what claims of users say to be borrowed counts as guaranteed."""
    limit_mib = min(memory_mib(str(amounts.get(devices.MEMORY, MAX_MIB << 20))), MAX_MIB)
    borrow_mib = memory_mib(str(amounts.get(devices.BORROWED, 0))) if managed else 0
    borrow_mib = borrow_mib if 0 < borrow_mib < limit_mib else 0
    return CardAllocation(
        mib=Mib(limit_mib - borrow_mib),
        borrow_mib=Mib(borrow_mib),
        cores=_rounded_up(amounts.get(devices.CORES, 0), most=FULL_CORES),
        slots=_rounded_up(amounts.get(devices.SLOTS, 1), most=_MOST_SLOTS),
    )


def _rounded_up(amount: str | int | float, *, most: int) -> int:
    """Return an amount rounded up; *most* if it cannot be read, or is more."""
    try:
        found = parse(amount)
    except ValueError:
        return most
    return min(max(-(-found.numerator // found.denominator), 0), most)
