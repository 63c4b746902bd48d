"""Fixtures for everybody: an embedded API server, and a client connected to it."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

from kube.access import connect_to
from simulator.apiserver.server import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kube.client import KubeClient

# How long an example takes says how busy the machine is, not whether the promise holds. Each run
# draws other examples, so few will do in each; --hypothesis-profile=thorough draws many.
settings.register_profile(
    "shared",
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("thorough", settings.get_profile("shared"), max_examples=2000)
settings.load_profile("shared")


def pytest_xdist_auto_num_workers() -> int:
    """Return two workers more than there are CPUs: many tests wait for another process."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests: no worker is to start one when others end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Keep the garbage collector off all that was collected: it stays for the whole run."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in a line for each reason how many tests were skipped for it."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo what a command run in this process configured: its stream ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A fresh embedded API server on loopback."""
    async with ApiServer.start() as server:
        yield server


@pytest.fixture
async def kube(api: ApiServer) -> AsyncIterator[KubeClient]:
    """A client of ``api``."""
    async with connect_to(api.url) as client:
        yield client
