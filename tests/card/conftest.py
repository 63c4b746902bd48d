"""A physical card, the program that uses it, and our reader of its metrics."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.cards.nvml.reader import NvmlReader
from tests.support.physical_card import program_or_skip, uuids_or_skip


@pytest.fixture(scope="session")
def uuid() -> str:
    """Return the first card's UUID; CUDA's first card, if CUDA_VISIBLE_DEVICES names it."""
    return uuids_or_skip()[0]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, uuid: str) -> Path:
    return program_or_skip(tmp_path_factory.mktemp("program"))


@pytest.fixture(autouse=True)
def only_this_card(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    """Let programs use the first card alone, whatever the order CUDA gives the cards."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)


@pytest.fixture
async def reader() -> AsyncIterator[NvmlReader]:
    opened = NvmlReader()
    await opened.list_cards()
    yield opened
    await opened.close()
