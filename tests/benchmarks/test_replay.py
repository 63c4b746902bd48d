"""The made-up workload of the replay benchmark is the same every time, and has cards to place."""

from benchmarks.replay import a_workload


def test_the_same_seed_draws_the_same_workload() -> None:
    assert a_workload(nodes=8, pods=20) == a_workload(nodes=8, pods=20)
    assert a_workload(nodes=8, pods=20) != a_workload(nodes=8, pods=20, seed=43)


def test_every_kind_of_pod_is_drawn() -> None:
    wants = [pod.demand for pod in a_workload().pods]

    assert {it.cards for it in wants} == {0, 1, 2}
    assert {it.models for it in wants} == {None, frozenset({"H100"})}
