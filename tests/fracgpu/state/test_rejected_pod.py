"""Which rejected pods held cards, and which of them have been replaced."""

from dataclasses import replace
from datetime import timedelta

import pytest

from fracgpu import names
from fracgpu.k8s.container import ContainerSpec
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.rejected_pod import is_replaced, was_rejected
from tests.fakes.clock import NOON
from tests.support.core import a_record, on


def a_rejected_pod(kind: str = "ReplicaSet", **changes: object) -> PodInfo:
    container = ContainerSpec(name="main", limits={names.GPU_SLOT: "1"})
    record = replace(
        a_record("u1"), containers=(container,), assignment=on("GPU-1", 80), live=False
    )
    pod = PodInfo(
        record=record,
        phase="Failed",
        reason="UnexpectedAdmissionError",
        owner=(kind, "train", "owner"),
        started_at=NOON,
        created_at=NOON - timedelta(seconds=1),
    )
    return replace(pod, **changes)  # type: ignore[arg-type]


def test_a_pod_that_kubelet_refused_before_it_ran_is_found() -> None:
    assert was_rejected(a_rejected_pod())
    assert was_rejected(a_rejected_pod(reason="OutOffracgpu.io/gpu-mem"))


@pytest.mark.parametrize(
    "pod",
    [
        a_rejected_pod(phase="Running"),
        a_rejected_pod(reason="Evicted"),
        a_rejected_pod(reason="OutOfcpu"),
        a_rejected_pod(container_ids={"main": "c1"}),
        a_rejected_pod(annotations={names.WIRED: '{"main":["GPU-1"]}'}),
        a_rejected_pod(record=replace(a_rejected_pod().record, assignment=None)),
        a_rejected_pod(record=replace(a_rejected_pod().record, terminating=True)),
        a_rejected_pod(record=replace(a_rejected_pod().record, containers=())),
    ],
    ids=[
        "runs",
        "evicted",
        "cpu",
        "has run",
        "was started",
        "not bound by us",
        "going",
        "asks nothing",
    ],
)
def test_every_other_pod_is_left_alone(pod: PodInfo) -> None:
    assert not was_rejected(pod)


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet"])
def test_a_controller_that_replaces_every_failed_pod_has_done_so(kind: str) -> None:
    assert is_replaced(a_rejected_pod(kind), ())


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_of_another_owner_a_later_pod_is_the_evidence(kind: str) -> None:
    pod = a_rejected_pod(kind)
    later = a_rejected_pod(kind, created_at=NOON + timedelta(seconds=1))
    stranger = replace(later, owner=(kind, "other", "other"))

    assert not is_replaced(pod, (pod, a_rejected_pod(kind), stranger))
    assert is_replaced(pod, (pod, later))


def test_a_bare_pod_is_never_replaced() -> None:
    later = a_rejected_pod(owner=None, created_at=NOON + timedelta(seconds=1))

    assert not is_replaced(a_rejected_pod(owner=None), (later,))
