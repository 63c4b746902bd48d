"""Fixtures for everybody: an embedded API server, and a client connected to it."""

from __future__ import annotations

import gc
import itertools
import logging
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

from kube.access import connect_to
from simulator.apiserver.server import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

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
# Of a mutant any counterexample is enough; looking for the smallest is time lost.
settings.register_profile(
    "mutants",
    settings.get_profile("shared"),
    phases=(Phase.explicit, Phase.generate),
    database=None,
)
settings.load_profile("shared")


_BUSY_WORKERS = len(os.sched_getaffinity(0))
_WAITING_WORKERS = 7  # each collects all tests first, which takes some seconds of a CPU


def pytest_xdist_auto_num_workers() -> int:
    """Return a worker for each CPU, and some for the tests that wait for another process."""
    return _BUSY_WORKERS + _WAITING_WORKERS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let some workers begin with the slow tests, which mostly wait, while two have others.

    Each worker is given as many tests as the others, in their order, and takes from the end of
    another's when it has done its own (pytest-xdist, ``--dist worksteal``).
    """
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    slow = [item for item in items if item.get_closest_marker("slow")]
    slow.sort(key=_longest, reverse=True)
    others = iter([item for item in items if not item.get_closest_marker("slow")])
    waiting = max(1, workers - _BUSY_WORKERS)
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        first = slow[worker::waiting] if worker < waiting else []
        count = (len(items) - len(ordered)) // (workers - worker)
        ordered += [*first, *itertools.islice(others, max(0, count - len(first)))]
    items[:] = [*ordered, *others]


def _longest(item: pytest.Item) -> float:
    """Return how long a test may take in seconds, where it says so."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None else 0.0


def pytest_configure() -> None:
    """Collect no garbage while tests are collected: nearly everything stays for the whole run."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let the garbage collector begin, but keep it off all that was collected."""
    gc.freeze()
    gc.enable()


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
def kubeconfig(api: ApiServer, tmp_path: Path) -> Path:
    """A kubeconfig of ``api``."""
    return api.kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
async def kube(api: ApiServer) -> AsyncIterator[KubeClient]:
    """A client of ``api``."""
    async with connect_to(api.url) as client:
        yield client
