"""Runs an MPS control daemon for each card, restarts it, and asks it whether it answers.

In a pod of its own: the daemons outlive the node's agent.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from deviceplugin.container.mps import ANSWERED, CONTROL, boot_s, folder_of, refused
from deviceplugin.container.spec_builder import MpsError
from fracgpu.cards.card import CardUuid
from process.clock import Clock
from process.lifecycle import EndProcess

log = structlog.get_logger()

# Any command that the daemon answers without a server.
_QUESTION: Final = b"get_server_list\n"
_ASK_S: Final = 5.0
_ANSWER_LIMIT_S: Final = 5.0
_POLL_S: Final = 0.05
_END_LIMIT_S: Final = 3.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
# Any uid in a container may connect.
_OPEN_MODE: Final = 0o777
# How much of what the daemon writes is kept, and how long its end is waited for: a server that it
# has started may hold the pipe open.
_KEPT_BYTES: Final = 2048
_LAST_WORDS_S: Final = 0.5


@dataclass(slots=True)
class _Daemon:
    """One card's daemon; *problem* is empty while it answers."""

    card: CardUuid
    folder: Path
    problem: str = "it has not been started yet"


class MpsDaemons:
    """Runs the daemons.

    The daemon limits memory and threads for each *process*, not for a container, and its clients
    share one fault domain: a faulty client can terminate the others on its card. It has a server,
    and so takes memory of its card, only once it has clients.

    Args:
        root: the folder for pipes and logs, under the same path on the host.
        cards: lists the cards that get one.
        program: the control daemon's program.
        clock: paces restarts and questions.
    """

    def __init__(
        self,
        root: Path,
        *,
        cards: Callable[[], Iterable[CardUuid]],
        program: str,
        clock: Clock,
    ) -> None:
        self._root = root
        self._cards = cards
        self._program = program
        self._clock = clock
        self._daemons: dict[CardUuid, _Daemon] = {}
        self._looked = False

    @property
    def problem(self) -> str | None:
        """Why some card has no daemon that answers, or None."""
        if not self._looked:
            return "no cards are listed yet"
        for card, daemon in self._daemons.items():
            if daemon.problem:
                return f"the MPS daemon of {card}: {daemon.problem}"
        return None

    @property
    def serve(self) -> bool:
        """Whether any daemon answers: at the end of this process its clients would end too."""
        return any(not daemon.problem for daemon in self._daemons.values())

    async def run(self) -> None:
        """Keep a daemon running for each card until cancelled; then stop them."""
        async with asyncio.TaskGroup() as group:
            while True:
                for card in self._cards():
                    if card not in self._daemons:
                        self._start(card, group)
                self._looked = True
                await self._clock.sleep(_ASK_S if self._daemons else _FIRST_PAUSE_S)

    def _start(self, card: CardUuid, group: asyncio.TaskGroup) -> None:
        daemon = self._daemons[card] = _Daemon(card=card, folder=self._root)
        try:
            daemon.folder = folder_of(self._root, card)
        except MpsError as error:
            daemon.problem = str(error)
            log.warning("mps_daemon_not_started", card=card, reason=daemon.problem)
        else:
            group.create_task(self._keep(daemon, group), name=f"mps_{card}")

    async def _keep(self, daemon: _Daemon, group: asyncio.TaskGroup) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = self._clock.monotonic()
            try:
                daemon.problem = await self._run_once(daemon, group)
            except OSError as error:
                daemon.problem = f"{self._program}: {error.strerror or error}"
            finally:
                with contextlib.suppress(OSError):
                    (daemon.folder / ANSWERED).unlink(missing_ok=True)
            log.warning("mps_daemon_ended", card=daemon.card, reason=daemon.problem)
            if self._clock.monotonic() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            await self._clock.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _run_once(self, daemon: _Daemon, group: asyncio.TaskGroup) -> str:
        """Run the daemon once, until it ends, and return how it ended."""
        pipe, logs = daemon.folder / "pipe", daemon.folder / "log"
        for folder in (pipe, logs):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_OPEN_MODE)
        control = pipe / CONTROL
        # Of an agent of before this pod, which still gives it to containers.
        if control.is_socket() and refused(control) is None:
            return f"another daemon listens on {control}"
        # With the socket of an earlier daemon, this one would look ready too early. A container may
        # have put something else there.
        if control.is_dir() and not control.is_symlink():
            shutil.rmtree(control)
        else:
            control.unlink(missing_ok=True)
        env = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": daemon.card,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
        }
        words = _LastWords()
        with words.pen() as pen:
            process = await asyncio.create_subprocess_exec(
                self._program,
                "-f",  # stay in the foreground, so that we notice its end
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pen,
                stderr=pen,
                env=env,
            )
        log.info("mps_daemon_started", card=daemon.card, pid=process.pid)
        # Its server may outlive it, and writes to the same pipe: nobody may close that before.
        listening = group.create_task(words.listen(), name=f"mps_words_{daemon.card}")
        asking = group.create_task(self._ask_on(daemon, env), name=f"mps_asks_{daemon.card}")
        try:
            code = await process.wait()
            await asyncio.wait([listening], timeout=_LAST_WORDS_S)
        finally:
            asking.cancel()
            await _end(process)
        return f"{self._program} ended with {code}{words.line()}"

    async def _ask_on(self, daemon: _Daemon, env: Mapping[str, str]) -> None:
        """Ask the daemon periodically, and note for the node's agent when it has answered."""
        control = daemon.folder / "pipe" / CONTROL
        while not await asyncio.to_thread(control.exists):
            daemon.problem = f"{control} does not exist yet"
            await self._clock.sleep(_POLL_S)
        noted = daemon.folder / ANSWERED
        while True:
            began_s = boot_s()
            try:
                problem = await self._ask(env)
                if not problem:
                    fresh = noted.with_suffix(".new")
                    fresh.write_text(f"{began_s}\n")
                    fresh.replace(noted)
            except OSError as error:  # as where a container has filled the file system
                problem = f"it is not asked: {error.strerror or error}"
            if problem != daemon.problem:
                log.info("mps_daemon_asked", card=daemon.card, problem=problem)
            daemon.problem = problem
            if problem:
                with contextlib.suppress(OSError):
                    noted.unlink(missing_ok=True)
            await self._clock.sleep(_ASK_S)

    async def _ask(self, env: Mapping[str, str]) -> str:
        """Return why the daemon does not answer, or an empty text."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=env,
        )
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S):
                _, said = await process.communicate(_QUESTION)
        except TimeoutError:
            return f"no answer in {_ANSWER_LIMIT_S:g} s"
        finally:
            await _end(process)
        words = said.decode(errors="replace").strip()
        return "" if process.returncode == 0 else f"it is not asked: {words or process.returncode}"


class Survey(Protocol):
    """Lists the cards until cancelled."""

    @property
    def problem(self) -> str | None: ...
    async def run(self) -> None: ...


class SurveyBesideDaemons:
    """Lists the cards, and lets the process end only where no daemon answers.

    A driver that hangs in the library may serve the daemons' clients nevertheless, and these would
    end with the daemons. What the library knows of new cards can wait. One answer that comes late
    ends nothing either.

    Args:
        survey: lists them; it ends the process where the driver seems lost.
        daemons: those that are to stay.
        clock: paces the listings after that.
        period_s: between two of these, and how long no daemon may answer.
    """

    def __init__(
        self, survey: Survey, daemons: MpsDaemons, clock: Clock, *, period_s: float
    ) -> None:
        self._survey = survey
        self._daemons = daemons
        self._clock = clock
        self._period_s = period_s
        self._ended = ""

    @property
    def problem(self) -> str | None:
        """Why the cards cannot be listed, or None."""
        return self._survey.problem

    async def run(self) -> None:
        """List the cards until cancelled.

        Raises:
            EndProcess: the driver seems lost, and no daemon answers, nor after another period.
        """
        while True:
            try:
                await self._survey.run()
            except EndProcess as end:
                if not self._daemons.serve:
                    await self._clock.sleep(self._period_s)
                    if not self._daemons.serve:
                        raise
                if str(end) != self._ended:
                    log.warning("survey_goes_on_for_mps_clients", reason=str(end))
                self._ended = str(end)
            await self._clock.sleep(self._period_s)


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
