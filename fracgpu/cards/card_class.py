"""Card classes: the cards of one shareable size, and which models a pod accepts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fracgpu.cards.card import Card, CardUuid, Health, NodeCards
from fracgpu.globs import any_glob_matches
from fracgpu.units import Mib


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
