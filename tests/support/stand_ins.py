"""Stand-ins for programs of NVIDIA's that tests have no card for."""

from pathlib import Path
from typing import Final

# Like the real control daemon it stays in the foreground with -f, reads the three variables, and
# makes its control file once it takes clients. The file tells its card.
MPS_CONTROL: Final = """#!/bin/sh
test "$1" = -f || exit 7
echo "$$ $CUDA_VISIBLE_DEVICES" >> "$CUDA_MPS_LOG_DIRECTORY/control.log"
echo "$CUDA_VISIBLE_DEVICES" > "$CUDA_MPS_PIPE_DIRECTORY/control"
trap 'exit 0' TERM
while :; do sleep 0.05; done
"""


def a_program(folder: Path, text: str) -> str:
    """Write a program and give its path."""
    file = folder / "nvidia-cuda-mps-control"
    file.write_text(text)
    file.chmod(0o755)
    return str(file)
