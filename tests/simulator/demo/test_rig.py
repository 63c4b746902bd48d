"""The rig uses what is deployed, with windows that are short."""

import json

import yaml

from fracgpu.disruption.policy import Mode, RebalancerPolicy
from rebalancer.config import parse_policy
from simulator.demo.rebalancer import command
from simulator.demo.rig import DEMO_POLICY, DEMO_TIMES


def test_the_policy_of_the_demo_is_one_that_the_rebalancer_reads() -> None:
    base = RebalancerPolicy(**json.loads(command(DEMO_TIMES)[-1]))

    policy = parse_policy(yaml.safe_dump(dict(DEMO_POLICY)), base=base)

    assert policy.mode is Mode.ACTIVE
    assert policy.hot_ratio == 0.8
    assert policy.fast_window_s == 10
