"""Room on a card is worth what shares would pay for it if all were packed as densely as can be."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import Demand
from fracgpu.placement.policies.least_waste.card_values import card_values_milli
from fracgpu.placement.policies.least_waste.workload_mix import PodClass
from tests.fracgpu.placement.policies.least_waste.demands import EIGHT, PROCESSOR

FEW_SIZES = st.dictionaries(st.integers(20, 999), st.integers(1, 50), min_size=1, max_size=12)
MANY_SIZES = st.dictionaries(st.integers(20, 999), st.integers(1, 50), min_size=25, max_size=60)


def values(count: Mapping[int, float], *others: Demand) -> NDArray[np.float32]:
    """Return the values for so many shares of each size, and one of each other pod."""
    total = sum(count.values()) + len(others)
    shares = [
        PodClass(
            demand=Demand(cpu_milli=1000, cards=1, share_milli=size), frequency_ratio=number / total
        )
        for size, number in count.items()
    ]
    return card_values_milli(
        [*shares, *(PodClass(demand=other, frequency_ratio=1 / total) for other in others)]
    )


def cards_by_first_fit(count: Mapping[int, int]) -> int:
    """Return how many cards hold all shares, the largest first: not the fewest, but enough."""
    rooms: list[int] = []
    for size in sorted(count, reverse=True):
        for _ in range(count[size]):
            at = next((at for at, room in enumerate(rooms) if room >= size), None)
            if at is None:
                rooms.append(1000 - size)
            else:
                rooms[at] -= size
    return len(rooms)


def test_a_size_of_which_two_fit_on_a_card_takes_half_of_one() -> None:
    found = values({470: 10})

    assert found[[469, 470, 939, 940, 1000]].tolist() == [0, 500, 500, 1000, 1000]


def test_two_sizes_that_fill_a_card_together_pay_for_one_together() -> None:
    found = values({650: 10, 320: 10})

    assert found[650] + found[320] == 1000


def test_of_two_sizes_that_fill_a_card_the_one_that_is_left_over_pays_by_itself() -> None:
    found = values({650: 10, 320: 20})

    assert (found[320], found[650]) == (333, 667), "three of the smaller ones fill a card too"


def test_the_values_of_a_real_mix_are_those_of_the_linear_program() -> None:
    # Counts as in a trace of Weng et al. (ATC 2023); the expected values were found by HiGHS.
    count = {810: 1098, 470: 761, 650: 258, 320: 337, 460: 131, 590: 77, 550: 72}
    count |= {230: 146, 370: 49, 220: 64, 160: 76, 480: 19, 110: 24}
    found = values(count)

    steps = {size: float(found[size]) for size in range(1, 1001) if found[size] > found[size - 1]}
    assert steps == {220: 83, 230: 250, 320: 333, 460: 500, 550: 667, 690: 750, 780: 917, 810: 1000}


@given(FEW_SIZES)
@settings(max_examples=60, deadline=None)
def test_all_shares_together_pay_for_no_more_cards_than_they_need(count: dict[int, int]) -> None:
    found = values(count)

    paid = sum(float(found[size]) * number for size, number in count.items())
    rounded = 0.5 * sum(count.values())
    assert paid <= 1000 * cards_by_first_fit(count) + rounded
    assert paid >= sum(size * number for size, number in count.items()) - rounded


@given(st.one_of(FEW_SIZES, MANY_SIZES))
@settings(max_examples=60, deadline=None)
def test_room_is_worth_no_less_than_its_parts_and_a_card_no_more_than_a_card(
    count: dict[int, int],
) -> None:
    found = values(count)

    assert found[0] == 0
    assert found[1000] == 1000
    for room in (*count, 1000):
        parts = found[: room + 1] + found[room::-1]
        assert (parts <= found[room] + 1).all(), "each value is rounded"


def test_a_frequent_size_keeps_its_price_among_many_rare_ones() -> None:
    rare = dict.fromkeys(range(300, 400), 1)

    assert values({**rare, 470: 5000})[470] == 500


@pytest.mark.parametrize("others", [(), (PROCESSOR,)])
def test_without_pods_for_cards_nothing_has_a_value(others: tuple[Demand, ...]) -> None:
    assert not values({}, *others).any()


def test_without_shares_only_whole_cards_have_a_value() -> None:
    found = values({}, EIGHT)

    assert found[1000] == 1000
    assert not found[:1000].any()
