"""A process that reads cards through the real pynvml: it is sent commands, and sends answers."""

import asyncio
import ctypes
import dataclasses
import os
import sys
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pynvml

from deviceplugin.cards.interface import CardLimitsError, CardsUnavailableError, GroupLimits
from deviceplugin.cards.nvml.reader import NvmlReader
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from process import logs
from process.lifecycle import EndProcess
from tests.fakes.clock import ShiftedClock


def plain(value: Any) -> Any:
    """Return a value as JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


async def answer(reader: NvmlReader, command: str, argument: str) -> Any:
    """Return the result of *command*."""
    library: Any = pynvml.nvmlLib
    if command == "list_cards":
        return plain(await reader.list_cards())
    if command == "read":
        return plain(await reader.read())
    if command == "together":
        async with asyncio.TaskGroup() as group:
            group.create_task(reader.read())
            group.create_task(reader.list_cards())
        return None
    if command == "close":
        return await reader.close()
    if command == "calls":
        return int(library.standin_calls(ctypes.c_char_p(argument.encode())))
    if command in {"limit", "limits"}:
        return await asyncio.to_thread(_limits, reader, command, *argument.split())
    if command == "live_samples":
        return int(library.standin_live_samples())
    raise ValueError(command)


def _limits(reader: NvmlReader, command: str, card: str, group: str, *mib: str) -> Any:
    try:
        if command == "limits":
            return plain(reader.limits.read(CardUuid(card), group))
        guaranteed, limit = (None if word == "none" else Mib(int(word)) for word in mib)
        wanted = GroupLimits(guaranteed_mib=guaranteed or Mib(0), limit_mib=limit)
        return reader.limits.set(CardUuid(card), group, wanted)
    except CardLimitsError as error:
        return {"error": str(error)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What a child reads, and where it logs.

    Attributes:
        values: of the library, as the stand-in's source says.
        log: its standard error.
        library: the stand-in.
        root: the folder in place of the node's ``/dev``.
    """

    values: Path
    log: Path
    library: Path
    root: Path


async def serve(commands: Connection, reader: NvmlReader, clock: ShiftedClock) -> None:
    """Answer commands as each is done, until nobody is left to send them."""
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                line = await asyncio.to_thread(commands.recv)
            except EOFError:
                return
            group.create_task(reply(commands, reader, clock, *line.partition(" ")[::2]))


async def reply(
    commands: Connection, reader: NvmlReader, clock: ShiftedClock, command: str, argument: str
) -> None:
    """Send the answer to a command."""
    try:
        if command == "shift":
            clock.shift_s += float(argument)
            answered: dict[str, Any] = {"value": None}
        elif command == "wait":
            clock.passed_s += float(argument)
            answered = {"value": None}
        else:
            answered = {"value": await answer(reader, command, argument)}
    except CardsUnavailableError as error:
        answered = {"unavailable": str(error)}
    except EndProcess as error:
        answered = {"ends": str(error)}
    commands.send(answered)


def run(commands: Connection, reads: Reads, timeout_s: float) -> None:
    """Be the child: read cards through the stand-in until the other end closes."""
    with reads.log.open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    os.environ["NVML_STANDIN"] = str(reads.values)
    # The loader takes what is loaded already for the library of that name, which pynvml asks for.
    ctypes.CDLL(str(reads.library))
    logs.configure(level="info", json=True)
    clock = ShiftedClock()
    reader = NvmlReader(
        timeout_s=timeout_s, dev_root=reads.root, sys_root=reads.root / "sys", clock=clock
    )
    asyncio.run(serve(commands, reader, clock))
