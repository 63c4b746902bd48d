"""The configuration with which a real kube-scheduler asks our extender."""

from pathlib import Path
from typing import Any, Final

from fracgpu import names

# Against the plug-ins' own scores, several hundred in sum and mostly for emptier nodes: which node
# is best is the extender's to say, and they only break its ties.
_WEIGHT: Final = 20


def scheduler_configuration(*, extender_url: str, kubeconfig: Path) -> dict[str, Any]:
    """Write a KubeSchedulerConfiguration with our one profile and our extender, over plain HTTP."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "profiles": [
            {
                "schedulerName": names.SCHEDULER_NAME,
                # It adds up memory over cards, so its victims might free no card at all.
                "plugins": {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}},
            }
        ],
        "extenders": [
            {
                "urlPrefix": extender_url,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": _WEIGHT,
                "enableHTTPS": False,
                "httpTimeout": "10s",
                "nodeCacheCapable": True,
                "ignorable": False,
                "managedResources": [{"name": names.GPU_MEM, "ignoredByScheduler": False}],
            }
        ],
    }
