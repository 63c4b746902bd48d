"""The values of an explanation."""

from fracgpu.explain.answers import FittingCards


def test_fitting_cards_are_named_by_index() -> None:
    assert FittingCards(node="n1", cards=(2,)).text == "n1, card 2"
    assert FittingCards(node="n1", cards=(0, 3)).text == "n1, cards 0, 3"
