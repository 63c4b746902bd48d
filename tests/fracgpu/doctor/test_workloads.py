"""Pods that request a share and were not read, and workloads that a queue cannot count."""

import json
from typing import Any

import pytest

from fracgpu import names
from fracgpu.doctor.checkup import examine
from fracgpu.doctor.facts import Facts
from fracgpu.doctor.finding import Severity, Verdict
from fracgpu.doctor.ranking import rank
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from tests.support.examined import Json, found_by, healthy, result_of

HALF = {names.FRACTION: "0.5"}


def a_pod(
    name: str = "old",
    *,
    notes: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    namespace: str = "ml",
    owner: str = "",
    **meta: Any,
) -> PodInfo:
    container = {"name": "train", "image": "i", "resources": {"limits": limits or {}}}
    body: Json = {
        "metadata": {"name": name, "namespace": namespace, "uid": name, **meta},
        "spec": {"containers": [container]},
        "status": {"phase": "Running"},
    }
    body["metadata"]["annotations"] = HALF if notes is None else notes
    if owner:
        one = {"apiVersion": "apps/v1", "kind": owner, "name": "w", "uid": "1", "controller": True}
        body["metadata"]["ownerReferences"] = [one]
    return decode_pod_info(json.dumps(body).encode())


def requesting(*pods: PodInfo) -> Facts:
    return healthy(requesting=pods)


@pytest.mark.parametrize(
    "asks",
    [{}, {"notes": {names.MEMORY: "8Gi"}}, {"notes": {}, "limits": {names.GPU_MEM: "8192"}}],
    ids=["fraction", "memory", "limit"],
)
@pytest.mark.parametrize(
    ("owner", "cure"),
    [
        ("", "kubectl -n ml delete pod old, and apply its manifest again; "),
        ("ReplicaSet", "kubectl -n ml delete pod old: its ReplicaSet creates it anew; "),
    ],
)
def test_a_pod_that_the_webhook_has_not_read_is_named_with_what_gives_it_a_card(
    asks: dict[str, Any], owner: str, cure: str
) -> None:
    finding = found_by("grants", requesting(a_pod(owner=owner, **asks)))

    assert finding.severity is Severity.ERROR
    assert finding.observed.startswith("pod ml/old requests a share that the webhook has not read")
    assert finding.cure.startswith(cure)
    assert "webhook.namespaceSelector" in finding.cure
    assert "excludedNamespaces" in finding.cure


def test_many_such_pods_are_one_finding() -> None:
    pods = [a_pod(f"old-{number}") for number in range(3)]

    finding = found_by("grants", requesting(*pods))

    assert finding.observed.startswith("pod ml/old-0, like 2 others, requests a share that")


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(notes={**HALF, names.GRANTED: "train: 8192 MiB on 1 card"}),
        a_pod(notes={names.REBALANCE: "never"}),
        a_pod(deletionTimestamp="2026-11-20T12:00:00Z"),
    ],
    ids=["granted", "asks for nothing", "goes"],
)
def test_other_pods_are_no_finding(pod: PodInfo) -> None:
    assert result_of("grants", requesting(pod)).verdict is Verdict.FINE


@pytest.mark.parametrize("namespace", ["kube-system", names.SYSTEM_NAMESPACE])
def test_a_pod_of_a_namespace_that_is_never_read_is_told_to_leave_it(namespace: str) -> None:
    finding = found_by("grants", requesting(a_pod(namespace=namespace)))

    assert f"pod {namespace}/old requests a share in a namespace whose" in finding.observed
    assert finding.cure == "create it in another namespace than fracgpu-system and kube-system"


def test_without_a_webhook_its_absence_is_the_cause() -> None:
    causes = rank(examine(healthy(mutating_webhooks=(), requesting=(a_pod(),))))

    (cause,) = (each for each in causes if each.check.name == "webhook-registered")
    assert "grants" in {each.check.name for each in cause.consequences}
