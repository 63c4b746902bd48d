from __future__ import annotations

from typing import Any

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    EVENTS,
    NODES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from simulator.apiserver.registry.defaults import apply_defaults, qos_class
from simulator.objects import Json
from tests.simulator.harness import a_pod, demanding


def defaulted(resource: Resource, value: Json) -> Json:
    apply_defaults(resource, value)
    return value


def test_a_pod_is_filled_in() -> None:
    spec = defaulted(PODS, a_pod())["spec"]

    assert spec["restartPolicy"] == "Always"
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert {
        toleration["key"]: toleration["tolerationSeconds"] for toleration in spec["tolerations"]
    } == {
        "node.kubernetes.io/not-ready": 300,
        "node.kubernetes.io/unreachable": 300,
    }


def test_defaults_are_the_same_the_second_time() -> None:
    once = defaulted(PODS, demanding(limits={"fracgpu.io/gpu-mem": 8000}))
    again = defaulted(PODS, once)

    assert again == once


def test_requests_follow_limits_and_both_are_canonical() -> None:
    pod = defaulted(PODS, demanding(limits={"fracgpu.io/gpu-mem": 8000, "cpu": 0.5}))

    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"fracgpu.io/gpu-mem": "8k", "cpu": "500m"},
        "requests": {"fracgpu.io/gpu-mem": "8k", "cpu": "500m"},
    }


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("app", "Always"),
        ("app:latest", "Always"),
        ("app:1", "IfNotPresent"),
        ("host:5000/app", "Always"),
        ("host:5000/app:1", "IfNotPresent"),
        ("app@sha256:00", "IfNotPresent"),
    ],
)
def test_an_image_that_may_change_is_always_pulled(image: str, policy: str) -> None:
    pod = a_pod(containers=[{"name": "main", "image": image}])

    assert defaulted(PODS, pod)["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_a_template_is_filled_in_like_a_pod() -> None:
    spec = {"selector": {}, "template": {"spec": a_pod()["spec"]}}

    found = defaulted(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})["spec"]

    assert found["replicas"] == 1
    assert found["strategy"]["rollingUpdate"] == {"maxUnavailable": "25%", "maxSurge": "25%"}
    assert found["template"]["spec"]["restartPolicy"] == "Always"
    assert "tolerations" not in found["template"]["spec"]


def test_what_was_said_is_not_overwritten() -> None:
    spec: Json = {"replicas": 0, "revisionHistoryLimit": 1, "template": a_pod()}

    found = defaulted(DEPLOYMENTS, {"metadata": {"name": "s"}, "spec": spec})["spec"]

    assert (found["replicas"], found["revisionHistoryLimit"]) == (0, 1)


def test_clear_text_of_a_secret_is_encoded() -> None:
    secret = defaulted(SECRETS, {"metadata": {"name": "s"}, "stringData": {"a": "b"}})

    assert secret == {"metadata": {"name": "s"}, "type": "Opaque", "data": {"a": "Yg=="}}


def test_times_never_set_are_null_in_conditions_and_events() -> None:
    pod = {**a_pod(), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}

    (condition,) = defaulted(PODS, pod)["status"]["conditions"]
    event = defaulted(EVENTS, {"metadata": {"name": "e"}, "reason": "r"})

    assert condition["lastTransitionTime"] is None
    assert event["firstTimestamp"] is None


def test_a_node_allows_what_it_has_until_its_kubelet_says_otherwise() -> None:
    capacity = {"fracgpu.io/gpu-mem": "16Ki"}
    fresh = defaulted(NODES, {"metadata": {"name": "n"}, "status": {"capacity": capacity}})
    grown = defaulted(NODES, {**fresh, "status": {**fresh["status"], "capacity": {"a/b": "2"}}})

    assert grown["status"]["allocatable"] == {"fracgpu.io/gpu-mem": "16Ki"}


@pytest.mark.parametrize(
    ("resource", "value", "words"),
    [
        (PODS, {"metadata": {"annotations": {"a": 0.5}}}, "cannot unmarshal number into"),
        (PODS, {"metadata": {"labels": {"a": True}}}, "cannot unmarshal bool into"),
        (CONFIGMAPS, {"metadata": {}, "data": {"a": [1]}}, "cannot unmarshal array into"),
        (CONFIGMAPS, {"metadata": {}, "data": {"a": {}}}, "cannot unmarshal object into"),
        (PODS, demanding(limits={"cpu": "much"}), "quantities must match"),
        (PODS, {"metadata": {}, "spec": []}, "spec is list; want an object"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_bad_request(
    resource: Resource, value: Json, words: str
) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        apply_defaults(resource, value)
    assert caught.value.code == 400


def test_a_webhook_fails_closed_and_is_given_ten_seconds() -> None:
    webhook: dict[str, Any] = {"clientConfig": {"service": {"name": "s"}}, "rules": [{}]}
    defaulted(VALIDATING_WEBHOOKS, {"metadata": {"name": "w"}, "webhooks": [webhook]})

    assert webhook["failurePolicy"] == "Fail"
    assert webhook["timeoutSeconds"] == 10
    assert webhook["rules"] == [{"scope": "*"}]
    assert webhook["clientConfig"]["service"]["port"] == 443


@pytest.mark.parametrize(
    ("amounts", "wanted"),
    [
        ({}, "BestEffort"),
        ({"limits": {"fracgpu.io/gpu-mem": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}, "Burstable"),
    ],
)
def test_quality_of_service_follows_cpu_and_memory(amounts: Json, wanted: str) -> None:
    assert qos_class(demanding(**amounts)["spec"]) == wanted
