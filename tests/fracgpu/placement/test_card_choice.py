"""A policy prefers cards, and the pod gets them only if it fits by the ledger."""

from collections.abc import Mapping
from typing import Any

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import CardChooser, choose_cards
from fracgpu.request.need import PodNeed, Strategy
from tests.support.core import a_card, a_need, a_node_info, a_pod_need, an_allocation


class Prefers:
    """A policy that always prefers the same cards."""

    def __init__(self, *cards: str) -> None:
        self.cards = frozenset(CardUuid(card) for card in cards)

    def prefer(
        self,
        need: PodNeed,
        host: HostResources,
        node: str,
        *,
        closed: Mapping[CardUuid, str],
    ) -> frozenset[CardUuid] | None:
        return self.cards or None


def asked(
    mib: int,
    chooser: CardChooser,
    *,
    strategy: Strategy | None = None,
    held_on_second: int = 0,
) -> Placement | NoPlacement:
    node_info = a_node_info(
        a_card("GPU-n-0"),
        a_card("GPU-n-1", index=1),
        held={"GPU-n-1": an_allocation(held_on_second)},
    )
    return choose_cards(
        node_info,
        a_pod_need(a_need(mib), strategy=strategy),
        HostResources(),
        strategy=Strategy.PACK,
        choosers={Strategy.PACK: chooser},
    )


def chosen(mib: int, chooser: CardChooser, **facts: Any) -> list[str]:
    answer = asked(mib, chooser, **facts)
    assert isinstance(answer, Placement)
    return [part.card for parts in answer.assignment.values() for part in parts]


def test_the_preferred_card_is_taken() -> None:
    assert chosen(1000, Prefers("GPU-n-1")) == ["GPU-n-1"]


def test_a_preferred_card_without_room_gives_way_to_one_with_room() -> None:
    assert chosen(9000, Prefers("GPU-n-1"), held_on_second=20_000) == ["GPU-n-0"]


def test_without_a_preference_the_cards_scores_decide() -> None:
    assert chosen(1000, Prefers(), held_on_second=5_000) == ["GPU-n-1"]


def test_the_pods_own_strategy_asks_its_own_policy() -> None:
    found = chosen(1000, Prefers("GPU-n-1"), strategy=Strategy.SPREAD, held_on_second=5_000)

    assert found == ["GPU-n-0"]


def test_where_nothing_fits_each_card_says_why() -> None:
    answer = asked(30_000, Prefers("GPU-n-1"))

    assert isinstance(answer, NoPlacement)
    assert answer.text == "2 of 2 cards: too little free memory"
