"""The columns say of every card what its info says."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.room.card_table import CardTable
from fracgpu.placement.fit import CardRequest
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.snapshot import NodeInfo
from fracgpu.units import Mib
from tests.support.core import a_card, a_node_info, an_allocation


def _table(**nodes: NodeInfo) -> CardTable:
    return CardTable(nodes)


def _need(mib: int, *, models: tuple[str, ...] = (), **facts: Any) -> PodNeed:
    container = ContainerNeed(name="main", mib=Mib(mib), **facts)
    return PodNeed(containers=(container,), models=models)


def test_room_is_memory_compute_and_a_slot() -> None:
    info = a_node_info(
        a_card("idle"),
        a_card("half", index=1),
        a_card("cores", index=2),
        replace(a_card("slots", index=3), slots=1),
        held={
            "half": an_allocation(12_000),
            "cores": CardAllocation(mib=Mib(0), cores=90),
            "slots": CardAllocation(mib=Mib(0), slots=1),
        },
    )
    table = _table(n1=info)
    need = _need(13_000, cores=20)
    asked = CardRequest.of(need.containers[0])
    assert table.has_room(need, asked).tolist() == [True, False, False, False]


def test_the_last_slot_the_last_memory_and_the_last_compute_are_room() -> None:
    held = CardAllocation(mib=Mib(1000), cores=60, slots=1)
    info = a_node_info(replace(a_card("a"), slots=2), held={"a": held})
    table = _table(n1=info)
    mib = int(table.cards.free_mib[0])

    def has_room(mib: int, cores: int) -> bool:
        need = _need(mib, cores=cores)
        return bool(table.has_room(need, CardRequest.of(need.containers[0]))[0])

    assert has_room(mib, 40)
    assert not has_room(mib + 1, 40)
    assert not has_room(mib, 41)


def test_a_card_that_takes_nothing_new_is_not_open() -> None:
    info = a_node_info(a_card("a"), a_card("b", index=1))
    cordoned = structs.replace(info.cards[CardUuid("a")], cordoned=True)
    closed = replace(info, cards={**info.cards, CardUuid("a"): cordoned})
    assert _table(n1=closed).open.tolist() == [False, True]
    away = replace(info, node=replace(info.node, schedulable=False))
    assert _table(n1=away).open.tolist() == [False, False]


def test_a_card_that_is_avoided_is_open() -> None:
    table = _table(n1=a_node_info(a_card("a"), a_card("b", index=1), avoided=["b"]))

    assert (table.open.tolist(), table.cards.avoided.tolist()) == ([True, True], [False, True])


def test_only_cards_of_the_named_model_and_of_the_shares_class_suit() -> None:
    info = a_node_info(a_card("a"), a_card("b", index=1, model="L4", mib=8192))
    table = _table(n1=info)
    sizes = table.cards.capacity_mib.tolist()

    def suits(need: PodNeed) -> list[bool]:
        found: list[bool] = table.suits(need, need.containers[0]).tolist()
        return found

    assert suits(_need(1000)) == [True, True]
    assert suits(_need(1000, models=("L4*",))) == [False, True]
    assert suits(_need(sizes[0])) == [True, False]
    assert suits(_need(sizes[1], share=Fraction(1))) == [False, True]


def test_flags_are_in_the_order_of_nodes_and_cards() -> None:
    table = _table(n2=a_node_info(a_card("c")), n1=a_node_info(a_card("a"), a_card("b", index=1)))
    assert table.nodes == ["n1", "n2"]
    assert table.uuids == ["a", "b", "c"]
    assert table.flags([CardUuid("c"), CardUuid("unknown")]).tolist() == [False, False, True]
    assert _table().flags([]).tolist() == []
