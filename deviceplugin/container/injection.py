"""How a container gets its card: by a CDI name or by a folder of device files, set at Allocate.

Kubelet keeps the answer of Allocate for the container's life. So a container that was allocated
with a CDI name cannot be started by a runtime that no longer reads CDI specs: it would run without
its card.
"""

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

import structlog

from deviceplugin.container.cdi import CdiError, CdiFolder, CdiSpec, device_name
from deviceplugin.container.cri import RuntimeUnknownError
from deviceplugin.container.device_links import LinkFolder

log = structlog.get_logger()

_MAX_IDS_CHARS: Final = 64 * 1024


class SpecStore(Protocol):
    """Where the runtime finds a container's spec; every method may raise ``CdiError``."""

    @property
    def read_once(self) -> bool:
        """Whether a container that runs no longer uses what was written for it."""
        ...

    def write(self, spec: CdiSpec) -> None: ...
    def names(self) -> frozenset[str]: ...
    def written_s(self, name: str) -> float:
        """Return when *name* was written, in seconds since 1970; inf if not known."""
        ...

    def remove(self, name: str) -> None: ...


class Runtime(Protocol):
    """What we need to know of the container runtime."""

    @property
    def reads_cdi(self) -> bool: ...

    async def sure(self) -> bool:
        """Report whether the runtime reads CDI specs now.

        Raises:
            RuntimeUnknownError: it does not answer.
        """
        ...


class InjectionError(Exception):
    """A container would not get its card from the runtime; *outcome* is a metric label."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class AllocatedFolders:
    """Which sets of slot ids were allocated with a folder of device files; survives a restart.

    One small file for each set, with the ids in it; a set ends when one of its ids is allocated
    again.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, frozenset[str]] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._read()

    def note(self, slot_ids: frozenset[str], *, by_links: bool) -> None:
        """Record how *slot_ids* are allocated now.

        Raises:
            OSError: the record cannot be written.
        """
        known = self._read()
        for name in [name for name, ids in known.items() if ids & slot_ids]:
            (self._folder / name).unlink(missing_ok=True)
            del known[name]
        if by_links:
            name = device_name(slot_ids)
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_text(",".join(sorted(slot_ids)))
            known[name] = slot_ids

    def end(self, *, held: Collection[str]) -> None:
        """Remove the records of all sets but those in *held*, and the folder when none is left.

        A record in *held* stays: a later agent on this node has to know how the container that
        still runs got its card.

        Args:
            held: the sets in use, by the names of their devices.

        Raises:
            OSError: the records cannot be read or removed.
        """
        known = self._read()
        for name in [name for name in known if name not in held]:
            (self._folder / name).unlink(missing_ok=True)
            del known[name]
        if not known:
            with contextlib.suppress(FileNotFoundError):
                self._folder.rmdir()

    def _read(self) -> dict[str, frozenset[str]]:
        if self._known is None:
            found = [path for path in self._folder.glob("*") if path.is_file()]
            self._known = {path.name: _ids(path) for path in found}
        return self._known


def _ids(file: Path) -> frozenset[str]:
    with file.open(errors="replace") as text:
        return frozenset(text.read(_MAX_IDS_CHARS).split(","))


class Injection:
    """Decides at each Allocate how the card is passed on, and where each start writes its spec.

    Args:
        specs: the runtime's CDI folder.
        links: the folders of device files.
        allocated_folders: how earlier allocations were answered.
        runtime: whether the runtime reads CDI specs.
    """

    def __init__(
        self,
        specs: CdiFolder,
        links: LinkFolder,
        allocated_folders: AllocatedFolders,
        runtime: Runtime,
    ) -> None:
        self._specs = specs
        self._links = links
        self.allocated_folders: Final = allocated_folders
        self._runtime = runtime

    @property
    def folders(self) -> Sequence[SpecStore]:
        """Every folder that may have specs of ours."""
        return (self._specs, self._links)

    async def allocate(self, slot_ids: frozenset[str]) -> LinkFolder | None:
        """Decide how the container with *slot_ids* gets its card, and record it.

        Returns:
            The folders of device files, or None for a CDI name.
        """
        by_links = not self._runtime.reads_cdi
        try:
            await asyncio.to_thread(self.allocated_folders.note, slot_ids, by_links=by_links)
        except OSError as error:
            # PreStart then finds no record, and rejects the start where that is not clear.
            log.warning("injection_not_noted", slots=sorted(slot_ids), reason=str(error))
        name = device_name(slot_ids)
        if not by_links:
            await asyncio.to_thread(self._links.remove, name)
        try:
            # What the last holder had is not in the runtime's memory any more when the next starts.
            # If kubelet has given the slot to two pods, the other one may be about to start.
            await asyncio.to_thread(self._specs.withdraw, name)
        except CdiError as error:
            log.warning("old_spec_kept", slots=sorted(slot_ids), reason=str(error))
        return self._links if by_links else None

    async def stores(self, name: str) -> Sequence[SpecStore]:
        """Return where to write the spec of the container with the device *name*.

        Raises:
            InjectionError: the runtime would not give the container its card.
        """
        try:
            reads_cdi = await self._runtime.sure()
        except RuntimeUnknownError as error:
            text = f"it is unknown whether the runtime would give the container its card: {error}"
            raise InjectionError("runtime_silent", text) from error
        if await asyncio.to_thread(self._by_links, name):
            return (self._specs, self._links)
        if not reads_cdi:
            raise InjectionError(
                "runtime_lacks_cdi",
                "the container was given its card by a CDI name, and the runtime no longer reads "
                "CDI specs; delete the pod: a new one gets its card in another way",
            )
        return (self._specs,)

    def _by_links(self, name: str) -> bool:
        try:
            # A folder without a record is of an older agent, which wrote no records.
            return name in self.allocated_folders or name in self._links.names()
        except (OSError, CdiError) as error:
            raise InjectionError("links_folder", str(error)) from error
