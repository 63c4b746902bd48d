"""The soak, in short: real replicas over the simulated API server."""

import pytest

from benchmarks.figure import Figure
from benchmarks.soak import fault_of, soak


@pytest.mark.slow
def test_every_pod_is_placed_although_the_leader_changes_twice() -> None:
    figures = {figure.name: figure for figure in soak(pods=40, minutes=0.05, warm_up_s=0)}

    assert figures["soak.rate"].note.startswith("40 pods")
    assert figures["soak.rss_at_end"].value > 0


@pytest.mark.parametrize(("growth", "wrong"), [(0.98, False), (1.1, False), (1.11, True)])
def test_memory_that_grew_by_more_than_a_tenth_is_a_fault(growth: float, wrong: bool) -> None:
    figure = Figure(name="soak.rss_growth", value=growth, unit="ratio")

    assert bool(fault_of([figure])) is wrong
