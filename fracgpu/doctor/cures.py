"""Cures that several checks name; what Helm installed is changed by Helm alone."""

from typing import Final

from fracgpu import names
from fracgpu.doctor.facts import Facts, Json, Unread, annotations_of, labels_of, name_of
from fracgpu.state.pod_info import PodInfo

_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_RELEASE: Final = "meta.helm.sh/release-name"
_NAMESPACE: Final = "meta.helm.sh/release-namespace"
_OURS: Final = "fracgpu"  # how the names of our objects begin
_CHART: Final = "charts/fracgpu"
# What somebody changed by kubectl belongs to kubectl, and Helm 4 would stop at the conflict.
_HELM: Final = "helm upgrade {name} {chart} -n {namespace} --reset-then-reuse-values"
_TAKE_BACK: Final = "--force-conflicts"
KUSTOMIZE: Final = "kubectl apply --server-side --force-conflicts -k FOLDER"
_PAGE: Final = "docs/install.md"


def upgrade_of(body: Json, *flags: str) -> str:
    """Return the command that changes an object of Helm's by *flags*, such as ``--set a.b=c``.

    Empty for an object that is not Helm's, by its label and annotation.
    """
    release = annotations_of(body).get(_RELEASE)
    if labels_of(body).get(_MANAGED_BY) != "Helm" or not release:
        return ""
    namespace = annotations_of(body).get(_NAMESPACE, names.SYSTEM_NAMESPACE)
    command = _HELM.format(name=release, chart=_CHART, namespace=namespace)
    return " ".join([command, *flags, _TAKE_BACK])


def change(body: Json, *flags: str, otherwise: str) -> str:
    """Return the command that changes an object of Helm's by *flags*; else *otherwise*."""
    return upgrade_of(body, *flags) or otherwise


def create_anew(pod: PodInfo) -> str:
    """Return the command after which a pod like this one is admitted and placed anew."""
    delete = f"kubectl -n {pod.record.namespace} delete pod {pod.record.name}"
    if pod.owner is None:
        return f"{delete}, and apply its manifest again"
    return f"{delete}: its {pod.owner[0]} creates it anew"


def install_again(facts: Facts) -> str:
    """Return what restores objects that are missing or were changed, in the way they came."""
    known = [
        body
        for objects in (
            facts.mutating_webhooks, facts.deployments, facts.daemon_sets, facts.config_maps,
            facts.policies,
        )
        if not isinstance(objects, Unread)
        for body in objects
        if name_of(body).startswith(_OURS)
    ]  # fmt: skip
    helm = next(filter(None, map(upgrade_of, known)), "")
    if helm:
        return f"{helm} ({_PAGE})"
    if known:
        return f"{KUSTOMIZE} ({_PAGE})"
    new = _HELM.format(name="fracgpu", chart=_CHART, namespace=facts.system_namespace)
    return f"{new}, or {KUSTOMIZE} ({_PAGE})"
