"""Runs a role's service as the whole of this process."""

import asyncio

from kube.errors import AccessError
from kube.leader_election import LeaseLost
from process.clock import SystemClock
from process.lifecycle import Service, run_until_stopped
from process.memory import freeze_imported


def run_service(service: Service) -> int:
    """Run *service* until the process is told to stop, and return the exit code."""
    freeze_imported()
    with asyncio.Runner(loop_factory=service.new_loop) as runner:
        return runner.run(run_until_stopped(service, SystemClock(), known=(AccessError, LeaseLost)))
