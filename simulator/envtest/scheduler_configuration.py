"""The configuration with which a real kube-scheduler calls our extender."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fracgpu import names

# Our ten points count 100 in kube-scheduler. What a pod prefers counts before them, also where it
# tells two nodes apart by a tenth of its weight: these are ten times the defaults.
_WEIGHT: Final = 1
_PREFERENCES: Final = {
    "TaintToleration": 30,
    "NodeAffinity": 20,
    "PodTopologySpread": 20,
    "InterPodAffinity": 20,
}

# They favour nodes with free CPU and memory, which does not make a GPU node better.
_UNHEARD: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation", "ImageLocality")

# The extender filters 5,000 nodes in milliseconds: docs/decisions/0008.
_PERCENTAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderTls:
    """Files of kube-scheduler's client certificate, its key and the extender's CA."""

    ca_file: str
    cert_file: str
    key_file: str
    server_name: str = ""


def scheduler_configuration(
    *,
    extender_url: str,
    kubeconfig: Path,
    tls: ExtenderTls | None = None,
    send_nodes: bool = False,
) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration with our one profile and our extender.

    Args:
        extender_url: of the extender.
        kubeconfig: how kube-scheduler reaches the API server.
        tls: for ``https``; plain HTTP without.
        send_nodes: send whole nodes instead of their names (``nodeCacheCapable: false``).
    """
    extender: dict[str, Any] = {
        "urlPrefix": extender_url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": _WEIGHT,
        "enableHTTPS": tls is not None,
        "httpTimeout": "10s",
        "nodeCacheCapable": not send_nodes,
        "ignorable": False,
        "managedResources": [{"name": names.GPU_MEM, "ignoredByScheduler": False}],
    }
    if tls is not None:
        extender["tlsConfig"] = _tls(tls)
    return {
        **stock_configuration(kubeconfig=kubeconfig),
        "profiles": [
            {
                "schedulerName": names.SCHEDULER_NAME,
                "percentageOfNodesToScore": _PERCENTAGE,
                "plugins": {
                    "score": {
                        "disabled": [{"name": name} for name in _UNHEARD],
                        "enabled": [
                            {"name": name, "weight": weight}
                            for name, weight in _PREFERENCES.items()
                        ],
                    }
                },
            }
        ],
        "extenders": [extender],
    }


def stock_configuration(*, kubeconfig: Path) -> dict[str, Any]:
    """Return a configuration that says only where the API server is."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "leaderElection": {"leaderElect": False},
    }


def _tls(tls: ExtenderTls) -> Mapping[str, str]:
    found = {"caFile": tls.ca_file, "certFile": tls.cert_file, "keyFile": tls.key_file}
    return {**found, "serverName": tls.server_name} if tls.server_name else found
