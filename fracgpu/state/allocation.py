"""What one pod holds of its cards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.annotations import MAX_ANNOTATION_CHARS
from fracgpu.cards.card import CardUuid
from fracgpu.errors import RequestError, WireError, decode_wire
from fracgpu.k8s.container import ContainerKind, ContainerSpec, pod_resource_sum
from fracgpu.units import FULL_CORES, MAX_MIB, Mib, parse_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One container's share of one card; ``cores`` 0 means compute is shared freely.

    Attributes:
        mib: what it is guaranteed.
        own_limit_mib: how much it may use, also when it is resized; 0 for no more than *mib*.
    """

    card: CardUuid
    mib: Mib
    cores: int = 0
    own_limit_mib: Mib = Mib(0)

    @property
    def limit_mib(self) -> Mib:
        """How much the container may use: never less than it is guaranteed."""
        return max(self.mib, self.own_limit_mib)


# What the Binding writes on the pod: container name → its slices, on distinct cards.
Assignment = Mapping[str, tuple[Slice, ...]]


def cards_in(assignment: Assignment) -> frozenset[CardUuid]:
    """Return the cards of an assignment."""
    return frozenset(part.card for parts in assignment.values() for part in parts)


class CardAllocation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one pod takes of one card at its peak; *slots* is one for each container.

    Attributes:
        mib: what it is guaranteed.
        borrow_mib: how much more it may use.
    """

    mib: Mib
    cores: int = 0
    slots: int = 1
    borrow_mib: Mib = Mib(0)

    @property
    def limit_mib(self) -> Mib:
        """How much the pod may use."""
        return Mib(self.mib + self.borrow_mib)


def places(assignment: Assignment) -> frozenset[tuple[str, CardUuid]]:
    """Return the container and card of each slice."""
    return frozenset(sizes(assignment))


def sizes(assignment: Assignment) -> dict[tuple[str, CardUuid], Mib]:
    """Return the size of each slice by container and card."""
    return {(name, part.card): part.mib for name, parts in assignment.items() for part in parts}


def by_slice(one: Assignment, other: Assignment, choose: Callable[[Mib, Mib], Mib]) -> Assignment:
    """Return an assignment of the same slices, each of the size that *choose* returns."""
    there = sizes(other)
    return {
        name: tuple(replace(part, mib=choose(part.mib, there[name, part.card])) for part in parts)
        for name, parts in one.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """How far the resizes of a pod have come.

    Attributes:
        asked: the size that was answered last, as it was asked for.
        refused: why it was refused; empty if it was granted.
        assigned: what the Binding assigned.
        granted: what was granted last, or else assigned: the limits that it is to have.
        applied: the limits that the agent has confirmed last, or else assigned.
    """

    asked: str
    refused: str = ""
    assigned: Assignment
    granted: Assignment
    applied: Assignment

    @property
    def counts(self) -> Assignment:
        """What the pod holds: of each slice the larger of what is granted and applied."""
        return by_slice(self.granted, self.applied, max)

    @property
    def under_way(self) -> bool:
        """Whether what is granted is not applied yet."""
        return self.granted != self.applied


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """The facts about one pod that decide what it holds.

    Attributes:
        live: not Succeeded or Failed. A terminating pod is live until it is gone, because its
            processes still hold the card's memory.
        assignment: None when there is none or it could not be read; then *problem* says why.
        move: the name of the Move whose reservation the pod consumed; empty if it consumed none.
        resize: how far its resizes have come; None if it was never resized. *assignment* is then
            what counts.
        resized: it was, so that its limits do not bound what it holds.
        by_claim: the assignment is of a claim, of which all requests count at once.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    live: bool = True
    terminating: bool = False
    resource_version: str = ""
    containers: tuple[ContainerSpec, ...] = ()
    assignment: Assignment | None = None
    problem: str = ""
    move: str = ""
    resize: Resize | None = None
    resized: bool = False
    by_claim: bool = False

    @property
    def counted(self) -> tuple[ContainerSpec, ...]:
        """The containers of which the kind decides how their slices add up."""
        return () if self.by_claim else self.containers

    @property
    def limits(self) -> Assignment | None:
        """The limits that its containers are to have on their cards."""
        return self.assignment if self.resize is None else self.resize.granted

    @property
    def key(self) -> str:
        """``namespace/name``, for people."""
        return f"{self.namespace}/{self.name}"


WHOLE_CARD: Final = CardAllocation(mib=MAX_MIB, cores=FULL_CORES)


def allocations_by_card(
    assignment: Assignment, containers: Sequence[ContainerSpec]
) -> dict[CardUuid, CardAllocation]:
    """Return what the pod takes of each card at its peak.

    Kubernetes' rule for init and sidecar containers is applied card by card. A container that the
    assignment names and the spec does not is counted as an app container: counting too much is
    safe, too little is not.
    """
    if len(assignment) == 1:  # nearly every pod: there is nothing to add up
        (slices,) = assignment.values()
        return {
            part.card: CardAllocation(
                mib=part.mib, cores=part.cores, borrow_mib=Mib(part.limit_mib - part.mib)
            )
            for part in slices
        }
    kinds = {container.name: container.kind for container in containers}
    order = [container.name for container in containers if container.name in assignment]
    order += [name for name in assignment if name not in kinds]
    mib: dict[CardUuid, list[tuple[ContainerKind, int]]] = {}
    cores: dict[CardUuid, list[tuple[ContainerKind, int]]] = {}
    limits: dict[CardUuid, list[tuple[ContainerKind, int]]] = {}
    for name in order:
        kind = kinds.get(name, ContainerKind.APP)
        for part in assignment[name]:
            mib.setdefault(part.card, []).append((kind, part.mib))
            cores.setdefault(part.card, []).append((kind, part.cores))
            limits.setdefault(part.card, []).append((kind, part.limit_mib))
    return {
        card: CardAllocation(
            mib=Mib(peak_mib := pod_resource_sum(amounts)),
            cores=pod_resource_sum(cores[card]),
            slots=pod_resource_sum([(kind, 1) for kind, _ in amounts]),
            borrow_mib=Mib(pod_resource_sum(limits[card]) - peak_mib),
        )
        for card, amounts in mib.items()
    }


def most_by_limits(containers: Sequence[ContainerSpec]) -> CardAllocation:
    """Return the most that a pod can hold of any one card when its assignment cannot be read.

    The limits bound the MiB: the node agent starts no container with more. Without readable limits
    it may be a whole card of any size. The limits do not say how much compute a container gets, so
    all of it is counted.
    """
    amounts: list[tuple[ContainerKind, int]] = []
    for container in containers:
        text = container.limits.get(names.GPU_MEM)
        if text is None:
            continue
        try:
            amounts.append((container.kind, parse_mib(text, field=names.GPU_MEM)))
        except RequestError:
            return WHOLE_CARD
    if not amounts:
        return WHOLE_CARD
    return CardAllocation(
        mib=Mib(pod_resource_sum(amounts)),
        cores=FULL_CORES,
        slots=pod_resource_sum([(kind, 1) for kind, _ in amounts]),
    )


class _WireSlice(msgspec.Struct, omit_defaults=True):
    card: str
    mib: int
    cores: int = 0
    limit: int = 0


_assignment_decoder: Final = msgspec.json.Decoder(dict[str, list[_WireSlice]])

_encoder: Final = msgspec.json.Encoder(order="sorted")


def read_assignment(text: str) -> Assignment:
    """Return the assignment that ``fracgpu.io/assignment`` holds.

    Raises:
        WireError: *text* is not what :func:`write_assignment` writes.
    """
    what = names.ASSIGNMENT
    if len(text) > MAX_ANNOTATION_CHARS:
        raise WireError(
            what=what, message=f"{len(text)} characters; want at most {MAX_ANNOTATION_CHARS}"
        )
    wire = decode_wire(_assignment_decoder.decode, text, what=what)
    assignment = {}
    for container, slices in wire.items():
        fault = _slices_fault(slices)
        if fault:
            raise WireError(what=what, message=f"container '{container}' has {fault}")
        assignment[container] = tuple(
            Slice(
                card=CardUuid(part.card),
                mib=Mib(part.mib),
                cores=part.cores,
                own_limit_mib=Mib(part.limit),
            )
            for part in slices
        )
    if not assignment:
        raise WireError(what=what, message="no container")
    return assignment


def _slices_fault(slices: Sequence[_WireSlice]) -> str:
    if not slices:
        return "no slice"
    if len({part.card for part in slices}) != len(slices):
        return "one card twice"
    for part in slices:
        if not 1 <= part.mib <= MAX_MIB or not 0 <= part.cores <= FULL_CORES:
            return f"{part.mib} MiB and {part.cores}% of a card"
        if part.limit and not part.mib <= part.limit <= MAX_MIB:
            return f"{part.mib} MiB and a limit of {part.limit} MiB"
    return ""


def write_assignment(assignment: Assignment) -> str:
    """Return an assignment as compact JSON with sorted keys."""
    return _encoder.encode(
        {
            container: [
                _WireSlice(
                    card=part.card,
                    mib=part.mib,
                    cores=part.cores,
                    limit=part.limit_mib if part.limit_mib > part.mib else 0,
                )
                for part in slices
            ]
            for container, slices in assignment.items()
        }
    ).decode()
