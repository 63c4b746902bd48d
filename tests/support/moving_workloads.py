"""Workloads whose pods a rebalancer may move."""

from collections.abc import Mapping
from typing import Any, Final

from fracgpu import names
from tests.support.gpu import a_gpu_pod
from tests.support.moving import NAMESPACE

POD_MIB: Final = 4000
EVICT: Final = {names.REBALANCE: "evict"}


def a_workload(
    name: str, *, replicas: int = 1, annotations: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Return a Deployment, ReplicaSet or StatefulSet whose pods are labelled with its name."""
    template = a_gpu_pod("template", mib=POD_MIB, namespace=NAMESPACE, annotations=annotations)
    metadata = {"labels": {"app": name}, "annotations": template["metadata"]["annotations"]}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": metadata, "spec": template["spec"]},
            **spec,
        },
    }


def a_job(name: str) -> dict[str, Any]:
    """Return a Job that may be moved: an eviction is no failure."""
    template = a_workload(name, annotations=EVICT)["spec"]["template"]
    template["spec"]["restartPolicy"] = "Never"
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    spec = {"backoffLimit": 0, "podFailurePolicy": {"rules": [ignored]}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}
