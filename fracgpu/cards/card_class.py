"""Card classes: cards with the same shareable MiB; whose a model is, and which a pod accepts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Final

from fracgpu.cards.card import CardUuid, Health, NodeCards
from fracgpu.globs import any_glob_covers, any_glob_matches, any_glob_overlaps
from fracgpu.k8s.node_affinity import NodeRules
from fracgpu.k8s.node_index import NodeIndex
from fracgpu.units import Mib

_MOST_NAMED: Final = 3  # nodes, in an error


class Vendor(Enum):
    """Who made a card: a program is built for the cards of one."""

    NVIDIA = "nvidia"
    AMD = "amd"


DEFAULT_VENDOR: Final = Vendor.NVIDIA
"""Whose cards a request means that names no vendor."""


def vendor_of(model: str) -> Vendor:
    """Return the vendor of a card model, or of the models that a glob of a pool matches.

    The agent begins the model of every AMD card with this word; no model of NVIDIA's has it.
    """
    return Vendor.AMD if model[:3].casefold() == "amd" else Vendor.NVIDIA


def has_one_vendor(glob: str) -> bool:
    """Report whether all models that a glob matches are of one vendor, :func:`vendor_of` it."""
    key = model_key(glob).casefold()
    return vendor_of(key) is Vendor.AMD or not any_glob_overlaps(key, ("amd*",))


@dataclass(frozen=True, slots=True, kw_only=True)
class CardClass:
    """The cards that a fraction is a fraction of: of one size, or of one class of the catalogue.

    Attributes:
        name: in the pool catalogue; empty for the cards with one amount of shareable MiB.
        capacity_mib: shareable MiB of each of these cards; of a named class, the smallest.
        models: the models of these cards; of a class that is only *declared*, globs of them.
        most_per_node: the largest number of such cards in one node.
        as_large_per_node: the largest number of cards in one node with *capacity_mib* or more.
        larger: the sizes in a named class, each with how many cards of a node are as large.
        free_share: free MiB of the class over its capacity, 0..1.
        measured: a node agent reported such a card; false when only node labels suggest it.
        declared: pools can offer such cards, whether or not a node has any now.
        vendors: of the models.
    """

    name: str = ""
    capacity_mib: Mib
    models: frozenset[str]
    most_per_node: int
    as_large_per_node: int = 0
    larger: tuple[tuple[Mib, int], ...] = ()
    cards: int
    free_share: float
    measured: bool = True
    declared: bool = False
    vendors: frozenset[Vendor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vendors", frozenset(map(vendor_of, self.models)))
        if self.as_large_per_node < self.most_per_node:
            object.__setattr__(self, "as_large_per_node", self.most_per_node)

    @property
    def largest_mib(self) -> Mib:
        """Shareable MiB of the largest of these cards."""
        return max((size for size, _ in self.larger), default=self.capacity_mib)

    @property
    def title(self) -> str:
        """The class in few words: ``a card that shares 40960 MiB``, or its name as well."""
        size = f"shares {self.capacity_mib} MiB"
        return f"{self.name}, which {size}" if self.name else f"a card that {size}"

    def allowed_by(self, globs: Sequence[str]) -> bool:
        """Report whether a model that the globs allow is of this class.

        Of a class that is only declared each card has to be allowed, whichever a pool brings.
        """
        if self.declared:
            return all(models_allowed(glob, globs=globs) for glob in self.models)
        return any(model_allowed(model, globs=globs) for model in self.models)

    def is_of(self, vendor: Vendor, globs: Sequence[str]) -> bool:
        """Report whether a model of *vendor* that the globs allow is of this class."""
        if vendor not in self.vendors:
            return False
        if not globs:
            return True
        if self.declared:
            return self.allowed_by(globs)
        return any(
            vendor_of(model) is vendor and model_allowed(model, globs=globs)
            for model in self.models
        )


def model_key(model: str) -> str:
    """Return a model as a label value has it: NVML's spaces become dashes."""
    return "-".join(model.split())


def model_allowed(model: str, *, globs: Sequence[str]) -> bool:
    """Report whether *model* matches one of *globs* and none of those that begin with ``!``.

    When all globs begin with ``!``, every model that matches none of them is allowed.
    """
    return not globs or _allowed(model, tuple(globs))


def models_allowed(glob: str, *, globs: Sequence[str]) -> bool:
    """Report whether *globs* allow every model that *glob* matches, as far as that is known."""
    return not globs or _all_allowed(glob, tuple(globs))


# The few models of a cluster are matched against a pod's globs once for each of thousands of cards.
@lru_cache(maxsize=2048)
def _allowed(model: str, globs: tuple[str, ...]) -> bool:
    wanted, unwanted = _split_globs(globs)
    key = model_key(model).casefold()
    if unwanted and any_glob_matches(key, unwanted):
        return False
    return not wanted or any_glob_matches(key, wanted)


@lru_cache(maxsize=2048)
def _all_allowed(glob: str, globs: tuple[str, ...]) -> bool:
    wanted, unwanted = _split_globs(globs)
    key = model_key(glob).casefold()
    if unwanted and any_glob_overlaps(key, unwanted):
        return False
    return not wanted or any_glob_covers(key, wanted)


@lru_cache(maxsize=16)
def _split_globs(globs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the globs that allow and those that exclude, in the form that a model key matches."""
    keys: tuple[list[str], list[str]] = ([], [])
    for glob in dict.fromkeys(globs):
        keys[glob.startswith("!")].append(model_key(glob.removeprefix("!")).casefold())
    return tuple(keys[False]), tuple(keys[True])


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedNodes:
    """The nodes that a pod's own selectors allow, as far as their cards matter.

    Attributes:
        rules: these selectors.
        classes: the classes of these nodes' cards, the largest free share first.
        count: the number of these nodes, with cards and without.
        without: the number of those without a shared, healthy card.
        some_without: the names of a few of those.
    """

    rules: NodeRules
    classes: tuple[CardClass, ...]
    count: int
    without: int
    some_without: tuple[str, ...]

    @property
    def names_without(self) -> str:
        """The nodes without a card, for messages."""
        more = self.without - len(self.some_without)
        return ", ".join(self.some_without) + (f" and {more} more" if more else "")

    @property
    def field(self) -> str:
        """The fields of the pod that select the nodes, as errors name them."""
        selector = ["spec.nodeSelector"] if self.rules.selector else []
        affinity = [] if self.rules.terms is None else ["the required node affinity"]
        return " and ".join((*selector, *affinity))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What nodes have in common that have as many cards of each size and of the same models.

    Attributes:
        name: the class in the pool catalogue that all their cards are of; empty for none.
    """

    name: str
    cards: tuple[tuple[Mib, int], ...]
    models: frozenset[tuple[Mib, str]]
    measured: bool


@dataclass(frozen=True, slots=True)
class _Counted:
    """What one node adds: the kind that it is of, and what is free of its cards by size."""

    kind: _Kind
    free_mib: tuple[tuple[Mib, int], ...]


class CardClassCounts:
    """Counts the shared, healthy cards of nodes by size: of all nodes, or of those a pod selects.

    A node is put again whenever something about it has changed. Of thousands of nodes most are of
    the kind of another one, and a set of nodes is a bitmap (:class:`NodeIndex`), so counting the
    nodes of a set goes through their kinds, and through the digits of what is free, but never
    through the nodes.
    """

    def __init__(self) -> None:
        self._index = NodeIndex()
        self._nodes: dict[str, _Counted] = {}
        self._kinds: dict[_Kind, int] = {}
        self._free: defaultdict[Mib, _BitSlicedAmounts] = defaultdict(_BitSlicedAmounts)

    def put(self, node: NodeCards, *, free_mib: Mapping[CardUuid, Mib], name: str = "") -> None:
        """Count a node as its agent reports it now; a card missing from *free_mib* is full.

        Args:
            node: the node.
            free_mib: of its cards.
            name: the class of its cards in the pool catalogue; empty for none.
        """
        self._put(node, free_mib, name, measured=True)

    def suppose(self, node: NodeCards, *, name: str = "") -> None:
        """Count a node whose labels describe cards that no agent has reported yet, as full."""
        self._put(node, {}, name, measured=False)

    def remove(self, name: str) -> None:
        """Count a node no more; an unknown one changes nothing."""
        position = self._index.remove(name)
        if position is not None:
            self._count(name, position, None)

    def classes(self, nodes: int | None = None) -> tuple[CardClass, ...]:
        """Return the classes, the largest free share first; those only supposed come last.

        Args:
            nodes: a set of nodes of the index; None for all.
        """
        counted = self._index.nodes if nodes is None else nodes
        smallest = self.smallest_by_name()
        parts: dict[str | Mib, dict[Mib, int]] = {}  # the nodes of each class, by size of card
        models: dict[str | Mib, set[str]] = {}
        measured: set[str | Mib] = set()
        cards: Counter[tuple[str | Mib, Mib]] = Counter()
        most: Counter[str | Mib] = Counter()
        mixes: set[tuple[tuple[Mib, int], ...]] = set()
        for kind, there in self._kinds.items():
            those = there & counted
            if not those:
                continue
            mixes.add(kind.cards)
            for size, count in kind.cards:
                key = kind.name or size
                nodes_of = parts.setdefault(key, {})
                nodes_of[size] = nodes_of.get(size, 0) | those
                cards[key, size] += count * those.bit_count()
                if kind.measured:
                    measured.add(key)
            for size, model in kind.models:
                models.setdefault(kind.name or size, set()).add(model)
            per_node: Counter[str | Mib] = Counter()
            for size, count in kind.cards:
                per_node[kind.name or size] += count
            most |= per_node
        as_large = _as_large_per_node(mixes)
        classes = []
        for key, nodes_of in parts.items():
            sizes = sorted(nodes_of)
            total_mib = sum(size * cards[key, size] for size in sizes)
            free_mib = sum(self._free[size].sum(those) for size, those in nodes_of.items())
            name = key if isinstance(key, str) else ""
            classes.append(
                CardClass(
                    name=name,
                    capacity_mib=smallest.get(name, sizes[0]),
                    models=frozenset(models[key]),
                    most_per_node=most[key],
                    as_large_per_node=as_large[sizes[0]],
                    larger=tuple((size, as_large[size]) for size in sizes if name),
                    cards=sum(cards[key, size] for size in sizes),
                    free_share=free_mib / total_mib,
                    measured=key in measured,
                )
            )
        return tuple(
            sorted(
                classes,
                key=lambda card_class: (
                    not card_class.measured,
                    -card_class.free_share,
                    card_class.capacity_mib,
                    card_class.name,
                ),
            )
        )

    def smallest_by_name(self) -> Mapping[str, Mib]:
        """Return the smallest shareable MiB of a measured card of each named class."""
        return self._smallest(
            lambda kind: [(kind.name, size) for size, _ in kind.cards if kind.name]
        )

    def smallest_by_model(self) -> Mapping[str, Mib]:
        """Return the smallest shareable MiB of a measured card of each model."""
        return self._smallest(lambda kind: [(model, size) for size, model in kind.models])

    def _smallest(self, of: Callable[[_Kind], Iterable[tuple[str, Mib]]]) -> Mapping[str, Mib]:
        found: dict[str, Mib] = {}
        for kind in self._kinds:
            for name, size in of(kind) if kind.measured else ():
                found[name] = min(size, found.get(name, size))
        return found

    def select(self, rules: NodeRules) -> SelectedNodes:
        """Return what the nodes have that selector and node affinity of a pod allow."""
        nodes = without = self._index.selected(rules)
        for there in self._kinds.values():
            without &= ~there
        return SelectedNodes(
            rules=rules,
            classes=self.classes(nodes),
            count=nodes.bit_count(),
            without=without.bit_count(),
            some_without=tuple(islice(self._index.names(without), _MOST_NAMED)),
        )

    def _put(
        self, node: NodeCards, free_mib: Mapping[CardUuid, Mib], name: str, *, measured: bool
    ) -> None:
        position = self._index.put(node.node, node.labels)
        cards: Counter[Mib] = Counter()
        free: Counter[Mib] = Counter()
        models: set[tuple[Mib, str]] = set()
        for card in node.cards if node.shared else ():
            size = card.capacity_mib
            if card.health is Health.HEALTHY and size > 0:
                cards[size] += 1
                models.add((size, model_key(card.model)))
                # A card whose capacity shrank below what its pods hold has a negative amount free;
                # it counts as 0, so that it does not reduce the sum of the others.
                free[size] += max(0, free_mib.get(card.uuid, 0))
        kind = _Kind(name, tuple(sorted(cards.items())), frozenset(models), measured)
        self._count(node.node, position, _Counted(kind, tuple(free.items())) if cards else None)

    def _count(self, name: str, position: int, counted: _Counted | None) -> None:
        """Count a node as this, or no more, instead of what it counted as before."""
        before = self._nodes.pop(name, None)
        if counted is not None:
            self._nodes[name] = counted
        for each in (before, counted):
            if each is not None:
                _flip(self._kinds, each.kind, 1 << position)
                for size, free_mib in each.free_mib:
                    self._free[size].flip(position, free_mib)


class _BitSlicedAmounts:
    """An amount for each node, as one bitmap for each binary digit.

    A sum over a set of nodes takes as many steps as there are digits. Source: O'Neil and Quass,
    "Improved Query Performance with Variant Indexes", 1997.
    """

    def __init__(self) -> None:
        self._digits: list[int] = []

    def flip(self, position: int, amount: int) -> None:
        """Set the amount of a node that has none; unset that of a node that has just this one."""
        self._digits += [0] * (amount.bit_length() - len(self._digits))
        for place in range(amount.bit_length()):
            if amount >> place & 1:
                self._digits[place] ^= 1 << position

    def sum(self, nodes: int) -> int:
        """Return the sum over a set of nodes."""
        return sum((digit & nodes).bit_count() << at for at, digit in enumerate(self._digits))


def _flip(sets: dict[_Kind, int], kind: _Kind, node: int) -> None:
    """Add a node to a set of nodes, or take it out; a set without nodes is not kept."""
    nodes = sets[kind] = sets.get(kind, 0) ^ node
    if not nodes:
        del sets[kind]


def _as_large_per_node(mixes: Iterable[tuple[tuple[Mib, int], ...]]) -> Mapping[Mib, int]:
    """Return by size how many cards as large one node has at most."""
    as_large: dict[Mib, int] = {}
    for cards in mixes:
        larger = 0
        for size, count in sorted(cards, reverse=True):
            larger += count
            as_large[size] = max(as_large.get(size, 0), larger)
    # A node without cards of a size has as many that are large as of its next larger size.
    larger = 0
    for size in sorted(as_large, reverse=True):
        larger = as_large[size] = max(larger, as_large[size])
    return as_large


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
