"""The agent's last act on a node that no longer shares its cards: nothing of ours stays behind."""

import asyncio
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from deviceplugin.container.cdi import CdiError, device_name
from deviceplugin.container.injection import AllocatedFolders, SpecStore
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.node.node_status import NodeWriter, take_back
from fracgpu.cards.node_marks import marks_of, shares
from fracgpu.state.pod_info import PodInfo
from kube.errors import KubeError
from kube.events import EventLevel, Regarding
from kube.kinds import NODES, Kind

log = structlog.get_logger()

# Within what Kubernetes grants a pod for its end, 30 s, after the streams were drained.
_LIMIT_S: Final = 10.0
_CARD_FOLDER: Final = re.compile(r"GPU-[A-Za-z0-9-]{1,96}")
# An event's text ends at 1,024 bytes.
_MOST_NAMED: Final = 10


class NodeClient(NodeWriter, Protocol):
    """The part of a kube client that reads the node once more and writes it."""

    async def get_object(self, kind: Kind, name: str) -> dict[str, Any]: ...


class Recorder(Protocol):
    """The part of an event recorder that we need."""

    async def emit(
        self, regarding: Regarding, *, reason: str, note: str, level: EventLevel = ...
    ) -> None: ...


class NodeCleanup:
    """Called when the agent has been told to stop and everything else of it has ended.

    A DaemonSet's pod is deleted as soon as its node lacks the label. So the node itself says
    whether this is the end of sharing, or only a restart.

    Args:
        node: its name.
        client: reads and writes the node.
        recorder: writes the event that tells whose pods run on.
        pods: this node's pods as last seen.
        pod_resources: kubelet's list of holders.
        specs: the runtime's CDI folder.
        links: the folders of device files.
        handed_out: the notes of who was handed such a folder.
        folders: further folders of ours, whose cards' own folders go: those of MPS.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        node: str,
        client: NodeClient,
        recorder: Recorder,
        pods: Callable[[], Iterable[PodInfo]],
        pod_resources: PodResources,
        specs: SpecStore,
        links: SpecStore,
        handed_out: AllocatedFolders,
        folders: Sequence[Path] = (),
    ) -> None:
        self._node = node
        self._client = client
        self._recorder = recorder
        self._pods = pods
        self._pod_resources = pod_resources
        self._specs = specs
        self._links = links
        self._handed_out = handed_out
        self._folders = folders

    async def run(self) -> None:
        """Take everything back, unless the node goes on sharing; a failure is only logged.

        What is left then is for ``fracgpu uninstall``.
        """
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._say()
        except (KubeError, TimeoutError) as error:
            reason = str(error) or f"not done in {_LIMIT_S:g} s"
            log.warning("node_not_given_back", node=self._node, reason=reason)

    async def _say(self) -> None:
        node = await self._client.get_object(NODES, self._node)
        labels: Mapping[str, str] = node.get("metadata", {}).get("labels") or {}
        if shares(labels):
            return
        await take_back(self._client, self._node, marks_of(node))
        kept = await self._remove_files()
        running = sorted(it.record.key for it in self._pods() if _holds(it))
        log.info("node_given_back", node=self._node, pods_left=running, links_left=sorted(kept))
        if running:
            await self._tell(running)

    async def _remove_files(self) -> frozenset[str]:
        """Remove what we wrote for container starts; give the folders that are still in use."""
        try:
            held = frozenset(device_name(it.slot_ids) for it in await self._pod_resources.holders())
        except PodResourcesError as error:
            log.warning("links_kept", reason=str(error))
            held = self._names(self._links)
        # A running container has the file with its variables mounted from there.
        self._remove(self._links, self._names(self._links) - held)
        try:
            await asyncio.to_thread(self._handed_out.end, held=held)
        except OSError as error:
            log.warning("files_kept", reason=str(error))
        # A CDI spec is read at a container's creation only, and there will be none.
        self._remove(self._specs, self._names(self._specs))
        for folder in self._folders:
            await asyncio.to_thread(_remove_card_folders, folder)
        return held & self._names(self._links)

    def _names(self, store: SpecStore) -> frozenset[str]:
        try:
            return store.names()
        except CdiError as error:
            log.warning("files_kept", reason=str(error))
            return frozenset()

    def _remove(self, store: SpecStore, device_names: Iterable[str]) -> None:
        for name in sorted(device_names):
            try:
                store.remove(name)
            except CdiError as error:
                log.warning("files_kept", reason=str(error))

    async def _tell(self, running: Sequence[str]) -> None:
        more = f" and {len(running) - _MOST_NAMED} more" if len(running) > _MOST_NAMED else ""
        note = (
            f"{self._node} no longer shares its cards; pods that run on with theirs, and whose "
            f"containers cannot be started again: {', '.join(running[:_MOST_NAMED])}{more}"
        )
        # As kubelet's own events do: `kubectl describe node` looks for the name as the UID.
        regarding = Regarding(kind=NODES, name=self._node, uid=self._node)
        await self._recorder.emit(
            regarding, reason="SharingEnded", note=note, level=EventLevel.WARNING
        )


def _holds(pod: PodInfo) -> bool:
    return pod.record.live and bool(pod.record.assignment)


def _remove_card_folders(folder: Path) -> None:
    """Remove the folders that are named after cards; an administrator's stay."""
    try:
        found = [it for it in folder.iterdir() if _CARD_FOLDER.fullmatch(it.name)]
    except OSError:
        return
    for it in found:
        shutil.rmtree(it, ignore_errors=True)
