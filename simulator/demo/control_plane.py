"""The demo's control plane: the embedded one, or real components where their binaries exist."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from component.wiring import Wiring
from kube.client import KubeClient
from process.clock import Clock
from simulator.apiserver.server import ApiServer
from simulator.controllers.manager import run_controllers
from simulator.demo.client_certificate import client_context, with_client_certificate
from simulator.demo.service_accounts import install_rights, token_of, user_of
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.scheduler_configuration import (
    ExtenderTls,
    scheduler_configuration,
    stock_configuration,
)
from simulator.kubeconfig import write_kubeconfig
from simulator.scheduler.scheduler import KubeScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoControlPlane:
    """An API server with real or simulated controller manager and scheduler.

    Attributes:
        kubeconfig: of an administrator.
        ca_file: the CA of the API server's certificate, where it serves HTTPS.
        extender_url: whom kube-scheduler asks; None: nobody, it allocates claims.
        start_scheduler: starts a real kube-scheduler with a configuration, in the place of one that
            runs; None: there is none.
    """

    url: str
    kubeconfig: Path
    ca_file: Path | None
    workdir: Path
    extender_url: str | None
    simulated_controllers: bool
    start_scheduler: Callable[[Path], Awaitable[None]] | None

    async def prepare_rights(self, kube: KubeClient) -> None:
        """Install the roles' RBAC; the embedded API server authorizes everybody and needs none."""
        if self.ca_file is not None:
            wiring = Wiring.CLAIMS if self.extender_url is None else Wiring.DEVICE_PLUGIN
            await install_rights(kube, wiring=wiring)

    async def kubeconfig_of(self, kube: KubeClient, role: str, *, node: str | None = None) -> Path:
        """Write the kubeconfig of one role's process, with its own service account.

        Args:
            kube: an administrator's client.
            role: e.g. ``webhook``.
            node: for an agent, the node it runs on; it must be registered.
        """
        # The embedded API server takes a bearer token for the user's name.
        token = user_of(role)
        if self.ca_file is not None:
            token = await token_of(kube, role, node=node)
        path = self.workdir / f"{role}{f'-{node}' if node else ''}.kubeconfig"
        return write_kubeconfig(path, server=self.url, token=token, ca_file=self.ca_file)

    @property
    def parts(self) -> dict[str, str]:
        """Return for each component whether it is real."""
        words = {True: "simulated", False: "real"}
        return {
            "apiServer": words[self.ca_file is None],
            "controllers": words[self.simulated_controllers],
            "scheduler": words[self.start_scheduler is None],
        }

    async def run_controllers(self, kube: KubeClient, clock: Clock) -> None:
        """Run the simulated controllers, unless real ones run."""
        if self.simulated_controllers:
            await run_controllers(kube, clock)
        await asyncio.Event().wait()

    async def run_scheduler(self, kube: KubeClient, clock: Clock) -> None:
        """Run kube-scheduler, the real one if it is there, as soon as it has its certificate.

        Raises:
            ControlPlaneError: the real one does not start.
        """
        if self.extender_url is None:
            await self._run_stock_scheduler(kube, clock)
            return
        url = self.extender_url

        async def run(tls: ExtenderTls) -> None:
            if self.start_scheduler is None:
                await KubeScheduler(
                    kube,
                    clock,
                    extender_url=url,
                    tls=client_context(tls),
                    server_name=tls.server_name,
                ).run()
                return
            written = scheduler_configuration(extender_url=url, kubeconfig=self.kubeconfig, tls=tls)
            await self._start_scheduler(self.start_scheduler, written)

        await with_client_certificate(kube, self.workdir / "scheduler-client", run)

    async def _run_stock_scheduler(self, kube: KubeClient, clock: Clock) -> None:
        if self.start_scheduler is None:
            name = "default-scheduler"
            await KubeScheduler(kube, clock, extender_url=None, scheduler_name=name).run()
            return
        await self._start_scheduler(
            self.start_scheduler, stock_configuration(kubeconfig=self.kubeconfig)
        )

    async def _start_scheduler(
        self, start: Callable[[Path], Awaitable[None]], configuration: Mapping[str, Any]
    ) -> None:
        config = self.workdir / "kube-scheduler.yaml"
        config.write_text(yaml.safe_dump(dict(configuration)))
        await start(config)
        await asyncio.Event().wait()


@asynccontextmanager
async def open_control_plane(
    assets: Path | None,
    workdir: Path,
    *,
    extender_port: int | None,
    flags: Mapping[str, str] | None = None,
) -> AsyncIterator[DemoControlPlane]:
    """Start the embedded API server, or the real one from *assets* with other components there.

    Without *extender_port* kube-scheduler is as every cluster has it. The *flags* are those of
    :meth:`simulator.envtest.control_plane.ControlPlane.start`; the embedded one has none.
    """
    extender_url = None if extender_port is None else f"https://127.0.0.1:{extender_port}"
    kubeconfig = workdir / "kubeconfig"
    if assets is None:
        async with ApiServer.start() as embedded:
            yield DemoControlPlane(
                url=embedded.url,
                kubeconfig=embedded.kubeconfig(kubeconfig),
                ca_file=None,
                workdir=workdir,
                extender_url=extender_url,
                simulated_controllers=True,
                start_scheduler=None,
            )
        return
    async with ControlPlane.start(assets, workdir / "api", flags=flags) as api:
        api.kubeconfig(kubeconfig)
        manager = (assets / "kube-controller-manager").is_file()
        scheduler = (assets / "kube-scheduler").is_file()
        if manager:
            await api.start_controller_manager()
        yield DemoControlPlane(
            url=api.url,
            kubeconfig=kubeconfig,
            ca_file=api.ca_file,
            workdir=workdir,
            extender_url=extender_url,
            simulated_controllers=not manager,
            start_scheduler=api.start_scheduler if scheduler else None,
        )
