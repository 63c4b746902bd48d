"""A mark on a pod that waits: no Binding sent before it can land after it.

A Binding carries the resourceVersion of the pod that its sender saw, and the API server compares it
in the very transaction that writes the node, wherever the request was held up before. So once the
mark is written, a Binding that was sent earlier is answered with 409, and the pod as the API server
then shows it is the truth: bound, or open to be placed anew.

It also makes kube-scheduler look at the pod again: a change of a pod that an extender refused puts
it back into the queue.

Source: pkg/registry/core/pod/storage setPodNodeAndMetadata (preconditions of GuaranteedUpdate);
pkg/scheduler/backend/queue PriorityQueue.Update and UnrollWildCardResource.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fracgpu import names
from fracgpu.state.allocation import PodRecord
from fracgpu.state.pod_info import PodInfo
from kube.errors import Conflict, Invalid, NotFound
from kube.kinds import PODS, Kind
from kube.leader_election import micro_time
from process.clock import Clock
from scheduler.cache.event_handlers import decode_pod


class PodPatcher(Protocol):
    """The two verbs that marking needs of the API server."""

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
        term: names the term of this leadership.
        clock: makes each mark another one.
        limit_s: of one request to the API server.
        on_mark: told of each mark.
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
        """Mark a pod and return it as it then stands; None when it is gone or replaced.

        Raises:
            KubeError: the API server did not do it, or did not say.
            TimeoutError: it did not say in time.
            ValueError: what it sent is no pod.
        """
        mark = f"{self._term()} {micro_time(self._clock.now())}"
        patch = {"metadata": {"uid": record.uid, "annotations": {names.TERM: mark}}}
        async with asyncio.timeout(self._limit_s):
            try:
                # The status may be written without the right to change what a pod runs.
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
        return decode_pod(json.dumps(stored).encode())

    async def _is_replaced(self, record: PodRecord) -> bool:
        try:
            found = decode_pod(await self._api.get(PODS, record.name, namespace=record.namespace))
        except NotFound:
            return True
        return found.record.uid != record.uid
