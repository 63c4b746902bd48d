"""Removes everything the agent wrote on a node that no longer shares its cards."""

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.container.cdi import CdiError, CdiFolder
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
        specs: the runtime's CDI folder.
        programs: the folder of our programs on the host.
        folders: further folders of ours in which each card's folder is removed: those of MPS.
        withdraw: removes the node's slice.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        *,
        node: str,
        client: KubeClient,
        recorder: EventRecorder,
        pods: Callable[[], Iterable[PodInfo]],
        specs: CdiFolder,
        programs: Path,
        folders: Sequence[Path] = (),
        withdraw: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._node = node
        self._client = client
        self._recorder = recorder
        self._pods = pods
        self._specs = specs
        self._programs = programs
        self._folders = folders
        self._withdraw = withdraw

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
        if self._withdraw is not None:
            await self._withdraw()
        await take_back(self._client, self._node, marks_of(node))
        await asyncio.to_thread(self._remove_files)
        running = sorted(pod.record.key for pod in self._pods() if _holds(pod))
        log.info("node_given_back", node=self._node, pods_left=running)
        if running:
            await self._emit(running)

    def _remove_files(self) -> None:
        """Remove what we wrote for container starts: no container is created any more."""
        try:
            for name in sorted(self._specs.names()):
                self._specs.remove(name)
        except CdiError as error:
            log.warning("files_kept", reason=str(error))
        shutil.rmtree(self._programs, ignore_errors=True)
        for folder in self._folders:
            _remove_card_folders(folder)

    async def _emit(self, running: Sequence[str]) -> None:
        more = f" and {len(running) - _MOST_NAMED} more" if len(running) > _MOST_NAMED else ""
        note = (
            f"{self._node} no longer shares its cards; these pods keep running with theirs, but "
            f"their containers cannot be restarted: {', '.join(running[:_MOST_NAMED])}{more}"
        )
        await self._recorder.emit(
            Regarding.node(self._node), reason="SharingEnded", note=note, level=EventLevel.WARNING
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
