"""Every method of the rebalancer, in the order in which the planner asks them."""

from typing import Final

from fracgpu.disruption.methods import hot_card, make_room
from fracgpu.disruption.methods.method import Method

METHODS: Final[tuple[Method, ...]] = (hot_card, make_room)
