"""Installs the program that verifies container starts, and names it in specs.

It is ``verify.c``, compiled when the package is built. Where the runtime has no NRI it verifies on
the host whose container starts, and where it has, in the container that its limits stand.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

log = structlog.get_logger()

_NAME: Final = "fracgpu-verify"
_LIMIT_S: Final = 5.0
_PROBE: Final = (
    '{"annotations": {"io.kubernetes.cri.sandbox-uid": "u", '
    '"io.kubernetes.cri.container-name": "n"}}'
)


class VerifyHook:
    """The program on the host.

    Args:
        folder: where it is installed, under the same path on the host.
        built: the folder with the programs, one for each kind of processor.
    """

    def __init__(self, folder: Path, *, built: Path = Path(__file__).parent) -> None:
        self.file = folder / _NAME
        self._built = built / f"verify-{platform.machine()}"
        self.problem: str | None = "the hook that verifies containers is not installed yet"

    def install(self) -> None:
        """Install the program, and find out whether it runs; reads and writes files."""
        self.problem = self._install()
        if self.problem is not None:
            log.warning("hook_not_installed", reason=self.problem)

    def _install(self) -> str | None:
        cure = "; or enable NRI in the container runtime, which needs no hook"
        if not self._built.exists():
            return f"this FracGPU has no {self._built.name}: take its image{cure}"
        fresh = self.file.with_suffix(".new")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._built, fresh)
            fresh.chmod(0o755)
            os.replace(fresh, self.file)  # noqa: PTH105 - a running hook keeps its file
            tried = subprocess.run(  # noqa: S603 - our own program
                [self.file, "u", "n"],
                input=_PROBE,
                text=True,
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self.file} does not run: {error}; it must not be on a noexec mount{cure}"
        if tried.returncode != 0:
            return f"{self.file} fails: {tried.stderr.strip()}{cure}"
        return None

    def edit(self, *, uid: str, containers: Sequence[str]) -> Mapping[str, Any]:
        """Return the hook of a spec that is for one of the *containers* of a pod."""
        return {
            "hookName": "createRuntime",
            "path": str(self.file),
            "args": [_NAME, uid, *containers],
        }
