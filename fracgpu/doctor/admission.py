"""Whether requests are admitted: webhooks, their certificates and the policies beside them."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from fracgpu.doctor.facts import Facts, Json, known, name_of, named
from fracgpu.doctor.finding import INSTALL_AGAIN, Check, Finding, error, warning

WEBHOOK: Final = "fracgpu-webhook"
"""Name of the webhook's configurations, Service and Deployment."""

POLICIES: Final = (
    "fracgpu-agent-pods",
    "fracgpu-bindings",
    "fracgpu-cronjobs",
    "fracgpu-device-environment",
    "fracgpu-device-environment-warn",
    "fracgpu-devices",
    "fracgpu-devices-warn",
    "fracgpu-foreign-assignments",
    "fracgpu-lease-term",
    "fracgpu-moves",
    "fracgpu-nodes",
    "fracgpu-pod-deletions",
    "fracgpu-pods",
    "fracgpu-rebalancer-nodes",
    "fracgpu-rebalancer-pods",
    "fracgpu-rebalancer-records",
    "fracgpu-scheduler-writes",
    "fracgpu-workloads",
)
"""The ValidatingAdmissionPolicies of ``deploy/``; each has a binding of the same name."""

_MUTATING: Final = ("pods.fracgpu.io", "dialects.pods.fracgpu.io")
_EXPIRES_SOON: Final = timedelta(days=7)  # renewed with ten days left at least, as shipped
_LOGS: Final = "kubectl -n {} logs deployment/fracgpu-certs"


def _registered(facts: Facts) -> Iterator[Finding]:
    for kind, configurations in (
        ("MutatingWebhookConfiguration", known(facts.mutating_webhooks)),
        ("ValidatingWebhookConfiguration", known(facts.validating_webhooks)),
    ):
        configuration = named(configurations, WEBHOOK)
        if configuration is None:
            what = "pods" if kind.startswith("Mutating") else "workloads"
            yield error(
                f"there is no {kind} {WEBHOOK}: nobody reads what {what} request",
                cure=INSTALL_AGAIN,
            )
        elif kind.startswith("Mutating"):
            yield from _webhooks_missing(configuration)


def _webhooks_missing(configuration: Json) -> Iterator[Finding]:
    webhooks = {each.get("name"): each for each in configuration.get("webhooks") or ()}
    for name in _MUTATING:
        if name not in webhooks:
            yield error(
                f"MutatingWebhookConfiguration {WEBHOOK} has no webhook {name}", cure=INSTALL_AGAIN
            )
        elif webhooks[name].get("failurePolicy") != "Fail":
            yield error(
                f"webhook {name} has failurePolicy {webhooks[name].get('failurePolicy')}: while it "
                "does not answer, pods pass it untranslated and cannot start",
                cure=INSTALL_AGAIN,
            )


def _trusted(facts: Facts) -> Iterator[Finding]:
    for row in known(facts.certificates).mistrust:
        yield error(
            f"webhook {row.webhook}: {row.problem}, so the API server cannot call it",
            cure=f"the role certs writes the CA bundle; {_LOGS.format(facts.system_namespace)} "
            f"says why it does not; then fracgpu certs status",
        )


def _certificates(facts: Facts) -> Iterator[Finding]:
    for row in known(facts.certificates).certificates:
        if row.problem:
            yield error(
                f"Secret {row.secret}: {row.problem}",
                cure=f"fracgpu certs rotate; {_LOGS.format(facts.system_namespace)} says why the "
                "role certs did not do it by itself",
            )
        elif row.not_after is not None and row.not_after - facts.now < _EXPIRES_SOON:
            left = row.not_after - facts.now
            yield warning(
                f"Secret {row.secret}: its certificate expires in {_days(left)}, and should have "
                "been renewed",
                cure=f"fracgpu certs rotate; {_LOGS.format(facts.system_namespace)} says why it "
                "was not renewed",
            )


def _days(left: timedelta) -> str:
    return f"{left.days} d" if left.days else f"{left.seconds // 3600} h"


def _endpoints(facts: Facts) -> Iterator[Finding]:
    ready = [
        endpoint
        for body in known(facts.slices)
        if body["metadata"].get("labels", {}).get("kubernetes.io/service-name") == WEBHOOK
        for endpoint in body.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready", True)
    ]
    if not ready:
        namespace = facts.system_namespace
        yield error(
            f"Service {namespace}/{WEBHOOK} has no ready endpoint: every pod that requests a share "
            "is refused",
            cure=f"kubectl -n {namespace} describe pods -l app.kubernetes.io/name={WEBHOOK}",
        )


def _answers(facts: Facts) -> Iterator[Finding]:
    answer = known(facts.admission)
    if answer.refused_by_webhook:
        return
    namespace = facts.system_namespace
    if answer.message:
        yield error(
            f"the webhook was not asked: {answer.message}",
            cure=f"kubectl -n {namespace} get pods,endpointslices; a NetworkPolicy or firewall "
            "must let the API server reach port 8443 of the pods; fracgpu certs status",
        )
    else:
        yield error(
            "a pod with the impossible request of two cards' memory was accepted (in a dry run): "
            "no webhook of FracGPU was asked about it",
            cure="look for a namespaceSelector that somebody added: kubectl get "
            f"mutatingwebhookconfiguration {WEBHOOK} -o yaml; or {INSTALL_AGAIN}",
        )


def _policies(facts: Facts) -> Iterator[Finding]:
    there = {name_of(body) for body in known(facts.policies)}
    bound = {
        body.get("spec", {}).get("policyName"): body.get("spec", {}).get("validationActions") or ()
        for body in known(facts.policy_bindings)
    }
    for name in POLICIES:
        if name not in there:
            yield error(f"ValidatingAdmissionPolicy {name} is missing", cure=INSTALL_AGAIN)
        elif name not in bound:
            yield error(
                f"ValidatingAdmissionPolicy {name} has no binding, so it decides nothing",
                cure=INSTALL_AGAIN,
            )
        elif "Deny" not in bound[name] and not name.endswith("-warn"):
            yield error(
                f"the binding of ValidatingAdmissionPolicy {name} does not deny: its "
                f"validationActions are {', '.join(bound[name]) or 'empty'}",
                cure=INSTALL_AGAIN,
            )


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
