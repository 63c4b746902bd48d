"""The price of a model rises as it runs short for the pods that accept no other."""

import numpy as np
import pytest

from fracgpu.placement.node_matrix import Demand
from fracgpu.placement.policies.least_waste.model_prices import ModelPrices
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

MODELS = ("common", "rare", "other")
NODES = np.array([0, 1, 2])


def a_class(ratio: float, *models: str, share: int = 500) -> PodClass:
    demand = Demand(cards=1, share_milli=share, models=frozenset(models) or None)
    return PodClass(demand=demand, frequency_ratio=ratio)


def prices(
    classes: list[PodClass],
    idle: tuple[int, int, int],
    cards: tuple[int, int, int] = (80, 10, 10),
) -> list[float]:
    found = ModelPrices(classes, MODELS)
    found.refresh(model=NODES, idle_milli=np.array(idle), cards=np.array(cards))
    each: list[float] = found.by_model.tolist()
    return each


def test_where_no_pod_names_a_model_no_model_has_a_price() -> None:
    assert prices([a_class(1.0)], (8000, 1000, 1000)) == [0, 0, 0]


def test_a_share_sets_a_price_on_the_model_it_names_and_on_no_other() -> None:
    # 10 % of the demand can only go on 10 % of the cards, and 20 % of what is idle is on those.
    found = prices([a_class(0.9), a_class(0.1, "rare")], (7000, 2000, 1000))

    assert found == pytest.approx([0, 0.5**2, 0])


def test_the_price_rises_as_the_model_is_used_up_and_never_beyond_the_card_itself() -> None:
    classes = [a_class(0.9), a_class(0.1, "rare")]
    each = [prices(classes, (8000, idle, 1000))[1] for idle in (4000, 2000, 1000, 100, 0)]

    assert each == sorted(each)
    assert each[-2:] == [1, 1]


def test_of_a_model_that_cannot_run_out_little_is_made_even_when_few_are_idle() -> None:
    classes = [a_class(0.9), a_class(0.1, "rare")]

    plenty = prices(classes, (8000, 100, 1000), cards=(60, 20, 20))

    assert plenty == pytest.approx([0, 0.5**4, 0])


def test_a_set_pays_for_what_is_confined_to_it_also_through_a_smaller_set() -> None:
    # {rare} lies within {rare, other}: the demand of both is confined to the larger one.
    classes = [a_class(0.8), a_class(0.1, "rare"), a_class(0.1, "rare", "other")]

    found = prices(classes, (6000, 2000, 2000))

    assert found == pytest.approx([0, 0.5**2, 0.5**2])


def test_demand_is_weighed_by_what_is_asked_of_cards() -> None:
    def price(share: int) -> float:
        classes = [a_class(0.5, share=1000), a_class(0.5, "rare", share=share)]
        return prices(classes, (5000, 5000, 0))[1]

    assert price(1000) == 1
    assert price(50) == pytest.approx((50 / 1050 / 0.5) ** 2 * (50 / 1050 / 0.1) ** 4)


def test_models_that_no_card_has_set_no_price() -> None:
    assert prices([a_class(0.9), a_class(0.1, "none such")], (1, 1, 1)) == [0, 0, 0]
    assert prices([a_class(0.9), a_class(0.1, *MODELS)], (1, 1, 1)) == [0, 0, 0]


def test_a_fleet_without_models_has_no_prices() -> None:
    nothing = np.zeros(0, np.int64)
    found = ModelPrices([a_class(1.0, "rare")], ())
    found.refresh(model=nothing, idle_milli=nothing, cards=nothing)

    assert found.by_model.tolist() == []
