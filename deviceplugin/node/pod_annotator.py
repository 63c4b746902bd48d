"""Writes on the pod which cards it really got: for people, and never read back as an order."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

import structlog

from deviceplugin.claims import Claim
from fracgpu import names
from kube.errors import KubeError
from kube.kinds import PODS, Kind

log = structlog.get_logger()

# More starts than that in a row without the API server: the oldest notes are of no use any more.
_MAX_WAITING: Final = 1024


class PodWriter(Protocol):
    """The part of a kube client that annotates a pod."""

    async def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]: ...


class PodAnnotator:
    """Annotates pods in the background, so that no start waits for it; a failure is only logged."""

    def __init__(self, writer: PodWriter) -> None:
        self._writer = writer
        self._waiting: asyncio.Queue[Claim] = asyncio.Queue(maxsize=_MAX_WAITING)

    def note(self, claim: Claim) -> None:
        """Write it soon."""
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait(claim)

    async def run(self) -> None:
        """Write notes until cancelled."""
        while True:
            await self._write(await self._waiting.get())

    async def _write(self, claim: Claim) -> None:
        record = claim.pod.record
        text = wired_text(claim)
        if claim.pod.annotations.get(names.WIRED) == text:
            return
        # With the UID the API server refuses when the name belongs to another pod by now.
        patch = {"metadata": {"uid": record.uid, "annotations": {names.WIRED: text}}}
        try:
            await self._writer.patch(PODS, record.name, patch, namespace=record.namespace)
        except KubeError as error:
            log.warning("wired_note_not_written", pod=record.key, reason=str(error))


def wired_text(claim: Claim) -> str:
    """Write the UUIDs by container, keeping what earlier starts of the pod's others noted."""
    try:
        noted = json.loads(claim.pod.annotations.get(names.WIRED, "{}"))
    except ValueError:
        noted = {}
    others = noted if isinstance(noted, dict) else {}
    cards = [part.card for part in claim.slices]
    return json.dumps({**others, claim.container: cards}, sort_keys=True, separators=(",", ":"))
