"""Keeps a container's first process from running until its limits stand, even without the agent.

Where the agent ends while the runtime asks it about a start, the runtime starts the container. So
a container that is promised limits also gets a hook, which runs in it right before its first
process, and fails unless the agent has written into a file of this container's.
"""

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from deviceplugin.nri.interface import Adjustment, Hook, HookKind, Mount

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PROGRAM: Final = "/run/fracgpu/check-limits"
PROOF_PATH: Final = "/run/fracgpu/limits"
_READ_ONLY: Final = ("bind", "ro", "nosuid", "nodev")
_STANDS: Final = "the limits stand\n"


class GateError(Exception):
    """A container's file cannot be written; the text says why."""


class Gate:
    """Files on the host, one for each container.

    Args:
        program: the hook's program, under the same path on the host.
        folder: where the files are, under the same path on the host.
        problem: why the program cannot run, or None.
    """

    def __init__(self, program: Path, folder: Path, *, problem: Callable[[], str | None]) -> None:
        self._program = program
        self._folder = folder
        self._problem = problem

    @property
    def problem(self) -> str | None:
        """Why no container can be kept back, or None."""
        return self._problem()

    def shut(self, container: str, adjustment: Adjustment) -> Adjustment:
        """Return *adjustment* with the gate, which is shut.

        Raises:
            GateError: its file cannot be written.
        """
        file = self._file(container)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
        except OSError as error:
            raise GateError(f"cannot write {file}: {error.strerror}") from error
        hook = Hook(path=_PROGRAM, args=(self._program.name, "--limits", PROOF_PATH))
        hooks = dict(adjustment.hooks)
        hooks[HookKind.START_CONTAINER] = (*hooks.get(HookKind.START_CONTAINER, ()), hook)
        mounts = (
            Mount(destination=_PROGRAM, source=str(self._program), options=_READ_ONLY),
            Mount(destination=PROOF_PATH, source=str(file), options=(*_READ_ONLY, "noexec")),
        )
        return replace(adjustment, mounts=(*adjustment.mounts, *mounts), hooks=hooks)

    def open(self, container: str) -> None:
        """Open the gate, so that the container starts.

        Raises:
            GateError: its file cannot be written.
        """
        file = self._file(container)
        try:
            # Never a new file: the container has the one that was there when it was created.
            with file.open("r+") as writing:
                writing.write(_STANDS)
        except FileNotFoundError:
            return  # an agent without gates created it
        except OSError as error:
            raise GateError(f"cannot write {file}: {error.strerror}") from error

    def forget(self, container: str) -> None:
        """Remove the file of a container that is gone."""
        with suppress(OSError, GateError):
            self._file(container).unlink()

    def keep_only(self, containers: Collection[str]) -> None:
        """Remove the files of all but *containers*."""
        with suppress(OSError):
            for file in self._folder.iterdir():
                if file.name not in containers:
                    self.forget(file.name)

    def _file(self, container: str) -> Path:
        if not _ID.fullmatch(container):
            raise GateError(f"{container!r} is no name of a container")
        return self._folder / container
