"""A stand-in for NVIDIA's library, compiled here, and the real NVML reader in a child process."""

import asyncio
import json
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import nvml_child

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "fakes" / "nvml_standin" / "standin.c"
LIBRARY = "libnvidia-ml.so.1"
MIB = 1024 * 1024

Values = Mapping[str, object]


def write_values(file: Path, values: Values) -> None:
    """Write the library's values atomically; None means no answer."""
    temporary = file.with_suffix(".new")
    temporary.write_text(
        "".join(f"{key} {value}\n" for key, value in values.items() if value is not None)
    )
    temporary.replace(file)


class Unavailable(Exception):  # noqa: N818 - what the reader said
    """The reader in the child raised CardsUnavailableError."""


def build(folder: Path, *, without: frozenset[str] = frozenset()) -> Path:
    """Compile the stand-in without the functions *without*, which an older driver lacks."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in for libnvidia-ml.so.1")
    folder.mkdir(parents=True, exist_ok=True)
    versions = folder / "versions"
    hidden = f"local: {'; '.join(sorted(without))};" if without else ""
    versions.write_text(f"STANDIN {{ global: *; {hidden} }};")
    library = folder / LIBRARY
    command = [
        compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared",
        f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={versions}",
        "-o", str(library), str(SOURCE),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own
    return library


def a_card(index: int = 0, **changes: object) -> dict[str, object]:
    """Return the values of a card that has all but GPM; None removes a value."""
    values: dict[str, object] = {
        "uuid": f"GPU-{index:08d}-0000-4000-8000-000000000000",
        "name": "NVIDIA A30",
        "minor": index,
        "numa": 0,
        "architecture": 7,
        "brand": 14,
        "virtualization": 0,
        "mig": 0,
        "pci": f"00000000:{0x17 + index:02X}:00.0",
        "total": 24576 * MIB,
        "reserved": 500 * MIB,
        "used": 100 * MIB + 1,
        "gpu": 40,
        "copy": 10,
        "encoder": 3,
        "decoder": 4,
        "power_mw": 150500,
        "energy_mj": 5_000_000_000,
        "replays": 2,
        "temperature.0": 48,
        "clock.1": 1410,
        "clock.2": 1593,
        "field.82": 51,
        "rows": "1 2 0 0",
        "ecc.0": 7,
        "ecc.1": 0,
        "violation.0": 1111,
        "violation.1": 2222,
        "throughput.0": 3,
        "throughput.1": 4,
        "compute": " ",
        "graphics": " ",
        "mps": " ",
        "samples": " ",
        **changes,
    }
    return {f"{index}.{key}": value for key, value in values.items()}


HOPPER: dict[str, object] = {
    "name": "NVIDIA H200",
    "architecture": 9,
    "gpm": 1,
    **{f"gpm.{metric}": 10.5 for metric in (1, 2, 3, 5, 10, 11, 12, 13)},
    "gpm.20": 2.0,
    "gpm.21": 3.0,
}


class ProcessEnds(Exception):  # noqa: N818 - what the reader said
    """The reader in the child raised EndProcess."""


class Standin:
    """The library's values, and its reader in a child process."""

    def __init__(self, file: Path, child: Connection, log: Path) -> None:
        self._file = file
        self._log = log
        self._child = child
        self._asking = asyncio.Lock()
        self._values: dict[str, object] = {}

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def uuid(self, index: int) -> str:
        return str(self._values[f"{index}.uuid"])

    def say(self, *parts: Values, **more: object) -> None:
        """Change values atomically; None removes one."""
        for part in (*parts, more):
            self._values.update(part)
        write_values(self._file, self._values)

    async def ask(self, command: str, *, limit_s: float = 60.0) -> Any:
        """Send the child a command and return its answer; one at a time, as they are told apart.

        Raises:
            Unavailable: the cards cannot be read.
        """
        async with self._asking:
            self.begin(command)
            return await self.answered(limit_s=limit_s)

    def begin(self, command: str) -> None:
        """Send the child a command; what is asked meanwhile is to be answered before it."""
        self._child.send(command)

    async def answered(self, *, limit_s: float = 60.0) -> Any:
        """Return the child's next answer, and raise as :meth:`ask` does."""
        async with asyncio.timeout(limit_s):
            reply = await asyncio.to_thread(self._child.recv)
        if "unavailable" in reply:
            raise Unavailable(reply["unavailable"])
        if "ends" in reply:
            raise ProcessEnds(reply["ends"])
        return reply["value"]

    async def list_cards(self) -> Any:
        return await self.ask("list_cards")

    async def answers(self) -> bool:
        """Report whether both cards are listed."""
        try:
            return len((await self.list_cards())["cards"]) == 2
        except Unavailable:
            return False

    async def read(self) -> Any:
        return await self.ask("read")

    async def figures(self, index: int = 0) -> Any:
        """Read all cards and return the figures of one."""
        return (await self.read())["samples"][self.uuid(index)]["figures"]

    async def processes(self, index: int = 0) -> list[tuple[int, int | None, float | None]]:
        """Read all cards and return (pid, MiB, percent) of the processes on one."""
        reading = (await self.read())["samples"][self.uuid(index)]
        return [
            (process["pid"], process["used_mib"], process["sm_percent"])
            for process in reading["processes"]
        ]

    async def calls(self, function: str) -> int:
        """Return how often the library's *function* was called."""
        return int(await self.ask(f"calls {function}"))


# Each child is a copy of a process that has imported everything and loaded no library yet.
_CHILDREN: Final = multiprocessing.get_context("forkserver")
_CHILDREN.set_forkserver_preload(["__main__", nvml_child.__name__])


@asynccontextmanager
async def a_standin(
    folder: Path, *, library: Path, timeout_s: float = 5.0
) -> AsyncIterator[Standin]:
    """Start a child that reads cards through *library*."""
    file, log = folder / "values", folder / "child.log"
    log.touch()
    ours, theirs = _CHILDREN.Pipe()
    reads = nvml_child.Reads(values=file, log=log, library=library, root=folder)
    process = _CHILDREN.Process(target=nvml_child.run, args=(theirs, reads, timeout_s))
    with closing(ours):
        with closing(theirs):
            process.start()
        standin = Standin(file, ours, log)
        standin.say({"driver": "580.65.06", "cards": 2}, a_card(0), a_card(1))
        try:
            yield standin
        finally:
            process.kill()
            process.join()
            process.close()


# Like the real control daemon it stays in the foreground with -f, reads the three variables, and
# listens on its socket in its pipe folder; without -f it asks the daemon that listens there. Beside
# the socket a file names its card.
MPS_CONTROL: Final = f"""#!{sys.executable} -S
import os, signal, socket, sys
pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
card = os.environ["CUDA_VISIBLE_DEVICES"]
with socket.socket(socket.AF_UNIX) as it:
    if sys.argv[1:] != ["-f"]:
        asked = sys.stdin.read()
        it.settimeout(2)
        it.connect(pipe + "/control")
        sys.exit(0 if asked == "get_server_list\\n" and it.recv(2) == b"ok" else "no answer")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    it.bind(pipe + "/control")
    it.listen()
    with open(pipe + "/card", "w") as file:
        file.write(card)
    with open(os.environ["CUDA_MPS_LOG_DIRECTORY"] + "/control.log", "a") as log:
        print(os.getpid(), card, file=log)
    while True:
        client, _ = it.accept()
        try:
            if not os.path.exists(pipe + "/silent"):
                client.send(b"ok")
        except OSError:
            pass  # it only looked whether anybody listens
        client.close()
"""


def a_program(folder: Path, text: str) -> str:
    """Write a program and return its path."""
    file = folder / "nvidia-cuda-mps-control"
    file.write_text(text)
    file.chmod(0o755)
    return str(file)
