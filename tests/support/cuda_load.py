"""A program that uses a physical card as a tenant would, and whose use of it is known."""

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

SOURCE: Final = Path(__file__).with_name("cuda_load.c")
OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
ILLEGAL_ADDRESS: Final = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
_START_LIMIT_S: Final = 60.0
_END_LIMIT_S: Final = 30.0


class NoCompilerError(Exception):
    """This machine has no C compiler for the program."""


class CudaError(Exception):
    """CUDA refused a call of the program."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__(f"{call}: error {code}")
        self.code = code


def build(folder: Path) -> Path:
    """Compile the program into *folder*, and return its path.

    Raises:
        NoCompilerError: there is no compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompilerError("no C compiler (cc or gcc) for the program that uses the card")
    program = folder / "cuda_load"
    command = [compiler, "-std=gnu11", "-O1", "-o", str(program), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own
    return program


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the program is asked for.

    Attributes:
        mib: memory that it holds.
        busy_ms: what it works in one go would take a card of its own, half to one and a half times.
        idle_ms: how long it rests in between, likewise.
        seconds: until it ends by itself.
        blocks: blocks of a kernel; one for each multiprocessor keeps the whole card busy.
    """

    mib: int = 256
    busy_ms: float = 20
    idle_ms: float = 20
    seconds: float = 600
    blocks: int = 512

    def words(self) -> list[str]:
        """Return the program's arguments."""
        numbers = (self.mib, self.busy_ms, self.idle_ms, self.seconds, self.blocks)
        return ["load", *(str(number) for number in numbers)]


@dataclass(slots=True, kw_only=True)
class Running:
    """The program at work: what it saw of the card, and, once it ended, what it did."""

    process: asyncio.subprocess.Process
    sees: Mapping[str, Any]
    done: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def end(self) -> Mapping[str, Any]:
        """End it, and return the seconds it ran and the seconds of a card it worked."""
        if not self.done:
            if self.process.returncode is None:
                self.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(_END_LIMIT_S):
                self.done = (await said(self.process))["done"]
                await self.process.wait()
        return self.done


@asynccontextmanager
async def using(
    program: Path, load: Load, *, env: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    """Run the program until the block ends.

    Raises:
        CudaError: CUDA refused.
    """
    process = await start(program, *load.words(), env=env)
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            sees = (await said(process))["ready"]
        yield Running(process=process, sees=sees)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def start(
    program: Path, *words: str, env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start the program; *env* is all of its environment, where it is not ours."""
    return await asyncio.create_subprocess_exec(
        str(program),
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=env,
    )


async def said(process: asyncio.subprocess.Process) -> Mapping[str, Any]:
    """Return the next line that the program says.

    Raises:
        CudaError: it says that CUDA refused.
    """
    line = await process.stdout.readline() if process.stdout is not None else b""
    return read_line(line.decode())


def read_line(line: str) -> Mapping[str, Any]:
    """Return what a line of the program says.

    Raises:
        CudaError: it says that CUDA refused.
    """
    found: Mapping[str, Any] = json.loads(line)
    if "error" in found:
        raise CudaError(found["error"], found["call"])
    return found
