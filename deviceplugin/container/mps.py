"""Runs an MPS control daemon for each card that needs one, restarts it, and ends it at shutdown."""

import asyncio
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.container.spec_builder import Mps, MpsError
from fracgpu.cards.card import CardUuid
from process.clock import Clock

log = structlog.get_logger()

# A valid name of a folder: every UUID is one, and nothing that leaves our folder.
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
# The daemon creates this file in its pipe folder once it accepts clients.
_CONTROL: Final = "control"
_READY_LIMIT_S: Final = 10.0
_POLL_S: Final = 0.05
_END_LIMIT_S: Final = 3.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
# Any uid in a container may connect.
_OPEN_MODE: Final = 0o777
# The longest name of the sockets that the daemon makes in its pipe folder, and the longest path
# that a socket can have: sun_path has 108 bytes with its end; see unix(7).
_LONGEST_SOCKET: Final = "control_privileged"
_LONGEST_PATH: Final = 107
# How much of what the daemon writes is kept, and how long its end is waited for: a server that it
# has started may hold the pipe open.
_KEPT_BYTES: Final = 2048
_LAST_WORDS_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a daemon keeps its files; *shm* is empty where clients use their own /dev/shm."""

    pipe: str
    log: str
    shm: str = ""


@dataclass(slots=True)
class _Daemon:
    """One card's daemon."""

    folder: Path
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    tried: asyncio.Event = field(default_factory=asyncio.Event)  # it was ready once, or has failed
    problem: str = "it has not been started yet"


class MpsDaemons(Mps):
    """Runs the daemons, only for cards with containers that use MPS.

    The daemon limits memory and threads for each *process*, not for a container, and its clients
    share one fault domain: a faulty client can terminate the others on its card.

    Args:
        root: the folder for pipes and logs, under the same path on the host.
        program: the control daemon's program.
        clock: paces restarts.
        ready_limit_s: the longest that a container start waits; kubelet gives up after 30 s.
    """

    def __init__(
        self, root: Path, *, program: str, clock: Clock, ready_limit_s: float = _READY_LIMIT_S
    ) -> None:
        self._root = root
        self._program = program
        self._clock = clock
        self._ready_limit_s = ready_limit_s
        self._daemons: dict[CardUuid, _Daemon] = {}
        self._requested: asyncio.Queue[CardUuid] = asyncio.Queue()

    async def run(self) -> None:
        """Keep the daemons running until cancelled; then stop them."""
        async with asyncio.TaskGroup() as group:
            while True:
                card = await self._requested.get()
                group.create_task(self._keep(card, group), name=f"mps_{card}")

    async def prepare(self, cards: Iterable[CardUuid]) -> None:
        for card in cards:
            if card not in self._daemons and _FOLDER_NAME.fullmatch(card):
                self._daemons[card] = _Daemon(folder=self._root / card)
                self._requested.put_nowait(card)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ready_limit_s):
                for daemon in list(self._daemons.values()):
                    await daemon.tried.wait()

    def folders(self, card: CardUuid) -> Folders:
        if not _FOLDER_NAME.fullmatch(card):
            raise MpsError(f"{card!r} is not valid as the name of a folder")
        longest = self._root / card / "pipe" / _LONGEST_SOCKET
        if (length := len(os.fsencode(longest))) > _LONGEST_PATH:
            text = f"the folder for MPS, {self._root}, has too long a path for sockets"
            raise MpsError(f"{text}: {longest} has {length} bytes; want at most {_LONGEST_PATH}")
        daemon = self._daemons.get(card)
        if daemon is None or not daemon.ready.is_set():
            problem = daemon.problem if daemon is not None else "it has not been started yet"
            raise MpsError(f"the MPS daemon of {card} is not ready: {problem}")
        shm = self._root / "shm"
        return Folders(
            pipe=str(daemon.folder / "pipe"),
            log=str(daemon.folder / "log"),
            shm=str(shm) if shm.is_dir() else "",
        )

    async def _keep(self, card: CardUuid, group: asyncio.TaskGroup) -> None:
        daemon, pause_s = self._daemons[card], _FIRST_PAUSE_S
        while True:
            began_s = self._clock.monotonic()
            try:
                daemon.problem = await self._run_once(card, daemon, group)
            except OSError as error:
                daemon.problem = f"{self._program}: {error.strerror or error}"
            finally:
                daemon.ready.clear()
                daemon.tried.set()
            log.warning("mps_daemon_ended", card=card, reason=daemon.problem)
            if self._clock.monotonic() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            await self._clock.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _run_once(self, card: CardUuid, daemon: _Daemon, group: asyncio.TaskGroup) -> str:
        """Run the daemon once, until it ends, and return how it ended."""
        pipe, logs = daemon.folder / "pipe", daemon.folder / "log"
        for folder in (pipe, logs):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_OPEN_MODE)
        # With the control file of an earlier daemon, this one would look ready too early.
        (pipe / _CONTROL).unlink(missing_ok=True)
        words = _LastWords()
        with words.pen() as pen:
            process = await asyncio.create_subprocess_exec(
                self._program,
                "-f",  # stay in the foreground, so that we notice its end
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pen,
                stderr=pen,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": card,
                    "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
                    "CUDA_MPS_LOG_DIRECTORY": str(logs),
                },
            )
        log.info("mps_daemon_started", card=card, pid=process.pid)
        # Its server may outlive it, and writes to the same pipe: nobody may close that before.
        listening = group.create_task(words.listen(), name=f"mps_words_{card}")
        try:
            code = await self._watch(process, pipe / _CONTROL, daemon)
            await asyncio.wait([listening], timeout=_LAST_WORDS_S)
        finally:
            await _end(process)
        return f"{self._program} ended with {code}{words.line()}"

    async def _watch(
        self, process: asyncio.subprocess.Process, control: Path, daemon: _Daemon
    ) -> int:
        """Return the exit code of the daemon, which is ready once its control file exists."""
        while process.returncode is None and not await asyncio.to_thread(control.exists):
            daemon.problem = f"{control} does not exist yet"
            await self._clock.sleep(_POLL_S)
        if process.returncode is None:
            daemon.ready.set()
            daemon.tried.set()
        code = await process.wait()
        daemon.ready.clear()
        return code


class _LastWords:
    """The end of what a daemon and its server write, however much that is."""

    def __init__(self) -> None:
        self._kept = b""
        self._ear = -1

    @contextlib.contextmanager
    def pen(self) -> Iterator[int]:
        """Return the end of a pipe to write to; it is closed here once the daemon has it."""
        self._ear, pen = os.pipe()
        try:
            yield pen
        except BaseException:
            os.close(self._ear)
            raise
        finally:
            os.close(pen)

    async def listen(self) -> None:
        """Read until nobody can write any more: a full pipe would stop the daemon."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._ear, "rb", 0)
        )
        with contextlib.closing(transport):
            while text := await reader.read(_KEPT_BYTES):
                self._kept = (self._kept + text)[-_KEPT_BYTES:]

    def line(self) -> str:
        """Return the last line, as the end of a sentence; empty if there is none."""
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()}" if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_END_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
