"""The values of an explanation."""

import pytest

from fracgpu.explain.answers import FittingCards, PodVerdict


@pytest.mark.parametrize("verdict", PodVerdict)
def test_only_a_pod_with_cards_or_a_place_for_it_is_well(verdict: PodVerdict) -> None:
    assert verdict.good == (verdict.value in ("runs", "fits"))


def test_fitting_cards_are_named_by_index() -> None:
    assert FittingCards(node="n1", cards=(2,)).text == "n1, card 2"
    assert FittingCards(node="n1", cards=(0, 3)).text == "n1, cards 0, 3"
