"""The physical cards of this machine; tests that need one are skipped where there is none."""

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pynvml
import pytest

from tests.support.cuda_load import NoCompilerError, build

# The image of tests has a shell alone; the C library, which the driver's libraries need, is the
# host's.
LIBRARIES: Final = {
    "loader": ("/usr/lib64", "/lib64"),
    "libraries": ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"),
}


class NoPhysicalCardError(Exception):
    """This machine has no physical card that can be shared; the text says why."""


def shareable_uuids() -> tuple[str, ...]:
    """Return the UUIDs of the cards that are not in MIG mode, by NVML's index.

    Raises:
        NoPhysicalCardError: there is none.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoPhysicalCardError(f"no physical card: NVML says {error}") from error
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        found = tuple(pynvml.nvmlDeviceGetUUID(handle) for handle in handles if not _mig(handle))
    finally:
        pynvml.nvmlShutdown()
    if not found:
        raise NoPhysicalCardError("no physical card that is not in MIG mode")
    return found


def _mig(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError_NotSupported:
        return False


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


def write_driver_spec_or_skip(file: Path) -> None:
    """Write the driver's CDI spec as an administrator does, or skip the test without the tool."""
    toolkit = shutil.which("nvidia-ctk")
    if toolkit is None:
        pytest.skip("no nvidia-ctk (NVIDIA's container toolkit) to write the driver's CDI spec")
    subprocess.run(  # noqa: S603 - our own words
        [toolkit, "cdi", "generate", f"--output={file}"], check=True, capture_output=True
    )
