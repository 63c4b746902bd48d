"""deploy/policies-devices.yaml: the ways to a card that lead around the request language."""

import copy
from typing import Any

import pytest

from tests.support.policies import actions, policy, refusals

Json = dict[str, Any]

ENV = "NVIDIA_VISIBLE_DEVICES"


def a_pod(container: Json | None = None, *, notes: Json | None = None, **spec: Any) -> Json:
    body = {"containers": [{"name": "c", **(container or {})}], **spec}
    return {"metadata": {"name": "p", "namespace": "ml", "annotations": notes or {}}, "spec": body}


def with_env(**variable: Any) -> Json:
    return a_pod({"env": [{"name": "A", "value": "b"}, {"name": ENV, **variable}]})


def with_path(path: str) -> Json:
    return a_pod(volumes=[{"name": "a", "emptyDir": {}}, {"name": "v", "hostPath": {"path": path}}])


def with_mount(path: str) -> Json:
    return a_pod({"volumeMounts": [{"name": "v", "mountPath": path}]})


def said(new: Json, *, old: Json | None = None, resource: str = "pods") -> list[str]:
    return refusals("fracgpu-devices", new, old=old, resource=resource)


@pytest.mark.parametrize(
    "pod",
    [
        with_env(value="all"),
        with_env(value="0"),
        with_env(value="GPU-5a1f"),
        with_env(value="$(A)"),
        with_env(value="Void"),
        with_env(valueFrom={"configMapKeyRef": {"name": "m", "key": "k"}}),
        a_pod({"envFrom": [{"prefix": "NVIDIA_", "configMapRef": {"name": "m"}}]}),
        a_pod({"envFrom": [{"prefix": ENV, "secretRef": {"name": "m"}}]}),
        a_pod({"env": [{"name": "CUDA_VERSION", "value": "10.0"}]}),
        with_mount("/var/run/nvidia-container-devices/all"),
        with_mount("var//run/./nvidia-container-devices/0"),
        with_mount("/var/run/x/../nvidia-container-devices/0"),
        a_pod(notes={"cdi.k8s.io/a": "nvidia.com/gpu=all"}),
        a_pod(notes={"nvidia.cdi.k8s.io/container.c": "nvidia.com/gpu=all"}),
        a_pod(notes={"io.kubernetes.cri-o.Devices": "/dev/nvidia0"}),
        a_pod(notes={"io.kubernetes.cri-o.Devices/c": "/dev/nvidia0"}),
        a_pod(notes={"devices.crio.io": "/dev/nvidia0"}),
        a_pod(notes={"devices.nri.io/container.c": "[]"}),
        a_pod(notes={"cdi.nri.io/container.c": "[]"}),
        a_pod(notes={"fracgpu.io/fraction": "0.5"}, resourceClaims=[{"name": "gpu"}]),
        a_pod({"resources": {"limits": {"fracgpu.io/gpu-mem": "9"}}}, resourceClaims=[{}]),
        a_pod(runtimeClassName="nvidia"),
        a_pod({"resources": {"limits": {"nvidia.com/gpu": "0"}}}, runtimeClassName="nvidia"),
        a_pod(
            {"resources": {"limits": {"nvidia.com/any": "1"}}},
            runtimeClassName="nvidia",
            nodeName="n1",
        ),
        a_pod(initContainers=[{"name": "i", "env": [{"name": ENV, "value": "all"}]}]),
    ],
)
def test_pods_that_ask_for_nothing_get_nothing(pod: Json) -> None:
    assert len(said(pod)) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/", "//", "/./", "/dev", "/dev/", "//dev", "/./dev/.", "/dev/nvidia0", "/dev/nvidiactl",
        "/dev//nvidia-caps/nvidia-cap1", "/dev/./nvidia0", "/dev/../dev", "/mnt/..", "/dev/dri",
        "/dev/dri/renderD128", "/dev/kfd", "/dev/char/195:0", "/var", "/var/", "/var/run",
        "/var/run/cdi", "/run", "/run/cdi/", "/var/run/nri/nri.sock", "/run/nvidia/driver/dev",
        "/run/fracgpu/mps", "/etc",
        "/etc/cdi", "/etc//cdi/x.json", "/etc/fracgpu/kube-scheduler",
        "/var/lib", "/var/lib/fracgpu", "/var/lib/fracgpu/bin",
        "/var/lib/kubelet", "/var/lib/kubelet/", "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/device-plugins/kubelet.sock", "/var/lib/kubelet/pod-resources",
        "/var//lib/./kubelet/plugins_registry", "dev", "dev/nvidia0", "/proc",
        "/proc/", "//proc", "/./proc/1", "/proc/1/root", "/proc/1/root/dev/nvidia0",
        "/proc/self/root",
        "/proc/1/cwd/dev", "/dev/fd/0", "/sys", "/sys/", "/sys/class/drm", "/sys/./bus/pci",
        "proc/1",
    ],
)  # fmt: skip
def test_no_host_path_leads_to_a_card_however_it_is_written(path: str) -> None:
    (sentence,) = said(with_path(path))

    assert sentence.startswith("A hostPath volume holds device files of cards")


@pytest.mark.parametrize(
    "path",
    [
        "/mnt", "/data", "/dev/mqueue", "/dev/fuse", "/dev/null", "/dev/hugepages", "/devices",
        "/var/log", "/var/log/pods", "/var/lib/docker", "/var/lib/kubelet/pods",
        "/var/lib/kubelet-x", "/var/lib/fracgpu-data", "/run/secrets", "/run/cdi-x", "/etc/ssl",
        "/etc/cdix", "/home/dev/nvidia", "/mnt/..a", "/variety", "/running",
        "/process", "/system", "/home/proc/1", "/srv/sys", "/dev/fdx", "/mnt/proc",
    ],
)  # fmt: skip
def test_other_host_paths_are_other_policies_business(path: str) -> None:
    assert said(with_path(path)) == []


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(),
        with_env(value="void"),
        with_env(value="none"),
        with_env(value=""),
        with_env(),
        a_pod({"envFrom": [{"configMapRef": {"name": "m"}}, {"prefix": "APP_"}, {"prefix": ""}]}),
        a_pod({"env": [{"name": "CUDA_VERSION"}, {"name": ENV, "value": "void"}]}),
        with_mount("/var/run/secrets"),
        a_pod(notes={"nvidia.cdi.k8s.io/c.gpu-memory.request": "8Gi", "app": "x"}),
        a_pod({"env": [{"name": ENV, "value": "void"}]}, runtimeClassName="nvidia"),
        a_pod({"resources": {"limits": {"fracgpu.io/gpu-slot": "1"}}}, runtimeClassName="nvidia"),
        a_pod({"resources": {"limits": {"nvidia.com/gpu": "1"}}}, runtimeClassName="nvidia"),
        a_pod(runtimeClassName="gvisor"),
        a_pod(resourceClaims=[{"name": "gpu"}]),
        a_pod(notes={"nvidia.com/container.c.gpu-memory.request": "8Gi"}),
    ],
)
def test_pods_that_take_no_card_pass(pod: Json) -> None:
    assert said(pod) == []


def test_a_device_under_the_key_of_a_request_is_judged() -> None:
    assert len(said(a_pod(notes={"nvidia.cdi.k8s.io/c.gpu-memory.limit": "nvidia.com/gpu=0"}))) == 1


def test_an_ephemeral_container_is_judged_and_what_runs_already_is_not() -> None:
    running = with_env(value="all")
    debugged, grabbing = copy.deepcopy(running), copy.deepcopy(running)
    debugged["spec"]["ephemeralContainers"] = [{"name": "debug"}]
    taking = {"name": "grab", "env": [{"name": ENV, "value": "all"}]}
    grabbing["spec"]["ephemeralContainers"] = [{"name": "debug"}, taking]

    assert said(debugged, old=running) == []
    assert len(said(grabbing, old=debugged)) == 1
    assert said(grabbing, old=grabbing) == []


def test_an_order_by_annotation_is_refused_on_a_pod_that_is_there_already() -> None:
    """As found: create the pod without it, then kubectl annotate."""
    order = {"cdi.k8s.io/a": "nvidia.com/gpu=all"}
    other = {"cdi.k8s.io/a": "nvidia.com/gpu=0"}

    assert len(said(a_pod(notes=order), old=a_pod())) == 1
    assert len(said(a_pod(notes=order), old=a_pod(notes=other))) == 1
    assert said(a_pod(notes={**order, "b": "c"}), old=a_pod(notes=order)) == []
    assert said(a_pod(), old=a_pod(notes=order)) == []


@pytest.mark.parametrize("resource", ["pods/status", "pods/resize", "pods/ephemeralcontainers"])
def test_an_order_by_annotation_is_refused_through_a_subresource_too(resource: str) -> None:
    order = {"cdi.k8s.io/a": "nvidia.com/gpu=all"}

    assert len(said(a_pod(notes=order), old=a_pod(), resource=resource)) == 1
    assert said(a_pod(notes=order), old=a_pod(notes=order), resource=resource) == []


def test_a_binding_carries_no_order() -> None:
    binding: Json = {"metadata": {"name": "p", "namespace": "ml"}, "target": {"name": "n1"}}
    ordering = copy.deepcopy(binding)
    ordering["metadata"]["annotations"] = {"cdi.k8s.io/a": "nvidia.com/gpu=all"}

    assert said(binding, resource="pods/binding") == []
    assert len(said(ordering, resource="pods/binding")) == 1


@pytest.mark.parametrize(
    ("labels", "done"),
    [
        ({}, ["Warn"]),
        ({"fracgpu.io/devices": "deny"}, ["Deny"]),
        ({"fracgpu.io/devices": "warn"}, ["Warn"]),
        ({"fracgpu.io/devices": "allow"}, []),
        ({"fracgpu.io/devices": "Allow"}, ["Deny"]),  # a mistake in a label allows nothing
    ],
)
@pytest.mark.parametrize("name", ["fracgpu-devices", "fracgpu-device-environment"])
def test_a_namespace_says_warn_deny_or_allow_and_is_warned_otherwise(
    name: str, labels: Json, done: list[str]
) -> None:
    assert actions(name, labels=labels) == done


@pytest.mark.parametrize(
    ("value", "passes"),
    [("all", False), ("YWxs", False), ("void", True), ("dm9pZA==", True), ("", True)],
)
def test_no_config_map_or_secret_hands_out_cards_through_env_from(value: str, passes: bool) -> None:
    new = {"metadata": {"namespace": "ml"}, "data": {ENV: value, "a": "b"}}
    stored = {"metadata": {"namespace": "ml"}, "data": {ENV: value}}
    name = "fracgpu-device-environment"

    assert (refusals(name, new) == []) is passes
    assert refusals(name, new, old=stored) == [], "stored before"


def test_the_namespaces_of_the_nodes_own_agents_are_left_alone() -> None:
    excluded = policy("fracgpu-devices")["matchConstraints"]["namespaceSelector"]

    assert excluded["matchExpressions"] == [
        {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["fracgpu-system", "kube-system", "kube-public", "kube-node-lease"],
        }
    ]
