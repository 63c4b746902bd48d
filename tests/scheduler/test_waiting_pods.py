"""What keeps the waiting pods waiting, and for how long."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from fracgpu import names
from fracgpu.state.pod_info import PodInfo
from kube.informer import ChangeType
from scheduler.extender.api import ExtenderArgs, FilterResult
from scheduler.metrics import Waiting, WaitReason
from tests.fakes.clock import NOON
from tests.support.page import PageCluster

GATES = [{"name": "queue"}]
CREATED = {"creationTimestamp": (NOON - timedelta(minutes=20)).isoformat()}
UNSCHEDULABLE = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": NOON.isoformat(),
        }
    ]
}


def counted(cluster: PageCluster) -> Mapping[WaitReason, int]:
    return {
        reason: waiting.pods
        for reason, waiting in cluster.waiting.by_reason().items()
        if waiting.pods
    }


def asked(cluster: PageCluster, pod: PodInfo, *nodes: str) -> None:
    """Let kube-scheduler ask about the pod, as the running extender is told of it."""
    cluster.waiting.note(pod, cluster.core.extender.filter(ExtenderArgs(pod=pod, node_names=nodes)))


@pytest.mark.parametrize(
    ("wanted", "nodes", "reason"),
    [
        ({"mib": 1000}, ("small",), WaitReason.NOT_CARDS),
        ({"mib": 50_000}, ("small",), WaitReason.MEMORY),
        ({"mib": 50_000}, ("bare", "small"), WaitReason.MEMORY),
        ({"mib": 1000}, ("bare",), WaitReason.NO_CARDS),
        ({"annotations": {names.MODEL: "B200"}}, ("bare", "small"), WaitReason.OTHER_CARDS),
        ({"cards": 9}, ("small",), WaitReason.TOGETHER),
    ],
)
def test_a_pod_waits_for_what_its_nearest_node_lacks(
    wanted: Mapping[str, Any], nodes: tuple[str, ...], reason: WaitReason
) -> None:
    cluster = PageCluster()
    cluster.node("small")
    cluster.node("bare", cards=())
    pod = cluster.pod("p", **wanted)

    asked(cluster, pod, *nodes)

    assert counted(cluster) == {reason: 1}


def test_a_pod_that_kube_scheduler_did_not_ask_about_waits_for_something_else() -> None:
    cluster = PageCluster()
    cluster.pod("new")
    cluster.pod("tainted", status=UNSCHEDULABLE)
    cluster.pod("odd", annotations={names.FRACTION: "half"})

    assert counted(cluster) == {
        WaitReason.NOT_TRIED: 1,
        WaitReason.NOT_CARDS: 1,
        WaitReason.REQUEST: 1,
    }


def test_an_answer_that_could_not_be_given_says_nothing_about_the_pod() -> None:
    cluster = PageCluster()
    cluster.waiting.note(cluster.pod("p"), FilterResult(error="another replica leads"))

    assert counted(cluster) == {WaitReason.NOT_TRIED: 1}


def test_an_answer_counts_although_the_watch_tells_of_the_pod_later() -> None:
    cluster, before = PageCluster(), PageCluster()
    cluster.node("bare", cards=())

    asked(cluster, before.pod("p"), "bare")
    cluster.pod("p")

    assert counted(cluster) == {WaitReason.NO_CARDS: 1}


@pytest.mark.parametrize("end", [{"what": ChangeType.DELETED}, {"on": "small"}])
def test_a_pod_that_has_a_node_or_is_gone_waits_no_more(end: Mapping[str, Any]) -> None:
    cluster = PageCluster()
    cluster.node("small")
    asked(cluster, cluster.pod("p", mib=50_000), "small")

    cluster.pod("p", mib=50_000, **end)

    assert counted(cluster) == {}
    cluster.pod("p")  # a new one of the same UID has no answer left
    assert counted(cluster) == {WaitReason.NOT_TRIED: 1}


def test_the_longest_wait_is_that_of_the_pod_created_first() -> None:
    cluster = PageCluster()
    cluster.pod("young", meta={"creationTimestamp": NOON.isoformat()})
    cluster.pod("old", meta=CREATED)

    assert cluster.waiting.by_reason()[WaitReason.NOT_TRIED] == Waiting(pods=2, longest_s=1200)
    assert cluster.waiting.by_reason()[WaitReason.MEMORY] == Waiting()


async def test_a_gated_pod_waits_from_the_moment_its_gate_is_removed() -> None:
    cluster = PageCluster()
    cluster.pod("p", meta=CREATED, schedulingGates=GATES)
    assert counted(cluster) == {}

    cluster.pod("p", meta=CREATED)
    await cluster.advance(30)

    assert cluster.waiting.by_reason()[WaitReason.NOT_TRIED] == Waiting(pods=1, longest_s=30)
