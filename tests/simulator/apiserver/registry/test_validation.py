from __future__ import annotations

from simulator.apiserver.apimachinery.resources import (
    CONFIGMAPS,
    EVENTS,
    PODS,
    Resource,
)
from simulator.apiserver.apimachinery.resources import find as find_resource
from simulator.apiserver.registry.defaults import apply_defaults
from simulator.apiserver.registry.validation import is_extended, validate_create, validate_update
from simulator.objects import Json, thaw
from tests.simulator.harness import a_pod, demanding


def faults(resource: Resource, value: Json) -> list[tuple[str, str]]:
    apply_defaults(resource, value)
    return [(fault.field, fault.message) for fault in validate_create(resource, value)]


def test_extended_resources_have_a_foreign_domain() -> None:
    assert is_extended("fracgpu.io/gpu-mem")
    assert not is_extended("cpu")
    assert not is_extended("kubernetes.io/batch")
    assert not is_extended("attachable.kubernetes.io/x")


def test_roles_may_have_colons_in_their_names() -> None:
    roles = find_resource("rbac.authorization.k8s.io", "v1", "clusterroles")
    assert roles is not None

    assert faults(roles, {"metadata": {"name": "system:node"}}) == []
    assert faults(roles, {"metadata": {"name": "a/b"}}) != []


def test_labels_and_annotations_have_their_forms() -> None:
    value = {
        "metadata": {
            "name": "c",
            "labels": {"good.org/a": "x", "b": "bad value", "bad key": "x"},
            "annotations": {"bad key": "anything goes here", "good": "x" * 300_000},
        }
    }

    assert [where for where, _ in faults(CONFIGMAPS, value)] == [
        "metadata.labels",
        "metadata.labels",
        "metadata.annotations",
        "metadata.annotations",
    ]


def test_an_event_is_about_something_in_its_namespace() -> None:
    event = {"metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": "b"}}

    assert [where for where, _ in faults(EVENTS, event)] == ["involvedObject.namespace"]


def changed(pod: Json, **spec: object) -> list[str]:
    apply_defaults(PODS, pod)
    new = thaw(pod)
    new["spec"] |= spec
    return [fault.field for fault in validate_update(PODS, new, pod)]


def test_little_of_a_pod_may_change() -> None:
    image = [{**a_pod()["spec"]["containers"][0], "image": "registry.example/app:2"}]
    apply_defaults(PODS, other := a_pod(containers=image))
    image = other["spec"]["containers"]
    tolerations = other["spec"]["tolerations"]
    image[0]["imagePullPolicy"] = "IfNotPresent"

    assert changed(a_pod(), containers=image) == []
    assert changed(a_pod(), tolerations=[*tolerations, {"key": "x", "operator": "Exists"}]) == []
    assert changed(a_pod(), activeDeadlineSeconds=5) == []
    assert changed(a_pod(), tolerations=[]) == ["spec"]
    assert changed(a_pod(), nodeName="n1") == ["spec"]
    assert changed(a_pod(), containers=[*image, {"name": "b", "image": "x"}]) == ["spec"]
    assert changed(demanding(limits={"a/b": "1"}), containers=image) == ["spec"]


def test_gates_may_only_be_opened() -> None:
    gated = a_pod(schedulingGates=[{"name": "a"}, {"name": "b"}])

    assert changed(thaw(gated), schedulingGates=[{"name": "b"}]) == []
    assert changed(thaw(gated), schedulingGates=[*gated["spec"]["schedulingGates"], {"name": "c"}])
