"""The pool catalogue: which card classes there are, also while no node has such a card.

An administrator names the classes of cards that node pools can offer. A node whose cards are all of
one class carries its name as a label, and so do the templates of the pools, by which an autoscaler
judges a pending pod. So a share can be granted before the node exists.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Final

from fracgpu import names
from fracgpu.cards.card import DEFAULT_SLOTS, SHARE_GRANULE_MIB, Card, CardUuid
from fracgpu.cards.card_class import (
    CardClass,
    Vendor,
    model_allowed,
    model_key,
    models_allowed,
    vendor_of,
)
from fracgpu.globs import any_glob_overlaps
from fracgpu.k8s.node import Taint
from fracgpu.k8s.node_affinity import NodeExpression, NodeRules
from fracgpu.units import Mib

# What an autoscaler's template has of each node besides what the catalogue lists.
# Source: kubernetes.io, "Well-Known Labels, Annotations and Taints".
_KNOWN_LATER: Final = (
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool of nodes with cards of one class.

    Attributes:
        cards: of each node.
        slots_per_card: how many containers may share a card.
        labels: of its nodes, apart from ours and from those that every node has.
        taints: of its nodes, apart from those that go away when the node is ready.
    """

    name: str
    cards: int
    slots_per_card: int = DEFAULT_SLOTS
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolClass:
    """A card class as an administrator names it.

    Attributes:
        models: globs of the models of its cards.
        nominal_mib: shareable MiB of each card, at least; what a share is a share of while no such
            card has been measured.
    """

    name: str
    models: tuple[str, ...]
    nominal_mib: Mib
    pools: tuple[Pool, ...]

    @property
    def mib(self) -> Mib:
        """The nominal MiB, rounded down as those of a measured card are."""
        return Mib(self.nominal_mib - self.nominal_mib % SHARE_GRANULE_MIB)

    def has(self, model: str) -> bool:
        """Report whether cards of a model are of this class."""
        return model_allowed(model, globs=self.models)


@dataclass(frozen=True, kw_only=True)
class PoolCatalogue:
    """The card classes that an administrator named; empty where there is no catalogue."""

    classes: tuple[PoolClass, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.classes)

    @cached_property
    def by_name(self) -> Mapping[str, PoolClass]:
        """The classes by name."""
        return {each.name: each for each in self.classes}

    def class_of(self, cards: Sequence[Card]) -> str:
        """Return the class of all these cards; empty if they are of several, or of none."""
        models = {card.model for card in cards}
        found = [each for each in self.classes if all(map(each.has, models))] if models else []
        return found[0].name if found else ""

    def class_of_node(self, labels: Mapping[str, str], cards: Sequence[Card]) -> str:
        """Return the class that a node's label names; empty if its cards are of another.

        Without cards the label is believed: the node has not reported yet.
        """
        name = labels.get(names.CARD_CLASS_LABEL, "")
        known = self.class_of(cards) if cards else name
        return name if name in self.by_name and known == name else ""

    def declared(self, rules: NodeRules, measured: Mapping[str, Mib]) -> tuple[CardClass, ...]:
        """Return the classes of pools whose nodes a pod could select, as if each had no node.

        Args:
            rules: the pod's own selectors.
            measured: the smallest shareable MiB of each class that has cards.
        """
        found = []
        for each in self.classes:
            pools = [pool for pool in each.pools if _selects(rules, template_labels(each, pool))]
            if pools:
                found.append(
                    CardClass(
                        name=each.name,
                        capacity_mib=measured.get(each.name, each.mib),
                        models=frozenset(map(model_key, each.models)),
                        most_per_node=max(pool.cards for pool in pools),
                        cards=0,
                        free_share=0.0,
                        measured=False,
                        declared=True,
                    )
                )
        return tuple(found)

    def of_other_models(
        self, globs: Sequence[str], classes: Iterable[CardClass], vendor: Vendor
    ) -> tuple[str, ...]:
        """Return the classes whose pools may bring cards that a pod cannot have.

        Args:
            globs: the models that the pod allows.
            classes: of the cluster's cards; one that has a card for the pod now is not returned.
            vendor: whose cards the pod gets.
        """
        here = {each.name for each in classes if each.is_of(vendor, globs)}
        return tuple(
            each.name
            for each in self.classes
            if each.name not in here
            and not all(
                vendor_of(model) is vendor and models_allowed(model, globs=globs)
                for model in each.models
            )
        )

    def taints(self, classes: Iterable[str]) -> tuple[Taint, ...]:
        """Return the taints of the pools of these classes, each once."""
        wanted = set(classes)
        return tuple(
            dict.fromkeys(
                taint
                for each in self.classes
                if each.name in wanted
                for pool in each.pools
                for taint in pool.taints
            )
        )

    def above_measured(self, measured: Mapping[str, Mib]) -> Iterator[str]:
        """Yield a message for each class that promises more than a measured card of it has.

        Args:
            measured: by model, the smallest shareable MiB of a card.
        """
        for each in self.classes:
            sizes = [(mib, model) for model, mib in measured.items() if each.has(model)]
            if sizes and min(sizes)[0] < each.mib:
                mib, model = min(sizes)
                yield (
                    f"{each.name}.mib is {each.nominal_mib}, but a card {model} shares {mib} MiB; "
                    f"want at most {mib}, so that what is granted before a node exists fits on it"
                )


NO_CATALOGUE: Final = PoolCatalogue()


def template_labels(pool_class: PoolClass, pool: Pool) -> Mapping[str, str]:
    """Return the labels of a pool's nodes as an autoscaler has to know them."""
    return {
        **pool.labels,
        names.SHARE_LABEL: "true",
        names.CARD_CLASS_LABEL: pool_class.name,
        names.CARD_MEMORY_LABEL: str(pool_class.mib),
        names.CARD_COUNT_LABEL: str(pool.cards),
    }


def template_resources(pool_class: PoolClass, pool: Pool) -> Mapping[str, int]:
    """Return what each node of a pool has of our resources."""
    return {
        names.GPU_MEM: pool_class.mib * pool.cards,
        names.GPU_COUNT: pool.cards,
        names.GPU_SLOT: pool.slots_per_card * pool.cards,
    }


def overlaps(classes: Sequence[PoolClass]) -> Iterator[str]:
    """Yield a message for each two classes of which one model could match both."""
    for one, other in combinations(classes, 2):
        for glob in one.models:
            for same in other.models:
                if any_glob_overlaps(_key(glob), (_key(same),)):
                    yield (
                        f"{one.name} and {other.name} overlap: '{glob}' and '{same}' match the "
                        "same models; want globs by which each model is of one class"
                    )
                    break


def _key(glob: str) -> str:
    return model_key(glob).casefold()


def supposed_cards(pool_class: PoolClass, node: str, labels: Mapping[str, str]) -> tuple[Card, ...]:
    """Return the cards of a node of this class whose agent has not reported any yet."""
    text = labels.get(names.CARD_COUNT_LABEL, "")
    most = max(pool.cards for pool in pool_class.pools)
    count = int(text) if text.isdecimal() and text.isascii() and len(text) < 4 else 1  # noqa: PLR2004
    return tuple(
        Card(
            uuid=CardUuid(f"label:{node}:{index}"),
            index=index,
            model=labels.get(names.CARD_MODEL_LABEL, pool_class.models[0]),
            total_mib=pool_class.mib,
        )
        for index in range(min(count, most))
    )


def _selects(rules: NodeRules, labels: Mapping[str, str]) -> bool:
    """Report whether selectors allow a node with these labels, which does not exist yet."""

    def holds(wanted: NodeExpression) -> bool:
        if wanted.by_field:
            return False
        later = wanted.key in _KNOWN_LATER and wanted.key not in labels
        return later or wanted.holds(labels.get(wanted.key))

    return all(map(holds, rules.selector)) and (
        rules.terms is None or any(bool(term) and all(map(holds, term)) for term in rules.terms)
    )
