"""Runs role processes as kubelet runs containers: restarts them when they exit, and probes them."""

import asyncio
import http.client
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from simulator.envtest.lifetime import ends_with_us

_log = structlog.get_logger()

STOP_LIMIT_S: Final = 3.0

_LAST_WORDS: Final = 600

_FIRST_PAUSE_S: Final = 0.2

_LONGEST_PAUSE_S: Final = 5.0

# A process that ran this long is restarted without a pause; in kubelet it is ten minutes.
_STEADY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One program to keep running."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]


def clean_environment() -> dict[str, str]:
    """Return the caller's environment without variables that would change a role's settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FRACGPU_") and name not in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST")
    }


@dataclass(slots=True)
class _Child:
    spec: ProcessSpec
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    exits: list[int] = field(default_factory=list)


class Supervisor:
    """Keeps processes running until :meth:`run` is cancelled, then stops all of them.

    Each writes to ``NAME.log`` in *log_dir*, which is kept across restarts.
    """

    def __init__(self, specs: Sequence[ProcessSpec], *, log_dir: Path) -> None:
        self._children: Final = {spec.name: _Child(spec) for spec in specs}
        self._log_dir = log_dir

    async def run(self) -> None:
        """Start all processes and restart them until cancelled; then stop them within seconds."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, child in self._children.items():
                    group.create_task(self._keep_up(child), name=f"keep-{name}")
        finally:
            await self._stop_all()

    def names(self) -> tuple[str, ...]:
        return tuple(self._children)

    def starts(self, name: str) -> int:
        """Return how often the process was started."""
        return self._children[name].starts

    def pid(self, name: str) -> int | None:
        """Return the process's pid, or None while it is down."""
        process = self._children[name].process
        return process.pid if process is not None and process.returncode is None else None

    def exits(self) -> Mapping[str, Sequence[int]]:
        """Return the exit codes so far; a negative one is the signal that ended the process."""
        return {name: tuple(child.exits) for name, child in self._children.items()}

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process, which is restarted when it exits."""
        process = self._children[name].process
        if process is not None and process.returncode is None:
            process.send_signal(number)

    def last_words(self, name: str) -> str:
        """Return the end of a process's log, for people."""
        return self.log_file(name).read_text(errors="replace")[-_LAST_WORDS:].strip()

    def log_file(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    async def _keep_up(self, child: _Child) -> None:
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await self._run_once(child)
            child.exits.append(code)
            _log.warning("process_ended", process=child.spec.name, exit_code=code)
            lived_s = loop.time() - began
            pause_s = _FIRST_PAUSE_S if lived_s > _STEADY_S else min(pause_s * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _run_once(self, child: _Child) -> int:
        with self.log_file(child.spec.name).open("ab") as output:
            child.process = await asyncio.create_subprocess_exec(
                *ends_with_us(child.spec.argv),
                env=dict(child.spec.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C at the terminal reaches only this process, which stops the others in order.
                start_new_session=True,
            )
        child.starts += 1
        _log.info("process_started", process=child.spec.name, pid=child.process.pid)
        return await child.process.wait()

    async def _stop_all(self) -> None:
        running = [
            child.process
            for child in self._children.values()
            if child.process is not None and child.process.returncode is None
        ]
        for process in running:
            process.terminate()
        # Not asyncio.timeout: in a task that is being cancelled it raises no TimeoutError on Python
        # before 3.11.3, and what ignores SIGTERM would live on.
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(process.wait()) for process in running]
            if ends:
                await asyncio.wait(ends, timeout=STOP_LIMIT_S)
            for process in running:
                if process.returncode is None:
                    process.kill()


_LIMIT_S: Final = 2.0


async def why_not_ready(address: str) -> str | None:
    """Return None when ``http://ADDRESS/readyz`` is OK, else its text or the error."""
    return await asyncio.to_thread(_ask, f"http://{address}/readyz")


def _ask(url: str) -> str | None:
    try:
        # A plain http URL on loopback, made by this program.
        with urllib.request.urlopen(url, timeout=_LIMIT_S):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        return _text_of(error)
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"


def _text_of(answer: urllib.error.HTTPError) -> str:
    try:
        with answer:
            return answer.read(1000).decode(errors="replace").strip() or str(answer)
    except (OSError, http.client.HTTPException):  # it exited while it answered
        return str(answer)
