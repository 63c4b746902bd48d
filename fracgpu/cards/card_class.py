"""Card classes: cards with the same shareable MiB; and which models a pod accepts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from fracgpu.cards.card import CardUuid, Health, NodeCards
from fracgpu.globs import any_glob_matches
from fracgpu.units import Mib

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardClass:
    """The cards with one amount of shareable MiB, which a fraction is a fraction of.

    Attributes:
        capacity_mib: shareable MiB of each of these cards.
        models: the models of these cards.
        most_per_node: the largest number of such cards in one node.
        as_large_per_node: the largest number of cards in one node with *capacity_mib* or more.
        free_share: free MiB of the class over its capacity, 0..1.
        measured: a node agent reported such a card; false when only node labels suggest it.
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
    """Return a model as a label value has it: NVML's spaces become dashes."""
    return "-".join(model.split())


def model_allowed(model: str, *, globs: Sequence[str]) -> bool:
    """Report whether *model* matches one of *globs* and none of those that begin with ``!``.

    When all globs begin with ``!``, every model that matches none of them is allowed.
    """
    return not globs or _allowed(model, tuple(globs))


# The few models of a cluster are matched against a pod's globs once for each of thousands of cards.
@lru_cache(maxsize=2048)
def _allowed(model: str, globs: tuple[str, ...]) -> bool:
    wanted, unwanted = _split_globs(globs)
    key = model_key(model).casefold()
    if unwanted and any_glob_matches(key, unwanted):
        return False
    return not wanted or any_glob_matches(key, wanted)


@lru_cache(maxsize=16)
def _split_globs(globs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the globs that allow and those that exclude, in the form that a model key matches."""
    keys: tuple[list[str], list[str]] = ([], [])
    for glob in dict.fromkeys(globs):
        keys[glob.startswith("!")].append(model_key(glob.removeprefix("!")).casefold())
    return tuple(keys[False]), tuple(keys[True])


@dataclass(frozen=True, slots=True)
class _Counted:
    """What one node adds: its cards, their models and what is free of them, each by size."""

    cards: tuple[tuple[Mib, int], ...]
    models: tuple[tuple[Mib, str], ...]
    free_mib: tuple[tuple[Mib, int], ...]
    measured: bool


class CardClassCounts:
    """Counts the shared, healthy cards of nodes by size, so that one node's change costs little.

    A node is put again whenever something about it has changed.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Counted] = {}
        # How many nodes have just these cards: of thousands of nodes most are like another one.
        self._alike: Counter[tuple[tuple[Mib, int], ...]] = Counter()
        self._cards: Counter[Mib] = Counter()
        self._measured: Counter[Mib] = Counter()
        self._free_mib: Counter[Mib] = Counter()
        self._models: dict[Mib, Counter[str]] = {}

    def put(self, node: NodeCards, *, free_mib: Mapping[CardUuid, Mib]) -> None:
        """Count a node as its agent reports it now; a card missing from *free_mib* is full."""
        self._put(node, free_mib, measured=True)

    def suppose(self, node: NodeCards) -> None:
        """Count a node whose labels describe cards that no agent has reported yet, as full."""
        self._put(node, {}, measured=False)

    def remove(self, name: str) -> None:
        """Count a node no more; an unknown one changes nothing."""
        before = self._nodes.pop(name, None)
        if before is not None:
            self._add(before, -1)

    def classes(self) -> tuple[CardClass, ...]:
        """Return the classes, the largest free share first; those only supposed come last."""
        most, as_large = self._most_per_node()
        classes = [
            CardClass(
                capacity_mib=size,
                models=frozenset(self._models[size]),
                most_per_node=most[size],
                as_large_per_node=as_large[size],
                cards=cards,
                free_share=self._free_mib[size] / (size * cards),
                measured=size in self._measured,
            )
            for size, cards in self._cards.items()
        ]
        return tuple(
            sorted(
                classes,
                key=lambda card_class: (
                    not card_class.measured,
                    -card_class.free_share,
                    card_class.capacity_mib,
                ),
            )
        )

    def _most_per_node(self) -> tuple[Mapping[Mib, int], Mapping[Mib, int]]:
        """Return by size how many cards of it one node has at most, and how many as large."""
        most: dict[Mib, int] = {}
        as_large: dict[Mib, int] = {}
        for cards in self._alike:
            larger = 0
            for size, count in sorted(cards, reverse=True):
                larger += count
                most[size] = max(most.get(size, 0), count)
                as_large[size] = max(as_large.get(size, 0), larger)
        # A node without cards of a size has as many that are as large as of its next larger size.
        larger = 0
        for size in sorted(as_large, reverse=True):
            larger = as_large[size] = max(larger, as_large[size])
        return most, as_large

    def _put(self, node: NodeCards, free_mib: Mapping[CardUuid, Mib], *, measured: bool) -> None:
        self.remove(node.node)
        cards: Counter[Mib] = Counter()
        free: Counter[Mib] = Counter()
        models: set[tuple[Mib, str]] = set()
        for card in node.cards if node.shared else ():
            size = card.capacity_mib
            if card.health is Health.HEALTHY and size > 0:
                cards[size] += 1
                models.add((size, card.model))
                # A card whose capacity shrank below what its pods hold has a negative amount free;
                # it counts as 0, so that it does not reduce the sum of the others.
                free[size] += max(0, free_mib.get(card.uuid, 0))
        if cards:
            counted = _Counted(
                cards=tuple(cards.items()),
                models=tuple((size, model_key(model)) for size, model in models),
                free_mib=tuple(free.items()),
                measured=measured,
            )
            self._nodes[node.node] = counted
            self._add(counted, 1)

    def _add(self, node: _Counted, sign: int) -> None:
        _count(self._alike, node.cards, sign)
        for size, cards in node.cards:
            _count(self._cards, size, sign * cards)
            if node.measured:
                _count(self._measured, size, sign * cards)
        for size, free in node.free_mib:
            _count(self._free_mib, size, sign * free)
        for size, model in node.models:
            _count(self._models.setdefault(size, Counter()), model, sign)
            if not self._models[size]:
                del self._models[size]


def _count(counter: Counter[_T], key: _T, change: int) -> None:
    """Add to a counter, which keeps no key that counts nothing."""
    counter[key] += change
    if not counter[key]:
        del counter[key]


def card_classes(
    nodes: Iterable[NodeCards],
    *,
    free_mib: Mapping[CardUuid, Mib],
    supposed: Iterable[NodeCards] = (),
) -> tuple[CardClass, ...]:
    """Return the classes of the cluster's shared, healthy cards, the largest free share first.

    Cards missing from *free_mib* count as full: unknown is never free. Classes that only
    *supposed* nodes have, whose labels describe cards that no agent has reported yet, come last.
    """
    counts = CardClassCounts()
    for node in nodes:
        counts.put(node, free_mib=free_mib)
    for node in supposed:
        counts.suppose(node)
    return counts.classes()
