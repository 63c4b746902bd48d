"""What the pool catalogue says of nodes that exist, and of those that may come."""

from collections.abc import Mapping

import pytest

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.cards.card_class import CardClass, CardClassCounts
from fracgpu.cards.pool_catalogue import Pool, PoolCatalogue, PoolClass, supposed_cards
from fracgpu.k8s.node import Taint
from fracgpu.k8s.node_affinity import ANY_NODE, NodeExpression, NodeRules, selector_expressions
from fracgpu.units import Mib

TAINT = Taint(key="nvidia.com/gpu", value="", effect="NoSchedule")
A100S = PoolClass(
    name="a100-80gb",
    models=("NVIDIA-A100*80GB*",),
    nominal_mib=Mib(80_999),
    pools=(
        Pool(name="a100-8", cards=8, labels={"zone": "a"}, taints=(TAINT,)),
        Pool(name="a100-1", cards=1, labels={"zone": "b"}, taints=(TAINT,)),
    ),
)
T4S = PoolClass(
    name="t4", models=("Tesla T4",), nominal_mib=Mib(15_040), pools=(Pool(name="t4", cards=1),)
)
CATALOGUE = PoolCatalogue(classes=(A100S, T4S))


def cards(model: str, *sizes: int) -> tuple[Card, ...]:
    return tuple(
        Card(uuid=CardUuid(f"GPU-{index}"), index=index, model=model, total_mib=Mib(mib))
        for index, mib in enumerate(sizes)
    )


def a_node(name: str, *here: Card, labels: Mapping[str, str] | None = None) -> NodeCards:
    known = {names.SHARE_LABEL: "true", **(labels or {})}
    return NodeCards(node=name, shared=True, cards=here, labels=known)


def test_a_node_is_of_the_class_of_all_its_cards() -> None:
    here, mixed = cards("NVIDIA A100-SXM4-80GB", 81_000), cards("Tesla T4", 15_100)

    assert CATALOGUE.class_of(here) == "a100-80gb"
    assert CATALOGUE.class_of(mixed) == "t4"
    assert CATALOGUE.class_of((*here, *mixed)) == ""
    assert CATALOGUE.class_of(cards("NVIDIA A100-SXM4-40GB", 40_000)) == ""
    assert CATALOGUE.class_of(()) == ""


@pytest.mark.parametrize(
    ("label", "model", "name"),
    [
        ("t4", "Tesla T4", "t4"),
        ("t4", "", "t4"),
        ("", "Tesla T4", ""),
        ("a100-80gb", "Tesla T4", ""),
        ("gone", "", ""),
    ],
)
def test_a_label_counts_where_the_cards_do_not_contradict_it(
    label: str, model: str, name: str
) -> None:
    here = cards(model, 15_100) if model else ()
    assert CATALOGUE.class_of_node({names.CARD_CLASS_LABEL: label}, here) == name


def test_a_declared_class_has_the_nominal_size_until_a_card_is_measured() -> None:
    nominal, measured = (
        CATALOGUE.declared(ANY_NODE, smallest)[0] for smallest in ({}, {"a100-80gb": Mib(81_040)})
    )

    assert (nominal.capacity_mib, measured.capacity_mib) == (80_960, 81_040)
    assert (nominal.most_per_node, nominal.cards, nominal.free_share) == (8, 0, 0)
    assert nominal.declared


def select(**labels: str) -> NodeRules:
    return NodeRules(selector=selector_expressions(labels))


def among(key: str, *values: str, by_field: bool = False) -> NodeRules:
    wanted = NodeExpression(key=key, operator="In", values=values, by_field=by_field)
    return NodeRules(terms=((wanted,),))


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (ANY_NODE, [("a100-80gb", 8), ("t4", 1)]),
        (select(zone="b"), [("a100-80gb", 1)]),
        (select(zone="c"), []),
        (among("zone", "a", "c"), [("a100-80gb", 8)]),
        # An autoscaler knows these of its pools; the catalogue need not list them.
        (among("topology.kubernetes.io/zone", "eu-1"), [("a100-80gb", 8), ("t4", 1)]),
        (among(names.CARD_CLASS_LABEL, "t4"), [("t4", 1)]),
        (among(names.SHARE_LABEL, "true"), [("a100-80gb", 8), ("t4", 1)]),
        # A node that does not exist has no name yet.
        (among("metadata.name", "n1", by_field=True), []),
        (NodeRules(terms=((),)), []),
    ],
)
def test_a_pods_selectors_decide_which_pools_come_into_question(
    rules: NodeRules, found: list[tuple[str, int]]
) -> None:
    declared = CATALOGUE.declared(rules, {})

    assert [(each.name, each.most_per_node) for each in declared] == found


def test_of_a_declared_class_each_model_has_to_be_allowed() -> None:
    a100s, t4s = CATALOGUE.declared(ANY_NODE, {})

    assert a100s.allowed_by(("*A100*",))
    assert a100s.allowed_by(("NVIDIA-A100*80GB*", "*T4*"))
    # The pool may bring another card of the class.
    assert not a100s.allowed_by(("NVIDIA-A100-SXM4-80GB",))
    assert not a100s.allowed_by(("*A100*", "!*PCIe*"))
    assert t4s.allowed_by(("tesla*", "!*A100*"))


def test_the_taints_of_a_class_are_each_named_once() -> None:
    assert CATALOGUE.taints(["a100-80gb", "gone"]) == (TAINT,)
    assert CATALOGUE.taints(["t4"]) == ()


def test_a_node_whose_agent_has_not_reported_is_supposed_to_have_what_its_class_has() -> None:
    found = supposed_cards(A100S, "n1", {names.CARD_COUNT_LABEL: "8"})

    assert [card.capacity_mib for card in found] == [80_960] * 8
    assert len(supposed_cards(A100S, "n1", {})) == 1
    assert len(supposed_cards(A100S, "n1", {names.CARD_COUNT_LABEL: "999"})) == 8


def test_cards_of_one_named_class_count_together_by_the_smallest() -> None:
    counts = CardClassCounts()
    for name, sizes in (("a", (81_040, 81_040)), ("b", (80_960,))):
        node = a_node(name, *cards("NVIDIA A100-SXM4-80GB", *sizes))
        free = {card.uuid: card.capacity_mib for card in node.cards}
        counts.put(node, free_mib=free, name="a100-80gb")
    other = a_node("c", *cards("NVIDIA A100-SXM4-80GB", 81_040), labels={"zone": "c"})
    counts.put(other, free_mib={}, name="")

    named, unnamed = counts.classes()

    assert named == CardClass(
        name="a100-80gb",
        capacity_mib=Mib(80_960),
        models=frozenset({"NVIDIA-A100-SXM4-80GB"}),
        most_per_node=2,
        as_large_per_node=2,
        larger=((Mib(80_960), 2), (Mib(81_040), 2)),
        cards=3,
        free_share=1.0,
    )
    assert (unnamed.name, unnamed.capacity_mib, unnamed.cards) == ("", 81_040, 1)
    assert counts.smallest_by_name() == {"a100-80gb": 80_960}
    assert counts.smallest_by_model() == {"NVIDIA-A100-SXM4-80GB": 80_960}


def test_a_named_class_has_one_size_also_among_the_nodes_that_a_pod_selects() -> None:
    counts = CardClassCounts()
    for name, mib in (("a", 81_040), ("b", 80_960)):
        node = a_node(name, *cards("NVIDIA A100-SXM4-80GB", mib), labels={"zone": name})
        counts.put(node, free_mib={}, name="a100-80gb")

    (here,) = counts.select(select(zone="a")).classes

    assert here.capacity_mib == 80_960
    assert here.largest_mib == 81_040


def test_what_is_supposed_of_a_class_does_not_count_beside_what_is_measured() -> None:
    counts = CardClassCounts()
    counts.suppose(a_node("new", *supposed_cards(A100S, "new", {})), name="a100-80gb")
    assert counts.classes()[0].capacity_mib == 80_960
    assert not counts.classes()[0].measured

    counts.put(
        a_node("old", *cards("NVIDIA A100-SXM4-80GB", 81_040)), free_mib={}, name="a100-80gb"
    )
    (both,) = counts.classes()

    assert (both.capacity_mib, both.cards, both.measured) == (81_040, 2, True)
