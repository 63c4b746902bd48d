"""Finds the node's kube-scheduler, a static pod's process, in ``/proc`` by its flags."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

_PROGRAM: Final = "kube-scheduler"
_START_TIME: Final = 19  # field 22 of proc_pid_stat(5), counted after the name


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process; a PID that is used again has another start time."""

    pid: int
    started: str


class KubeSchedulerProcesses:
    """The processes named ``kube-scheduler`` that were started with one configuration file.

    Args:
        config: path of the file, as in ``--config``.
        proc: the node's ``/proc``.
    """

    def __init__(self, *, config: str, proc: Path) -> None:
        self._config = config
        self._proc = proc

    def running(self) -> frozenset[Process]:
        """Return the processes that run now."""
        return frozenset(self._find())

    def end(self, process: Process) -> None:
        """Send SIGTERM, so that kubelet starts it again; do nothing if the process has ended."""
        if process not in self.running():
            return
        try:
            os.kill(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            return

    def _find(self) -> Iterator[Process]:
        for folder in self._proc.iterdir():
            if not folder.name.isdigit():
                continue
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                status = (folder / "stat").read_text(errors="replace")
            except OSError:  # the process has ended
                continue
            if words[0].rpartition("/")[2] == _PROGRAM and self._has_config(words):
                fields = status.rpartition(")")[2].split()
                yield Process(pid=int(folder.name), started=fields[_START_TIME])

    def _has_config(self, words: list[str]) -> bool:
        pairs = pairwise(words)
        return f"--config={self._config}" in words or ("--config", self._config) in pairs
