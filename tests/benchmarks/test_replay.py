"""The synthetic workload of the replay benchmark is reproducible, and has pods with cards."""

from benchmarks.replay import a_workload


def test_the_same_seed_draws_the_same_workload() -> None:
    assert a_workload(nodes=8, pods=20) == a_workload(nodes=8, pods=20)
    assert a_workload(nodes=8, pods=20) != a_workload(nodes=8, pods=20, seed=43)


def test_every_kind_of_pod_is_drawn() -> None:
    wants = [pod.demand for pod in a_workload().pods]

    assert {want.cards for want in wants} == {0, 1, 2}
    assert {want.models for want in wants} == {None, frozenset({"H100"})}
