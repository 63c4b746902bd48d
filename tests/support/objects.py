"""Kubernetes objects as tests write them: only what matters to the test is given."""

from typing import Any

Json = dict[str, Any]


def a_pod(name: str = "", *, generate_name: str = "", **metadata: Any) -> Json:
    """Return a pod with one container; further keywords go into its metadata."""
    named = {"name": name} if name else {"generateName": generate_name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**named, **metadata},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "registry.example/app:1"}],
        },
    }


def a_config(name: str, *, labels: Json | None = None, **data: str) -> Json:
    """Return a ConfigMap: the simplest object."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
        "data": data,
    }


def a_node(name: str, **metadata: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}}


def a_budget(name: str, *, app: str, min_available: int) -> Json:
    """Return a disruption budget over the pods labelled ``app=...``."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
    }


def running(*, ready: bool = True) -> Json:
    """Return a pod's status as its kubelet reports it while the containers run."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {"status": {"phase": "Running", "conditions": [condition]}}
