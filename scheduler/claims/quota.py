"""Withholds the claims that would exceed the quota of their namespace."""

from collections import Counter
from collections.abc import Callable, Iterable

from fracgpu.device_claims.quota import claimed_mib, needed_mib, why_withheld
from fracgpu.k8s.workloads.quota import ResourceQuota
from scheduler.claims.cache import ClaimCache, UnboundPod, uid_of


class ClaimQuota:
    """Counts what claims of each namespace hold, and those that are being made.

    Args:
        cache: pods and claims as observed.
        quotas: returns all ResourceQuotas.
    """

    def __init__(
        self, cache: ClaimCache, quotas: Callable[[], Iterable[ResourceQuota]] = tuple
    ) -> None:
        self._cache = cache
        self._quotas = quotas
        self._admitted: dict[str, UnboundPod] = {}

    def admit(self, pod: UnboundPod) -> str:
        """Return why a claim exceeds the quota; if empty, it counts from now on.

        It counts until its pod is bound or gone, also while it is written again: nobody else gets
        its place meanwhile.
        """
        namespace = pod.info.record.namespace
        here = [quota for quota in self._quotas() if quota.namespace == namespace]
        need = pod.info.need
        if not here or need is None:
            return ""
        pods, claims = self._cache.pods, self._cache.claims
        self._admitted = {uid: one for uid, one in self._admitted.items() if uid in pods}
        unseen = Counter[str]()
        for uid, one in self._admitted.items():
            if uid != uid_of(pod) and one.claim_key not in claims and one.info.need:
                unseen[one.info.record.namespace] += needed_mib(one.info.need)
        used = self._cache.claimed_mib[namespace] + unseen[namespace]
        own = claims.get(pod.claim_key)
        if own is not None:
            used -= claimed_mib(own)
        why = why_withheld(here, used=used, wanted=needed_mib(need))
        if why:
            self._admitted.pop(uid_of(pod), None)
        else:
            self._admitted[uid_of(pod)] = pod
        return why
