"""The rig uses what is deployed, with windows that are short but allowed."""

import yaml

from fracgpu.disruption.policy import Mode
from rebalancer.config import parse_policy
from simulator.demo.rig import DEMO_POLICY


def test_the_policy_of_the_demo_is_one_that_the_rebalancer_reads() -> None:
    policy = parse_policy(yaml.safe_dump(dict(DEMO_POLICY)))

    assert policy.mode is Mode.ACTIVE
    assert policy.hot_ratio == 0.8
