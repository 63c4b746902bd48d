"""What autoscalers have to be told of a pool's nodes before there is one, in their own formats."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fracgpu import names
from fracgpu.cards.pool_catalogue import (
    Pool,
    PoolCatalogue,
    PoolClass,
    template_labels,
    template_resources,
)
from fracgpu.k8s.node import Taint

# Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md.
_TAG: Final = "k8s.io/cluster-autoscaler/node-template"
_STARTUP_TAINT: Final = {"key": names.STARTUP_TAINT, "effect": "NoSchedule"}


def cluster_autoscaler_tags(pool_class: PoolClass, pool: Pool) -> Mapping[str, str]:
    """Return the tags by which cluster-autoscaler makes a template of a pool's nodes.

    The start-up taint is none of them: cluster-autoscaler takes it off its templates.
    """
    resources = template_resources(pool_class, pool)
    return {
        **{f"{_TAG}/resources/{resource}": str(count) for resource, count in resources.items()},
        **{f"{_TAG}/label/{key}": text for key, text in template_labels(pool_class, pool).items()},
        **{f"{_TAG}/taint/{taint.key}": f"{taint.value}:{taint.effect}" for taint in pool.taints},
    }


def karpenter_objects(pool_class: PoolClass, pool: Pool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a pool's NodePool has to have, and the NodeOverlay for its resources.

    Sources: karpenter.sh, "NodePools" (v1) and "NodeOverlays" (v1alpha1);
    kubernetes-sigs/karpenter, pkg/apis/v1alpha1/nodeoverlay.go.
    """
    spec: dict[str, Any] = {"startupTaints": [_STARTUP_TAINT]}
    if pool.taints:
        spec["taints"] = [_taint(taint) for taint in pool.taints]
    labels = dict(template_labels(pool_class, pool))
    node_pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": pool.name},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    resources = template_resources(pool_class, pool)
    overlay = {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": f"fracgpu-{pool.name}"},
        "spec": {
            "requirements": [
                {"key": "karpenter.sh/nodepool", "operator": "In", "values": [pool.name]}
            ],
            "capacity": {resource: str(count) for resource, count in resources.items()},
        },
    }
    return node_pool, overlay


def kubelet_flags(pool_class: PoolClass, pool: Pool) -> str:
    """Return the flags by which kubelet registers a pool's node with its labels and taints."""
    labels = ",".join(f"{key}={text}" for key, text in template_labels(pool_class, pool).items())
    taints = ",".join(
        f"{taint.key}={taint.value}:{taint.effect}"
        for taint in (*pool.taints, Taint(key=names.STARTUP_TAINT, effect="NoSchedule"))
    )
    return f"--node-labels={labels} --register-with-taints={taints}"


def each_pool(catalogue: PoolCatalogue) -> Iterator[tuple[PoolClass, Pool]]:
    """Yield each pool with its class."""
    for pool_class in catalogue.classes:
        for pool in pool_class.pools:
            yield pool_class, pool


def _taint(taint: Taint) -> dict[str, str]:
    value = {"value": taint.value} if taint.value else {}
    return {"key": taint.key, **value, "effect": taint.effect}
