import json

import pytest

from fracgpu.k8s.container import ContainerKind
from tests.webhook.builders import a_container, a_pod
from webhook.admission.pod import EnvVar, MalformedReviewError, amounts, read_pod, specs


def test_containers_are_seen_init_containers_first_with_their_kind_and_amounts() -> None:
    limits = {"limits": {"fracgpu.io/gpu-mem": 512, "cpu": 0.5}}
    pod = a_pod(
        a_container("app", resources=limits),
        init=[a_container("warm"), a_container("side", restartPolicy="Always")],
    )

    found = specs(read_pod(json.dumps(pod).encode()))

    assert [(container.name, container.kind) for container in found] == [
        ("warm", ContainerKind.INIT),
        ("side", ContainerKind.SIDECAR),
        ("app", ContainerKind.APP),
    ]
    assert found[2].limits == {"fracgpu.io/gpu-mem": "512", "cpu": "0.5"}


def test_a_variable_from_somewhere_else_has_no_value() -> None:
    env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    pod = read_pod(json.dumps(a_pod(a_container(env=env))).encode())

    assert pod.spec.containers[0].env == [EnvVar(name="A")]
    assert amounts(pod.spec.containers[0], "requests") == {}


def test_what_is_no_pod_is_malformed_under_its_name() -> None:
    with pytest.raises(MalformedReviewError, match=r"^the template cannot be read: "):
        read_pod(b"[]", what="the template")
