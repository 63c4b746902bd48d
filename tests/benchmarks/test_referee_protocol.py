"""With kube-scheduler's sampling every pod that fits is still placed, on cards with room."""

import numpy as np
import pytest

from benchmarks.referee_protocol import Policy, Sampled, nodes_wanted
from tests.benchmarks.referee_harness import HALF, HISTORY, PAIR, Cluster, Pod


@pytest.mark.parametrize(
    ("nodes", "wanted"), [(50, 50), (100, 100), (1000, 420), (1213, 497), (6000, 300)]
)
def test_the_sample_is_what_kube_scheduler_takes_by_default(nodes: int, wanted: int) -> None:
    assert nodes_wanted(nodes) == wanted


@pytest.mark.parametrize("policy", [Policy(), Sampled()])
@pytest.mark.parametrize("pod", [HALF, PAIR])
def test_every_pod_that_fits_is_placed_until_none_does(policy: Policy, pod: Pod) -> None:
    cluster = Cluster(220)
    cluster.card_free[:210] = 0  # room is left where the sample ends last
    policy.start(cluster, HISTORY, np.random.default_rng(1))
    count = 0
    while (answer := policy.place(pod, cluster)) is not None:
        cluster.place(pod, answer[0], tuple(answer[1]))
        count += 1

    assert cluster.card_free.min() == cluster.card_free[:, :2].max() == 0
    assert count == {HALF: 40, PAIR: 10}[pod]


def test_room_that_is_there_only_in_sum_takes_no_pod() -> None:
    cluster, policy = Cluster(2), Policy()
    cluster.card_free[:, :2] = 500
    policy.start(cluster, HISTORY, np.random.default_rng(1))

    assert policy.place(Pod(cards=1, milli=1000), cluster) is None
