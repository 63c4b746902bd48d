"""The facts of a healthy installation: the objects of deploy/, and what runs by them."""

import copy
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from component.wiring import Wiring
from fracgpu import names
from fracgpu.doctor.checkup import examine
from fracgpu.doctor.facts import (
    AdmissionAnswer,
    CertificateFact,
    CertificatesFact,
    Facts,
    PrometheusFact,
    Unread,
    name_of,
)
from fracgpu.doctor.finding import Finding, Result
from fracgpu.doctor.measurements import SERIES
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.objects import encode
from simulator.demo.service_accounts import deployed
from tests.support.gpu import a_sharing_node
from tests.support.yaml_files import read_documents, read_yaml

Json = dict[str, Any]

NOON: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
VERSION: Final = "0.1.0"
DEPLOY: Final = Path(__file__).parents[2] / "deploy"
NODE: Final = "gpu-1"
LEADER: Final = "fracgpu-scheduler-7d9f-aaaaa"
_LEADER_IP: Final = "10.1.0.7"


def shipped(kind: str) -> tuple[Json, ...]:
    """Return the objects of deploy/ of one kind, with the images' tags as kustomize sets them."""
    found = [body for body in _deployed() if body.get("kind") == kind]
    return tuple(copy.deepcopy(found))


@cache
def _deployed() -> tuple[Json, ...]:
    files = sorted([*DEPLOY.glob("*.yaml"), *DEPLOY.glob("crds/*.yaml")])
    found = [body for file in files for body in read_documents(file.read_text(encoding="utf-8"))]
    for body in found:
        template = (body.get("spec") or {}).get("template") or {}
        for container in template.get("spec", {}).get("containers", ()):
            image = container["image"]
            container["image"] = f"{image}:{VERSION if image == 'fracgpu' else 'v1.36.2'}"
    return tuple(found)


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def a_lease(
    name: str, holder: str, *, namespace: str = names.SYSTEM_NAMESPACE,
    renewed: datetime = NOON, ahead: timedelta = timedelta(0),
) -> Json:  # fmt: skip
    """Return a Lease that its holder, whose clock is *ahead*, renewed at the API server's time."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "managedFields": [
                {
                    "manager": "holder",
                    "time": renewed.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "fieldsV1": {"f:spec": {"f:renewTime": {}}},
                }
            ],
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": stamp(renewed + ahead),
        },
    }


def a_slice(name: str, *addresses: str, service: str = "") -> Json:
    """Return an EndpointSlice whose addresses are ready."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service or name}},
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": True}} for address in addresses
        ],
    }


def a_role_pod(name: str, app: str, *, node: str = NODE, ready: bool = True) -> Json:
    """Return a pod of one of our roles."""
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": app}},
        "spec": {"nodeName": node, "containers": [{"image": f"fracgpu:{VERSION}"}]},
        "status": {
            "podIP": _LEADER_IP if name == LEADER else "10.1.0.9",
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def a_node(name: str = NODE) -> Json:
    """Return a sharing node as its agent and kubelet write it."""
    node = a_sharing_node(name)
    node["metadata"]["annotations"] |= {
        names.NODE_HEAT: '{"GPU-gpu-1-0": 0.5}',
        names.NODE_LOAD_TIME: "2026-11-20T11:58:00Z",
    }
    node["status"]["conditions"].append(
        {"type": names.SHARING_CONDITION, "status": "True", "reason": "CardsShared",
         "message": "4 cards, 96000 MiB to share"}
    )  # fmt: skip
    node["status"]["nodeInfo"] = {
        "kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.4"
    }  # fmt: skip
    return node


def profile() -> Json:
    """Return kube-scheduler's configuration as deploy/ has it."""
    found: Json = read_yaml((DEPLOY / "scheduler-profile.yaml").read_text(encoding="utf-8"))
    return found


def _available(deployments: Iterable[Json]) -> tuple[Json, ...]:
    return tuple(
        {**body, "status": {"availableReplicas": body["spec"].get("replicas", 1)}}
        for body in deployments
    )


def healthy(**changed: Any) -> Facts:
    """Return the facts of an installation without a fault, but for what is *changed*."""
    facts: dict[str, Any] = {
        "now": NOON,
        "caller_ahead": timedelta(0),
        "own_version": VERSION,
        "system_namespace": names.SYSTEM_NAMESPACE,
        "server_version": "v1.36.2",
        "mutating_webhooks": shipped("MutatingWebhookConfiguration"),
        "validating_webhooks": shipped("ValidatingWebhookConfiguration"),
        "policies": shipped("ValidatingAdmissionPolicy"),
        "policy_bindings": shipped("ValidatingAdmissionPolicyBinding"),
        "definitions": shipped("CustomResourceDefinition"),
        "deployments": _available(shipped("Deployment")),
        "daemon_sets": shipped("DaemonSet"),
        "slices": (
            a_slice("fracgpu-webhook-x2c4f", "10.1.0.3", service="fracgpu-webhook"),
            a_slice("fracgpu-scheduler-leader", _LEADER_IP),
        ),
        "leases": (
            a_lease("fracgpu-scheduler-extender", LEADER),
            a_lease("fracgpu-rebalancer", "fracgpu-rebalancer-1"),
        ),
        "pods": (
            a_role_pod(LEADER, "fracgpu-scheduler"),
            a_role_pod("fracgpu-deviceplugin-1", "fracgpu-deviceplugin"),
        ),
        "access_roles": (*shipped("ClusterRole"), *shipped("Role")),
        "access_bindings": (*shipped("ClusterRoleBinding"), *shipped("RoleBinding")),
        "nodes": (a_node(),),
        "node_leases": (a_lease(NODE, NODE, namespace="kube-node-lease"),),
        "runtime_classes": (),
        "namespace": shipped("Namespace"),
        "requesting": (),
        "queued": (),
        "config_maps": shipped("ConfigMap"),
        "scheduler_configurations": {"ConfigMap profile, key profile.yaml": profile()},
        "config_mistakes": {},
        "ignored_keys": (),
        "certificates": CertificatesFact(
            certificates=(
                CertificateFact(secret="fracgpu-webhook-tls", not_after=NOON + timedelta(days=20)),
            )
        ),
        "admission": AdmissionAnswer(refused_by_webhook=True, message=""),
        "prometheus": PrometheusFact(
            url="http://prometheus", series={series.name: 4 for series in SERIES}
        ),
    }
    return Facts(**copy.deepcopy({**facts, **changed}))


def pending(*pods: Json) -> tuple[PodInfo, ...]:
    """Return pods that have not been started yet, as they are read."""
    status = {"status": {"phase": "Pending"}}
    return tuple(decode_pod_info(encode(pod | status)) for pod in pods)


def result_of(name: str, facts: Facts) -> Result:
    """Return the outcome of the check called *name*."""
    (found,) = examine(facts, only=[name])
    return found


def found_by(name: str, facts: Facts) -> Finding:
    """Return the one finding of the check called *name*."""
    (finding,) = result_of(name, facts).findings
    return finding


def a_class(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {}}


def cards_of(node: str, **device: Any) -> Json:
    devices = [{"name": "gpu-0", **({"allowMultipleAllocations": True} | device)}]
    return {
        "metadata": {"name": f"{node}-{names.DRA_DRIVER}"},
        "spec": {"driver": names.DRA_DRIVER, "nodeName": node, "devices": devices},
    }


def with_claims(**changed: Any) -> Facts:
    """Return the facts of a healthy installation whose wiring is claims."""
    plain = healthy()
    assert not isinstance(plain.deployments, Unread)
    assert not isinstance(plain.config_maps, Unread)
    maps = [
        {**body, "data": {**body["data"], "wiring": "claims"}}
        for body in plain.config_maps
        if name_of(body) == names.CONFIG_MAP
    ]
    facts: dict[str, Any] = {
        "config_maps": tuple(maps),
        "by_claims": True,
        "slices": (a_slice("fracgpu-webhook-x2c4f", "10.1.0.3", service="fracgpu-webhook"),),
        "leases": (
            a_lease("fracgpu-scheduler-extender", LEADER),
            a_lease(names.REBALANCER, "fracgpu-rebalancer-0"),
        ),
        "scheduler_configurations": {},
        "device_classes": (a_class("fracgpu"), a_class("fracgpu-placed")),
        "card_slices": (cards_of(NODE),),
        "access_roles": (*deployed("ClusterRole", Wiring.CLAIMS), *deployed("Role", Wiring.CLAIMS)),
    }
    return healthy(**{**facts, **changed})
