"""The policy load-aware: a warming card scores low."""

from dataclasses import replace

from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.placement.policies.load_aware import score
from fracgpu.request.need import Strategy
from fracgpu.state.snapshot import NodeInfo
from tests.support.core import a_card, a_need, a_node_info, a_pod_need, an_allocation


def warmed(node_info: NodeInfo, **heat: float) -> NodeInfo:
    cards = {
        uuid: structs.replace(card_info, heat=heat.get(str(uuid), 0.0))
        for uuid, card_info in node_info.cards.items()
    }
    return replace(node_info, cards=cards)


def card_of(node_info: NodeInfo) -> CardUuid:
    found = place(node_info, a_pod_need(a_need(1000)), strategy=Strategy.LOAD_AWARE)
    assert isinstance(found, Placement)
    return found.assignment["main"][0].card


def test_a_cool_card_with_pods_beats_an_empty_one_that_is_warming() -> None:
    node_info = a_node_info(a_card("a"), a_card("b", index=1), held={"b": an_allocation(12_000)})

    assert card_of(warmed(node_info, a=0.6)) == "b"
    assert card_of(node_info) == "a"


def test_scores_stay_between_nothing_and_one() -> None:
    assert score(1.0, 0.0) == 1.0
    assert score(0.0, 1.0) == 0.0
