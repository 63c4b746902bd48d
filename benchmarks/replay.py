"""How fast a workload is replayed, and how much of a synthetic fleet each policy uses.

Fleet and pods are synthetic: a quarter of the nodes has eight cards, the rest two, and shares
are more frequent than whole cards, as in published traces.
"""

import random
import time
from collections.abc import Iterator

from benchmarks.figure import Figure
from simulator.replay.policies import COMPARED
from simulator.replay.replay import FULL_LOAD, replay
from simulator.replay.workload import ReplayWorkload, read_trace

_NODES = 300
_PODS = 1_500
_SEED = 42


def a_workload(*, nodes: int = _NODES, pods: int = _PODS, seed: int = _SEED) -> ReplayWorkload:
    """Return a random fleet and workload; the same seed returns the same."""
    rng = random.Random(seed)  # noqa: S311 - seeded test data
    node_lines = ["sn,cpu_milli,memory_mib,gpu,model"]
    for number in range(nodes):
        large = number % 4 == 0
        shape = "96000,400000,8,H100" if large else "64000,256000,2,A10"
        node_lines.append(f"n{number},{shape}")
    pod_lines = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
    for number in range(pods):
        cards, milli = rng.choice(
            [(0, 0), (1, 250), (1, 330), (1, 500), (1, 750), (1, 1000), (1, 1000), (2, 1000)]
        )
        cpu = rng.choice([2000, 4000, 8000, 12000])
        model = rng.choice(["", "", "", "H100"]) if cards else ""
        pod_lines.append(f"p{number},{cpu},{4 * cpu},{cards},{milli},{model}")
    return read_trace(nodes=node_lines, pods=pod_lines)


def figures() -> Iterator[Figure]:
    """Replay once for each policy."""
    workload = a_workload()
    note = f"{_NODES} nodes, {workload.cards} cards, until 130 % of them are requested"
    for policy in COMPARED:
        began = time.perf_counter()
        result = replay(workload, policy, seed=_SEED)
        took_s = time.perf_counter() - began
        yield Figure(
            name=f"replay.{policy}.pods_per_s",
            value=round(result.arrived / took_s, 1),
            unit="1/s",
            note=note,
        )
        yield Figure(
            name=f"replay.{policy}.allocated_at_full_load",
            value=round(result.allocated_percent(FULL_LOAD), 2),
            unit="%",
            note=note,
        )
