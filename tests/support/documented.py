"""Commands and files as a document gives them, used as they stand there."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.helm import ROOT, helm_or_skip
from tests.support.markdown import blocks
from tests.support.processes import output_of

_LIMIT_S: Final = 300.0


def documented(document: str, name: str) -> list[str]:
    """Return the commands of the block of that name."""
    found = [block for block in blocks(document) if (block.language, block.name) == ("sh", name)]
    (block,) = found
    return [line for line in block.text.replace("\\\n", "").splitlines() if line]


def documented_file(document: str, name: str) -> str:
    """Return the text of the YAML file whose block begins with a comment of its name."""
    found = [block.text for block in blocks(document) if block.text.startswith(f"# {name}\n")]
    (text,) = found
    return text


def filled_in(command: str, words: Mapping[str, str]) -> str:
    """Return the command with what a reader writes in place of *words*, as ``NAME``."""
    for word, own in words.items():
        command = re.sub(rf"\b{word}\b", own.replace("\\", r"\\"), command)
    return command


async def run(
    command: str,
    *,
    kubeconfig: Path,
    words: Mapping[str, str] | None = None,
    at: Path = ROOT,
    limit_s: float = _LIMIT_S,
) -> str:
    """Run one command and return what it prints.

    Args:
        command: a line of a document.
        kubeconfig: of the cluster that it is about.
        words: what stands for a reader's own words, as ``NAME``.
        at: the folder; the repository's root.
        limit_s: TimeoutError when it takes longer.
    """
    command = filled_in(command, words or {})
    # Helm, and fracgpu of this environment.
    path = f"{helm_or_skip().parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=at,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await output_of(process, limit_s=limit_s)
    assert process.returncode == 0, f"{command}\n{out.decode()}"
    return out.decode()
