"""Commands as a document gives them, run as they stand there."""

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.helm import ROOT, helm_or_skip
from tests.support.markdown import blocks
from tests.support.processes import told_by

_LIMIT_S: Final = 300


def documented(document: str, name: str) -> list[str]:
    """Return the commands of the block of that name."""
    found = [block for block in blocks(document) if (block.language, block.name) == ("sh", name)]
    (block,) = found
    return [line for line in block.text.splitlines() if line]


async def run(command: str, *, kubeconfig: Path, words: Mapping[str, str] | None = None) -> str:
    """Run one command at the repository's root and return what it prints.

    Args:
        command: a line of a document.
        kubeconfig: of the cluster that it is about.
        words: what stands for a reader's own words, as ``NAME``.
    """
    for word, own in (words or {}).items():
        command = re.sub(rf"\b{word}\b", own, command)
    path = f"{helm_or_skip().parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await told_by(process, limit_s=_LIMIT_S)
    assert process.returncode == 0, f"{command}\n{out.decode()}"
    return out.decode()
