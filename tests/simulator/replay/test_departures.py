"""Who waits when pods come and go."""

from collections import Counter
from dataclasses import replace

import pytest

from simulator.replay.departures import (
    LARGEST,
    POD_KINDS,
    DeparturesResult,
    arrivals,
    kind_of,
    late_ratio,
    replay_departures,
)
from simulator.replay.workload import ReplayWorkload, WorkloadError
from tests.simulator.replay.trace import a_trace

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "\n".join(
    f"n{number},96000,400000,8,H100" for number in range(6)
)
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time
share,1000,1000,1,500,,0,4000,0
whole,1000,1000,1,1000,,0,6000,0
other,1000,1000,1,1000,,0,3000,0
eight,8000,8000,8,1000,,0,2000,0
unknown,1000,1000,1,500,,0,,
"""


def a_workload() -> ReplayWorkload:
    workload = a_trace(nodes=NODES, pods=PODS)
    small = [pod for pod in workload.pods if pod.name != "eight"]
    (eight,) = [pod for pod in workload.pods if pod.name == "eight"]
    return replace(workload, pods=(*(small * 12), eight))


def run() -> DeparturesResult:
    return replay_departures(a_workload(), "pack", seed=1, load_ratio=0.85)


def test_a_pod_without_a_lifetime_draws_one_from_its_class() -> None:
    stream = arrivals(a_workload(), load_ratio=0.9, seed=3)
    lives = {
        life
        for pod, at, life in zip(stream.pods, stream.at_s, stream.life_s, strict=True)
        if pod.name == "unknown" and at > 0
    }
    assert lives == {4000.0}


def test_a_workload_without_any_lifetime_cannot_be_replayed_with_departures() -> None:
    with pytest.raises(WorkloadError, match="nobody knows when pods leave"):
        replay_departures(a_trace(), "pack", seed=1, load_ratio=0.9)


def test_the_late_pods_of_several_replays_are_counted_together() -> None:
    results = [
        DeparturesResult(
            policy="pack",
            arrived=Counter({"share": arrived}),
            late=Counter({"share": late}),
            allocated_percent=90.0,
        )
        for arrived, late in ((30, 3), (10, 1))
    ]

    assert late_ratio(results, "share") == 0.1
    assert late_ratio(results, LARGEST) == 0.0
    assert {kind_of(pod) for pod in a_workload().pods} <= set(POD_KINDS)


def test_the_stream_asks_for_the_load_that_was_wanted() -> None:
    workload = a_workload()
    stream = arrivals(workload, load_ratio=0.5, seed=1)
    last_s = max(stream.at_s)
    asked = sum(
        pod.mib * life
        for pod, at, life in zip(stream.pods, stream.at_s, stream.life_s, strict=True)
        if at > 0
    )
    assert asked / (last_s * workload.capacity_mib) == pytest.approx(0.5, rel=0.15)


def test_the_classes_are_by_cards() -> None:
    kinds = {pod.name: kind_of(pod) for pod in a_workload().pods}
    assert kinds["eight"] == LARGEST
    assert (kinds["whole"], kinds["share"]) == ("1 card", "share")
    assert {kind_of(pod) for pod in a_trace().pods} == {
        "share",
        "1 card",
        "several cards",
        "no card",
    }


def test_the_same_seed_gives_the_same() -> None:
    first = run()
    assert run() == first
    assert 70 < first.allocated_percent <= 100
    assert first.arrived[LARGEST] > 0
