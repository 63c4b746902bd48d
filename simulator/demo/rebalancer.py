"""The rebalancer as a process with times of its own, for clusters whose hours take seconds.

``python -m simulator.demo.rebalancer BASE FLAG...``: the role as ``fracgpu run rebalancer`` starts
it, but the policy that the ConfigMap changes is BASE: a JSON object of fields of `RebalancerPolicy`
that have no key there.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from component.role_process import run_service
from fracgpu.disruption.policy import RebalancerPolicy
from process import logs
from process.settings import load
from rebalancer.service import build
from rebalancer.settings import RebalancerSettings


def command(times: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command up to the flags."""
    return (sys.executable, "-m", "simulator.demo.rebalancer", json.dumps(dict(times)))


def main(words: Sequence[str]) -> int:
    """Run the role until it is stopped; return the exit code."""
    base = RebalancerPolicy(**json.loads(words[0]))
    settings = load(RebalancerSettings, words[1:], os.environ, program="rebalancer")
    logs.configure(level=settings.log_level, json=settings.log_json)
    return run_service(build(settings, base=base))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
