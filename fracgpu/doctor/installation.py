"""The names of our workloads, and whether they run in this cluster."""

from collections.abc import Mapping
from typing import Final

from fracgpu import names
from fracgpu.doctor.facts import Facts, Json, NotKnownError, Unread, known, name_of, named

WEBHOOK: Final = "fracgpu-webhook"
"""Name of the webhook's configurations, Service and Deployment."""
SCHEDULER: Final = "fracgpu-scheduler"
CERTS: Final = "fracgpu-certs"
AGENT: Final = "fracgpu-deviceplugin"
"""Name of the agent's DaemonSet, and of its pods by the label app.kubernetes.io/name."""

DEPLOYMENTS: Final = (WEBHOOK, SCHEDULER, names.REBALANCER, CERTS)

APP_LABEL: Final = "app.kubernetes.io/name"
"""The label of our pods that names their workload."""


def outside(facts: Facts) -> None:
    """Raise if the roles are no pods of this cluster, as in ``fracgpu demo``.

    Raises:
        NotKnownError: webhooks are called by URL, and there is no workload of ours.
    """
    configuration = named(known(facts.mutating_webhooks), WEBHOOK)
    webhooks = (configuration or {}).get("webhooks") or ()
    urls = [url for each in webhooks if (url := (each.get("clientConfig") or {}).get("url"))]
    if urls and not workloads_of(facts):
        raise NotKnownError(
            f"the roles are not pods of this cluster: the API server calls the webhook at {urls[0]}"
        )


def workloads_of(facts: Facts) -> Mapping[str, Json]:
    """Return our Deployments and DaemonSet by name; none of the latter where they are unread."""
    there = [*known(facts.deployments)]
    if not isinstance(facts.daemon_sets, Unread):
        there += facts.daemon_sets
    return {name_of(body): body for body in there if name_of(body) in (*DEPLOYMENTS, AGENT)}
