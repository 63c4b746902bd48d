"""Annotates pods with what they really got: for people, and for whoever is asked to resize."""

import asyncio
import json
from typing import Final

import structlog

from deviceplugin.claims import Claim
from fracgpu import names
from fracgpu.errors import UNREADABLE
from fracgpu.request.need import Isolation
from kube.client import KubeClient
from kube.errors import KubeError, TooManyRequests, Unavailable
from kube.kinds import PODS
from process.clock import Clock

log = structlog.get_logger()

# The most claims that wait for the API server, and notes that are remembered; the oldest go first.
_MAX_WAITING: Final = 1024
_PAUSE_S: Final = 1.0  # after a failure


class PodAnnotator:
    """Annotates pods in the background, so that no start waits.

    It is tried again while the API server does not answer, and not once it has refused.
    """

    def __init__(self, writer: KubeClient, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._waiting: asyncio.Queue[tuple[Claim, str]] = asyncio.Queue(maxsize=_MAX_WAITING)
        # By the pod's UID: a claim's pod may have been read before its other containers were noted.
        self._written: dict[str, str] = {}

    def note(self, claim: Claim, isolation: str) -> None:
        """Queue *claim* to be written, with what enforces its share."""
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait((claim, isolation))

    async def run(self) -> None:
        """Write annotations until cancelled."""
        while True:
            await self._write(*await self._waiting.get())

    async def _write(self, claim: Claim, isolation: str) -> None:
        record = claim.pod.record
        said = self._written.pop(record.uid, None) or claim.pod.annotations.get(names.WIRED, "{}")
        text = wired_text(claim, isolation, said=said)
        self._written[record.uid] = said
        if len(self._written) > _MAX_WAITING:
            del self._written[next(iter(self._written))]
        if said == text:
            return
        # With the UID, the API server rejects the patch if another pod has the name by now.
        patch = {"metadata": {"uid": record.uid, "annotations": {names.WIRED: text}}}
        try:
            await self._writer.patch(PODS, record.name, patch, namespace=record.namespace)
        except KubeError as error:
            log.warning("wired_note_not_written", pod=record.key, reason=str(error))
            if isinstance(error, Unavailable | TooManyRequests):
                await self._clock.sleep(_PAUSE_S)
                self.note(claim, isolation)
        else:
            self._written[record.uid] = text


def wired_text(claim: Claim, isolation: str, *, said: str) -> str:
    """Return the annotation: by container its UUIDs, and what enforces its share of these cards.

    And how much a container may use, if that was to be more than it is guaranteed. What was *said*
    before of the pod's other containers is kept.
    """
    try:
        recorded = json.loads(said)
    except UNREADABLE:
        recorded = {}
    others = recorded if isinstance(recorded, dict) else {}
    got: dict[str, object] = {"cards": [part.card for part in claim.slices], "isolation": isolation}
    if any(part.limit_mib > part.mib for part in claim.slices):
        limited = isolation == Isolation.KERNEL.value
        got["mib"] = [part.mib for part in claim.slices]
        got["limitMib"] = [part.limit_mib if limited else part.mib for part in claim.slices]
    return json.dumps({**others, claim.container: got}, sort_keys=True, separators=(",", ":"))
