"""The policy spread: the emptiest card."""

from fracgpu.placement.policies.spread import LINKED, score


def test_the_more_is_left_the_better() -> None:
    assert score(1.0, 0.0) == 1.0
    assert score(0.3, 0.9) > score(0.2, 0.0)
    assert not LINKED
