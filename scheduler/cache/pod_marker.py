"""Marks a pending pod, so that no Binding sent earlier can take effect afterwards.

A Binding has the resourceVersion of the pod that its sender saw, and the API server compares it in
the transaction that writes the node, wherever the request was delayed before. So once the mark is
written, an earlier Binding is answered with 409, and the pod that the API server returns is final:
it is bound, or free to be placed again.

The mark also makes kube-scheduler try the pod again: a change of a pod that an extender refused
moves it back into the queue.

Source: pkg/registry/core/pod/storage setPodNodeAndMetadata (preconditions of GuaranteedUpdate);
pkg/scheduler/backend/queue PriorityQueue.Update and UnrollWildCardResource.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fracgpu import names
from fracgpu.state.allocation import PodRecord
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.errors import Conflict, Invalid, NotFound
from kube.kinds import PODS, Kind
from kube.leader_election import micro_time
from process.clock import Clock


class PodPatcher(Protocol):
    """What marking and resizing pods needs of the API server."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes: ...

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> dict[str, Any]: ...


class PodMarker:
    """Marks pods with the term of this leadership and the time.

    Args:
        api: reads and patches pods.
        term: returns the term of this leadership.
        clock: makes each mark unique.
        limit_s: timeout of one request to the API server.
        on_mark: called for each mark.
    """

    def __init__(
        self,
        api: PodPatcher,
        *,
        term: Callable[[], str],
        clock: Clock,
        limit_s: float,
        on_mark: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._term = term
        self._clock = clock
        self._limit_s = limit_s
        self._on_mark = on_mark

    async def mark(self, record: PodRecord) -> PodInfo | None:
        """Mark a pod and return it as it is afterwards; None if it is deleted or replaced.

        Raises:
            KubeError: the API server refused or failed; the mark may be written or not.
            TimeoutError: the API server did not answer in time.
            ValueError: the answer is no pod.
        """
        mark = f"{self._term()} {micro_time(self._clock.now())}"
        patch = {"metadata": {"uid": record.uid, "annotations": {names.TERM: mark}}}
        async with asyncio.timeout(self._limit_s):
            try:
                # Patching the status does not need the permission to change what a pod runs.
                stored = await self._api.patch(
                    PODS, record.name, patch, namespace=record.namespace, subresource="status"
                )
            except NotFound:
                return None
            except (Conflict, Invalid):  # "metadata.uid: field is immutable"
                if await self._is_replaced(record):
                    return None
                raise
        self._on_mark()
        return decode_pod_info(json.dumps(stored).encode())

    async def _is_replaced(self, record: PodRecord) -> bool:
        try:
            found = decode_pod_info(
                await self._api.get(PODS, record.name, namespace=record.namespace)
            )
        except NotFound:
            return True
        return found.record.uid != record.uid
