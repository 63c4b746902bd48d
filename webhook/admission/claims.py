"""What a grant changes in a pod of which kube-scheduler allocates the cards (``wiring: claims``).

The pod names a ResourceClaim that does not exist yet, with a request for each container that has a
share; the leading scheduler creates it. Limits would be counted by kubelet too, and are removed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.grant_note import GrantNote, granted_amounts, with_granted_limits
from fracgpu.request.need import PodNeed, PodRequest, Topology
from webhook.admission.pod_edits import Edit
from webhook.admission.review import (
    Container,
    ContainerClaim,
    Pod,
    PodClaim,
    Resources,
    places,
    specs,
)

WIRING: Final = "`wiring: claims`"

_LIMITS: Final = (names.GPU_MEM, names.GPU_SLOT)

# What a pod may ask for here; every other key of the language is refused, not ignored.
_SUPPORTED: Final = frozenset(
    (
        names.FRACTION,
        names.FRACTION_LIMIT,
        names.MEMORY,
        names.MEMORY_LIMIT,
        names.CORES,
        names.CARDS,
        names.VENDOR,
        names.MODEL,
        names.PLACEMENT,
        names.TOPOLOGY,
        names.ISOLATION,
        names.REBALANCE,
        names.GANG,
        names.MOVE_GRACE,
        names.MOVE_READY,
        names.MOVE_REQUESTED,
        names.TEMPLATE_GRANT,
        *names.RESERVED_KEYS,
    )
)

_WHY_NOT: Final = {
    names.RESIZE: f"no resize: with {WIRING} the amounts of a running pod cannot change",
}
_INSTEAD: Final = {
    names.RESIZE: f"create the pod anew; with {names.MEMORY_LIMIT} it may use more while it runs"
}


def refuse_others_claims(pod: Pod, sealed: GrantNote | None) -> None:
    """Raise if a new pod names a claim that only FracGPU may name.

    Users' own claims, of FracGPU's class or another, are none of our business here.

    Args:
        pod: the pod.
        sealed: its grant, if the webhook wrote it in this request.

    Raises:
        RequestError: an entry or a reference is ours, and we did not write it.
    """
    ours = PodClaim(name=names.POD_CLAIM, resource_claim_name=sealed.data.claim) if sealed else None
    for entry in pod.spec.resource_claims or ():
        if entry == ours:
            continue
        if entry.name == names.POD_CLAIM:
            raise RequestError(
                field="spec.resourceClaims[].name",
                found=entry.name,
                wanted="another name: FracGPU gives this one to the claim that it makes for a pod",
                hint="leave it out, or rename it there and in the containers' resources.claims",
            )
        named = entry.resource_claim_name or ""
        if names.is_made_for_a_pod(named):
            raise RequestError(
                field=f"resourceClaimName of spec.resourceClaims['{entry.name}']",
                found=named,
                wanted=f"a claim of your own: {names.CLAIM_PREFIX} and ten hexadecimal digits is "
                "the name of a claim that FracGPU makes for one pod",
            )
    granted = sealed.data.containers if sealed is not None else {}
    for container in pod.containers:
        for claim in _claims(container.resources):
            if claim.name == names.POD_CLAIM and not (
                claim.request == container.name and container.name in granted
            ):
                raise RequestError(
                    field=f"resources.claims of container '{container.name}'",
                    found=claim.name,
                    wanted="no such claim: only the FracGPU webhook writes it",
                    hint=f"ask for a share with {names.FRACTION} or {names.MEMORY}",
                )


def refuse_unsupported(pod: Pod, translated: Mapping[str, str]) -> None:
    """Raise if a pod with a request asks for what this wiring cannot do.

    Args:
        pod: the pod.
        translated: what it says in another system's words, as annotations of ours.

    Raises:
        RequestError: it has an annotation for something else.
    """
    refuse_unsupported_keys({**pod.annotations, **translated})


def refuse_unsupported_keys(
    annotations: Mapping[str, str], before: Mapping[str, str] | None = None
) -> None:
    """Raise if annotations ask for what this wiring cannot do, and did not *before*.

    Raises:
        RequestError: they do.
    """
    for key in sorted(annotations):
        if key not in names.POD_KEYS or key in _SUPPORTED:
            continue
        if before is None or before.get(key) != annotations[key]:
            raise RequestError(
                field=key,
                found=annotations[key],
                wanted=_WHY_NOT.get(key, f"no such annotation: {WIRING} does not support it"),
                hint=_INSTEAD.get(key, "leave it out"),
            )


def side_by_side(request: PodRequest) -> PodRequest:
    """Return a request whose init containers hold their cards beside the others.

    The requests of a claim add up: kube-scheduler knows no order of containers there.
    """
    slices = tuple(
        part
        if part.kind is ContainerKind.APP
        else msgspec.structs.replace(part, kind=ContainerKind.APP)
        for part in request.slices
    )
    return msgspec.structs.replace(request, slices=slices)


def adds_up(request: PodRequest) -> bool:
    """Report whether a request needs more here than where init containers run before the others."""
    return any(part.kind is ContainerKind.INIT for part in request.slices)


def added_up(error: RequestError) -> RequestError:
    """Return the error of a request that would fit if its init containers did not add up."""
    why = f"with {WIRING} init containers hold their shares beside the other containers"
    return RequestError(
        field=error.field, found=error.found, wanted=f"{error.wanted}: {why}", hint=error.hint
    )


def warnings_about(need: PodNeed) -> tuple[str, ...]:
    """Return what counts less here than elsewhere."""
    several = any(container.cards > 1 for container in need.containers)
    if need.topology is not Topology.NVLINK or not several:
        return ()
    return (
        f"{names.TOPOLOGY}: if the pod has to wait for room, it may get cards of a node that are "
        f"not the fastest-linked ones (with {WIRING} kube-scheduler takes the cards)",
    )


def specs_as_granted(pod: Pod) -> tuple[ContainerSpec, ...]:
    """Return the pod's containers with the limits that the webhook has replaced by its claim."""
    if not any(entry.name == names.POD_CLAIM for entry in pod.spec.resource_claims or ()):
        return specs(pod)
    return with_granted_limits(specs(pod), granted_amounts(pod.annotations.get(names.GRANTED, "")))


def limits_to_remove(
    pod: Pod, granted: Iterable[str], removals: Mapping[str, Sequence[str]]
) -> Mapping[str, tuple[str, ...]]:
    """Return what is removed from limits and requests, by container.

    Args:
        pod: the pod.
        granted: the names of its containers with a share.
        removals: another system's resources.
    """
    found = {}
    of = set(granted)
    for container in pod.containers:
        limits, requests = container.amounts
        ours = [key for key in _LIMITS if key in limits or key in requests]
        gone = (*removals.get(container.name, ()), *(ours if container.name in of else ()))
        if gone:
            found[container.name] = gone
    return found


def claim_edits(pod: Pod, granted: Iterable[str], claim: str) -> list[Edit]:
    """Return the edits after which a pod names its claim, and each container its request of it.

    Args:
        pod: the pod.
        granted: the names of its containers with a share.
        claim: the name of the claim.
    """
    of = set(granted)
    edits: list[Edit] = []
    entry = {"name": names.POD_CLAIM, "resourceClaimName": claim}
    present = pod.spec.resource_claims
    if present is None:
        edits.append(Edit(path="/spec/resourceClaims", value=[entry]))
    elif all(each.name != names.POD_CLAIM for each in present):
        edits.append(Edit(path="/spec/resourceClaims/-", value=entry))
    for pointer, container in places(pod):
        if container.name in of:
            edits += _container_edits(f"{pointer}/resources", container)
    return edits


def _container_edits(path: str, container: Container) -> list[Edit]:
    wanted = {"name": names.POD_CLAIM, "request": container.name}
    resources = container.resources
    if resources is None:
        return [Edit(path=path, value={"claims": [wanted]})]
    if resources.claims is None:
        return [Edit(path=f"{path}/claims", value=[wanted])]
    if any(each.name == names.POD_CLAIM for each in resources.claims):
        return []
    return [Edit(path=f"{path}/claims/-", value=wanted)]


def _claims(resources: Resources | None) -> Sequence[ContainerClaim]:
    return () if resources is None else resources.claims or ()
