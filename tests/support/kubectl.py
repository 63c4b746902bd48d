"""kubectl, as a user would run it, against an API server of a test."""

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import output_of

DEPLOY = Path(__file__).parents[2] / "deploy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of kubectl."""

    ok: bool
    out: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """kubectl with one kubeconfig."""

    kubeconfig: Path

    @classmethod
    def find(cls, kubeconfig: Path) -> "Kubectl":
        """Return kubectl with a kubeconfig, or skip the test if there is none."""
        if shutil.which("kubectl") is None:
            pytest.skip("kubectl is not installed")
        return cls(kubeconfig=kubeconfig)

    async def ask(self, *words: str, stdin: Any = None) -> Answer:
        """Run kubectl; *stdin* is an object to send as JSON."""
        process = await asyncio.create_subprocess_exec(
            "kubectl", *words,
            # Not a flag: kubectl takes none before the name of a plugin.
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        text = b"" if stdin is None else json.dumps(stdin).encode()
        out, error = await output_of(process, text, limit_s=60)
        return Answer(ok=process.returncode == 0, out=out.decode(), error=error.decode())

    async def __call__(self, *words: str, stdin: Any = None) -> str:
        """Run kubectl, expect success, and return its output."""
        answer = await self.ask(*words, stdin=stdin)
        assert answer.ok, answer.error
        return answer.out

    async def refused(self, *words: str, stdin: Any = None) -> str:
        """Run kubectl, expect an error, and return its message."""
        answer = await self.ask(*words, stdin=stdin)
        assert not answer.ok, answer.out
        return answer.error
