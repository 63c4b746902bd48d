"""Whether claims can be allocated, where kube-scheduler does that: API, classes, slices, claims."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from fracgpu import names
from fracgpu.cards.node_marks import shares
from fracgpu.doctor.cures import install_again
from fracgpu.doctor.facts import (
    Facts,
    Json,
    NotKnownError,
    Unread,
    is_true,
    known,
    labels_of,
    name_of,
    named,
    waiting,
)
from fracgpu.doctor.finding import Check, Finding, error, warning
from fracgpu.doctor.installation import APP_LABEL, SCHEDULER, uses_claims
from fracgpu.doctor.ranking import ALL_AGENTS, EXTENDER_LEADER, INSTALLED, agent_on
from fracgpu.errors import counted
from fracgpu.k8s.release import Release, release_of

_SINCE: Final = Release(1, 36)
_GATE: Final = "DRAConsumableCapacity"
_PAGE: Final = "docs/device-claims.md"
# The leader makes a claim within a second; longer where it replans or has just been elected.
_CLAIM_WITHIN: Final = timedelta(seconds=30)


def _served(facts: Facts) -> Iterator[Finding]:
    if not uses_claims(facts):
        return
    release = release_of(known(facts.server_version))
    if release is not None and release < _SINCE:
        yield error(
            f"the wiring is claims, which needs Kubernetes {_SINCE}, and the API server is of "
            f"{release}: no pod with a share gets a card",
            cure=f"uninstall, and install without wiring=claims ({_PAGE})",
            breaks=[SERVED],
        )
    if isinstance(facts.device_classes, Unread):
        raise NotKnownError(facts.device_classes.reason)
    for name in (names.DEVICE_CLASS, names.DEVICE_CLASS_PLACED):
        if named(facts.device_classes, name) is None:
            yield error(
                f"there is no DeviceClass {name}: claims of it are not allocated",
                cure=install_again(facts),
                needs=[INSTALLED],
            )
    for one in known(facts.card_slices):
        devices = one["spec"].get("devices") or ()
        if devices and not any(each.get("allowMultipleAllocations") for each in devices):
            yield error(
                f"the API server dropped allowMultipleAllocations from ResourceSlice "
                f"{name_of(one)}: each card goes to one pod whole",
                cure=f"turn the feature gate {_GATE} on for the whole control plane and kubelets",
                breaks=[SERVED],
            )
            return


def _slices(facts: Facts) -> Iterator[Finding]:
    if not uses_claims(facts):
        return
    written: dict[str, list[Json]] = {}
    for one in known(facts.card_slices):
        written.setdefault(str(one["spec"].get("nodeName") or ""), []).append(one)
    for node in known(facts.nodes):
        name = name_of(node)
        if (
            not shares(labels_of(node))
            or name in written
            or not is_true(node, names.SHARING_CONDITION)
        ):
            continue
        yield error(
            f"node {name} says that it shares its cards, and has no ResourceSlice of "
            f"{names.DRA_DRIVER}: kube-scheduler knows none of them",
            cure=f"kubectl get resourceslices; kubelet deletes them when it starts, and the agent "
            f"writes them anew: kubectl -n {facts.system_namespace} logs -l "
            f"{APP_LABEL}=fracgpu-deviceplugin",
            needs=[agent_on(name), ALL_AGENTS],
        )


def _claims(facts: Facts) -> Iterator[Finding]:
    if not uses_claims(facts):
        return
    claims = [one for one in known(facts.claims) if names.is_made_for_a_pod(name_of(one))]
    there = {f"{one['metadata']['namespace']}/{name_of(one)}" for one in claims}
    late = [
        pod
        for pod in waiting(facts)
        if pod.claim_key
        and names.GANG not in pod.annotations  # it waits for the others
        and pod.claim_key not in there
        and pod.created_at is not None
        and facts.now - pod.created_at > _CLAIM_WITHIN
    ]
    if late:
        yield error(
            f"{counted(len(late), 'pod')}, such as {late[0].record.key}, waited longer than "
            f"{_CLAIM_WITHIN.seconds} s for a claim that the leading scheduler makes",
            cure=f"kubectl describe pod; kubectl -n {facts.system_namespace} logs "
            f"deployment/{SCHEDULER}",
            needs=[EXTENDER_LEADER],
        )
    for claim in claims:
        pods = claim.get("status", {}).get("reservedFor") or ()
        if len(pods) > 1:
            where = f"{claim['metadata']['namespace']}/{name_of(claim)}"
            users = ", ".join(sorted(str(one.get("name")) for one in pods))
            yield warning(
                f"ResourceClaim {where} is used by {counted(len(pods), 'pod')} ({users}): all of "
                "them have the card that one was given",
                cure=f"delete the pods that do not own the claim; the policy "
                f"fracgpu-claim-references keeps new ones from it ({_PAGE})",
            )


SERVED: Final = "claims"

CHECKS: Final = (
    Check(
        name="claims-served",
        title="The cluster can allocate shares by claims, where that is the wiring",
        find=_served,
    ),
    Check(
        name="slices", title="kube-scheduler knows the cards of every sharing node", find=_slices
    ),
    Check(name="claims", title="Waiting pods have their claims, each its own", find=_claims),
)
