"""Child processes that a test starts, kills and starts again; their output goes to a file."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.waiting import until_true


def is_alive(pid: int) -> bool:
    """Report whether a process runs; an orphan that has ended may wait for init to bury it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def output_of(
    process: asyncio.subprocess.Process, text: bytes | None = None, *, limit_s: float
) -> tuple[bytes, bytes]:
    """Wait for the end of *process* and return its standard output and error.

    It is killed if the wait ends first: its pipes must not stay open during other tests.

    Args:
        process: with pipes for its input and output.
        text: for its standard input.
        limit_s: TimeoutError when it takes longer.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await process.communicate(text)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


class Child:
    """One program that a test may end in any way and start again with the same arguments."""

    def __init__(
        self, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.command = [str(word) for word in command]
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        self.log = log

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.command[0]} was not started"
        return self._process.pid

    async def start(self) -> None:
        assert not self.alive, f"{self.command[0]} runs already"
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal, without waiting for what it does; nothing if the process has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait_end(self) -> int:
        """Wait until the process has ended by itself, and return its exit code.

        Raises:
            TimeoutError: it took longer.
        """
        assert self._process is not None, f"{self.command[0]} was not started"
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal *how* and wait for the end; kill the process after 10 s."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(how)
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def kill(self) -> None:
        """Kill the process, as in a crash."""
        await self.end(signal.SIGKILL)

    async def wait_socket(self, socket: Path, *, limit_s: float = 60.0) -> None:
        """Wait until *socket* exists; fail if the child ends before."""

        def there() -> bool:
            assert self.alive, f"{self.command[0]} has ended; see {self.log}: {self.tail()}"
            return socket.is_socket()

        await until_true(there, what=f"{self.command[0]} serves {socket}", limit_s=limit_s)

    def tail(self, lines: int = 15) -> str:
        """Return the end of the output, for an assertion's message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
