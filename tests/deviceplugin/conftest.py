"""The stand-in for NVIDIA's library, built once, and a process that reads cards through it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.nvml import Standin, a_standin, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled stand-in with every function."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
async def standin(nvml_library: Path, tmp_path: Path) -> AsyncIterator[Standin]:
    """Two cards behind the real pynvml, in a process of their own."""
    async with a_standin(tmp_path, library=nvml_library) as running:
        yield running
