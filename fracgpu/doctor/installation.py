"""The names of our roles, and whether their workloads run in this cluster."""

from collections.abc import Mapping
from typing import Final

from fracgpu import names
from fracgpu.doctor.facts import (
    Facts,
    Json,
    NotKnownError,
    Objects,
    Unread,
    known,
    labels_of,
    name_of,
    named,
    template_of,
)

WEBHOOK: Final = "fracgpu-webhook"
"""Name of the webhook's configurations, and of its role."""
SCHEDULER: Final = "fracgpu-scheduler"
CERTS: Final = "fracgpu-certs"
AGENT: Final = "fracgpu-deviceplugin"

READ_AS_NODE: Final = "FRACGPU_DEVICEPLUGIN_READ_PODS_AS_NODE"
"""The variable of the agents' DaemonSet with which they read pods in the name of their node."""

POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"
PRIVILEGED: Final = "privileged"

DEPLOYMENTS: Final = (WEBHOOK, SCHEDULER, names.REBALANCER, CERTS)

APP_LABEL: Final = "app.kubernetes.io/name"
"""The label of workloads and pods that names the role; the chart may call a workload otherwise."""


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


def service_namespaces(configuration: Json) -> set[str]:
    """Return the namespaces of the Services that a webhook configuration calls."""
    services = (
        (each.get("clientConfig") or {}).get("service") or {}
        for each in configuration.get("webhooks") or ()
    )
    return {service["namespace"] for service in services if service.get("namespace")}


def let_agents_in(facts: Facts) -> str:
    """Return the command that lets the system namespace have privileged pods."""
    level = f"{POD_SECURITY}={PRIVILEGED}"
    return f"kubectl label namespace {facts.system_namespace} {level} --overwrite"


def uses_claims(facts: Facts) -> bool:
    """Report whether kube-scheduler allocates claims here (``wiring: claims``).

    Raises:
        NotKnownError: the ConfigMap could not be read.
    """
    return known(facts.by_claims)


def workloads_of(facts: Facts) -> Mapping[str, Json]:
    """Return our Deployments and DaemonSet by role; none of the latter where they are unread."""
    there = [*known(facts.deployments)]
    if not isinstance(facts.daemon_sets, Unread):
        there += facts.daemon_sets
    return {role_of(body): body for body in there if role_of(body) in (*DEPLOYMENTS, AGENT)}


def turned_on(workload: Json) -> set[str]:
    """Return the environment variables that are ``true`` in a container of a workload."""
    return {
        variable["name"]
        for container in template_of(workload).get("spec", {}).get("containers") or ()
        for variable in container.get("env") or ()
        if variable.get("value") == "true"
    }


def role_of(body: Json) -> str:
    """Return the role whose workload this is."""
    return labels_of(body).get(APP_LABEL) or name_of(body)


def workload_of(objects: Objects, role: str) -> Json | None:
    """Return the workload of a role, or None."""
    return next((body for body in objects if role_of(body) == role), None)
