"""Whether the account of each role has the rights that this version of the role uses."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from fracgpu import names
from fracgpu.doctor.cures import install_again, upgrade_of
from fracgpu.doctor.facts import Facts, Json, known, labels_of, name_of, named, template_of
from fracgpu.doctor.finding import Check, Finding, error, warning
from fracgpu.doctor.installation import (
    AGENT,
    CERTS,
    READ_AS_NODE,
    SCHEDULER,
    WEBHOOK,
    outside,
    turned_on,
    uses_claims,
    workloads_of,
)
from fracgpu.doctor.ranking import INSTALLED, pods_of
from fracgpu.errors import listed

_READING: Final = ("get", "list", "watch")
_LONGEST: Final = 300
_PART_OF: Final = "app.kubernetes.io/part-of"


class Rights(NamedTuple):
    """What one role may do: each verb to each resource, which is called as by kubectl.

    Attributes:
        by_claims: needed with this wiring alone; None: with both.
        ours: in the system namespace; else everywhere.
    """

    role: str
    verbs: str
    resources: str
    by_claims: bool | None = None
    ours: bool = False


_HOOKS: Final = " ".join(
    f"{kind}webhookconfigurations.admissionregistration.k8s.io"
    for kind in ("mutating", "validating")
)
RIGHTS: Final = (
    Rights(WEBHOOK, "list watch", "nodes pods namespaces"),
    Rights(WEBHOOK, "get", "namespaces"),
    Rights(WEBHOOK, "list watch", "secrets configmaps", ours=True),
    Rights(WEBHOOK, "create", "events", ours=True),
    Rights(CERTS, "get list watch patch", _HOOKS),
    Rights(CERTS, "get list watch", "secrets", ours=True),
    Rights(CERTS, "list", "endpointslices.discovery.k8s.io", ours=True),
    Rights(SCHEDULER, "list watch", "nodes pods poddisruptionbudgets.policy moves.fracgpu.io"),
    Rights(SCHEDULER, "create", "events"),
    Rights(SCHEDULER, "list watch", "configmaps", ours=True),
    Rights(SCHEDULER, "create get update", "leases.coordination.k8s.io", ours=True),
    Rights(SCHEDULER, "get", "pods", by_claims=False),
    Rights(SCHEDULER, "create", "pods/binding", by_claims=False),
    Rights(SCHEDULER, "patch", "pods/status", by_claims=False),
    Rights(SCHEDULER, "list watch", "secrets", by_claims=False, ours=True),
    Rights(
        *(SCHEDULER, "create get update delete", "endpointslices.discovery.k8s.io"),
        by_claims=False,
        ours=True,
    ),
    Rights(SCHEDULER, "list watch create delete", "resourceclaims.resource.k8s.io", by_claims=True),
    Rights(SCHEDULER, "list watch", "resourcequotas", by_claims=True),
    Rights(SCHEDULER, "create", "pods/eviction", by_claims=True),
    Rights(AGENT, "get list watch patch", "nodes"),
    Rights(AGENT, "patch", "nodes/status"),
    Rights(AGENT, "list watch", "pods"),
    Rights(AGENT, "patch delete", "pods"),
    Rights(AGENT, "create", "events"),
    Rights(AGENT, "list watch", "configmaps", ours=True),
    Rights(AGENT, "get", "pods resourceclaims.resource.k8s.io", by_claims=True),
    Rights(
        *(AGENT, "list watch create update delete", "resourceslices.resource.k8s.io"),
        by_claims=True,
    ),
    Rights(AGENT, "list watch", "moves.fracgpu.io", by_claims=True),
    Rights(names.REBALANCER, "get list watch patch", "pods nodes"),
    Rights(names.REBALANCER, "list create delete", "moves.fracgpu.io"),
    Rights(names.REBALANCER, "update", "moves.fracgpu.io/status"),
    Rights(
        *(names.REBALANCER, "get list watch"), "deployments.apps replicasets.apps statefulsets.apps"
    ),
    Rights(names.REBALANCER, "get", "jobs.batch replicationcontrollers"),
    Rights(names.REBALANCER, "create", "pods/eviction"),
    Rights(
        *(names.REBALANCER, "list watch"),
        "namespaces services resourcequotas persistentvolumeclaims persistentvolumes "
        "poddisruptionbudgets.policy",
    ),
    Rights(names.REBALANCER, "create patch", "events"),
    Rights(names.REBALANCER, "list watch", "configmaps", ours=True),
    Rights(names.REBALANCER, "create get update", "leases.coordination.k8s.io", ours=True),
    Rights(names.REBALANCER, "get list watch", "resourceclaims.resource.k8s.io", by_claims=True),
)
"""The rights that the ClusterRoles and Roles of ``deploy/`` grant, in each way to install them."""


def _rights(facts: Facts) -> Iterator[Finding]:
    outside(facts)
    by_claims = uses_claims(facts)
    for role, workload in workloads_of(facts).items():
        account = str(template_of(workload).get("spec", {}).get("serviceAccountName", "default"))
        granted = tuple(_granted(facts, account))
        lacking: dict[str, list[str]] = {}
        for verb, resource, ours in _needed(role, workload, by_claims=by_claims):
            if not any(
                _allows(rule, verb, resource) for everywhere, rule in granted if everywhere or ours
            ):
                lacking.setdefault(resource, []).append(verb)
        if lacking:
            rights = (f"{'/'.join(verbs)} {resource}" for resource, verbs in lacking.items())
            yield error(
                f"{role}, as ServiceAccount {account}, may not {listed(rights, limit=_LONGEST)}: "
                "its ClusterRole, its Role or a binding of them is missing or of another version",
                cure=install_again(facts),
                breaks=[pods_of(role)],
                needs=[INSTALLED],
            )


def _needed(role: str, workload: Json, *, by_claims: bool) -> Iterator[tuple[str, str, bool]]:
    """Yield each verb and resource that a role needs, and whether in its own namespace alone."""
    in_its_nodes_name = role == AGENT and READ_AS_NODE in turned_on(workload)
    for need in RIGHTS:
        if need.role != role or need.by_claims not in (None, by_claims):
            continue
        for resource in need.resources.split():
            for verb in need.verbs.split():
                if not (in_its_nodes_name and resource == "pods" and verb in _READING):
                    yield verb, resource, need.ours


def _granted(facts: Facts, account: str) -> Iterator[tuple[bool, Json]]:
    """Yield the rules that hold for an account, and whether each holds in all namespaces."""
    roles, namespace = known(facts.access_roles), facts.system_namespace
    accounts = "system:serviceaccounts"
    its = {
        ("ServiceAccount", account, namespace),
        ("User", f"system:serviceaccount:{namespace}:{account}", None),
        *(("Group", name, None) for name in (accounts, f"{accounts}:{namespace}")),
    }
    for binding in known(facts.access_bindings):
        subjects = binding.get("subjects") or ()
        if its.isdisjoint((one["kind"], one["name"], one.get("namespace")) for one in subjects):
            continue
        of_cluster = binding["roleRef"]["kind"] == "ClusterRole"
        there = tuple(body for body in roles if ("namespace" in body["metadata"]) != of_cluster)
        role = named(there, binding["roleRef"]["name"]) or {}
        for rule in role.get("rules") or ():
            yield "namespace" not in binding["metadata"], rule


def _allows(rule: Json, verb: str, resource: str) -> bool:
    """Report whether a rule of RBAC allows something, if only to objects that it names."""
    kind, slash, part = resource.partition("/")
    plural, _, group = kind.partition(".")
    return all(
        wanted in rule.get(field, ()) or "*" in rule.get(field, ())
        for field, wanted in (
            ("verbs", verb),
            ("apiGroups", group),
            ("resources", f"{plural}{slash}{part}"),
        )
    )


def _installers(facts: Facts) -> Iterator[Finding]:
    ours = [
        body
        for objects in (
            facts.deployments, facts.daemon_sets, facts.mutating_webhooks,
            facts.validating_webhooks, facts.policies, facts.policy_bindings, facts.access_roles,
        )
        for body in known(objects)
        if labels_of(body).get(_PART_OF) == "fracgpu"
    ]  # fmt: skip
    of_helm = [name_of(body) for body in ours if upgrade_of(body)]
    others = [name_of(body) for body in ours if not upgrade_of(body)]
    if of_helm and others:
        yield warning(
            f"Helm has installed {len(of_helm)} objects of FracGPU, such as {of_helm[0]}, and not "
            f"the {len(others)} others ({listed(others)}): what one of two ways to install it "
            "changes, the other leaves as it is",
            cure="fracgpu uninstall --yes, and install it in one way (docs/install.md)",
            needs=[INSTALLED],
        )


CHECKS: Final = (
    Check(name="rights", title="Every role has its rights", find=_rights),
    Check(name="installers", title="One installer has made all objects", find=_installers),
)
