"""The physical cards of this machine; tests that need one are skipped where there is none."""

from pathlib import Path

import pytest

from benchmarks.card.cuda_load import NoCompilerError, build
from benchmarks.card.physical_cards import NoPhysicalCardError, shareable_uuids


def uuids_or_skip() -> tuple[str, ...]:
    """Return the UUIDs of the physical cards that can be shared, or skip the test."""
    try:
        return shareable_uuids()
    except NoPhysicalCardError as error:
        pytest.skip(str(error))


def program_or_skip(folder: Path) -> Path:
    """Compile the program that uses a card, or skip the test where there is no compiler."""
    try:
        return build(folder)
    except NoCompilerError as error:
        pytest.skip(str(error))
