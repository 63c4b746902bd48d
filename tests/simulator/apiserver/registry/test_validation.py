from __future__ import annotations

import pytest

from simulator.apiserver.apimachinery.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NAMESPACES,
    PDBS,
    PODS,
    SECRETS,
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


def test_a_good_pod_has_no_faults() -> None:
    assert faults(PODS, demanding(limits={"fracgpu.io/gpu-mem": 4096, "cpu": "1"})) == []


@pytest.mark.parametrize(
    ("amounts", "field", "words"),
    [
        (
            {"limits": {"fracgpu.io/gpu-mem": "1.5"}},
            "spec.containers[0].resources.limits[fracgpu.io/gpu-mem]",
            'Invalid value: "1500m": must be an integer',
        ),
        (
            {"limits": {"fracgpu.io/gpu-mem": "-1"}},
            "spec.containers[0].resources.limits[fracgpu.io/gpu-mem]",
            'Invalid value: "-1": must be greater than or equal to 0',
        ),
        (
            {"requests": {"fracgpu.io/gpu-mem": "4"}},
            "spec.containers[0].resources.limits",
            "Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"limits": {"fracgpu.io/gpu-mem": "4"}, "requests": {"fracgpu.io/gpu-mem": "3"}},
            "spec.containers[0].resources.requests",
            'Invalid value: "3": must be equal to fracgpu.io/gpu-mem limit of 4',
        ),
        (
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            "spec.containers[0].resources.requests",
            'Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"limits": {"gpumem": "1"}},
            "spec.containers[0].resources.limits[gpumem]",
            'Invalid value: "gpumem": must be a standard resource type or fully qualified',
        ),
    ],
)
def test_demands_are_checked_in_the_api_servers_words(
    amounts: Json, field: str, words: str
) -> None:
    assert (field, words) in faults(PODS, demanding(**amounts))


def test_extended_resources_have_a_foreign_domain() -> None:
    assert is_extended("fracgpu.io/gpu-mem")
    assert not is_extended("cpu")
    assert not is_extended("kubernetes.io/batch")
    assert not is_extended("attachable.kubernetes.io/x")


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({"metadata": {"name": "a"}, "spec": {}}, "spec.containers"),
        (a_pod(containers=[{"image": "x"}]), "spec.containers[0].name"),
        (a_pod(containers=[{"name": "a"}]), "spec.containers[0].image"),
        (a_pod(containers=[{"name": "A_b", "image": "x"}]), "spec.containers[0].name"),
        (a_pod(containers=[{"name": "a", "image": "x"}] * 2), "spec.containers[1].name"),
        (a_pod(initContainers=[{"name": "main", "image": "x"}]), "spec.initContainers[0].name"),
    ],
)
def test_containers_need_names_and_images(pod: Json, field: str) -> None:
    assert field in [where for where, _ in faults(PODS, pod)]


@pytest.mark.parametrize(
    ("resource", "name", "good"),
    [
        (PODS, "a.b-c", True),
        (PODS, "Bad_Name", False),
        (PODS, "a" * 254, False),
        (NAMESPACES, "a-b", True),
        (NAMESPACES, "a.b", False),
    ],
)
def test_names_follow_dns(resource: Resource, name: str, good: bool) -> None:
    value: Json = {**a_pod(name), "status": {}}

    assert (faults(resource, value) == []) is good


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


def a_deployment(selector: Json | None, labels: Json) -> Json:
    template = {"metadata": {"labels": labels}, "spec": a_pod()["spec"]}
    return {"metadata": {"name": "d"}, "spec": {"selector": selector, "template": template}}


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ({"matchLabels": {"app": "b"}}, "`selector` does not match template `labels`"),
        ({}, "empty selector is invalid for deployment"),
        (None, "Required value"),
    ],
)
def test_a_template_must_be_selected(selector: Json | None, words: str) -> None:
    ((_, message),) = faults(DEPLOYMENTS, a_deployment(selector, {"app": "a"}))

    assert words in message


def test_a_job_must_end() -> None:
    job = {"metadata": {"name": "j"}, "spec": {"template": {"spec": a_pod()["spec"]}}}

    assert [where for where, _ in faults(JOBS, job)] == ["spec.template.spec.restartPolicy"]


def test_a_budget_says_one_thing() -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "maxUnavailable": 1}}

    assert [where for where, _ in faults(PDBS, budget)] == ["spec"]


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


def test_some_fields_never_change() -> None:
    before: Json = {"metadata": {"name": "s"}, "type": "Opaque"}

    (fault,) = validate_update(SECRETS, {**before, "type": "x"}, before)

    assert fault.message == 'Invalid value: "x": field is immutable'
