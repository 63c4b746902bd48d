import json

import pytest

from fracgpu.k8s.container import ContainerKind
from tests.webhook.builders import a_container, a_pod, parsed
from webhook.admission.review import EnvVar, MalformedReviewError, places, read_pod, specs


def test_containers_are_found_with_the_way_to_them() -> None:
    pod = parsed(a_pod(a_container("a"), a_container("b"), init=[a_container("i")]))

    assert [(pointer, container.name) for pointer, container in places(pod)] == [
        ("/spec/initContainers/0", "i"),
        ("/spec/containers/0", "a"),
        ("/spec/containers/1", "b"),
    ]
    assert [container.name for container in pod.containers] == ["i", "a", "b"]


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
    assert pod.spec.containers[0].amounts == ({}, {})


def test_what_is_no_pod_is_malformed_under_its_name() -> None:
    with pytest.raises(MalformedReviewError, match=r"^the template cannot be read: "):
        read_pod(b"[]", what="the template")
