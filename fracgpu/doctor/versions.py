"""Whether versions fit each other, and clocks: Kubernetes, the roles, the definition of Moves."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from fracgpu.cards.card import MAX_CLOCK_SKEW
from fracgpu.doctor.cures import install_again
from fracgpu.doctor.facts import (
    Facts,
    Json,
    NotKnownError,
    Objects,
    Unread,
    known,
    name_of,
    named,
    template_of,
    time_of,
)
from fracgpu.doctor.finding import Check, Finding, error, warning
from fracgpu.doctor.installation import READ_AS_NODE, SCHEDULER, turned_on, workload_of
from fracgpu.doctor.ranking import INSTALLED
from fracgpu.errors import listed
from fracgpu.k8s.release import (
    Release,
    image_name_and_tag,
    kube_scheduler_of,
    problem_of,
    release_of,
)

OLDEST: Final = Release(1, 30)
NEWEST: Final = Release(1, 36)
MOVES_DEFINITION: Final = "moves.fracgpu.io"
MOVES_VERSION: Final = "v1alpha1"

_IMAGE: Final = "fracgpu"
_SKEW: Final = timedelta(seconds=30)
_KUBELET_OLDER_BY: Final = 3


def _kubernetes(facts: Facts) -> Iterator[Finding]:
    text = known(facts.server_version)
    release = release_of(text)
    if release is None:
        raise NotKnownError(f"the API server's version is {text!r}")
    if release < OLDEST:
        yield error(
            f"the API server is of Kubernetes {release}; want {OLDEST} to {NEWEST}: it lacks "
            "ValidatingAdmissionPolicy or match conditions of webhooks",
            cure=f"upgrade the cluster to {OLDEST} or later",
        )
    elif release > NEWEST:
        yield warning(
            f"the API server is of Kubernetes {release}; FracGPU was tested with {OLDEST} to "
            f"{NEWEST}",
            cure="look for a newer FracGPU (CHANGELOG.md)",
        )
    for node in known(facts.nodes):
        version = str(node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""))
        kubelet = release_of(version)
        if kubelet is None:
            continue
        if kubelet > release or release.minor - kubelet.minor > _KUBELET_OLDER_BY:
            yield warning(
                f"kubelet of node {name_of(node)} is of {kubelet}, the API server of {release}",
                cure="upgrade the node: https://kubernetes.io/releases/version-skew-policy/#kubelet",
            )


# What is set up only where it is wanted, and needs a later release than the rest: the release, what
# it is, the variable of the DaemonSet that turns it on, and what happens without it.
_NEEDS_LATER: Final = (
    (
        Release(1, 36),
        "deviceplugin.readAsNode",
        READ_AS_NODE,
        "the node agents may not read any pod",
    ),
)


def _features(facts: Facts) -> Iterator[Finding]:
    server = release_of(known(facts.server_version))
    if server is None:
        raise NotKnownError(f"the API server's version is {known(facts.server_version)!r}")
    for daemon_set in known(facts.daemon_sets):
        found = turned_on(daemon_set)
        for since, what, variable, without in _NEEDS_LATER:
            if variable in found and server < since:
                yield error(
                    f"{what} of {name_of(daemon_set)} needs Kubernetes {since}, and the API server "
                    f"is of {server}: {without}",
                    cure=f"turn {what} off (docs/install.md), or upgrade the cluster to {since}",
                )


def _kube_scheduler(facts: Facts) -> Iterator[Finding]:
    server = release_of(known(facts.server_version))
    deployment = workload_of(known(facts.deployments), SCHEDULER)
    template = template_of(deployment) if deployment is not None else {}
    ours = kube_scheduler_of(template) if template.get("spec") else None
    if server is None or ours is None:
        return  # the cluster's own kube-scheduler is used, or its tag is no version
    problem = problem_of(ours, server)
    if problem is not None:
        yield error(problem, cure="helm upgrade, or images in your kustomization.yaml")
    elif ours.minor < server.minor - 1:
        yield warning(
            f"kube-scheduler is of {ours}, the API server of {server}: more than one minor version "
            "older",
            cure="helm upgrade, or images in your kustomization.yaml",
        )


def _roles(facts: Facts) -> Iterator[Finding]:
    workloads = (*known(facts.deployments), *known(facts.daemon_sets))
    tags = {
        name_of(workload): tag
        for workload in workloads
        if (tag := _tag(template_of(workload).get("spec", {}))) is not None
    }
    counts = Counter(tags.values())
    usual = counts.most_common(1)[0][0] if counts else ""
    for name, tag in tags.items():
        if tag != usual:
            yield warning(
                f"{name} is of version {tag or '(no tag)'}, the others of {usual or '(no tag)'}",
                cure="helm upgrade, or the same newTag for every image (docs/install.md)",
            )
    if usual.removeprefix("v") != facts.own_version and release_of(usual) is not None:
        yield warning(
            f"this program is of version {facts.own_version}, FracGPU in the cluster of {usual}",
            cure=f"pip install fracgpu=={usual}, or run the command from the cluster's image",
        )
    older: dict[str, list[str]] = {}
    for pod in known(facts.pods):
        tag = _tag(pod.get("spec", {}))
        if tag is not None and tag not in counts and not pod["metadata"].get("deletionTimestamp"):
            older.setdefault(tag, []).append(name_of(pod))
    for tag, pods in older.items():
        of = f"pod {pods[0]} still runs" if len(pods) == 1 else f"pods {listed(pods)} still run"
        yield warning(
            f"{of} version {tag}",
            cure=f"kubectl -n {facts.system_namespace} rollout status deployment,daemonset",
        )


def _tag(spec: Json) -> str | None:
    """Return the tag of our image; None for a pod without it."""
    for container in spec.get("containers") or ():
        name, tag = image_name_and_tag(str(container.get("image", "")))
        if name == _IMAGE:
            return tag
    return None


def _definition(facts: Facts) -> Iterator[Finding]:
    found = named(known(facts.definitions), MOVES_DEFINITION)
    cure = install_again(facts)
    if found is None:
        yield error(
            f"there is no CustomResourceDefinition {MOVES_DEFINITION}: nothing can be moved",
            cure=cure,
            needs=[INSTALLED],
        )
        return
    served = [each["name"] for each in found["spec"]["versions"] if each.get("served")]
    if MOVES_VERSION not in served:
        yield error(
            f"CustomResourceDefinition {MOVES_DEFINITION} serves {', '.join(served) or 'nothing'}; "
            f"want {MOVES_VERSION}",
            cure=cure,
        )


def _clocks(facts: Facts) -> Iterator[Finding]:
    """Compare every clock that is known with the API server's.

    Who renewed a Lease is compared with the time that the API server notes of the same write.
    """
    if not isinstance(facts.caller_ahead, Unread) and abs(facts.caller_ahead) > _SKEW:
        yield warning(
            f"the clock of the machine that runs this command is {_apart(facts.caller_ahead)} the "
            "API server's, by which everything here was judged",
            cure="let NTP run on this machine: timedatectl status; chronyc tracking",
        )
    leases: Objects = (*known(facts.node_leases), *known(facts.leases))
    undated = []
    for lease in leases:
        renewed = time_of(lease.get("spec", {}).get("renewTime"))
        written = _written(lease)
        if renewed is None:
            continue
        if written is None:
            undated.append(name_of(lease))
            continue
        # The API server notes whole seconds.
        ahead = renewed - written
        if abs(ahead) > _SKEW:
            found = error if abs(ahead) > MAX_CLOCK_SKEW else warning
            yield found(
                f"the clock of {_owner(lease)} is {_apart(ahead)} the API server's",
                cure="let NTP run on the node: timedatectl status; chronyc tracking",
            )
    if undated:
        raise NotKnownError(
            f"{len(undated)} Leases do not say when they were written (managedFields), such as "
            f"{undated[0]}"
        )
    known(facts.caller_ahead)


def _apart(ahead: timedelta) -> str:
    direction = "ahead of" if ahead > timedelta(0) else "behind"
    return f"{abs(ahead).total_seconds():.0f} s {direction}"


def _owner(lease: Json) -> str:
    namespace = lease["metadata"].get("namespace")
    if namespace == "kube-node-lease":
        return f"node {name_of(lease)}"
    return str(lease.get("spec", {}).get("holderIdentity") or name_of(lease))


def _written(lease: Json) -> datetime | None:
    times = [
        found
        for entry in lease["metadata"].get("managedFields") or ()
        if "f:renewTime" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        and (found := time_of(entry.get("time"))) is not None
    ]
    return max(times, default=None)


CHECKS: Final = (
    Check(name="kubernetes", title="Kubernetes is of a tested version", find=_kubernetes),
    Check(name="features", title="Kubernetes has what is set up", find=_features),
    Check(name="kube-scheduler", title="kube-scheduler fits the API server", find=_kube_scheduler),
    Check(name="roles", title="All roles are of one version", find=_roles),
    Check(name="definition", title="The definition of Moves is served", find=_definition),
    Check(name="clocks", title="Clocks agree with the API server's", find=_clocks),
)
