"""What is idle counts as unusable as far as a random pod of the mix cannot use it."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.placement.node_matrix import Demand
from fracgpu.placement.policies.least_waste.fragments import Fragments
from fracgpu.placement.policies.least_waste.workload_mix import PodClass, WorkloadMix
from tests.fracgpu.placement.policies.least_waste.demands import (
    EIGHT,
    HALF,
    MODELS,
    PAIR,
    PICKY,
    PROCESSOR,
    WHOLE,
    mix,
)

CARDS = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


def unusable(
    classes: tuple[PodClass, ...], *cards: int, cpu_milli: int = 96_000, model: int = 0
) -> float:
    fragments = Fragments(classes, MODELS)
    levels = np.array([cards], np.int16)
    cpu, models = np.array([cpu_milli], np.int32), np.array([model], np.int64)
    return float(fragments.unusable_milli(levels, cpu, models)[0])


def of(*demands: Demand) -> tuple[PodClass, ...]:
    return WorkloadMix.fold(demands).classes()


def by_hand(cards: list[int], cpu_milli: int, model: str) -> float:
    """Return the mean over the mix, pod by pod."""
    found = 0.0
    for pod_class in mix():
        demand, idle = pod_class.demand, sum(cards)
        if demand.cards:
            enough = [milli for milli in cards if milli >= demand.share_milli]
            runs = demand.accepts(model) and cpu_milli >= demand.cpu_milli
            if runs and len(enough) >= demand.cards:
                idle -= sum(enough)
        found += pod_class.frequency_ratio * idle
    return found


def test_what_every_pod_can_use_is_no_waste() -> None:
    assert unusable(of(HALF, WHOLE), 1000, 1000) == 0


def test_a_remainder_is_unusable_to_those_who_need_more() -> None:
    assert unusable(of(HALF, WHOLE), 600, 0) == pytest.approx(300)


def test_a_node_is_unusable_to_those_who_need_more_cards_of_it() -> None:
    assert unusable(of(EIGHT), *[1000] * 7) == 7000
    assert unusable(of(EIGHT), *[1000] * 8) == 0
    assert unusable(of(PAIR, WHOLE), 1000, 600) == pytest.approx((1600 + 600) / 2)


def test_idle_cards_without_cpu_are_unusable() -> None:
    assert unusable(of(WHOLE), 1000, cpu_milli=7999) == 1000
    assert unusable(of(WHOLE), 1000, cpu_milli=8000) == 0


def test_cards_of_a_model_that_a_pod_does_not_accept_are_unusable_to_it() -> None:
    assert unusable(of(PICKY), 1000, model=0) == 0
    assert unusable(of(PICKY), 1000, model=1) == 1000


def test_to_a_pod_without_cards_they_are_of_no_use() -> None:
    assert unusable(of(PROCESSOR), 1000) == 1000


def test_a_full_node_has_nothing_to_waste_and_an_empty_mix_uses_nothing() -> None:
    assert unusable(mix(), 0, 0) == 0
    assert unusable((), 1000, 500) == 1500


@given(CARDS, st.integers(0, 100_000), st.sampled_from(range(len(MODELS))))
def test_it_is_the_mean_over_the_mix(cards: list[int], cpu_milli: int, model: int) -> None:
    found = unusable(mix(), *cards, cpu_milli=cpu_milli, model=model)

    assert found == pytest.approx(by_hand(cards, cpu_milli, MODELS[model]))
    assert -1e-6 <= found <= sum(cards) + 1e-6


def test_the_memory_follows_the_number_of_classes_however_much_cpu_they_request() -> None:
    models = tuple(f"model-{number}" for number in range(50))
    classes = WorkloadMix.fold(
        Demand(cpu_milli=100 * number, cards=1, share_milli=number % 999 + 1)
        for number in range(1, 1001)
    ).classes()
    tracemalloc.start()
    try:
        fragments = Fragments(classes, models)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert fragments.seen_in(10) > 0
    assert held < 1_000_000  # a table of models, CPU and kinds would take 400 MB
