"""Whether every role runs: Deployments, the DaemonSet, and why pods of theirs do not start."""

from collections.abc import Iterator
from typing import Final

from fracgpu.doctor.cures import KUSTOMIZE, change, install_again
from fracgpu.doctor.facts import (
    Facts,
    Json,
    Unread,
    condition_of,
    is_ready,
    known,
    labels_of,
    name_of,
    named,
)
from fracgpu.doctor.finding import Check, Finding, error, warning
from fracgpu.doctor.installation import (
    AGENT,
    APP_LABEL,
    CERTS,
    DEPLOYMENTS,
    POD_SECURITY,
    PRIVILEGED,
    SCHEDULER,
    WEBHOOK,
    let_agents_in,
    outside,
    role_of,
    service_namespaces,
    workload_of,
    workloads_of,
)
from fracgpu.doctor.ranking import (
    CERTIFICATES,
    INSTALLED,
    pod,
    pods_of,
    runtime_class_of,
    workload,
)
from fracgpu.errors import counted, listed, shorten

_REMAINS: Final = ("NamespaceContentRemaining", "NamespaceFinalizersRemaining")
_USUAL_WAITS: Final = ("ContainerCreating", "PodInitializing")
_IMAGE_WAITS: Final = (
    "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName",
    "ImageInspectError", "RegistryUnavailable",
)  # fmt: skip
_LONGEST: Final = 300
_LEFT: Final = ", and before it fracgpu uninstall --yes for what an earlier installation has left"


def _installed(facts: Facts) -> Iterator[Finding]:
    configuration = named(known(facts.mutating_webhooks), WEBHOOK)
    # A release whose namespace was deleted is forgotten by Helm, and only installed anew.
    again = change(configuration or {}, "--install", "--create-namespace", otherwise=KUSTOMIZE)
    again += ", with the values or images of the first installation"
    system = () if isinstance(facts.namespace, Unread) else facts.namespace
    if any(body["metadata"].get("deletionTimestamp") for body in system):
        yield _being_deleted(facts, again)
        return
    if workloads_of(facts):
        known(facts.namespace)  # or it may be about to go
        return
    if configuration is None:
        left = "" if isinstance(facts.definitions, Unread) or not facts.definitions else _LEFT
        yield error(
            f"FracGPU is not installed: namespace {facts.system_namespace} has no Deployment of it,"
            " and the cluster no webhook",
            cure=f"docs/install.md{left}; or name the namespace where it runs with "
            "--system-namespace",
            breaks=[INSTALLED],
        )
        return
    outside(facts)
    namespaces = service_namespaces(configuration)
    if namespaces == {facts.system_namespace}:
        yield error(
            f"FracGPU was removed in part: namespace {facts.system_namespace} has no Deployment of "
            "it, and the cluster still has its webhook, so every pod that requests a share is "
            "refused",
            cure=f"{again}; or remove the rest: fracgpu uninstall --yes",
            breaks=[INSTALLED],
        )
    for namespace in sorted(namespaces - {facts.system_namespace}):
        yield error(
            f"namespace {facts.system_namespace} has no Deployment of FracGPU: the webhook runs in "
            f"namespace {namespace}",
            cure=f"fracgpu doctor --system-namespace {namespace}",
            breaks=[INSTALLED],
        )


def _being_deleted(facts: Facts, again: str) -> Finding:
    (body,), name = known(facts.namespace), facts.system_namespace
    found = (condition_of(body, kind) or {} for kind in _REMAINS)
    remains = [str(each.get("message")) for each in found if each.get("status") == "True"]
    return error(
        f"namespace {name} is being deleted, and nothing starts in it any more"
        + (f": {shorten('; '.join(remains), limit=_LONGEST)}" if remains else ""),
        cure=f"kubectl wait --for=delete namespace {name} --timeout=5m (finalizers wait for "
        f"whoever set them); then {again}; or remove the rest: fracgpu uninstall --yes",
        breaks=[INSTALLED],
    )


def _pods_start(facts: Facts) -> Iterator[Finding]:
    ours = [
        each
        for each in known(facts.pods)
        if labels_of(each).get(APP_LABEL) in (*DEPLOYMENTS, AGENT)
    ]
    groups: dict[tuple[str, str], list[tuple[Json, str]]] = {}
    for each in ours:
        found = _trouble(each)
        if found is not None:
            *key, message = found
            groups.setdefault((key[0], key[1]), []).append((each, message))
    running = {labels_of(each)[APP_LABEL] for each in ours if is_ready(each)}
    for (_, reason), pods in groups.items():
        apps = sorted({labels_of(each)[APP_LABEL] for each, _ in pods})
        down = [app for app in apps if app not in running]
        first, message = pods[0]
        of = (
            f"pods of {listed(apps)} do not start"
            if len(pods) > 1
            else f"pod {name_of(first)} does not start"
        )
        yield (error if down or AGENT in apps else warning)(
            f"{of}: {reason}" + (f": {shorten(message, limit=_LONGEST)}" if message else ""),
            cure=_start_cure(facts, reason, name_of(first)),
            breaks=[*map(pods_of, down), *(pod(name_of(each)) for each, _ in pods)],
            needs=[*map(runtime_class_of, apps)],
        )
    yield from _pod_security(facts)


def _pod_security(facts: Facts) -> Iterator[Finding]:
    """Yield a finding where the namespace refuses the agents' pods, which are privileged."""
    for body in known(facts.namespace):
        level = labels_of(body).get(POD_SECURITY, PRIVILEGED)
        if level != PRIVILEGED:
            yield error(
                f"namespace {name_of(body)} enforces Pod Security {level}, so no pod of {AGENT} is "
                "created: it has to be privileged",
                cure=let_agents_in(facts),
                breaks=[workload(AGENT)],
                needs=[INSTALLED],
            )


def _trouble(body: Json) -> tuple[str, str, str] | None:
    """Return why a pod does not start, as kubelet or kube-scheduler says it; None if neither does.

    That is what pods with the same trouble have in common, the reason, and the message.
    """
    status, app = body.get("status", {}), labels_of(body)[APP_LABEL]
    if body["metadata"].get("deletionTimestamp") or is_ready(body):
        return None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return app, str(condition.get("reason")), str(condition.get("message") or "")
    for container in (
        *(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())
    ):  # fmt: skip
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if not reason or reason in _USUAL_WAITS:
            continue
        if reason in _IMAGE_WAITS:
            image = str(container.get("image", ""))
            return image, f"image {image} cannot be pulled", str(waiting.get("message") or reason)
        ended = (container.get("lastState") or {}).get("terminated") or {}
        code = f"; its last exit code was {ended['exitCode']}" if "exitCode" in ended else ""
        return app, reason, f"{ended.get('reason') or waiting.get('message') or ''}{code}"
    return None


def _start_cure(facts: Facts, reason: str, name: str) -> str:
    kubectl = f"kubectl -n {facts.system_namespace}"
    if reason.startswith("image "):
        return (
            "push the image (make push REGISTRY=...), or correct the chart's image.registry, "
            f"image.tag and imagePullSecrets; {kubectl} describe pod {name}"
        )
    if reason == "CrashLoopBackOff":
        return f"{kubectl} logs {name} --all-containers --previous"
    return f"{kubectl} describe pod {name}"


def _replicas(facts: Facts) -> Iterator[Finding]:
    outside(facts)
    deployments = known(facts.deployments)
    for name in DEPLOYMENTS:
        body = workload_of(deployments, name)
        if body is not None:
            yield from _available(facts, body)
        elif name != CERTS:  # cert-manager may make the certificates
            yield _missing("Deployment", name, facts)
    if workload_of(known(facts.daemon_sets), AGENT) is None:
        yield _missing("DaemonSet", AGENT, facts)


def _missing(kind: str, name: str, facts: Facts) -> Finding:
    return error(
        f"there is no {kind} {name}",
        cure=install_again(facts),
        breaks=[workload(name)],
        needs=[INSTALLED],
    )


def _available(facts: Facts, body: Json) -> Iterator[Finding]:
    name, app, namespace = name_of(body), role_of(body), facts.system_namespace
    wanted = body.get("spec", {}).get("replicas", 1)
    there = body.get("status", {}).get("availableReplicas") or 0
    if wanted == 0:
        role = app.removeprefix("fracgpu-")
        flags = [f"--set {role}.replicas=2"] if app != CERTS else []
        yield error(
            f"Deployment {name} is scaled to 0 replicas",
            cure=change(
                body,
                *flags,
                otherwise=f"kubectl -n {namespace} scale deployment {name} --replicas=2",
            ),
            breaks=[workload(app)],
        )
    elif there < wanted:
        why = _not_created(body)
        found = error if there == 0 else warning
        yield found(
            f"Deployment {name} has {there} of {counted(wanted, 'replica')} available{why}",
            cure=f"kubectl -n {namespace} describe pods -l {APP_LABEL}={app}",
            breaks=[workload(app)] if there == 0 else (),
            # The scheduler's pods wait for their client certificate.
            needs=[
                pods_of(app),
                *(
                    pod(name_of(each))
                    for each in known(facts.pods)
                    if labels_of(each).get(APP_LABEL) == app
                ),
                runtime_class_of(app),
                *([CERTIFICATES, workload(CERTS)] if app == SCHEDULER else ()),
            ],
        )


def _not_created(body: Json) -> str:
    """Return why the API server refuses a Deployment's pods, such as a quota; mostly empty."""
    for condition in body.get("status", {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f": {shorten(str(condition.get('message')), limit=_LONGEST)}"
    return ""


CHECKS: Final = (
    Check(name="installed", title="FracGPU is installed", find=_installed),
    Check(name="pods", title="Every pod of FracGPU starts", find=_pods_start),
    Check(name="replicas", title="Every role has its replicas", find=_replicas),
)
