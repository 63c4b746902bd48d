"""A policy prefers cards, and the pod gets them only if it fits by the ledger."""

from collections.abc import Mapping

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import CardChooser, choose_cards
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy
from fracgpu.state.snapshot import NodeInfo
from fracgpu.units import Mib
from tests.scheduler.harness import Harness


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


def need(mib: int, *, strategy: Strategy | None = None) -> PodNeed:
    return PodNeed(containers=(ContainerNeed(name="c", mib=Mib(mib)),), strategy=strategy)


def node_info(harness: Harness) -> NodeInfo:
    found = harness.ledger.node("n", now=harness.clock.now())
    assert found is not None
    return found


def chosen(asked: PodNeed, chooser: CardChooser, *, held_on_second: int = 0) -> list[str]:
    harness = Harness(cards=2)
    if held_on_second:
        harness.create("other", mib=held_on_second)
        pod = harness.api.pods["other"]
        pod["spec"]["nodeName"] = "n"
        pod["metadata"]["annotations"]["fracgpu.io/assignment"] = (
            f'{{"train":[{{"card":"GPU-n-1","mib":{held_on_second}}}]}}'
        )
        harness.see("other")
    answer = choose_cards(
        node_info(harness),
        asked,
        HostResources(),
        strategy=Strategy.PACK,
        choosers={Strategy.PACK: chooser},
    )
    assert isinstance(answer, Placement)
    return [part.card for parts in answer.assignment.values() for part in parts]


def test_the_preferred_card_is_taken() -> None:
    assert chosen(need(1000), Prefers("GPU-n-1")) == ["GPU-n-1"]


def test_a_preferred_card_without_room_gives_way_to_one_with_room() -> None:
    assert chosen(need(9000), Prefers("GPU-n-1"), held_on_second=20_000) == ["GPU-n-0"]


def test_without_a_preference_the_cards_scores_decide() -> None:
    assert chosen(need(1000), Prefers(), held_on_second=5_000) == ["GPU-n-1"]


def test_the_pods_own_strategy_asks_its_own_policy() -> None:
    spread = need(1000, strategy=Strategy.SPREAD)

    assert chosen(spread, Prefers("GPU-n-1"), held_on_second=5_000) == ["GPU-n-0"]


def test_where_nothing_fits_each_card_says_why() -> None:
    answer = choose_cards(
        node_info(Harness(cards=2)),
        need(30_000),
        HostResources(),
        strategy=Strategy.PACK,
        choosers={Strategy.PACK: Prefers("GPU-n-1")},
    )

    assert isinstance(answer, NoPlacement)
    assert answer.text == "2 of 2 cards: too little free memory"
