"""Fixtures of the embedded API server's own tests."""

from __future__ import annotations

import pytest

from tests.simulator.harness import Harness


@pytest.fixture
async def registry_harness() -> Harness:
    return await Harness().start()
