"""A bound pod holds the same as the pod info decoded from the same object."""

import gc
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.errors import WireError
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.resources import HostResources
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.names import ASSIGNMENT, GANG, MODEL, MOVE
from fracgpu.state.allocation import CardAllocation, allocations_by_card
from fracgpu.state.bound_pod import bound_pod_of, decode_bound_pod
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.state.snapshot import allocation_of
from fracgpu.units import Mib
from tests.support.gpu import a_gpu_pod


def bound(**changes: Any) -> dict[str, Any]:
    pod = a_gpu_pod("p", mib=1000, nodeName="n", priority=7, **changes)
    pod["metadata"] |= {"uid": "u", "labels": {"app": "train"}}
    pod["metadata"]["annotations"] |= {
        ASSIGNMENT: '{"train":[{"card":"GPU-a","mib":1000,"cores":3}]}',
        GANG: "train/4",
        MOVE: "move-1",
    }
    pod["spec"]["overhead"] = {"cpu": "250m", "memory": "128Mi"}
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1500m"
    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1Gi"
    pod["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    return pod


def test_it_holds_what_the_whole_pod_holds() -> None:
    body = json.dumps(bound()).encode()
    found, info = decode_bound_pod(body), decode_pod_info(body)

    assert found is not None
    assert info.record.assignment is not None
    assert found.allocation.by_card == allocations_by_card(
        info.record.assignment, info.record.containers
    )
    assert (found.uid, found.node, found.name) == ("u", "n", "p")
    assert (found.priority, found.labels, found.started) == (
        7,
        {"app": "train"},
        "2026-01-01T00:00:00Z",
    )
    assert (found.gang, found.allocation.move) == ("train/4", "move-1")
    assert found.host == HostResources(cpu_milli=1750, memory_mib=1152, pods=1)


@pytest.mark.parametrize(
    ("conditions", "wants", "cpu_milli"),
    [
        ({}, "5", 5250),
        ({"PodResizePending": "Deferred"}, "5", 5250),
        ({"PodResizePending": "Infeasible"}, "5", 3250),
        ({"PodResizeInProgress": ""}, "1", 3250),
        ({"PodResizeInProgress": "", "PodResizePending": "Infeasible"}, "5", 3250),
    ],
    ids=str,
)
def test_a_resize_that_the_node_can_never_grant_does_not_count_and_no_other_before_it_is_done(
    conditions: dict[str, str], wants: str, cpu_milli: int
) -> None:
    """Otherwise whoever may resize a pod could keep gangs and preemption off its node."""
    pod = bound()
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = wants
    pod["status"]["conditions"] = [
        {"type": kind, "status": "True", "reason": reason} for kind, reason in conditions.items()
    ]
    pod["status"]["containerStatuses"] = [
        {
            "name": "train",
            "allocatedResources": {"cpu": "2500m"},
            "resources": {"requests": {"cpu": "3"}},
        }
    ]
    body = json.dumps(pod).encode()

    found = decode_bound_pod(body)

    assert found is not None
    assert found.host == HostResources(cpu_milli=cpu_milli, memory_mib=1152, pods=1)
    assert decode_pod_info(body).host == found.host
    assert dict(scheduling_constraints_of(decode_pod(body)).requests)["cpu"] == cpu_milli


def test_a_pod_without_a_node_is_not_bound() -> None:
    body = json.dumps(a_gpu_pod("p")).encode()

    assert decode_bound_pod(body) is None
    assert bound_pod_of(decode_pod_info(body)) is None


@given(
    phase=st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed"]),
    terminating=st.booleans(),
    started=st.sampled_from([None, "1999-12-31T23:59:59Z", "2026-01-01T00:00:00Z"]),
    assignment=st.none()
    | st.sampled_from(
        [
            "{}",
            "not JSON",
            '{"train":[{"card":"GPU-a","mib":1000,"cores":3}]}',
            '{"train":[{"card":"GPU-a","mib":1}],"other":[{"card":"GPU-b","mib":2}]}',
        ]
    ),
    move=st.sampled_from(["", "move-1"]),
    model=st.sampled_from(["", "A100*", "[", "A30,T4"]),
    gang=st.sampled_from(["", "train/4", "train"]),
    labels=st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")),
    whole=st.fixed_dictionaries(
        {},
        optional={
            "overhead": st.just({"cpu": "1"}),
            "resources": st.sampled_from(
                [{"requests": {"cpu": "4"}}, {"limits": {"memory": "2Gi"}}]
            ),
        },
    ),
)
def test_the_lean_decoding_and_the_whole_one_agree(  # noqa: PLR0913 - what a pod may have
    *,
    phase: str,
    terminating: bool,
    started: str | None,
    assignment: str | None,
    move: str,
    model: str,
    gang: str,
    labels: dict[str, str],
    whole: dict[str, Any],
) -> None:
    pod = bound()
    notes = {ASSIGNMENT: assignment, MOVE: move or None, MODEL: model or None, GANG: gang or None}
    pod["metadata"]["annotations"] = {key: text for key, text in notes.items() if text is not None}
    pod["metadata"]["labels"] = labels
    if terminating:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    del pod["spec"]["overhead"]
    pod["spec"] |= whole
    pod["spec"]["initContainers"] = [
        {"name": "other", "restartPolicy": "Always", "resources": {"requests": {"memory": "2Gi"}}}
    ]
    pod["status"] = {"phase": phase} | ({"startTime": started} if started else {})
    body = json.dumps(pod).encode()

    assert bound_pod_of(decode_pod_info(body)) == decode_bound_pod(body)


def test_an_ended_pod_holds_nothing_and_a_terminating_one_everything() -> None:
    ended, going = bound(), bound()
    ended["status"]["phase"] = "Failed"
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    gone, still = (decode_bound_pod(json.dumps(pod).encode()) for pod in (ended, going))

    assert gone is not None
    assert (gone.live, gone.allocation.by_card, gone.host.cpu_milli) == (False, {}, 0)
    assert still is not None
    assert (still.terminating, still.allocation.by_card[CardUuid("GPU-a")]) == (
        True,
        CardAllocation(mib=Mib(1000), cores=3),
    )


def test_an_assignment_that_cannot_be_read_counts_by_the_limits_and_says_why() -> None:
    pod = bound()
    pod["metadata"]["annotations"][ASSIGNMENT] = "[]"
    found = decode_bound_pod(json.dumps(pod).encode())

    assert found is not None
    assert found.allocation == allocation_of(decode_pod_info(json.dumps(pod).encode()).record)
    assert (found.allocation.by_card, found.allocation.unplaced) == (
        {},
        CardAllocation(mib=Mib(1000), cores=100),
    )
    assert (found.allocation.move, ASSIGNMENT in found.problem) == ("move-1", True)


def test_pods_share_what_they_have_in_common() -> None:
    one, other = (decode_bound_pod(json.dumps(bound()).encode()) for _ in range(2))

    assert one is not None
    assert other is not None
    assert one.labels is other.labels
    assert one.host is other.host
    assert one.node is other.node


LONG = [f"example.com/{at}" for at in range(3_000)]
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERMS = [{"preference": {"matchExpressions": [{"key": key, "operator": "Exists"}]}} for key in LONG]


@pytest.mark.parametrize("node", ["", "n"], ids=["pending", "bound"])
@pytest.mark.parametrize(
    "long",
    [
        {"metadata": {"labels": dict.fromkeys(LONG, "")}},
        {"metadata": {"annotations": {MODEL: ",".join(LONG)}}},
        {"spec": {"containers": [{"name": name} for name in LONG]}},
        {"spec": {"nodeSelector": dict.fromkeys(LONG, "")}},
        {"spec": {"tolerations": [{"key": key, "operator": "Exists"} for key in LONG]}},
        {"spec": {"affinity": {"nodeAffinity": {PREFERRED: TERMS}}}},
        {"spec": {"topologySpreadConstraints": [{"topologyKey": key} for key in LONG]}},
        {"spec": {"overhead": dict.fromkeys(LONG, "1")}},
    ],
    ids=lambda long: next(iter(next(iter(long.values())))),
)
def test_of_a_long_pod_nothing_is_kept_once_it_is_gone(long: dict[str, Any], node: str) -> None:
    """Otherwise a user who creates and deletes sixty pods of a megabyte fills a leader's memory."""
    body = json.dumps({**long, "spec": {"nodeName": node, **long.get("spec", {})}}).encode()
    read = (decode_bound_pod, decode_pod_info, lambda b: scheduling_constraints_of(decode_pod(b)))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for decode in read:
            decode(body)
        gc.collect()
        after, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 50_000 < most - before


def test_what_is_no_pod_is_refused() -> None:
    with pytest.raises(WireError, match="pod"):
        decode_bound_pod(b"[]")


@pytest.mark.parametrize(
    ("written", "read"),
    [("NVIDIA A30, *H100*", ("NVIDIA-A30", "*H100*")), ("", ()), ("A30,,T4", ())],
)
def test_the_models_that_it_accepts_are_known(written: str, read: tuple[str, ...]) -> None:
    pod = bound()
    pod["metadata"]["annotations"][MODEL] = written

    found = decode_bound_pod(json.dumps(pod).encode())

    assert found is not None
    assert found.models == read
