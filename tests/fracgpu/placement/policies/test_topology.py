"""The policy topology: the least loaded card, then its fastest-linked neighbours."""

from dataclasses import replace

from msgspec import structs

from fracgpu.cards.card import Card, CardUuid
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.placement.policies.topology import closeness, distance, neighbours, score
from fracgpu.request.need import PodNeed, Strategy, Topology
from tests.support.core import a_card, a_need, a_node_info, a_pod_need, an_allocation


def linked(name: str, index: int, **links: int) -> Card:
    return replace(
        a_card(name, index=index), links={CardUuid(uuid): far for uuid, far in links.items()}
    )


# Two pairs: a-b and c-d are joined by NVLink, everything else by PCIe.
PAIRS = (
    linked("a", 0, b=1, c=6, d=6),
    linked("b", 1, a=1, c=6, d=6),
    linked("c", 2, d=1, a=6, b=6),
    linked("d", 3, c=1, a=6, b=6),
)


def cards_of(need: PodNeed, held: dict[str, int], *, strategy: Strategy) -> set[str]:
    node_info = a_node_info(*PAIRS, held={uuid: an_allocation(mib) for uuid, mib in held.items()})
    found = place(node_info, need, strategy=strategy)
    assert isinstance(found, Placement)
    return {str(part.card) for part in found.assignment["main"]}


def test_the_least_loaded_card_leads_and_its_neighbour_comes_along() -> None:
    held = {"a": 100, "b": 200, "d": 300}  # c is empty; by load alone a would be next
    need = a_pod_need(a_need(1000, cards=2))

    assert cards_of(need, held, strategy=Strategy.TOPOLOGY) == {"c", "d"}
    assert cards_of(need, held, strategy=Strategy.SPREAD) == {"c", "a"}


def test_a_pod_may_ask_for_neighbours_whatever_the_strategy() -> None:
    need = a_pod_need(a_need(1000, cards=2))
    held = {"d": 9_000, "a": 8_000}

    assert cards_of(need, held, strategy=Strategy.PACK) == {"d", "a"}
    joined = structs.replace(need, topology=Topology.NVLINK)
    assert cards_of(joined, held, strategy=Strategy.PACK) == {"d", "c"}
    free = structs.replace(need, topology=Topology.ANY)
    assert cards_of(free, held, strategy=Strategy.TOPOLOGY) == {"b", "c"}


def test_where_the_neighbour_is_full_another_card_does() -> None:
    need = a_pod_need(a_need(20_000, cards=2))

    assert cards_of(need, {"b": 10_000}, strategy=Strategy.TOPOLOGY) == {"a", "c"}


def test_one_card_is_the_least_loaded_one() -> None:
    need = a_pod_need(a_need(1000))

    assert cards_of(need, {"a": 1, "b": 1, "d": 1}, strategy=Strategy.TOPOLOGY) == {"c"}
    assert score(0.75, 0.0) > score(0.25, 0.0)


def test_a_link_known_on_one_side_counts_and_an_unknown_one_is_the_farthest() -> None:
    one, other, third = linked("x", 0, y=2), linked("y", 1), linked("z", 2)

    assert distance(one, other) == distance(other, one) == 2
    assert distance(one, third) > 100
    assert neighbours([one, third, other], 2) == (one, other)
    assert closeness([one]) == 1.0
    assert closeness([one, other]) > closeness([one, third])
