"""The physical cards of a node: what each has, what may be shared, and what keeps slices off it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, NewType

from fracgpu import names, units
from fracgpu.k8s.node import Taint
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.units import Mib

CardUuid = NewType("CardUuid", str)

# The shareable MiB of a card are floored to a multiple of this, so that equal fractions add up:
# two halves, five fifths or sixteen sixteenths, each rounded up to whole MiB, always fit one card.
# 80 = lcm(16, 20); see docs/decisions/0002-gpu-memory-is-counted-in-whole-mib.md.
SHARE_GRANULE_MIB: Final = 80

# How many containers may hold slices of one card at a time, unless the node agent reports another
# number.
DEFAULT_SLOTS: Final = 32

# Of a node; no machine has as many.
MOST_CARDS: Final = 64

# How long heat is valid after the agent last confirmed it, which it does every five minutes; and
# how far the agent's clock may be ahead of the reader's.
HEAT_MAX_AGE: Final = timedelta(minutes=15)

MAX_CLOCK_SKEW: Final = timedelta(minutes=5)


class Health(Enum):
    """Whether new slices may be placed on a card; it may recover."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One physical GPU, identified by its UUID; the index is for display only.

    Attributes:
        total_mib: what NVML reports as the card's memory.
        reserved_mib: memory kept by the driver, and headroom configured by the administrator.
        links: distance to other cards of the node, smaller is faster; absent means unknown.
        slots: the most containers that may hold slices of the card at a time.
        errors: for which it is kept unhealthy a while, though the driver says nothing of them any
            more: an agent that starts reads them where the one before it wrote them.
        limits_mib: what the limits of its containers may add up to, by which some may use more than
            they are guaranteed; 0 where neither driver nor kernel limits them.
    """

    uuid: CardUuid
    index: int
    model: str
    total_mib: Mib
    reserved_mib: Mib = Mib(0)
    health: Health = Health.HEALTHY
    health_reason: str = ""
    numa_node: int | None = None
    links: Mapping[CardUuid, int] = field(default_factory=dict)
    slots: int = DEFAULT_SLOTS
    limits_mib: Mib = Mib(0)
    errors: tuple[str, ...] = ()

    @property
    def capacity_mib(self) -> Mib:
        """Shareable MiB: total less reserved, rounded down to the share granule."""
        shareable = max(0, self.total_mib - self.reserved_mib)
        return Mib(shareable - shareable % SHARE_GRANULE_MIB)

    @property
    def most_limits_mib(self) -> Mib:
        """What limits may add up to; without limits of its own, what is guaranteed is the limit."""
        return self.limits_mib or self.capacity_mib


class CordonEffect(Enum):
    """What a cordon does to new slices, in the words of Kubernetes' taints."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"  # the card is taken where no other fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A card that takes no new slices, or only the last ones, until a time.

    A cordon expires, so a crash leaves none.
    """

    card: CardUuid
    until: datetime
    reason: str
    effect: CordonEffect = CordonEffect.NO_SCHEDULE


# Annotations that do not close the node when they cannot be parsed: its cards only count as hot,
# or it is not shown what pods use.
_NOT_CLOSING: Final = frozenset({names.NODE_HEAT, names.NODE_USED, names.NODE_LOAD_TIME})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCards:
    """The cards of one node, and what currently keeps new slices off them.

    Attributes:
        drained: cards that take no more pods, because people want them empty.
        shared: the node shares its cards.
        schedulable: the node takes new pods.
        unschedulable: it is cordoned (``spec.unschedulable``).
        soft_taints: those that ask for pods to run elsewhere (``PreferNoSchedule``).
        leaving: an autoscaler is about to remove it.
        unreadable: annotations that cannot be parsed, each with the error.
        heat: how busy each card was lately, 0..1, where it is known.
        foreign: MiB in use on each card by no known pod; valid however old it is.
        used: MiB that pods use of each card, by their UIDs, for people; an earlier report's.
        load_time: when the agent last confirmed *heat*, by its own clock.
        host: CPU, host memory and number of pods of the node.
        isolation: by mechanism that limits containers, why it cannot on its cards; empty where it
            can.
        identity: how its agent knows whose container starts: ``nri``, ``listed`` or ``claims``;
            empty before.
    """

    node: str
    cards: tuple[Card, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    drained: frozenset[CardUuid] = frozenset()
    shared: bool = True
    schedulable: bool = True
    unschedulable: bool = False
    soft_taints: tuple[Taint, ...] = ()
    leaving: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    heat: Mapping[CardUuid, float] = field(default_factory=dict)
    foreign: Mapping[CardUuid, Mib] = field(default_factory=dict)
    used: Mapping[CardUuid, Mapping[str, Mib]] = field(default_factory=dict)
    load_time: datetime | None = None
    host: "HostResources" = field(default_factory=lambda: NO_HOST_RESOURCES)
    identity: str = ""
    isolation: Mapping[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """Why the node takes no new slices: an annotation that limits them cannot be parsed."""
        return "; ".join(why for key, why in self.unreadable.items() if key not in _NOT_CLOSING)

    @property
    def by_claims(self) -> bool:
        """Whether kube-scheduler allocates its cards, to claims."""
        return self.identity == names.IDENTITY_CLAIMS

    def known_heat(self, *, now: datetime) -> Mapping[CardUuid, float]:
        """Return the heat that is valid at *now*; none if it is too old or has no time."""
        if self.load_time is None:
            return {}
        return self.heat if -MAX_CLOCK_SKEW <= now - self.load_time < HEAT_MAX_AGE else {}

    @property
    def heat_changes_at(self) -> tuple[datetime, ...]:
        """The times at which the result of :meth:`known_heat` changes; none without heat."""
        if self.load_time is None or not self.heat:
            return ()
        return (self.load_time - MAX_CLOCK_SKEW, self.load_time + HEAT_MAX_AGE)

    def effects(self, *, now: datetime) -> Mapping[CardUuid, CordonEffect]:
        """Return what keeps new pods off the cards at *now*: cordons, and that they are drained."""
        found = {cordon.card: cordon.effect for cordon in self.cordons if cordon.until > now}
        return found | dict.fromkeys(self.drained, CordonEffect.NO_SCHEDULE)

    def cordoned(self, *, now: datetime) -> frozenset[CardUuid]:
        """Return the cards that take no new slices at *now*."""
        return frozenset(
            card
            for card, effect in self.effects(now=now).items()
            if effect is CordonEffect.NO_SCHEDULE
        )


FULL_CORES: Final = units.FULL_CORES
