"""The policy pack: the fullest card that still fits."""

from fracgpu.placement.policies.pack import LINKED, score


def test_the_less_is_left_the_better() -> None:
    assert score(0.0, 0.0) == 1.0
    assert score(0.2, 0.9) > score(0.3, 0.0)
    assert not LINKED
