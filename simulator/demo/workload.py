"""What the demo creates: workloads that fit, bad requests, and pods that heat a card."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fracgpu import names
from simulator.kubelet.pod_worker import BUSY_KEY, USED_KEY

NAMESPACE: Final = "demo"

# The pod that wants more memory than its share, and is resized.
GREEDY: Final = "greedy"
GREEDY_MIB: Final = 4096
GREEDY_WANTS_MIB: Final = 9000
RESIZED_MIB: Final = 5120


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorkload:
    """One object to create, and the pods that must run as a result."""

    plural: str
    body: Mapping[str, Any]
    pods: int
    story: str

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequest:
    """A pod that must be denied with a message that contains all of *mentions*."""

    body: Mapping[str, Any]
    mentions: tuple[str, ...]
    story: str

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name


def steady_workloads() -> tuple[DemoWorkload, ...]:
    """Return everything that fits and stays cool: each form of request."""
    return (
        _deployment(
            "chat",
            3,
            {names.FRACTION: "0.5", names.MODEL: "*A100*", BUSY_KEY: "0.12"},
            "3 pods with half an A100 each",
        ),
        _deployment(
            "embed",
            4,
            {names.MEMORY: "8Gi", names.MODEL: "*A100*", BUSY_KEY: "0.04"},
            "4 pods with 8 GiB each",
        ),
        _deployment(
            "train",
            2,
            {
                names.FRACTION: "25%",
                names.CARDS: "2",
                names.MODEL: "*A100*",
                names.REBALANCE: "never",
                BUSY_KEY: "0.1",
            },
            "2 pods with a quarter of each of two cards",
        ),
        DemoWorkload(
            plural="pods",
            body=_pod(
                "notebook",
                {
                    names.FRACTION: "lab=0.25, side=0.1",
                    names.CORES: "lab=30",
                    names.MODEL: "*A100*",
                },
                containers=("lab", "side"),
            ),
            pods=1,
            story="one pod whose two containers hold a quarter and a tenth of a card",
        ),
        DemoWorkload(
            plural="pods",
            body=_pod("legacy", {names.MODEL: "*A100*"}, limits={names.GPU_MEM: "4096"}),
            pods=1,
            story="one pod with a plain limit of 4096 MiB",
        ),
        DemoWorkload(
            plural="pods",
            body=_pod(
                GREEDY,
                {
                    names.MEMORY: f"{GREEDY_MIB}Mi",
                    names.ISOLATION: "kernel",
                    # On the emptiest card, so that there is room for the larger size.
                    names.MODEL: "*A10*",
                    names.PLACEMENT: "spread",
                    USED_KEY: str(GREEDY_WANTS_MIB),
                },
            ),
            pods=1,
            story=f"one pod that wants {GREEDY_WANTS_MIB} MiB with a share of {GREEDY_MIB}",
        ),
    )


def heating_workload() -> DemoWorkload:
    """Return two pods that land on one card and together load it above the hot threshold.

    Each alone stays below the rebalancer's target ceiling, so moving one relieves the card.
    """
    return _deployment(
        "burner",
        2,
        {
            names.FRACTION: "0.4",
            names.MODEL: "*MI210*",
            # Both on one card, whatever the cluster's own strategy.
            names.PLACEMENT: "pack",
            BUSY_KEY: "0.47",
        },
        "2 pods that heat up one of AMD's cards",
    )


def disruption_budget() -> Mapping[str, Any]:
    """Return a budget: one heating pod must stay available while another moves."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "burner", "namespace": NAMESPACE},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "burner"}}},
    }


def bad_requests() -> tuple[BadRequest, ...]:
    """Return requests that must never become a pod."""
    return (
        BadRequest(
            body=_pod("too-big", {names.MEMORY: "900Gi"}),
            mentions=(names.MEMORY, "at most"),
            story="900 GiB on one card",
        ),
        BadRequest(
            body=_pod("misspelt", {"fracgpu.io/fracton": "0.5"}),
            mentions=("fracgpu.io/fracton", "did you mean fracgpu.io/fraction?"),
            story="fracgpu.io/fracton",
        ),
        BadRequest(
            body=_pod(
                "forged",
                {
                    names.FRACTION: "0.1",
                    names.ASSIGNMENT: '{"main":[{"card":"GPU-0","mib":1}]}',
                },
            ),
            mentions=(names.ASSIGNMENT,),
            story="a hand-written assignment",
        ),
    )


def _deployment(
    name: str, replicas: int, annotations: Mapping[str, str], story: str
) -> DemoWorkload:
    labels = {"app": name}
    template = _pod("", annotations)
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels, "annotations": dict(annotations)},
            "spec": template["spec"],
        },
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }
    return DemoWorkload(plural="deployments", body=body, pods=replicas, story=story)


def _pod(
    name: str,
    annotations: Mapping[str, str],
    *,
    containers: tuple[str, ...] = ("main",),
    limits: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    resources = {"limits": dict(limits)} if limits else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations)},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {"name": container, "image": "simulated", "resources": resources}
                for container in containers
            ],
        },
    }


def owner_of(pod: str, owners: Mapping[str, int]) -> str:
    """Return the workload to which a pod's name belongs."""
    return next((name for name in owners if pod == name or pod.startswith(f"{name}-")), "")
