"""How much work something is, counted: the same on every machine, however busy."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


def calls_of(run: Callable[[], object]) -> int:
    """Return how many functions written in Python are called in this thread.

    The garbage collector waits until the end: what it finalizes belongs to somebody else.
    """
    count = 0

    def called(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count


@dataclass(slots=True)
class Lines:
    """How many lines of Python have been executed."""

    count: int = 0


@contextmanager
def counted_lines() -> Iterator[Lines]:
    """Count the lines that are executed in this thread meanwhile, in functions that begin or go on.

    What a single call of compiled code does is one line, however long it takes.
    """
    lines = Lines()

    def traced(_frame: FrameType, event: str, _argument: object) -> Any:
        lines.count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        yield lines
    finally:
        sys.settrace(before)


class Walked(str):
    """A text that counts how many of its characters are looked at one after the other."""

    walked: int = 0

    def __iter__(self) -> Iterator[str]:
        for char in str.__iter__(self):
            self.walked += 1
            yield char
