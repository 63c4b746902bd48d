"""Removes everything the agent wrote on a node that no longer shares its cards."""

import asyncio
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.container.cdi import CdiError, device_name
from deviceplugin.container.injection import AllocatedFolders, SpecStore
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.node.node_status import take_back
from fracgpu.cards.node_marks import marks_of, shares
from fracgpu.state.pod_info import PodInfo
from kube.client import KubeClient
from kube.errors import KubeError
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import NODES

log = structlog.get_logger()

# Within a pod's termination grace period, 30 s, after the streams were drained.
_LIMIT_S: Final = 10.0
_CARD_FOLDER: Final = re.compile(r"GPU-[A-Za-z0-9-]{1,96}")
# An event's text ends at 1,024 bytes.
_MOST_NAMED: Final = 10


class NodeCleanup:
    """Removes the agent's marks and files if its node stopped sharing; called last at shutdown.

    A DaemonSet's pod is deleted as soon as its node lacks the label, so the node's label says
    whether sharing ends here, or the agent only restarts.

    Args:
        node: its name.
        client: reads and writes the node.
        recorder: writes the event that names the pods that still run.
        pods: this node's pods as last seen.
        pod_resources: kubelet's list of holders.
        specs: the runtime's CDI folder.
        links: the folders of device files.
        allocated_folders: which sets of slot ids were allocated with such a folder.
        folders: further folders of ours in which each card's folder is removed: those of MPS.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        node: str,
        client: KubeClient,
        recorder: EventRecorder,
        pods: Callable[[], Iterable[PodInfo]],
        pod_resources: PodResources,
        specs: SpecStore,
        links: SpecStore,
        allocated_folders: AllocatedFolders,
        folders: Sequence[Path] = (),
    ) -> None:
        self._node = node
        self._client = client
        self._recorder = recorder
        self._pods = pods
        self._pod_resources = pod_resources
        self._specs = specs
        self._links = links
        self._allocated_folders = allocated_folders
        self._folders = folders

    async def run(self) -> None:
        """Remove everything of ours, unless the node still shares; a failure is only logged.

        ``fracgpu uninstall`` removes what is left then.
        """
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._run()
        except (KubeError, TimeoutError) as error:
            reason = str(error) or f"not done in {_LIMIT_S:g} s"
            log.warning("node_not_given_back", node=self._node, reason=reason)

    async def _run(self) -> None:
        node = await self._client.get_object(NODES, self._node)
        labels: Mapping[str, str] = node.get("metadata", {}).get("labels") or {}
        if shares(labels):
            return
        await take_back(self._client, self._node, marks_of(node))
        kept = await self._remove_files()
        running = sorted(pod.record.key for pod in self._pods() if _holds(pod))
        log.info("node_given_back", node=self._node, pods_left=running, links_left=sorted(kept))
        if running:
            await self._emit(running)

    async def _remove_files(self) -> frozenset[str]:
        """Remove what we wrote for container starts; return the folders that are still in use."""
        try:
            held = frozenset(
                device_name(holder.slot_ids) for holder in await self._pod_resources.holders()
            )
        except PodResourcesError as error:
            log.warning("links_kept", reason=str(error))
            held = self._names(self._links)
        # A running container has the file with its variables mounted from its folder.
        self._remove(self._links, self._names(self._links) - held)
        try:
            await asyncio.to_thread(self._allocated_folders.end, held=held)
        except OSError as error:
            log.warning("files_kept", reason=str(error))
        # The runtime reads a CDI spec only when it creates a container, and creates none any more.
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

    async def _emit(self, running: Sequence[str]) -> None:
        more = f" and {len(running) - _MOST_NAMED} more" if len(running) > _MOST_NAMED else ""
        note = (
            f"{self._node} no longer shares its cards; these pods keep running with theirs, but "
            f"their containers cannot be restarted: {', '.join(running[:_MOST_NAMED])}{more}"
        )
        # The node's name as UID, as in kubelet's events: `kubectl describe node` selects by it.
        regarding = Regarding(kind=NODES, name=self._node, uid=self._node)
        await self._recorder.emit(
            regarding, reason="SharingEnded", note=note, level=EventLevel.WARNING
        )


def _holds(pod: PodInfo) -> bool:
    return pod.record.live and bool(pod.record.assignment)


def _remove_card_folders(folder: Path) -> None:
    """Remove the folders that are named after cards, and no other."""
    try:
        found = [path for path in folder.iterdir() if _CARD_FOLDER.fullmatch(path.name)]
    except OSError:
        return
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
