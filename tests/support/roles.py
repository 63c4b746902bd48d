"""Roles as separate processes, as in a cluster."""

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube.client import KubeClient, PatchType
from kube.errors import NotFound
from kube.kinds import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from simulator.background import background
from simulator.demo.supervisor import ProcessSpec, Supervisor, why_not_ready
from simulator.envtest.ports import free_ports
from tests.support.waiting import until


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Running processes, and the address of each one's telemetry."""

    supervisor: Supervisor
    telemetry: Mapping[str, int]

    async def until_ready(self, role: str) -> None:
        await until(lambda: self._is_ready(role), what=f"{role} is ready", limit_s=60)

    async def _is_ready(self, role: str) -> bool:
        return await why_not_ready(f"127.0.0.1:{self.telemetry[role]}") is None


@asynccontextmanager
async def running_roles(
    flags: Mapping[str, Sequence[str]],
    *,
    kubeconfig: Path | Mapping[str, Path],
    log_dir: Path,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[Roles]:
    """Run each role of *flags* with its flags; their logs are in *log_dir*.

    Args:
        flags: of each role.
        kubeconfig: one for all, or one for each role.
        log_dir: where their logs go.
        env: variables besides our own.
    """
    configs = dict.fromkeys(flags, kubeconfig) if isinstance(kubeconfig, Path) else kubeconfig
    telemetry = dict(zip(flags, free_ports(len(flags)), strict=True))
    specs = [
        ProcessSpec(
            name=role,
            argv=[
                *(
                    sys.executable,
                    "-m",
                    "cli",
                    "run",
                    role,
                    f"--kubeconfig={configs[role]}",
                    *words,
                ),
                *(f"--telemetry-port={telemetry[role]}", "--telemetry-host=127.0.0.1"),
                "--drain-wait-s=0",
            ],
            env={**os.environ, **(env or {})},
        )
        for role, words in flags.items()
    ]
    supervisor = Supervisor(specs, log_dir=log_dir)
    async with background(supervisor.run()):
        yield Roles(supervisor=supervisor, telemetry=telemetry)


async def call_by_url(client: KubeClient, port: int) -> None:
    """Make the API server call our webhook on loopback instead of at its Service.

    The certificates role puts its bundle beside the address.
    """
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        try:
            configuration = await client.get_object(kind, "fracgpu-webhook")
        except NotFound:
            continue
        edits = [
            {
                "op": "replace",
                "path": f"/webhooks/{index}/clientConfig",
                "value": {"url": f"https://127.0.0.1:{port}{_path(webhook)}"},
            }
            for index, webhook in enumerate(configuration["webhooks"])
        ]
        await client.patch(kind, "fracgpu-webhook", edits, how=PatchType.JSON)


def _path(webhook: Mapping[str, Any]) -> str:
    return str(webhook["clientConfig"]["service"]["path"])
