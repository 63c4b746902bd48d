"""Whatever happens on a node, a promised limit stands after the next audit, and nothing drifts."""

import ctypes
import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.deviceplugin.enforcement.holds import (
    HoldsOnTheModel,
    HoldsOnTheStandin,
    HoldsOnTheTree,
    restart_often,
)
from tests.deviceplugin.enforcement.runtime import ModelWorld, StandinWorld, TreeWorld, World
from tests.support.nvml import build

RESTARTS: Final = 10_000
# Each call reads and writes files; with the tests of `make e2e` as many as on the model.
RESTARTS_ON_FILES: Final = 1_000
LONG: Final = [pytest.mark.e2e, pytest.mark.timeout(1200)]
ORDERS: Final = settings(max_examples=20, stateful_step_count=25, deadline=None)
FEW: Final = settings(max_examples=6, stateful_step_count=15, deadline=None, database=None)

HoldsOnTheModel.TestCase.settings = ORDERS
HoldsOnTheTree.TestCase.settings = ORDERS
TestHoldsOnTheModel = HoldsOnTheModel.TestCase
TestHoldsOnTheTree = HoldsOnTheTree.TestCase


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "restarts"),
    [
        (ModelWorld, RESTARTS),
        (TreeWorld, RESTARTS_ON_FILES),
        pytest.param(TreeWorld, RESTARTS, marks=LONG),
    ],
)
def test_after_ten_thousand_restarts_the_cgroups_above_have_drifted_by_nothing(
    world: type[World], restarts: int
) -> None:
    restart_often(world, restarts=restarts)


def _hold_on_the_standin(says: Connection, library: Path, values: Path, restarts: int) -> None:
    """Be a process with the stand-in loaded; say what is wrong, or nothing."""
    os.environ["NVML_STANDIN"] = str(values)
    ctypes.CDLL(str(library))
    try:
        run_state_machine_as_test(HoldsOnTheStandin, settings=FEW)
        restart_often(StandinWorld, restarts=restarts)
    except BaseException:  # noqa: BLE001 - it is the answer
        says.send(traceback.format_exc())
    else:
        says.send("")


@pytest.mark.slow
@pytest.mark.parametrize(
    "restarts",
    [
        RESTARTS_ON_FILES,
        pytest.param(RESTARTS, marks=LONG),
    ],
)
def test_the_same_holds_on_the_stand_in_for_nvidias_library(tmp_path: Path, restarts: int) -> None:
    library = build(tmp_path / "library")
    processes = multiprocessing.get_context("forkserver")
    ours, theirs = processes.Pipe()
    child = processes.Process(
        target=_hold_on_the_standin, args=(theirs, library, tmp_path / "v", restarts)
    )
    child.start()
    try:
        assert ours.poll(1100)
        assert ours.recv() == ""
    finally:
        child.kill()
        child.join()
