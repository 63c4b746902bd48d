"""Whether a node could take a pod at all, in kube-scheduler's words.

The rules themselves are those of `fracgpu.k8s`, and are tested there.
"""

from typing import Any

from simulator.scheduler.filters import NodeUsage, constraints_of, misfits, usage_of
from tests.support.gpu import Json

AFFINITY = "node(s) didn't match Pod's node affinity/selector"


def a_container(**requests: str) -> Json:
    return {"name": "c", "resources": {"requests": requests}}


def a_pod(*containers: Json, **spec: Any) -> Json:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def a_room(*pods: Json, labels: Json | None = None, spec: Json | None = None) -> NodeUsage:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "2", "fracgpu.io/gpu-mem": "96k"}
    node = {
        "metadata": {"name": "n", "labels": labels or {}},
        "spec": spec or {},
        "status": {"allocatable": allocatable},
    }
    return usage_of(node, pods)


def refused(pod: Json, room: NodeUsage) -> tuple[str, ...]:
    return misfits(constraints_of(pod), room)


def test_what_others_took_is_gone() -> None:
    room = a_room(a_pod(a_container(cpu="3500m")))

    assert refused(a_pod(a_container(cpu="500m")), room) == ()
    assert refused(a_pod(a_container(cpu="501m")), room) == ("Insufficient cpu",)


def test_the_first_taint_that_is_not_tolerated_is_named() -> None:
    taints = [
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "k", "value": "v", "effect": "NoSchedule"},
        {"key": "other", "effect": "NoExecute"},
    ]
    room = a_room(spec={"taints": taints})
    both = [{"key": "k", "value": "v"}, {"key": "other", "operator": "Exists"}]

    assert refused(a_pod(), room) == ("node(s) had untolerated taint {k: v}",)
    assert refused(a_pod(tolerations=both[:1]), room) == (
        "node(s) had untolerated taint {other: }",
    )
    assert refused(a_pod(tolerations=both), room) == ()


def test_a_pod_goes_where_it_selects() -> None:
    room = a_room(labels={"zone": "a"})

    assert refused(a_pod(nodeSelector={"zone": "a"}), room) == ()
    assert refused(a_pod(nodeSelector={"zone": "b"}), room) == (AFFINITY,)
