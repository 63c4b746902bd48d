"""The mix counts pods by demand, in bounded memory, and old pods weigh less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.placement.policies.least_waste.mix import Demand, WorkloadMix, drift_ratio
from tests.fracgpu.placement.policies.least_waste.demands import HALF, PROCESSOR, WHOLE_CARD, folded


def test_frequencies_are_shares_of_all_pods_most_frequent_first() -> None:
    classes = folded([HALF, WHOLE_CARD, WHOLE_CARD, WHOLE_CARD])

    assert [(pod_class.demand, pod_class.frequency_ratio) for pod_class in classes] == [
        (WHOLE_CARD, 0.75),
        (HALF, 0.25),
    ]


def test_the_order_in_which_pods_are_folded_does_not_matter() -> None:
    pods = [HALF, WHOLE_CARD, PROCESSOR, HALF]

    assert folded(pods) == folded(reversed(pods))


def test_a_pod_loses_half_its_weight_in_one_half_life() -> None:
    mix = WorkloadMix(half_life_pods=100)
    mix.observe(HALF)
    for _ in range(99):
        mix.observe(PROCESSOR)
    mix.observe(WHOLE_CARD)

    weight = {pod_class.demand: pod_class.frequency_ratio for pod_class in mix.classes()}
    assert weight[HALF] == pytest.approx(weight[WHOLE_CARD] / 2)


def test_weights_stay_ratios_when_they_are_scaled_back() -> None:
    mix = WorkloadMix(half_life_pods=2)
    for _ in range(500):
        mix.observe(HALF)
        mix.observe(WHOLE_CARD)

    ratios = [pod_class.frequency_ratio for pod_class in mix.classes()]
    assert sum(ratios) == pytest.approx(1)
    assert ratios[0] / ratios[1] == pytest.approx(2**0.5)


@given(st.lists(st.integers(min_value=1, max_value=1000), max_size=200))
def test_no_more_than_twice_the_capacity_is_ever_kept(shares: list[int]) -> None:
    mix = WorkloadMix(capacity=8)
    for share in shares:
        mix.observe(Demand(cards=1, share_milli=share))

    assert len(mix.classes()) <= 16


def test_the_frequent_classes_survive_a_flood_of_rare_ones() -> None:
    mix = WorkloadMix(capacity=4)
    for share in range(1, 400):
        mix.observe(HALF)
        mix.observe(Demand(cards=1, share_milli=share))

    assert mix.classes()[0].demand == HALF


def test_drift_is_nothing_for_the_same_and_all_for_disjoint_mixes() -> None:
    halves, wholes = folded([HALF]), folded([WHOLE_CARD])
    both = folded([HALF, WHOLE_CARD])

    assert drift_ratio(halves, halves) == 0
    assert drift_ratio(halves, wholes) == 1
    assert drift_ratio(halves, both) == pytest.approx(0.5)


@pytest.mark.parametrize(("cards", "share"), [(0, 500), (1, 0), (1, 1001), (2, -1), (-1, 0)])
def test_a_request_that_no_card_can_hold_is_refused(cards: int, share: int) -> None:
    with pytest.raises(ValueError, match="want"):
        Demand(cards=cards, share_milli=share)
