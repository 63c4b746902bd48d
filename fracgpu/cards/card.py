"""The physical cards: what one is, what of it may be shared, and which kinds a cluster has."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Final, NewType

from fracgpu import names
from fracgpu.globs import any_glob_matches
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
HEAT_LASTS: Final = timedelta(minutes=15)
CLOCKS_DIFFER: Final = timedelta(minutes=5)


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
class Host:
    """CPU in thousandths of a core, memory in MiB, and pods: of a node, or asked by a pod."""

    cpu_milli: int = 0
    memory_mib: int = 0
    pods: int = 0


NO_HOST: Final = Host()


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
    host: "Host" = field(default_factory=lambda: NO_HOST)

    @property
    def problem(self) -> str:
        """Why the node takes no new slices: what it has, or what keeps them off, is not known."""
        return "; ".join(why for key, why in self.unreadable.items() if key not in _NOT_CLOSING)

    def known_heat(self, *, now: datetime) -> Mapping[CardUuid, float]:
        """Give the heat that still holds at *now*: none that is old, or of an unknown time."""
        if self.load_time is None:
            return {}
        return self.heat if -CLOCKS_DIFFER <= now - self.load_time < HEAT_LASTS else {}

    @property
    def heat_changes_at(self) -> tuple[datetime, ...]:
        """When :meth:`known_heat` begins and ends to hold, where there is heat at all."""
        if self.load_time is None or not self.heat:
            return ()
        return (self.load_time - CLOCKS_DIFFER, self.load_time + HEAT_LASTS)

    def cordoned(self, *, now: datetime) -> frozenset[CardUuid]:
        """Give the cards whose cordon has not lapsed at *now*."""
        return frozenset(cordon.card for cordon in self.cordons if cordon.until > now)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardClass:
    """Cards of one shareable size: what a fraction is a fraction of.

    Attributes:
        capacity_mib: shareable MiB of each of these cards.
        models: the models that come in this size.
        most_per_node: the largest number of such cards in one node.
        as_large_per_node: the largest number of cards in one node that share this much or more.
        free_share: free MiB of the class over its capacity, 0..1.
        measured: a node agent reported such a card; else node labels suggest it.
    """

    capacity_mib: Mib
    models: frozenset[str]
    most_per_node: int
    as_large_per_node: int = 0
    cards: int
    free_share: float
    measured: bool = True

    def __post_init__(self) -> None:
        if self.as_large_per_node < self.most_per_node:
            object.__setattr__(self, "as_large_per_node", self.most_per_node)


def model_key(model: str) -> str:
    """Write a model as a label value does: NVML's spaces become dashes."""
    return "-".join(model.split())


def model_allowed(model: str, *, globs: Sequence[str]) -> bool:
    """Tell whether *model* matches one of *globs* and none of those that begin with ``!``.

    Without globs that allow, every model is allowed that is not excluded.
    """
    return not globs or _allowed(model, tuple(globs))


# The same few models are held against a pod's globs once for each of thousands of cards.
@lru_cache(maxsize=2048)
def _allowed(model: str, globs: tuple[str, ...]) -> bool:
    wanted, unwanted = _sorted_out(globs)
    key = model_key(model).casefold()
    if unwanted and any_glob_matches(key, unwanted):
        return False
    return not wanted or any_glob_matches(key, wanted)


@lru_cache(maxsize=16)
def _sorted_out(globs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the globs that allow and those that exclude, as they are held against a model's key."""
    keys: tuple[list[str], list[str]] = ([], [])
    for glob in dict.fromkeys(globs):
        keys[glob.startswith("!")].append(model_key(glob.removeprefix("!")).casefold())
    return tuple(keys[False]), tuple(keys[True])


def card_classes(
    nodes: Iterable[NodeCards],
    *,
    free_mib: Mapping[CardUuid, Mib],
    supposed: Iterable[NodeCards] = (),
) -> tuple[CardClass, ...]:
    """Sort the cluster's shared, healthy cards into classes, the most free share first.

    Cards missing from *free_mib* count as full: unknown is never free. Classes that only
    *supposed* nodes have, of which labels speak and no agent yet, come last.
    """
    by_size: dict[Mib, list[Card]] = {}
    per_node: list[Counter[Mib]] = []
    for node in nodes:
        _sort_in(node, by_size, per_node)
    measured = frozenset(by_size)
    for node in supposed:
        _sort_in(node, by_size, per_node)
    classes = [
        CardClass(
            capacity_mib=size,
            models=frozenset(model_key(card.model) for card in cards),
            most_per_node=max(here[size] for here in per_node),
            as_large_per_node=max(
                sum(count for other, count in here.items() if other >= size) for here in per_node
            ),
            cards=len(cards),
            free_share=_free_share(cards, size, free_mib),
            measured=size in measured,
        )
        for size, cards in by_size.items()
    ]
    return tuple(sorted(classes, key=lambda it: (not it.measured, -it.free_share, it.capacity_mib)))


def _sort_in(node: NodeCards, by_size: dict[Mib, list[Card]], per_node: list[Counter[Mib]]) -> None:
    if not node.shared:
        return
    here: Counter[Mib] = Counter()
    for card in node.cards:
        if card.health is Health.HEALTHY and card.capacity_mib > 0:
            by_size.setdefault(card.capacity_mib, []).append(card)
            here[card.capacity_mib] += 1
    per_node.append(here)


def _free_share(cards: Sequence[Card], size: Mib, free_mib: Mapping[CardUuid, Mib]) -> float:
    # A card that shrank under its pods has less than nothing free; that takes nothing from others.
    free = sum(max(0, free_mib.get(card.uuid, 0)) for card in cards)
    return free / (size * len(cards))
