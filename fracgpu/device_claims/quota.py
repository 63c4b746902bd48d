"""A namespace's quota of MiB, which the API server does not count for claims.

It sums what pods request, and a pod with a claim requests no ``fracgpu.io/gpu-mem``. So a claim
that would exceed such a quota is not made.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
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


class ClaimedMemory:
    """The MiB that the claims of each namespace count, with those that are being made.

    A claim is known by its key, ``namespace/name``: what was observed of it counts, and before that
    what was promised for it.

    Attributes:
        by_namespace: the sums.
    """

    def __init__(self) -> None:
        self.by_namespace: Counter[str] = Counter()
        self._observed: dict[str, int] = {}
        self._promised: dict[str, int] = {}

    def of(self, key: str) -> int:
        """Return what a claim counts."""
        return self._observed.get(key, self._promised.get(key, 0))

    def observe(self, claim: DeviceClaim, *, gone: bool) -> None:
        """Count a claim as it is now, or as promised once it is gone."""
        self._set(self._observed, claim.key, None if gone else claimed_mib(claim))

    def why_withheld(self, quotas: Iterable[ResourceQuota], wanted: Mapping[str, int]) -> str:
        """Return why claims of one namespace are not made; empty if they are.

        In the API server's own words, which people know. What pods without a claim use is in
        ``status.used``.

        Args:
            quotas: those of the namespace.
            wanted: the MiB of the claims, by key; whatever they count already is no other's.
        """
        namespaces = {key.partition("/")[0] for key in wanted}
        used = sum(self.by_namespace[one] for one in namespaces) - sum(map(self.of, wanted))
        wanted_mib = sum(wanted.values())
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
            if used + wanted_mib > left:
                total = used + int(quota.used_of(MEMORY))
                return (
                    f"exceeded quota: {quota.name}, requested: {MEMORY}={wanted_mib}, used: "
                    f"{MEMORY}={total}, limited: {MEMORY}={hard}"
                )
        return ""

    def promise(self, key: str, mib: int) -> None:
        """Count a claim while there is none."""
        self._set(self._promised, key, mib)

    def end_promise(self, key: str) -> None:
        """Count a claim only while there is one."""
        self._set(self._promised, key, None)

    def _set(self, where: dict[str, int], key: str, mib: int | None) -> None:
        before = self.of(key)
        if mib is None:
            where.pop(key, None)
        else:
            where[key] = mib
        self.by_namespace[key.partition("/")[0]] += self.of(key) - before


def quota_problem(
    pod: PodInfo,
    quotas: Iterable[ResourceQuota],
    claims: Iterable[DeviceClaim],
    *,
    pods: Iterable[PodInfo] = (),
) -> str:
    """Return why no claim is made for a pod now; empty if one is.

    Args:
        pod: the pod.
        quotas: all quotas.
        claims: all claims.
        pods: those with which it gets its claim, if it is of a gang, are among these.
    """
    namespace = pod.record.namespace
    if pod.need is None:
        return ""
    wanted = {pod.claim_key: needed_mib(pod.need)}
    gang = [
        one
        for one in pods
        if (one.gang, one.record.namespace) == (pod.gang, namespace)
        and one.record.live
        and not one.record.terminating
    ]
    if pod.gang is not None and not any(one.record.node for one in gang):
        wanted |= {one.claim_key: needed_mib(one.need) for one in gang if one.need is not None}
    memory = ClaimedMemory()
    for claim in claims:
        memory.observe(claim, gone=False)
    return memory.why_withheld((one for one in quotas if one.namespace == namespace), wanted)
