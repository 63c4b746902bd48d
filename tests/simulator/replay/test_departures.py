"""Who waits when pods come and go, and what room-making moves change about it."""

from collections import Counter
from dataclasses import replace

import pytest

from simulator.replay.departures import (
    LARGEST,
    POD_KINDS,
    DeparturesResult,
    MakeRoomLimits,
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
ROOMY = MakeRoomLimits(moves_per_hour=60, in_flight=3)


def a_workload() -> ReplayWorkload:
    workload = a_trace(nodes=NODES, pods=PODS)
    small = [pod for pod in workload.pods if pod.name != "eight"]
    (eight,) = [pod for pod in workload.pods if pod.name == "eight"]
    return replace(workload, pods=(*(small * 12), eight))


def run(limits: MakeRoomLimits | None = None, seed: int = 1) -> DeparturesResult:
    return replay_departures(a_workload(), "pack", seed=seed, load_ratio=0.85, limits=limits)


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
            moves=0,
            plans=0,
            helped=0,
            hours=1.0,
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


def test_without_moves_nothing_is_moved_and_the_same_seed_gives_the_same() -> None:
    first = run()
    assert (first.moves, first.plans, first.helped) == (0, 0, 0)
    assert run() == first
    assert 70 < first.allocated_percent <= 100
    assert first.arrived[LARGEST] > 0


def test_few_moves_let_pods_of_eight_cards_in_earlier() -> None:
    without = [run(seed=seed) for seed in (1, 2, 3)]
    moved = [run(ROOMY, seed=seed) for seed in (1, 2, 3)]

    assert [it.arrived for it in moved] == [it.arrived for it in without]
    assert sum(it.late[LARGEST] for it in moved) < sum(it.late[LARGEST] for it in without)
    assert all(it.helped <= it.plans <= it.moves <= 60 * it.hours + 60 for it in moved)
    assert sum(it.helped for it in moved) > 0


def test_no_more_is_moved_in_an_hour_than_the_limit_allows() -> None:
    found = run(MakeRoomLimits(moves_per_hour=2))
    assert 0 < found.moves <= 2 * (found.hours + 1)
