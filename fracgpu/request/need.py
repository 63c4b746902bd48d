"""What a pod asks for, in our language and in MiB: values without decisions."""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

from fracgpu.k8s.container import ContainerKind
from fracgpu.units import Mib


class Strategy(Enum):
    """Which of several fitting cards is the best one."""

    PACK = "pack"
    SPREAD = "spread"
    LEAST_WASTE = "least-waste"
    TOPOLOGY = "topology"
    LOAD_AWARE = "load-aware"


class Rebalance(Enum):
    """How the rebalancer may move this pod."""

    EVICT = "evict"
    NEVER = "never"


class Topology(Enum):
    """Which cards of one node go together, for a container on several."""

    ANY = "any"
    NVLINK = "nvlink"  # the fastest-linked ones


class Isolation(Enum):
    """What enforces a share on its card."""

    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A key whose values are words: all that the language has, and those that we honour now.

    To honour one more is to add it to *offered*.
    """

    language: tuple[str, ...]
    offered: type[Enum]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRequest:
    """What one container asks, before any card: a share of a card, or MiB, on each of *cards*.

    Attributes:
        share: exact share of a card of some class, or None where *mib* says it.
        mib: MiB per card, or None where *share* says it.
        cores: percent of one card's compute, 0 where it is shared freely.
        stated_mib: total MiB that the container's limits already carry, or None.
        stated_slots: slots that the container's limits already carry, or None.
    """

    container: str
    kind: ContainerKind = ContainerKind.APP
    share: Fraction | None = None
    mib: Mib | None = None
    cores: int = 0
    cards: int = 1
    stated_mib: Mib | None = None
    stated_slots: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What a pod asks for; *slices* is never empty."""

    slices: tuple[SliceRequest, ...]
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    rebalance: Rebalance | None = None
    topology: Topology | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerNeed:
    """What one container must be given: *mib* and *cores* on each of *cards* distinct cards.

    With *share* set, only cards where that share is exactly *mib* will do.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    cards: int = 1
    mib: Mib
    cores: int = 0
    share: Fraction | None = None

    @property
    def total_mib(self) -> Mib:
        """What the container's gpu-mem limit says."""
        return Mib(self.cards * self.mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNeed:
    """A request in MiB: what placement works with."""

    containers: tuple[ContainerNeed, ...]
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    topology: Topology | None = None


DEFAULT_STRATEGY: Final = Strategy.LEAST_WASTE
