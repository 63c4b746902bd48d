"""How long the steps of a long test take: measured and written down, never judged."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger()

TIMINGS_ENV: Final = "FRACGPU_TIMINGS"
"""A file to which each step is added as one line of JSON."""


class Steps:
    """The steps of one test.

    Args:
        test: what stands in front of each figure.
    """

    def __init__(self, test: str) -> None:
        self._test = test

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the block; nothing is told of one that fails."""
        began_s = time.monotonic()
        yield
        self.tell(name, time.monotonic() - began_s)

    def tell(self, name: str, seconds: float) -> None:
        """Log how long a step took, and add it to the file of :data:`TIMINGS_ENV`."""
        line = {
            "test": self._test,
            "step": name,
            "seconds": round(seconds, 1),
            "loadAverage": round(os.getloadavg()[0], 1),
            "cpus": len(os.sched_getaffinity(0)),
        }
        log.info("timed", **line)
        file = os.environ.get(TIMINGS_ENV)
        if file:
            with Path(file).open("a") as lines:
                lines.write(json.dumps(line) + "\n")
