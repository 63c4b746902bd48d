"""The physical cards: what one is, what of it may be shared, and which kinds a cluster has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, NewType

from fracgpu import names, units
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.units import Mib

CardUuid = NewType("CardUuid", str)

# The shareable MiB of a card are floored to a multiple of this, so that equal fractions add up:
# two halves, five fifths or sixteen sixteenths, each rounded up to whole MiB, always fit one card.
# 80 = lcm(16, 20); see docs/decisions/0002-mib-integers.md.
SHARE_GRANULE_MIB: Final = 80

# How many containers may hold slices of one card at a time, unless the node's agent says otherwise.
DEFAULT_SLOTS: Final = 32

# How long heat is believed after the agent last stood by it, which it does every five minutes; and
# how far its clock may be ahead of the reader's.
HEAT_MAX_AGE: Final = timedelta(minutes=15)

MAX_CLOCK_SKEW: Final = timedelta(minutes=5)


class Health(Enum):
    """Whether new slices may go on a card. It may fall, and it may rise again."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One physical GPU, named by its UUID; the index is for display only.

    Attributes:
        total_mib: what NVML reports as the card's memory.
        reserved_mib: what the driver keeps, and any headroom the administrator set aside.
        links: distance to other cards of the node, smaller is faster; absent means unknown.
        slots: most containers that may hold slices of it at a time.
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

    @property
    def capacity_mib(self) -> Mib:
        """MiB that may be handed out: total less reserved, floored to the share granule."""
        shareable = max(0, self.total_mib - self.reserved_mib)
        return Mib(shareable - shareable % SHARE_GRANULE_MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """No new slices on a card until a time; it lapses by itself, so a crash cannot leave one."""

    card: CardUuid
    until: datetime
    reason: str


# Whose heat nobody knows counts as hot; that is all.
_NOT_CLOSING: Final = frozenset({names.NODE_HEAT, names.NODE_LOAD_TIME})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCards:
    """The cards of one node, and what currently keeps slices off some of them.

    Attributes:
        heat: how busy a card was lately, 0..1, where somebody says.
        foreign: MiB of a card that somebody uses who is no pod we know; it stands however old it
            is.
        load_time: when the agent last stood by *heat*, by its own clock.
        unreadable: annotation → why it cannot be read; each is read by itself.
        host: what the node has besides cards.
    """

    node: str
    cards: tuple[Card, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    shared: bool = True
    schedulable: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    heat: Mapping[CardUuid, float] = field(default_factory=dict)
    foreign: Mapping[CardUuid, Mib] = field(default_factory=dict)
    load_time: datetime | None = None
    host: "HostResources" = field(default_factory=lambda: NO_HOST_RESOURCES)

    @property
    def problem(self) -> str:
        """Why the node takes no new slices: what it has, or what keeps them off, is not known."""
        return "; ".join(why for key, why in self.unreadable.items() if key not in _NOT_CLOSING)

    def known_heat(self, *, now: datetime) -> Mapping[CardUuid, float]:
        """Give the heat that still holds at *now*: none that is old, or of an unknown time."""
        if self.load_time is None:
            return {}
        return self.heat if -MAX_CLOCK_SKEW <= now - self.load_time < HEAT_MAX_AGE else {}

    @property
    def heat_changes_at(self) -> tuple[datetime, ...]:
        """When :meth:`known_heat` begins and ends to hold, where there is heat at all."""
        if self.load_time is None or not self.heat:
            return ()
        return (self.load_time - MAX_CLOCK_SKEW, self.load_time + HEAT_MAX_AGE)

    def cordoned(self, *, now: datetime) -> frozenset[CardUuid]:
        """Give the cards whose cordon has not lapsed at *now*."""
        return frozenset(cordon.card for cordon in self.cordons if cordon.until > now)


FULL_CORES: Final = units.FULL_CORES
