"""Card classes: cards with the same shareable MiB; and which models a pod accepts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fracgpu.cards.card import Card, CardUuid, Health, NodeCards
from fracgpu.globs import any_glob_matches
from fracgpu.units import Mib


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
    by_size: dict[Mib, list[Card]] = {}
    per_node: list[Counter[Mib]] = []
    for node in nodes:
        _add_node(node, by_size, per_node)
    measured = frozenset(by_size)
    for node in supposed:
        _add_node(node, by_size, per_node)
    classes = [
        CardClass(
            capacity_mib=size,
            models=frozenset(model_key(card.model) for card in cards),
            most_per_node=max(counts[size] for counts in per_node),
            as_large_per_node=max(
                sum(count for other, count in counts.items() if other >= size)
                for counts in per_node
            ),
            cards=len(cards),
            free_share=_free_share(cards, size, free_mib),
            measured=size in measured,
        )
        for size, cards in by_size.items()
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


def _add_node(
    node: NodeCards, by_size: dict[Mib, list[Card]], per_node: list[Counter[Mib]]
) -> None:
    if not node.shared:
        return
    counts: Counter[Mib] = Counter()
    for card in node.cards:
        if card.health is Health.HEALTHY and card.capacity_mib > 0:
            by_size.setdefault(card.capacity_mib, []).append(card)
            counts[card.capacity_mib] += 1
    per_node.append(counts)


def _free_share(cards: Sequence[Card], size: Mib, free_mib: Mapping[CardUuid, Mib]) -> float:
    # A card whose capacity shrank below what its pods hold has a negative amount free; it counts as
    # 0, so that it does not reduce the sum of the others.
    free = sum(max(0, free_mib.get(card.uuid, 0)) for card in cards)
    return free / (size * len(cards))
