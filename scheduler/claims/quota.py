"""Withholds the claims that would exceed the quota of their namespace."""

from collections.abc import Callable, Iterable

from fracgpu.device_claims.quota import MEMORY, needed_mib
from fracgpu.k8s.workloads.quota import ResourceQuota
from kube.informer import Change, ChangeType
from scheduler.claims.cache import ClaimCache, UnboundPod


class Quotas:
    """The ResourceQuotas of each namespace that limit MiB.

    Args:
        on_change: called with a namespace of which another amount may be left.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda _: None) -> None:
        self._on_change = on_change
        self._of: dict[str, dict[str, ResourceQuota]] = {}

    def of(self, namespace: str) -> Iterable[ResourceQuota]:
        """Return those of one namespace."""
        return self._of.get(namespace, {}).values()

    def changed(self, change: Change[ResourceQuota]) -> None:
        """Record one; the API server writes it with each object that it counts."""
        namespace, name = change.key.namespace, change.key.name
        here = self._of.setdefault(namespace, {})
        before, now = here.pop(name, None), change.object
        if change.type is not ChangeType.DELETED and MEMORY in now.hard:
            here[name] = now
        if not here:
            del self._of[namespace]
        if _limit(before) != _limit(here.get(name)):
            self._on_change(namespace)


def _limit(quota: ResourceQuota | None) -> object:
    return quota and (quota.hard[MEMORY], quota.left.get(MEMORY), quota.scopes)


class ClaimQuota:
    """Withholds the claims that exceed a quota.

    Args:
        cache: counts what claims hold.
        quotas: returns the ResourceQuotas of a namespace.
    """

    def __init__(
        self,
        cache: ClaimCache,
        quotas: Callable[[str], Iterable[ResourceQuota]] = lambda _: (),
    ) -> None:
        self._cache = cache
        self._quotas = quotas

    def admit(self, *pods: UnboundPod) -> str:
        """Return why the claims of pods of one namespace exceed its quota together.

        If empty, each counts from now on, until its pod is bound or gone, also while it is written
        again: nobody else gets its place meanwhile.
        """
        memory = self._cache.memory
        wanted = {pod.info.claim_key: needed_mib(pod.info.need) for pod in pods if pod.info.need}
        if not wanted:
            return ""
        why = memory.why_withheld(self._quotas(pods[0].info.record.namespace), wanted)
        for key, mib in wanted.items():
            if why:
                memory.end_promise(key)
            else:
                memory.promise(key, mib)
        return why

    def release(self, pod: UnboundPod) -> None:
        """Count a claim no longer that is not made after all."""
        self._cache.memory.end_promise(pod.info.claim_key)
