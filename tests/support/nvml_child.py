"""A process that reads cards through the real pynvml: commands on standard input, JSON on output.

It loads whatever ``libnvidia-ml.so.1`` the loader finds, as the agent does.
"""

import asyncio
import ctypes
import dataclasses
import json
import sys
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pynvml

from deviceplugin.cards.interface import CardsUnavailableError
from deviceplugin.cards.nvml.reader import NvmlReader
from process import logs
from process.clock import SystemClock
from process.lifecycle import EndProcess


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


class ShiftedClock(SystemClock):
    """The machine's clock with an offset: after it was set, or after a time has passed."""

    def __init__(self) -> None:
        self.shift_s = 0.0
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.shift_s)


async def answer(reader: NvmlReader, command: str, argument: str) -> Any:
    """Return the result of *command*."""
    library: Any = pynvml.nvmlLib
    if command == "list_cards":
        return plain(await reader.list_cards())
    if command == "read":
        return plain(await reader.read())
    if command == "close":
        return await reader.close()
    if command == "calls":
        return int(library.standin_calls(ctypes.c_char_p(argument.encode())))
    if command == "live_samples":
        return int(library.standin_live_samples())
    raise ValueError(command)


async def main() -> None:
    """Serve until standard input ends."""
    logs.configure(level="info", json=True)
    root, clock = Path(sys.argv[2]), ShiftedClock()
    reader = NvmlReader(
        timeout_s=float(sys.argv[1]), dev_root=root, sys_root=root / "sys", clock=clock
    )
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, _, argument = line.strip().partition(" ")
        try:
            if command == "shift":
                clock.shift_s += float(argument)
                reply: dict[str, Any] = {"value": None}
            elif command == "wait":
                clock.passed_s += float(argument)
                reply = {"value": None}
            else:
                reply = {"value": await answer(reader, command, argument)}
        except CardsUnavailableError as error:
            reply = {"unavailable": str(error)}
        except EndProcess as error:
            reply = {"ends": str(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
