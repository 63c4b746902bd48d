"""A namespace's quota of MiB, which the API server does not count for claims.

It sums what pods request, and a pod with a claim requests no ``fracgpu.io/gpu-mem``. So a claim
that would exceed such a quota is not made.
"""

from collections.abc import Iterable
from typing import Final

from fracgpu import names
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.k8s.workloads.quota import ResourceQuota
from fracgpu.request.need import PodNeed
from fracgpu.state.pod_info import PodInfo

MEMORY: Final = f"requests.{names.GPU_MEM}"


def needed_mib(need: PodNeed) -> int:
    """Return the MiB that a pod's claim counts: all containers at once, as they hold it."""
    return sum(one.mib * one.cards for one in need.containers)


def claimed_mib(claim: DeviceClaim) -> int:
    """Return the MiB that a claim counts: what it was allocated, or will be."""
    if claim.allocated:
        return sum(one.amounts.mib for one in claim.devices)
    if not claim.managed:  # of a class of somebody else, perhaps
        return 0
    return sum(one.amounts.mib * one.cards_wanted for one in claim.requests if one.amounts)


def why_withheld(quotas: Iterable[ResourceQuota], *, used: int, wanted: int) -> str:
    """Return why no claim of *wanted* MiB is made where others have *used*; empty if one is.

    In the API server's own words, which people know. What pods without a claim use is in
    ``status.used``.
    """
    for quota in quotas:
        if MEMORY not in quota.hard:
            continue
        if quota.scopes:
            return (
                f"quota {quota.name} limits {MEMORY} and has scopes, by which claims cannot be "
                "counted: leave its scopes out, or the limit"
            )
        hard, left = quota.hard[MEMORY], quota.left.get(MEMORY)
        if left is None:
            return f"quota {quota.name} says '{hard}' of {MEMORY}, which cannot be read"
        if used + wanted > left:
            total = used + int(quota.used_of(MEMORY))
            return (
                f"exceeded quota: {quota.name}, requested: {MEMORY}={wanted}, used: "
                f"{MEMORY}={total}, limited: {MEMORY}={hard}"
            )
    return ""


def quota_problem(
    pod: PodInfo, quotas: Iterable[ResourceQuota], claims: Iterable[DeviceClaim]
) -> str:
    """Return why no claim is made for a pod now, of all quotas and claims; empty if one is."""
    namespace = pod.record.namespace
    if pod.need is None:
        return ""
    used = sum(
        claimed_mib(claim)
        for claim in claims
        if claim.namespace == namespace and claim.name != pod.device_claim
    )
    here = (quota for quota in quotas if quota.namespace == namespace)
    return why_withheld(here, used=used, wanted=needed_mib(pod.need))
