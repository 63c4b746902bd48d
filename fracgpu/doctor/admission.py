"""Whether requests are admitted: webhooks, their certificates and the policies beside them."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from fracgpu.doctor.cures import install_again
from fracgpu.doctor.facts import Facts, Json, Unread, known, labels_of, name_of, named
from fracgpu.doctor.finding import Check, Finding, error, warning
from fracgpu.doctor.installation import CERTS, WEBHOOK, outside, workload_of
from fracgpu.doctor.ranking import (
    CERTIFICATES,
    INSTALLED,
    WEBHOOK_ENDPOINTS,
    WEBHOOK_REGISTERED,
    WEBHOOK_TRUST,
    workload,
)
from fracgpu.errors import listed

POLICIES: Final = (
    "fracgpu-agent-pods",
    "fracgpu-bindings",
    "fracgpu-bursts",
    "fracgpu-cronjobs",
    "fracgpu-device-environment",
    "fracgpu-devices",
    "fracgpu-foreign-assignments",
    "fracgpu-lease-term",
    "fracgpu-misplaced-requests",
    "fracgpu-moves",
    "fracgpu-nodes",
    "fracgpu-pod-deletions",
    "fracgpu-pods",
    "fracgpu-quotas",
    "fracgpu-rebalancer-nodes",
    "fracgpu-rebalancer-pods",
    "fracgpu-rebalancer-records",
    "fracgpu-resizes",
    "fracgpu-share-labels",
    "fracgpu-workloads",
)
"""The ValidatingAdmissionPolicies of ``deploy/``; each has a binding that denies or warns."""

_BY_NAMESPACE: Final = ("fracgpu-devices", "fracgpu-device-environment")
_HINTS: Final = ("fracgpu-misplaced-requests", "fracgpu-quotas", "fracgpu-share-labels")
BINDINGS: Final[Mapping[str, str]] = {
    **dict.fromkeys(POLICIES, "Deny"),
    **dict.fromkeys(_HINTS, "Warn"),
    **dict.fromkeys(_BY_NAMESPACE, "Warn"),  # until the administrator has read the warnings
    **{f"{name}-deny": "Deny" for name in _BY_NAMESPACE},
    **{f"{name}-warn": "Warn" for name in _BY_NAMESPACE},
}
"""The bindings of ``deploy/``, and what each of them does at least."""

# Those that a label of the namespace switches on or off.
_MAY_SELECT: Final = ("fracgpu-device", "fracgpu-foreign-assignments")
_UNTRANSLATED: Final = "pods are admitted untranslated and cannot start"
_UNCOUNTED: Final = (
    "pod templates are stored without their grant, and queues count no share of theirs"
)
# The webhooks of our MutatingWebhookConfiguration, and what happens without their answer.
_MUTATING: Final[Mapping[str, str]] = {
    "pods.fracgpu.io": _UNTRANSLATED,
    "dialects.pods.fracgpu.io": _UNTRANSLATED,
    "templates.fracgpu.io": _UNCOUNTED,
    "other.templates.fracgpu.io": _UNCOUNTED,
}
_EXPIRES_SOON: Final = timedelta(days=7)  # renewed with ten days left at least, as shipped


def _logs(facts: Facts) -> str:
    there = () if isinstance(facts.deployments, Unread) else facts.deployments
    body = workload_of(there, CERTS)
    name = CERTS if body is None else name_of(body)
    return f"kubectl -n {facts.system_namespace} logs deployment/{name}"


def _registered(facts: Facts) -> Iterator[Finding]:
    for kind, configurations in (
        ("MutatingWebhookConfiguration", known(facts.mutating_webhooks)),
        ("ValidatingWebhookConfiguration", known(facts.validating_webhooks)),
    ):
        configuration = named(configurations, WEBHOOK)
        if configuration is None:
            what = "pods" if kind.startswith("Mutating") else "workloads"
            yield error(
                f"there is no {kind} {WEBHOOK}: what {what} request is not read",
                cure=install_again(facts),
                breaks=[WEBHOOK_REGISTERED] if kind.startswith("Mutating") else (),
                needs=[INSTALLED],
            )
        elif kind.startswith("Mutating"):
            yield from _webhooks_missing(configuration, install_again(facts))


def _webhooks_missing(configuration: Json, cure: str) -> Iterator[Finding]:
    webhooks = {each.get("name"): each for each in configuration.get("webhooks") or ()}
    for name, consequence in _MUTATING.items():
        if name not in webhooks:
            yield error(
                f"MutatingWebhookConfiguration {WEBHOOK} has no webhook {name}: {consequence}",
                cure=cure,
                breaks=[WEBHOOK_REGISTERED] if consequence is _UNTRANSLATED else (),
            )
        elif webhooks[name].get("failurePolicy") != "Fail":
            yield error(
                f"webhook {name} has failurePolicy {webhooks[name].get('failurePolicy')}: while it "
                f"does not answer, {consequence}",
                cure=cure,
            )


def _trusted(facts: Facts) -> Iterator[Finding]:
    for row in known(facts.certificates).mistrust:
        yield error(
            f"webhook {row.webhook}: {row.problem}, so the API server cannot call it",
            cure=f"the role certs writes the CA bundle; {_logs(facts)} "
            f"says why it does not; then fracgpu certs status",
            breaks=[WEBHOOK_TRUST],
            needs=[workload(CERTS), CERTIFICATES, INSTALLED],
        )


def _certificates(facts: Facts) -> Iterator[Finding]:
    for row in known(facts.certificates).certificates:
        if row.problem:
            yield error(
                f"Secret {row.secret}: {row.problem}",
                cure=f"fracgpu certs rotate; {_logs(facts)} says why the "
                "role certs did not do it by itself",
                breaks=[CERTIFICATES],
                needs=[workload(CERTS), INSTALLED],
            )
        elif row.not_after is not None and row.not_after - facts.now < _EXPIRES_SOON:
            left = row.not_after - facts.now
            yield warning(
                f"Secret {row.secret}: its certificate expires in {_days(left)}, and should have "
                "been renewed",
                cure=f"fracgpu certs rotate; {_logs(facts)} says why it was not renewed",
                needs=[workload(CERTS)],
            )


def _days(left: timedelta) -> str:
    return f"{left.days} d" if left.days else f"{left.seconds // 3600} h"


def _endpoints(facts: Facts) -> Iterator[Finding]:
    outside(facts)
    configuration = named(known(facts.mutating_webhooks), WEBHOOK) or {}
    services = {
        (each.get("clientConfig") or {}).get("service", {}).get("name")
        for each in configuration.get("webhooks") or ()
    }
    service = next(filter(None, services), WEBHOOK)
    ready = [
        endpoint
        for body in known(facts.slices)
        if labels_of(body).get("kubernetes.io/service-name") == service
        for endpoint in body.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready", True)
    ]
    if not ready:
        namespace = facts.system_namespace
        yield error(
            f"Service {namespace}/{service} has no ready endpoint: every pod that requests a share "
            "is refused",
            cure=f"kubectl -n {namespace} describe pods -l app.kubernetes.io/name={WEBHOOK}",
            breaks=[WEBHOOK_ENDPOINTS],
            needs=[workload(WEBHOOK), INSTALLED],
        )


def _answers(facts: Facts) -> Iterator[Finding]:
    answer = known(facts.admission)
    if answer.refused_by_webhook:
        return
    namespace = facts.system_namespace
    if answer.message:
        yield error(
            f"the webhook does not answer the API server: {answer.message}",
            cure=f"kubectl -n {namespace} get pods,endpointslices; a NetworkPolicy or firewall "
            "must let the API server reach port 8443 of the pods; fracgpu certs status",
            needs=[WEBHOOK_ENDPOINTS, WEBHOOK_TRUST, WEBHOOK_REGISTERED, INSTALLED],
        )
    else:
        yield error(
            "a pod that requests twice the memory of any card was accepted in a dry run: the API "
            "server did not ask FracGPU's webhook about it",
            cure="look for a namespaceSelector that was added: kubectl get "
            f"mutatingwebhookconfiguration {WEBHOOK} -o yaml; or {install_again(facts)}",
            needs=[WEBHOOK_REGISTERED, INSTALLED],
        )


def _policies(facts: Facts) -> Iterator[Finding]:
    cure = install_again(facts)
    policies = {name_of(body): body for body in known(facts.policies)}
    bindings = {name_of(body): body for body in known(facts.policy_bindings)}
    for there, wanted, what in (
        (policies, tuple(POLICIES), "ValidatingAdmissionPolicies are missing"),
        (bindings, tuple(BINDINGS), "ValidatingAdmissionPolicyBindings are missing, so that their "
         "policies decide nothing there"),
    ):  # fmt: skip
        if names := [name for name in wanted if name not in there]:
            yield error(
                f"{len(names)} of {len(wanted)} {what}: {listed(names)}",
                cure=cure,
                needs=[INSTALLED],
            )
    for name in POLICIES:
        if policies.get(name, {}).get("spec", {}).get("failurePolicy", "Fail") != "Fail":
            yield error(
                f"ValidatingAdmissionPolicy {name}: its failurePolicy is Ignore, so what it "
                "cannot evaluate is admitted",
                cure=cure,
            )
    for name, action in BINDINGS.items():
        for weakness in _weaknesses(name, action, bindings[name]) if name in bindings else ():
            yield error(f"ValidatingAdmissionPolicyBinding {name}: {weakness}", cure=cure)


def _weaknesses(name: str, action: str, binding: Json) -> Iterator[str]:
    """Yield what keeps a binding from doing what it does as shipped."""
    spec = binding.get("spec", {})
    actions = spec.get("validationActions") or []
    if not {action, "Deny"}.intersection(actions):
        yield f"its validationActions are {', '.join(sorted(actions)) or 'empty'}; want {action}"
    if spec.get("matchResources") and not name.startswith(_MAY_SELECT):
        yield "it has matchResources, so it decides about a part of the requests only"


CHECKS: Final = (
    Check(name="webhook-registered", title="The webhook is registered", find=_registered),
    Check(name="webhook-endpoints", title="A replica of the webhook is ready", find=_endpoints),
    Check(
        name="webhook-trust",
        title="The webhook's CA bundle matches its serving certificate",
        find=_trusted,
    ),
    Check(name="webhook-answers", title="The API server reaches the webhook", find=_answers),
    Check(name="certificates", title="Certificates are valid and renewed", find=_certificates),
    Check(name="policies", title="The admission policies are in force", find=_policies),
)
