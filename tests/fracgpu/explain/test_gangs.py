"""Why the gang of a pod waits, in words."""

from dataclasses import replace

import pytest

from fracgpu.explain.answers import PodVerdict
from fracgpu.explain.explanation import explain
from fracgpu.request.need import Gang
from fracgpu.state.cluster_state import ExplainedPod
from tests.support.core import a_card, a_need, a_pod_need
from tests.support.explaining import Cluster, a_waiting_pod

NEED = a_pod_need(a_need(16_000))
GANG = Gang(name="train", size=3)


def a_gang(cluster: Cluster, pods: int, *, running: int = 0) -> ExplainedPod:
    """Add members, the first *running* of them bound, and return the last."""
    member = a_waiting_pod(NEED)
    for number in range(pods):
        record = replace(
            member.info.record,
            uid=f"u{number}",
            name=f"p{number}",
            node="n" if number < running else "",
        )
        info = replace(member.info, record=record, gang=GANG)
        cluster.pods[record.uid] = info
        member = replace(member, info=info)
    return member


def a_cluster(cards: int) -> Cluster:
    return Cluster().node("n", *(a_card(f"GPU-{at}", index=at) for at in range(cards)))


@pytest.mark.parametrize(
    ("cards", "pods", "why"),
    [(3, 2, "only 2 of them exist"), (2, 3, "only 2 of them would fit now")],
)
def test_a_pod_is_told_how_many_of_its_gang_there_are_and_how_many_would_fit(
    cards: int, pods: int, why: str
) -> None:
    cluster = a_cluster(cards)

    found = explain(a_gang(cluster, pods), cluster.state())

    assert found.verdict is PodVerdict.STUCK
    assert found.blockers == (f"all 3 pods of its gang train are placed at once, and {why}",)


def test_a_gang_with_room_for_all_fits() -> None:
    cluster = a_cluster(3)
    pod = a_gang(cluster, 3)

    assert explain(pod, cluster.state()).verdict is PodVerdict.FITS


def test_a_pod_of_a_gang_that_runs_is_placed_by_itself() -> None:
    cluster = a_cluster(3)
    pod = a_gang(cluster, 3, running=1)

    assert explain(pod, cluster.state()).verdict is PodVerdict.FITS
    cluster.pods = {pod.info.record.uid: pod.info}
    assert explain(pod, cluster.state()).verdict is PodVerdict.STUCK
