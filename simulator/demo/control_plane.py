"""The demo's control plane: the embedded one, or real components where their binaries are there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from kube.client import KubeClient
from process.clock import Clock
from simulator.apiserver import ApiServer
from simulator.controllers import run_controllers
from simulator.kube_scheduler import KubeScheduler
from simulator.realapi import RealApiServer
from simulator.scheduler_profile import scheduler_configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """An API server, and who plays controller manager and scheduler.

    Attributes:
        user: the name under which *kubeconfig* speaks.
        parts: component → ``real 1.36`` or ``simulated``, for people.
    """

    url: str
    kubeconfig: Path
    user: str
    extender_url: str
    simulated_controllers: bool
    simulated_scheduler: bool

    @property
    def parts(self) -> dict[str, str]:
        words = {True: "simulated", False: "real"}
        return {
            "controllers": words[self.simulated_controllers],
            "scheduler": words[self.simulated_scheduler],
        }

    async def run_controllers(self, kube: KubeClient, clock: Clock) -> None:
        """Run the simulated controllers, unless real ones do."""
        if self.simulated_controllers:
            await run_controllers(kube, clock)
        await asyncio.Event().wait()

    async def run_scheduler(self, kube: KubeClient, clock: Clock) -> None:
        """Run the simulated kube-scheduler, unless a real one does."""
        if self.simulated_scheduler:
            await KubeScheduler(kube, clock, extender_url=self.extender_url).run()
        await asyncio.Event().wait()


@asynccontextmanager
async def open_control_plane(
    assets: Path | None, workdir: Path, *, extender_port: int
) -> AsyncIterator[ControlPlane]:
    """Start the embedded API server, or the real one from *assets* with what else lies there."""
    extender_url = f"http://127.0.0.1:{extender_port}"
    kubeconfig = workdir / "kubeconfig"
    if assets is None:
        async with ApiServer.start() as embedded:
            yield ControlPlane(
                url=embedded.url,
                kubeconfig=embedded.kubeconfig(kubeconfig, user="fracgpu-demo"),
                user="fracgpu-demo",
                extender_url=extender_url,
                simulated_controllers=True,
                simulated_scheduler=True,
            )
        return
    async with RealApiServer.start(assets, workdir / "api") as api:
        api.kubeconfig(kubeconfig)
        manager = (assets / "kube-controller-manager").is_file()
        scheduler = (assets / "kube-scheduler").is_file()
        if manager:
            await api.start_controller_manager()
        if scheduler:
            config = workdir / "kube-scheduler.yaml"
            config.write_text(
                yaml.safe_dump(
                    scheduler_configuration(extender_url=extender_url, kubeconfig=kubeconfig)
                )
            )
            await api.start_scheduler(config)
        yield ControlPlane(
            url=api.url,
            kubeconfig=kubeconfig,
            user="admin",
            extender_url=extender_url,
            simulated_controllers=not manager,
            simulated_scheduler=not scheduler,
        )
