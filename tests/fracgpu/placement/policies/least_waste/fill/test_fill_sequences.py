"""The expected waste equals that of a plain fill, card by card."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.node_matrix import MAX_CARDS, Demand
from fracgpu.placement.policies.least_waste.fill.fill_sequences import FillSequences
from fracgpu.placement.policies.least_waste.fill.pod_sequences import SEQUENCES
from fracgpu.placement.policies.least_waste.workload_mix import WorkloadMix
from tests.fracgpu.placement.policies.least_waste.demands import (
    EIGHT,
    HALF,
    MODELS,
    ODD,
    PICKY,
    PROCESSOR,
    a_fill,
    mix,
)

FILL = a_fill(mix(), MODELS)
LEVEL = st.sampled_from([0, 40, 190, 310, 500, 690, 810, 1000])
NODE = st.tuples(st.lists(LEVEL, max_size=8), st.integers(0, 130_000), st.integers(0, 1))


def plain_fill(levels: list[int], cpu: int, pairs: tuple[tuple[Demand, Demand], ...]) -> int:
    cards = list(levels)
    for pair in pairs:
        several = [demand for demand in pair if demand.cards > 1][:1]
        few = [
            demand
            for number, demand in enumerate(pair)
            if demand.cards == 1 or demand.cards == number == 0
        ]
        for pod in (*several, *tightest(cards, cpu, few)):
            if pod.cpu_milli <= cpu and rooms(cards, pod) is not None:
                cpu -= pod.cpu_milli
                for level in rooms(cards, pod) or ():
                    cards[cards.index(level)] = level - pod.share_milli
    return sum(cards)


def rooms(cards: list[int], pod: Demand) -> list[int] | None:
    fitting = sorted(level for level in cards if level >= pod.share_milli)
    return fitting[: pod.cards] if len(fitting) >= pod.cards else None


def tightest(cards: list[int], cpu: int, pods: list[Demand]) -> list[Demand]:
    able = [
        demand for demand in pods if demand.cpu_milli <= cpu and rooms(cards, demand) is not None
    ]
    return sorted(able, key=lambda demand: sum(rooms(cards, demand) or [0]) - demand.gpu_milli)[:1]


def expected(fill: FillSequences, *nodes: tuple[list[int], int, int]) -> list[float]:
    levels = np.zeros((len(nodes), MAX_CARDS), np.int16)
    for row, (cards, _, _) in enumerate(nodes):
        levels[row, : len(cards)] = cards
    cpu = np.array([node[1] for node in nodes], np.int32)
    waste: list[float] = fill.expected_waste_milli(
        levels, cpu, np.array([node[2] for node in nodes])
    ).tolist()
    return waste


@settings(max_examples=25, deadline=None)
@given(st.lists(NODE, min_size=1, max_size=5))
def test_many_nodes_at_once_equal_a_plain_fill_of_each(
    nodes: list[tuple[list[int], int, int]],
) -> None:
    plain = [
        np.mean(
            [
                plain_fill(levels, cpu, FILL.drawn(model=model, sequence=sequence))
                for sequence in range(SEQUENCES)
            ]
        )
        for levels, cpu, model in nodes
    ]

    assert expected(FILL, *nodes) == pytest.approx(plain, abs=0.01)


def test_without_cpu_everything_idle_is_wasted() -> None:
    assert expected(FILL, ([1000, 500], 0, 0)) == [1500]


def test_what_no_pod_can_use_is_wasted() -> None:
    assert expected(FILL, ([190, 40], 50_000, 0)) == [230]


def test_an_unknown_workload_wastes_all_that_is_idle() -> None:
    assert expected(a_fill((), MODELS), ([1000, 190], 50_000, 1)) == [1190]


def test_a_model_that_no_pod_accepts_wastes_all_that_is_idle() -> None:
    fill = a_fill(WorkloadMix.fold([PICKY]).classes(), MODELS)

    assert expected(fill, ([1000], 50_000, 1)) == [1000]
    assert expected(fill, ([1000], 50_000, 0)) == [0]


def test_the_draws_hold_each_class_in_its_proportion() -> None:
    drawn = [
        pod
        for sequence in range(SEQUENCES)
        for pair in FILL.drawn(model=0, sequence=sequence)
        for pod in pair
    ]

    for pod_class in mix():
        assert drawn.count(pod_class.demand) == pytest.approx(
            pod_class.frequency_ratio * len(drawn), abs=1
        )


def test_the_draws_come_in_no_order() -> None:
    first = [FILL.drawn(model=0, sequence=sequence)[0][0] for sequence in range(SEQUENCES)]

    assert len(set(first)) > 3


def test_the_same_mix_gives_the_same_sequences() -> None:
    again = a_fill(mix(), MODELS)

    assert all(
        again.drawn(model=1, sequence=sequence) == FILL.drawn(model=1, sequence=sequence)
        for sequence in range(SEQUENCES)
    )


def test_a_remainder_is_lost_where_hardly_any_pod_is_so_small() -> None:
    rare = Demand(cards=1, share_milli=160)
    fill = a_fill(WorkloadMix.fold([rare, *[HALF] * 200, *[ODD] * 200]).classes(), MODELS)

    assert fill.lost_milli.tolist() == [499, 499]


def test_every_part_of_a_card_is_lost_where_only_whole_cards_are_asked() -> None:
    fill = a_fill(WorkloadMix.fold([EIGHT, PROCESSOR]).classes(), MODELS)

    assert fill.lost_milli.tolist() == [999, 999]
