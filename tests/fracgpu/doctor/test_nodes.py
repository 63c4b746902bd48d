"""Faults of nodes, planted one by one."""

import json
from datetime import timedelta
from typing import Any

import pytest

from fracgpu import names
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.doctor.checkup import examine
from fracgpu.doctor.facts import Facts, PrometheusFact
from fracgpu.doctor.finding import Severity, Verdict
from fracgpu.doctor.measurements import LONGEST_INTERVAL_S, NOT_COMPILED, SERIES, Series
from fracgpu.doctor.ranking import rank
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from rebalancer.usage import promql
from tests.support.examined import (
    NODE,
    NOON,
    a_node,
    a_role_pod,
    found_by,
    healthy,
    pending,
    result_of,
    shipped,
)
from tests.support.gpu import a_bound_gpu_pod, a_gpu_pod

AGENT = "fracgpu-deviceplugin"


def with_condition(reason: str, message: str) -> Facts:
    node = a_node()
    node["status"]["conditions"][-1] |= {"status": "False", "reason": reason, "message": message}
    return healthy(nodes=(node,))


def noted(key: str, text: str) -> Facts:
    node = a_node()
    node["metadata"]["annotations"][key] = text
    return healthy(nodes=(node,))


def misspelt(name: str) -> dict[str, Any]:
    node = a_node(name)
    node["metadata"]["labels"][names.SHARE_LABEL] = "True"
    return node


def a_job(*, annotations: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": "Job",
        "metadata": {
            "name": "train",
            "namespace": "ml",
            "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        },
        "spec": {
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
            }
        },
    }


def holds(card: int, *, node: str = NODE, **metadata: Any) -> PodInfo:
    """Return a pod with half of a card."""
    pod = a_bound_gpu_pod("p", node=node, card=card)
    pod["metadata"] |= metadata
    return decode_pod_info(json.dumps(pod).encode())


ALL = {series.name: 4 for series in SERIES}
HALF = a_job(annotations={"fracgpu.io/fraction": "0.5"}, limits={"cpu": "1"})
UNANSWERED = PrometheusFact(url="http://prom:9090", error="connection refused")

# Check, facts, words of what was observed and of its cure.
FAULTS = {
    "no node shares": (
        "nodes",
        healthy(nodes=()),
        ("kubectl label node NAME fracgpu.io/share=true",),
    ),
    "a node that shares nothing for a capital letter": (
        "nodes",
        healthy(nodes=(a_node(), misspelt("gpu-2"))),
        (
            "node gpu-2 shares no card: its label fracgpu.io/share is 'True'; want 'true'",
            "kubectl label node gpu-2 fracgpu.io/share=true --overwrite",
        ),
    ),
    "a card taken out of service that there is not": (
        "driver",
        noted(names.NODE_OUT_OF_SERVICE, "GPU-gpu-1-0, GPU-typo"),
        ("has no effect for GPU-typo: it has no such card", "fracgpu cards --node gpu-1 -o wide"),
    ),
    "no agent": (
        "agents",
        healthy(pods=(a_role_pod("fracgpu-deviceplugin-2", AGENT, node="gpu-2"),)),
        (
            f"node {NODE} has the label fracgpu.io/share=true and no agent",
            "describe daemonset -l app.kubernetes.io/name=fracgpu-deviceplugin",
        ),
    ),
    "an agent that is not ready": (
        "agents",
        healthy(pods=(a_role_pod("agent-1", AGENT, ready=False),)),
        ("agent-1 on node gpu-1 is not ready", "logs agent-1"),
    ),
    "no driver": (
        "driver",
        with_condition("CardsUnavailable", "NVML: driver not loaded"),
        ("NVML: driver not loaded", "run nvidia-smi on the node"),
    ),
    "no card": (
        "driver",
        with_condition("NoCardToShare", "all are in MIG mode"),
        ("all are in MIG mode", "run nvidia-smi on the node"),
    ),
    "an agent that kubelet does not know": (
        "driver",
        with_condition(names.AGENT_NOT_REGISTERED, "kubelet is silent"),
        ("warning: node gpu-1 takes no new pods: kubelet is silent",),
    ),
    "cards that cannot be read": (
        "driver",
        noted(names.NODE_CARDS, "{"),
        ("nothing is placed there", "spec.nodeName=gpu-1: the next agent writes it anew"),
    ),
    "a runtime that does not answer": (
        "runtime",
        with_condition("RuntimeUnknown", "/run/containerd/containerd.sock: no such file"),
        ("containerd.sock: no such file", "--cri-socket"),
    ),
    "HAMi on a sharing node": (
        "second-accountant",
        noted("hami.io/node-nvidia-register", "GPU-1,10,24576,100"),
        ("HAMi", "nodeSelector"),
    ),
    "memory that nobody was given": (
        "strangers",
        noted(names.NODE_FOREIGN, '{"GPU-gpu-1-0": 5000, "GPU-gpu-1-1": 0}'),
        ("card GPU-gpu-1-0 of node gpu-1: 5000 MiB", "docs/security.md"),
    ),
    "foreign memory that cannot be read": (
        "strangers",
        noted(names.NODE_FOREIGN, "much"),
        ("nothing is placed there", "spec.nodeName=gpu-1: the next agent writes it anew"),
    ),
    "pods of cards that the node had before": (
        "assigned-cards",
        healthy(requesting=(holds(9), holds(9), holds(0))),
        (
            "error: 2 pods of node gpu-1 cannot start a container again, such as default/p: "
            "assigned GPU-gpu-1-9, which the node does not have any more",
            "cure: kubectl -n default delete pod p, and apply its manifest again, on a card",
        ),
    ),
    "load that is stale": (
        "load",
        noted(names.NODE_LOAD_TIME, "2026-11-20T11:40:00Z"),
        ("last confirmed 20 minutes ago", "the agent writes it every five minutes"),
    ),
    "load without a time": (
        "load",
        noted(names.NODE_LOAD_TIME, ""),
        ("has no time that can be read",),
    ),
    "a template whose resource appears only at admission": (
        "kueue",
        healthy(queued=(HALF,)),
        (
            "Job ml/train asks by fracgpu.io/fraction",
            "limit fracgpu.io/gpu-mem: MIB into the template",
        ),
    ),
    "a Prometheus that does not answer": (
        "prometheus",
        healthy(prometheus=UNANSWERED),
        (
            "Prometheus at http://prom:9090 does not answer: connection refused",
            "FRACGPU_REBALANCER_PROMETHEUS_URL",
        ),
    ),
    "an extender without its library": (
        "prometheus",
        healthy(prometheus=PrometheusFact(url="u", series={**ALL, NOT_COMPILED: 2})),
        (
            "warning: 2 scheduler extenders without the compiled code of least-waste",
            "pack",
        ),
    ),
    "a mistake in the configuration": (
        "configuration",
        healthy(config_mistakes={"rebalancer": "hotRatio is 9; want a number from 0.5 to 1"}),
        (
            "ConfigMap fracgpu-system/fracgpu-config, key rebalancer: hotRatio is 9",
            "kubectl -n fracgpu-system edit configmap fracgpu-config",
        ),
    ),
    "settings of an earlier version": (
        "configuration",
        healthy(ignored_keys=("settleS", "tickS")),
        (
            "warning: ConfigMap fracgpu-system/fracgpu-config, key rebalancer: settleS, tickS set",
            "aggressiveness",
        ),
    ),
    "an overcommitment that no mechanism can serve": (
        "configuration",
        healthy(overcommits=True),
        (
            "warning: ConfigMap fracgpu-system/fracgpu-config, key placement: overcommit has no",
            "remove it",
        ),
    ),
    "no configuration": (
        "configuration",
        healthy(config_mistakes=None),
        ("every role uses its defaults",),
    ),
}


@pytest.mark.parametrize(("check", "facts", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_of_a_node_is_found_with_its_cure(
    check: str, facts: Facts, words: tuple[str, ...]
) -> None:
    finding = found_by(check, facts)

    said = f"{finding.severity.value}: {finding.observed}; cure: {finding.cure}"
    assert [word for word in words if word not in said] == []


def test_an_agent_that_has_not_reported_is_found() -> None:
    node = a_node()
    del node["status"]["conditions"][-1]

    finding = found_by("driver", healthy(nodes=(node,)))

    assert "has no condition FracGPUSharing" in finding.observed
    assert "--field-selector spec.nodeName=gpu-1" in finding.cure


@pytest.mark.parametrize(
    ("taken_out", "cure"),
    [("", "docs/node-reference.md lists XID errors"), ("GPU-gpu-1-0", "once it is well, take it")],
)
def test_an_unhealthy_card_is_found(taken_out: str, cure: str) -> None:
    node = a_node()
    node["metadata"]["annotations"][names.NODE_OUT_OF_SERVICE] = taken_out
    cards = node["metadata"]["annotations"][names.NODE_CARDS]
    node["metadata"]["annotations"][names.NODE_CARDS] = (
        cards.replace('"health":"healthy"', '"health":"unhealthy","reason":"XID 79"', 1)
        if '"health":"healthy"' in cards
        else cards.replace('"index":0,', '"index":0,"health":"unhealthy","reason":"XID 79",', 1)
    )

    finding = found_by("driver", healthy(nodes=(node,)))

    assert "card 0 (GPU-gpu-1-0) of node gpu-1 is unhealthy: XID 79" in finding.observed
    assert finding.cure.startswith(cure)
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("identity", "verdict"),
    [("listed", Verdict.FOUND), ("nri", Verdict.FINE), ("", Verdict.FINE)],
)
def test_a_node_without_nri_is_found_and_told_how_to_switch_it_on(
    identity: str, verdict: Verdict
) -> None:
    node = a_node()
    node["metadata"]["annotations"][names.NODE_IDENTITY] = identity

    result = result_of("runtime", healthy(nodes=(node,)))

    assert result.verdict is verdict
    assert all("docs/install.md#the-container-runtime" in each.cure for each in result.findings)


def test_a_runtime_class_that_does_not_exist_is_found() -> None:
    (agent,) = shipped("DaemonSet")
    agent["spec"]["template"]["spec"]["runtimeClassName"] = "nvidia"

    finding = found_by("runtime-class", healthy(daemon_sets=(agent,)))

    assert "DaemonSet fracgpu-deviceplugin names the runtime class nvidia" in finding.observed
    assert "take runtimeClassName out of" in finding.cure
    there = healthy(daemon_sets=(agent,), runtime_classes=({"metadata": {"name": "nvidia"}},))
    assert result_of("runtime-class", there).verdict is Verdict.FINE


@pytest.mark.parametrize(
    ("resource", "cure"),
    [
        ("nvidia.com/gpu", "nvidia.com/gpu.deploy.device-plugin=false"),
        ("amd.com/gpu", "enableDevicePlugin: false"),
    ],
)
def test_another_device_plugin_on_a_sharing_node_is_found_with_its_vendors_cure(
    resource: str, cure: str
) -> None:
    node = a_node()
    node["status"]["allocatable"] = {**node["status"]["allocatable"], resource: "4"}

    finding = found_by("second-accountant", healthy(nodes=(node,)))

    assert f"another device plugin counts {resource} (4)" in finding.observed
    assert cure in finding.cure


def test_another_plugin_on_a_node_that_does_not_share_is_nobodys_business() -> None:
    node = a_node()
    node["metadata"]["labels"] = {}
    node["status"]["allocatable"] = {"nvidia.com/gpu": "4"}

    assert result_of("second-accountant", healthy(nodes=(node,))).verdict is Verdict.FINE


TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def test_a_taint_that_the_agent_does_not_tolerate_is_found() -> None:
    (agent,) = shipped("DaemonSet")
    agent["spec"]["template"]["spec"]["tolerations"] = []
    node = a_node()
    node["spec"] = {"taints": [TAINT]}

    finding = found_by("taints", healthy(daemon_sets=(agent,), nodes=(node,)))

    assert "agent does not tolerate the taint nvidia.com/gpu=present:NoSchedule" in finding.observed
    assert "kubectl taint node gpu-1 nvidia.com/gpu-" in finding.cure


def test_a_taint_that_no_waiting_pod_tolerates_is_found() -> None:
    node = a_node()
    node["spec"] = {"taints": [TAINT]}
    pod = a_gpu_pod("waits")

    finding = found_by("taints", healthy(nodes=(node,), requesting=pending(pod)))
    pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    tolerated = healthy(nodes=(node,), requesting=pending(pod))

    assert "no pod that waits for a card tolerates" in finding.observed
    assert result_of("taints", tolerated).verdict is Verdict.FINE


def test_taints_of_kubernetes_itself_are_not_told() -> None:
    node = a_node()
    node["spec"] = {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}

    facts = healthy(nodes=(node,), requesting=pending(a_gpu_pod("waits")))

    assert result_of("taints", facts).verdict is Verdict.FINE


@pytest.mark.parametrize(
    "pod",
    [holds(9, node="gpu-2"), holds(9, deletionTimestamp="2026-11-20T12:00:00Z")],
    ids=["of a node that shares nothing", "that goes"],
)
def test_a_pod_that_waits_for_no_card_of_its_node_is_no_finding(pod: PodInfo) -> None:
    assert result_of("assigned-cards", healthy(requesting=(pod,))).verdict is Verdict.FINE


def test_pods_of_a_node_without_a_driver_are_listed_below_it() -> None:
    node = a_node()
    node["metadata"]["annotations"][names.NODE_CARDS] = ""
    node["status"]["conditions"][-1] |= {"status": "False", "reason": "NoCardToShare"}

    causes = rank(examine(healthy(nodes=(node,), requesting=(holds(0),))))

    (cause,) = (each for each in causes if each.check.name == "driver")
    assert "assigned-cards" in {each.check.name for each in cause.consequences}


def test_a_node_that_never_reported_load_has_none_that_is_stale() -> None:
    node = a_node()
    del node["metadata"]["annotations"][names.NODE_HEAT]

    later = healthy(nodes=(node,), now=NOON + timedelta(days=1))

    assert result_of("load", later).verdict is Verdict.FINE


def test_a_template_with_the_limit_or_without_a_request_is_fine() -> None:
    limit = a_job(annotations={}, limits={"fracgpu.io/gpu-mem": "4096"})
    plain = a_job(annotations={}, limits={"cpu": "1"})

    assert result_of("kueue", healthy(queued=(limit, plain))).verdict is Verdict.FINE


@pytest.mark.parametrize("series", SERIES, ids=lambda series: series.name)
def test_each_series_that_is_absent_is_named(series: Series) -> None:
    left = {name: count for name, count in ALL.items() if name != series.name}

    finding = found_by("prometheus", healthy(prometheus=PrometheusFact(url="u", series=left)))

    assert f"has no series {series.name}:" in finding.observed
    assert "honor_labels" in finding.cure


@pytest.mark.parametrize(("interval_s", "found"), [(None, 0), (60.0, 0), (160.0, 1)])
def test_an_interval_that_is_too_long_is_named_with_what_is_expected(
    interval_s: float | None, found: int
) -> None:
    answer = PrometheusFact(url="u", series=ALL, interval_s=interval_s)

    findings = result_of("prometheus", healthy(prometheus=answer)).findings

    assert len(findings) == found
    assert RebalancerPolicy().fast_window_s / 4 == LONGEST_INTERVAL_S
    for finding in findings:
        assert "every 160 s; expected is a scrape every 150 s" in finding.observed


def test_the_series_without_which_nothing_is_moved_are_those_that_the_rebalancer_asks_for() -> None:
    asked = " ".join(
        (promql.BUSY, promql.FREE_MIB, promql.COLLECT_AGE, promql.pod_mean(RebalancerPolicy()))
    )

    for series in SERIES:
        if series.severity is Severity.ERROR or "pod" in series.name:
            assert series.name in asked
