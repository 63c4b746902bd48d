"""Controllers and guards, found by pod."""

from fracgpu.k8s.workloads.service_selector import ServiceSelector
from fracgpu.k8s.workloads.workload import Workload
from fracgpu.k8s.workloads.workload_state import ByNamespace, WorkloadState


def workload(uid: str, *, owner: str = "") -> Workload:
    return Workload(
        uid=uid,
        kind="ReplicaSet",
        namespace="ml",
        name=uid,
        owner=owner,
        desired=1,
        ready=1,
        current=1,
        total=1,
    )


def test_the_controller_of_a_pod_is_followed_to_its_own() -> None:
    inner, outer = workload("rs", owner="deploy"), workload("deploy")
    state = WorkloadState(workloads={"rs": inner, "deploy": outer})

    assert state.controllers_of("rs") == (inner, outer)
    assert state.controllers_of("deploy") == (outer,)
    assert state.controllers_of("unknown") == ()


def test_guards_are_found_by_namespace() -> None:
    service = ServiceSelector(namespace="ml", name="web", labels={})

    assert ByNamespace([service]).of("ml") == [service]
    assert list(ByNamespace([service]).of("other")) == []
