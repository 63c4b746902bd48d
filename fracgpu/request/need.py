"""Values for what a pod asks for: its request in our language, and its need in MiB."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from operator import attrgetter
from typing import Final

import msgspec

from fracgpu.cards.card_class import Vendor
from fracgpu.k8s.container import ContainerKind
from fracgpu.units import Mib, format_mib


class Strategy(Enum):
    """Which of several fitting cards is preferred."""

    PACK = "pack"
    SPREAD = "spread"
    LEAST_WASTE = "least-waste"
    TOPOLOGY = "topology"
    LOAD_AWARE = "load-aware"


class Rebalance(Enum):
    """How the rebalancer may move this pod, if not by what its controller suggests."""

    SURGE = "surge"  # only once its replacement is Ready beside it
    EVICT = "evict"
    NEVER = "never"


class Topology(Enum):
    """How the cards of a container with several are chosen within a node."""

    ANY = "any"
    NVLINK = "nvlink"  # the fastest-linked ones


class Isolation(Enum):
    """What enforces a share of a card's memory."""

    BEST = "best"  # what the node can do best
    KERNEL = "kernel"  # the driver or the kernel, for all processes of a container
    MPS = "mps"  # a daemon of the card, for each process
    INTERPOSER = "interposer"  # a library in the container, for what goes through it
    NONE = "none"


MECHANISMS: Final = (Isolation.KERNEL, Isolation.MPS, Isolation.INTERPOSER)
"""Those that limit, the strongest first; a node may have some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The values of a key: *language* has all that are defined, *offered* those supported now.

    To support another value, add it to *offered*.
    """

    language: tuple[str, ...]
    offered: type[Enum]


class Gang(msgspec.Struct, frozen=True):
    """The pods of one namespace that are placed all at once, or not at all.

    Attributes:
        size: how many they are.
    """

    name: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}/{self.size}"


class SliceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one container asks for: a share of a card, or MiB, on each of *cards*.

    Attributes:
        share: exact share of a card of some class, or None if the container asks for *mib*.
        mib: MiB per card, or None if the container asks for a *share*.
        limit_share: how much of a card it may use beside its *share*; None if no more than that.
        limit_mib: how many MiB of each card it may use; None if no more than *mib*.
        cores: percent of one card's compute, 0 for none reserved.
        stated_mib: total MiB that the container's resource limits already state, or None.
        stated_slots: slots that the container's resource limits already state, or None.
    """

    container: str
    kind: ContainerKind = ContainerKind.APP
    share: Fraction | None = None
    mib: Mib | None = None
    limit_share: Fraction | None = None
    limit_mib: Mib | None = None
    cores: int = 0
    cards: int = 1
    stated_mib: Mib | None = None
    stated_slots: int | None = None


class PodRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod asks for; *slices* is never empty.

    *vendor* is None where the pod does not say it, and then NVIDIA for everyone but the webhook.
    """

    slices: tuple[SliceRequest, ...]
    vendor: Vendor | None = None
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    rebalance: Rebalance | None = None
    topology: Topology | None = None
    isolation: tuple[Isolation, ...] = ()


class ContainerNeed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one container needs: *mib* and *cores* on each of *cards* distinct cards.

    If *share* is set, only cards of which that share is exactly *mib* will do. Where a card's
    containers are limited, it may use as much as *limit_mib*, or the share *limit_share*, says.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    cards: int = 1
    mib: Mib
    cores: int = 0
    share: Fraction | None = None
    limit_share: Fraction | None = None
    limit_mib: Mib | None = None

    @property
    def may_borrow(self) -> bool:
        """Whether it may use more than it is guaranteed."""
        return self.limit_share is not None or self.limit_mib is not None

    @property
    def total_mib(self) -> Mib:
        """The container's gpu-mem limit."""
        return Mib(self.cards * self.mib)


class PodNeed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request in MiB, the input of placement.

    Attributes:
        by_claim: its cards are allocated by kube-scheduler, to a claim that the pod names.
    """

    containers: tuple[ContainerNeed, ...]
    vendor: Vendor | None = None
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    topology: Topology | None = None
    isolation: tuple[Isolation, ...] = ()
    by_claim: bool = False


# What a pod asks for as a whole is said by a request as by the need that is made of it.
_OF_POD: Final = tuple(
    name for name in PodNeed.__struct_fields__ if name in PodRequest.__struct_fields__
)
_values_of_pod: Final = attrgetter(*_OF_POD)


def need_of(request: PodRequest, containers: Sequence[ContainerNeed]) -> PodNeed:
    """Return a request with what its containers need in MiB."""
    of_pod = dict(zip(_OF_POD, _values_of_pod(request), strict=True))
    return PodNeed(containers=tuple(containers), **of_pod)


DEFAULT_STRATEGY: Final = Strategy.LEAST_WASTE


def describe_limit(container: ContainerNeed) -> str:
    """Return how much a container may use beyond what it is guaranteed; empty if nothing."""
    if container.limit_mib is not None:
        return f" (at most {format_mib(container.limit_mib)})"
    if container.limit_share is not None:
        return f" (at most {float(container.limit_share):.4g} of the card)"
    return ""


def describe_need(need: PodNeed) -> str:
    """Return a need in one line: ``train: 8 GiB on each of 2 cards, 30% of the compute``."""
    parts = []
    for container in need.containers:
        each = f"each of {container.cards} cards" if container.cards > 1 else "1 card"
        cores = f", {container.cores}% of the compute" if container.cores else ""
        size = f"{format_mib(container.mib)}{describe_limit(container)}"
        parts.append(f"{container.name}: {size} on {each}{cores}")
    models = f"; models {', '.join(need.models)}" if need.models else ""
    return "; ".join(parts) + models
