"""Fixtures of the embedded API server's own tests."""

from __future__ import annotations

import pytest

from tests.simulator.world import World


@pytest.fixture
async def registry_world() -> World:
    return await World().start()
