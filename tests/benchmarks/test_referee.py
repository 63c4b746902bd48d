"""The adapter passes requests of the referee on, and answers of the policy back."""

import numpy as np
import pytest

from benchmarks.referee import DefaultCpu, Policy, Shortlists
from tests.benchmarks.referee_harness import (
    CARD_MILLI,
    HALF,
    HISTORY,
    NAMED,
    PAIR,
    PROCESSOR,
    Cluster,
    Pod,
)

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("pod", [HALF, PAIR, NAMED, PROCESSOR])
def test_every_pod_that_fits_is_placed_until_none_does(pod: Pod) -> None:
    cluster, policy = Cluster(3), Policy()
    policy.start(cluster, HISTORY, RNG)
    count = 0
    while (answer := policy.place(pod, cluster)) is not None:
        node, cards = answer
        assert len(cards) == pod.cards
        cluster.place(pod, node, tuple(cards))
        count += 1

    assert cluster.card_free.min() >= 0
    assert cluster.cpu_free.min() >= 0
    assert count == {HALF: 12, PAIR: 3, NAMED: 2, PROCESSOR: 12}[pod]


def test_of_the_nodes_of_a_shortlist_the_one_with_most_cpu_left_is_taken() -> None:
    cluster, policy = Cluster(6), Shortlists()
    policy.start(cluster, HISTORY, RNG)
    cluster.cpu_free[:] = (9_000, 3_000, 4_000, 2_000, 12_000, 12_000)
    cluster.touched += range(6)
    listed = policy.harness.shortlist(policy.harness.read(HALF))

    answer = policy.place(HALF, cluster)

    assert len(listed) == 4
    assert answer is not None
    assert answer[0] == max(listed, key=lambda node: cluster.cpu_free[node])
    assert len(answer[1]) == 1
    assert policy.place(Pod(cards=3, milli=CARD_MILLI), cluster) is None


def test_pods_without_cards_may_be_left_to_kube_scheduler() -> None:
    cluster, policy = Cluster(3), DefaultCpu()
    policy.start(cluster, HISTORY, RNG)
    cluster.cpu_free[:] = (5_000, 9_000, 7_000)

    assert policy.place(PROCESSOR, cluster) == (1, ())
    assert policy.place(Pod(cpu=10_000), cluster) is None
