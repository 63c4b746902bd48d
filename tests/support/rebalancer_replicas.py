"""Rebalancers as processes that are killed or stand still exactly at one of their writes."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from simulator.demo.service_accounts import write_kubeconfig
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.ports import free_ports
from tests.support.api_gate import ApiGate, Trigger
from tests.support.processes import Child


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One rebalancer: its process, and the gate between it and the API server."""

    name: str
    process: Child
    gate: ApiGate

    def send(self, number: signal.Signals) -> None:
        """Send a signal now; the process is not waited for."""
        self.process.send(number)

    def kill_at(self, trigger: Trigger) -> None:
        """Let the process die at the first write that *trigger* selects, once it has succeeded."""
        self.gate.set_trap(trigger, lambda: self.send(signal.SIGKILL))

    def hold_at(self, trigger: Trigger) -> asyncio.Event:
        """Let the process wait for the answer to such a write until the returned event is set."""
        go_on = asyncio.Event()
        self.gate.set_trap(trigger, held=go_on)
        return go_on

    def pause_at(self, trigger: Trigger) -> None:
        """Let the process stand still from such a write on, before it learns of its success."""
        self.gate.set_trap(trigger, lambda: self.send(signal.SIGSTOP), deliver=True)


@asynccontextmanager
async def a_replica(
    name: str, api: ControlPlane, token: str, *words: str, workdir: Path
) -> AsyncIterator[Replica]:
    """Start a rebalancer with the holder of *token*'s permissions; it is killed at the end."""
    gate = ApiGate(api.url, ca_file=api.ca_file)
    async with gate.open():
        config = write_kubeconfig(
            workdir / f"{name}.kubeconfig", server=gate.url, token=token, ca_file=None
        )
        (telemetry,) = free_ports(1)
        process = Child(
            [
                *(sys.executable, "-m", "cli", "run", "rebalancer", f"--kubeconfig={config}"),
                *(
                    f"--telemetry-port={telemetry}",
                    "--telemetry-host=127.0.0.1",
                    "--drain-wait-s=0",
                ),
                *words,
            ],
            log=workdir / f"{name}.log",
        )
        await process.start()
        try:
            yield Replica(name=name, process=process, gate=gate)
        finally:
            await process.kill()
