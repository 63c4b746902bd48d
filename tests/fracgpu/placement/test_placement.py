"""Which cards of a node a pod gets, or card by card why it gets none."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fracgpu.cards.card import CardUuid, Health
from fracgpu.placement.fit import FitReason
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import Assignment, CardAllocation
from fracgpu.state.snapshot import NodeInfo, build_node_info
from fracgpu.units import Mib
from tests.support.core import (
    a_card,
    a_need,
    a_node_info,
    a_pod_need,
    an_allocation,
    on,
    small_mib,
    small_needs,
    small_nodes,
)


def answer(
    node_info: NodeInfo,
    need: PodNeed,
    *,
    strategy: Strategy = Strategy.PACK,
    exclude: frozenset[CardUuid] = frozenset(),
) -> Placement | NoPlacement:
    return place(node_info, need, strategy=strategy, exclude=exclude)


def placed(node_info: NodeInfo, need: PodNeed, *, strategy: Strategy = Strategy.PACK) -> Assignment:
    found = answer(node_info, need, strategy=strategy)
    assert isinstance(found, Placement)
    return found.assignment


def refused(
    node_info: NodeInfo, need: PodNeed, *, exclude: frozenset[CardUuid] = frozenset()
) -> NoPlacement:
    found = answer(node_info, need, exclude=exclude)
    assert isinstance(found, NoPlacement)
    return found


TWO_CARDS = (a_card("GPU-a", index=0), a_card("GPU-b", index=1))


def test_pack_takes_the_fullest_card_that_still_fits() -> None:
    node_info = a_node_info(*TWO_CARDS, held={"GPU-b": an_allocation(10_000)})

    assert placed(node_info, a_pod_need(a_need(8000))) == on("GPU-b", 8000)


def test_spread_takes_the_emptiest_card() -> None:
    node_info = a_node_info(*TWO_CARDS, held={"GPU-a": an_allocation(1)})

    assert placed(node_info, a_pod_need(a_need(8000)), strategy=Strategy.SPREAD) == on(
        "GPU-b", 8000
    )


def test_the_pods_own_strategy_beats_the_clusters() -> None:
    node_info = a_node_info(*TWO_CARDS, held={"GPU-a": an_allocation(10_000)})
    need = a_pod_need(a_need(8000), strategy=Strategy.SPREAD)

    assert placed(node_info, need, strategy=Strategy.PACK) == on("GPU-b", 8000)


@pytest.mark.parametrize("strategy", Strategy)
def test_of_equal_cards_the_lower_index_wins(strategy: Strategy) -> None:
    node_info = a_node_info(a_card("GPU-z", index=0), a_card("GPU-a", index=1))

    assert placed(node_info, a_pod_need(a_need(1)), strategy=strategy) == on("GPU-z", 1)


def test_too_few_cards_are_counted_with_the_reason_of_each_other_one() -> None:
    node_info = a_node_info(*TWO_CARDS, held={"GPU-a": an_allocation(24_000)})

    no = refused(node_info, a_pod_need(a_need(100, cards=2)))

    assert no.node_reason is FitReason.TOO_FEW_CARDS
    assert no.text == "too few cards (1 of 2 cards: too little free memory)"


def test_a_card_with_all_its_slots_taken_is_refused_and_says_so() -> None:
    few = replace(TWO_CARDS[0], slots=2)
    node_info = a_node_info(few, held={"GPU-a": CardAllocation(mib=Mib(80), slots=2)})

    assert (
        refused(node_info, a_pod_need(a_need(80))).text == "1 of 1 cards: all its slots are taken"
    )
    assert placed(a_node_info(few, held={"GPU-a": an_allocation(80)}), a_pod_need(a_need(80)))


def test_each_card_has_its_own_reason() -> None:
    cards = (
        a_card("GPU-sick", health=Health.UNHEALTHY),
        a_card("GPU-cordoned", index=1),
        a_card("GPU-excluded", index=2),
        a_card("GPU-other", index=3, model="Tesla T4"),
        a_card("GPU-full", index=4),
    )
    node_info = a_node_info(
        *cards, cordoned=["GPU-cordoned"], held={"GPU-full": an_allocation(24_000)}
    )
    need = a_pod_need(a_need(8), models=("NVIDIA-A30",))

    no = refused(node_info, need, exclude=frozenset({CardUuid("GPU-excluded")}))

    assert no.refusals == {
        "GPU-sick": FitReason.UNHEALTHY,
        "GPU-cordoned": FitReason.CORDONED,
        "GPU-excluded": FitReason.CORDONED,
        "GPU-other": FitReason.WRONG_MODEL,
        "GPU-full": FitReason.TOO_LITTLE_FREE,
    }
    assert no.text == (
        "2 of 5 cards: cordoned by the rebalancer; 1 of 5: not a requested model; "
        "1 of 5: too little free memory; 1 of 5: unhealthy"
    )


@pytest.mark.parametrize(
    ("node_info", "reason"),
    [
        (a_node_info(a_card("GPU-a"), shared=False), FitReason.NOT_SHARED),
        (a_node_info(a_card("GPU-a"), schedulable=False), FitReason.UNSCHEDULABLE),
        (a_node_info(), FitReason.NO_INVENTORY),
    ],
    ids=lambda value: value.name if isinstance(value, FitReason) else "",
)
def test_a_node_may_refuse_as_a_whole(node_info: NodeInfo, reason: FitReason) -> None:
    no = refused(node_info, a_pod_need(a_need(8)))

    assert (no.node_reason, no.text) == (reason, reason.value)


def test_containers_that_fit_only_one_by_one_clash() -> None:
    need = a_pod_need(a_need(20_000, name="one"), a_need(20_000, name="two"))

    assert refused(a_node_info(a_card("GPU-a")), need).node_reason is FitReason.CONTAINERS_CLASH
    assert set(placed(a_node_info(*TWO_CARDS), need)) == {"one", "two"}


def test_a_search_that_would_stall_the_scheduler_is_given_up() -> None:
    # Eleven odd sizes on seven cards of slightly different room, for lack of one MiB in sum.
    cards = [a_card(f"GPU-{n}", mib=8000 + 80 * n, index=n) for n in range(7)]
    total = sum(card.capacity_mib for card in cards)
    sizes = [(total // 11) - 300 + 60 * n for n in range(10)]
    sizes.append(total - sum(sizes) + 1)
    need = a_pod_need(*(a_need(mib, name=f"c{n}") for n, mib in enumerate(sizes)))

    assert refused(a_node_info(*cards), need).node_reason in (
        FitReason.TOO_MANY_TRIES,
        FitReason.CONTAINERS_CLASH,
    )


def test_scores_run_from_empty_to_full_with_pack_and_back_with_spread() -> None:
    node_info = a_node_info(a_card("GPU-a"), held={"GPU-a": an_allocation(12_000)})
    need = a_pod_need(a_need(12_000))
    packed = answer(node_info, need, strategy=Strategy.PACK)
    spread = answer(node_info, need, strategy=Strategy.SPREAD)

    assert isinstance(packed, Placement)
    assert isinstance(spread, Placement)
    assert (packed.score, spread.score) == (1.0, 0.0)


@given(small_nodes())
def test_cards_are_in_the_order_of_their_indexes_however_the_node_lists_them(
    node_info: NodeInfo,
) -> None:
    backwards = replace(node_info.node, cards=tuple(reversed(node_info.node.cards)))

    assert list(build_node_info(backwards, ()).cards) == list(node_info.cards)


@given(small_nodes(), small_mib)
def test_an_excluded_card_is_never_chosen(node_info: NodeInfo, mib: int) -> None:
    out = next(iter(node_info.cards))
    found = answer(node_info, a_pod_need(a_need(mib)), exclude=frozenset({out}))

    if isinstance(found, Placement):
        assert all(part.card != out for slices in found.assignment.values() for part in slices)


@pytest.mark.parametrize(
    ("strategy", "half_mib", "half_on"),
    # The card that the strategy prefers for the first container is the only one for the second.
    [(Strategy.PACK, 400, "GPU-a"), (Strategy.SPREAD, 360, "GPU-b")],
)
def test_a_card_of_another_size_is_tried_where_as_much_is_free(
    strategy: Strategy, half_mib: int, half_on: str
) -> None:
    larger, smaller = a_card("GPU-a", mib=800), a_card("GPU-b", mib=720, index=1)
    held = {"GPU-a": an_allocation(80), "GPU-b": an_allocation(0)}
    half = a_need(half_mib, name="half", share=Fraction(1, 2))

    found = answer(
        a_node_info(larger, smaller, held=held),
        a_pod_need(a_need(500, name="any"), half),
        strategy=strategy,
    )

    assert isinstance(found, Placement)
    assert found.assignment["half"][0].card == half_on
    assert found.assignment["any"][0].card != half_on


@given(small_nodes(), small_needs(), st.sampled_from(Strategy), st.data())
def test_a_pod_never_waits_because_cards_are_avoided(
    node_info: NodeInfo, need: PodNeed, strategy: Strategy, data: st.DataObject
) -> None:
    chosen = data.draw(st.sets(st.sampled_from(sorted(node_info.cards) or [CardUuid("none")])))
    cards = {
        uuid: structs.replace(card_info, avoided=uuid in chosen)
        for uuid, card_info in node_info.cards.items()
    }
    before = place(node_info, need, strategy=strategy)
    after = place(replace(node_info, cards=cards), need, strategy=strategy)

    assert isinstance(before, Placement) == isinstance(after, Placement)
    if isinstance(after, Placement):
        used = {part.card for parts in after.assignment.values() for part in parts}
        assert after.avoided == bool(used & chosen)
        others = place(node_info, need, strategy=strategy, exclude=frozenset(chosen))
        assert after.avoided == isinstance(others, NoPlacement)
