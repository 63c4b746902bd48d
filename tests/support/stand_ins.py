"""Stand-ins for NVIDIA programs that need a card."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# Like the real control daemon it stays in the foreground with -f, reads the three variables, and
# creates its control file once it accepts clients. The file names its card.
MPS_CONTROL: Final = """#!/bin/sh
test "$1" = -f || exit 7
echo "$$ $CUDA_VISIBLE_DEVICES" >> "$CUDA_MPS_LOG_DIRECTORY/control.log"
echo "$CUDA_VISIBLE_DEVICES" > "$CUDA_MPS_PIPE_DIRECTORY/control"
trap 'exit 0' TERM
while :; do sleep 0.05; done
"""


def a_program(folder: Path, text: str) -> str:
    """Write a program and return its path."""
    file = folder / "nvidia-cuda-mps-control"
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


@contextmanager
def ending_daemons(folder: Path) -> Iterator[None]:
    """End the daemons that logged below *folder*, which an agent that is killed leaves running."""
    try:
        yield
    finally:
        for log in folder.rglob("control.log"):
            for line in log.read_text().splitlines():
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGTERM)
