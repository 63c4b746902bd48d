"""The stand-in answers all that the rebalancer asks, so that every card has a reading."""

from benchmarks.fixtures.objects import CARDS, card_uuid
from benchmarks.resources.canned_prometheus import HOT_EVERY, canned
from fracgpu.disruption.policy import RebalancerPolicy
from rebalancer.usage.measured import MeasuredUsage

NODES = 13


async def test_every_card_has_a_reading_and_some_are_hot() -> None:
    policy = RebalancerPolicy()
    prometheus = canned(policy, nodes=NODES, pods_per_node=20)
    cards = [card_uuid(node, index) for node in range(NODES) for index in range(CARDS)]

    measured = await MeasuredUsage(prometheus).observe(cards, policy)

    assert not measured.trouble
    assert len(measured.usage) == NODES * CARDS
    levels = {uuid: usage.reading.level_ratio for uuid, usage in measured.usage.items()
              if usage.reading is not None}  # fmt: skip
    assert len(levels) == NODES * CARDS
    hot = [uuid for uuid, level in levels.items() if level > policy.hot_ratio]
    assert len(hot) == 1 + (NODES * CARDS - 1) // HOT_EVERY
