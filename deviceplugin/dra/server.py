"""The DRA plugin's gRPC services: convert messages; every decision is made elsewhere."""

# ruff: noqa: ARG002, N802 - names and arguments of the methods are the protocol's

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Protocol

import grpc
import structlog

from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.proto import dra_pb2 as messages
from deviceplugin.proto import dra_pb2_grpc as services
from deviceplugin.proto import pluginregistration_pb2 as registration
from deviceplugin.proto import pluginregistration_pb2_grpc as registration_services
from deviceplugin.sockets import SocketError, SocketServer
from fracgpu import names
from process.clock import Clock

log = structlog.get_logger()

PLUGIN_TYPE: Final = "DRAPlugin"
SERVICE: Final = "v1.DRAPlugin"

_STOP_POLL_S: Final = 0.05
# A pod's Event keeps 1,024 characters, of which kubelet's own words take some.
_MAX_TEXT_CHARS: Final = 900


class PrepareError(Exception):
    """A claim cannot be prepared, or given back; the text reaches the pod's Events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimName:
    """All that kubelet says of a claim."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device for the containers that name *request*; *cdi* are qualified CDI devices."""

    request: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()


class Claims(Protocol):
    """Decides about claims."""

    async def prepare(self, claim: ClaimName) -> Sequence[PreparedDevice]:
        """Have ready what the containers of a claim's pod get.

        Raises:
            PrepareError: they may not start.
        """
        ...

    async def unprepare(self, claim: ClaimName) -> None:
        """Remove what was prepared, if anything was.

        Raises:
            PrepareError: it cannot be removed.
        """
        ...


class DraPlugin(services.DRAPluginServicer, registration_services.RegistrationServicer):
    """Answers kubelet on both sockets.

    Args:
        claims: decides.
        endpoint: the socket on which kubelet asks about claims.
        on_registered: called with why kubelet did not take the plugin, or None.
    """

    def __init__(
        self, claims: Claims, endpoint: Path, *, on_registered: Callable[[str | None], None]
    ) -> None:
        self._claims = claims
        self._endpoint = endpoint
        self._on_registered = on_registered
        self._calls = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add both services to a server."""
        services.add_DRAPluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        registration_services.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    @property
    def calls(self) -> int:
        """How many calls about claims are being answered."""
        return self._calls

    async def GetInfo(
        self,
        request: registration.InfoRequest,
        context: grpc.aio.ServicerContext[registration.InfoRequest, registration.PluginInfo],
    ) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=PLUGIN_TYPE,
            name=names.DRA_DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[SERVICE],
        )

    async def NotifyRegistrationStatus(
        self,
        request: registration.RegistrationStatus,
        context: grpc.aio.ServicerContext[
            registration.RegistrationStatus, registration.RegistrationStatusResponse
        ],
    ) -> registration.RegistrationStatusResponse:
        refused = None if request.plugin_registered else request.error or "kubelet does not say why"
        self._on_registered(refused)
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(
        self,
        request: messages.NodePrepareResourcesRequest,
        context: grpc.aio.ServicerContext[
            messages.NodePrepareResourcesRequest, messages.NodePrepareResourcesResponse
        ],
    ) -> messages.NodePrepareResourcesResponse:
        """Prepare each claim by itself: what is wrong with one is its own answer."""
        self._calls += 1
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    claim.uid: group.create_task(self._prepare(_named(claim)), name=claim.name)
                    for claim in request.claims
                }
        finally:
            self._calls -= 1
        found = {uid: task.result() for uid, task in tasks.items()}
        return messages.NodePrepareResourcesResponse(claims=found)

    async def NodeUnprepareResources(
        self,
        request: messages.NodeUnprepareResourcesRequest,
        context: grpc.aio.ServicerContext[
            messages.NodeUnprepareResourcesRequest, messages.NodeUnprepareResourcesResponse
        ],
    ) -> messages.NodeUnprepareResourcesResponse:
        found = {}
        for claim in request.claims:
            try:
                await self._claims.unprepare(_named(claim))
                found[claim.uid] = messages.NodeUnprepareResourceResponse()
            except PrepareError as error:
                text = str(error)[:_MAX_TEXT_CHARS]
                found[claim.uid] = messages.NodeUnprepareResourceResponse(error=text)
        return messages.NodeUnprepareResourcesResponse(claims=found)

    async def _prepare(self, claim: ClaimName) -> messages.NodePrepareResourceResponse:
        try:
            devices = await self._claims.prepare(claim)
        except PrepareError as error:
            return messages.NodePrepareResourceResponse(error=str(error)[:_MAX_TEXT_CHARS])
        return messages.NodePrepareResourceResponse(
            devices=[
                messages.Device(
                    request_names=[each.request],
                    pool_name=each.pool,
                    device_name=each.device,
                    cdi_device_ids=each.cdi,
                )
                for each in devices
            ]
        )


def _named(claim: messages.Claim) -> ClaimName:
    return ClaimName(namespace=claim.namespace, name=claim.name, uid=claim.uid)


class DraServer:
    """Serves a :class:`DraPlugin` on two unix sockets; a ``process.lifecycle.Server``.

    Kubelet watches the folder of the one, and registers what answers there under the other. Both
    are of this process alone: the next agent is registered before this one has ended, and kubelet
    asks the one that registered last.

    Args:
        claims: decides about claims.
        plugins_dir: kubelet's folder of plugins, under the same path on the host.
        registry_dir: the folder that kubelet watches.
        clock: paces the checks.
        poll_s: time between two checks whether both sockets are still there.
        metrics: counts registrations.
        on_change: called when :attr:`problem` is another one.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        claims: Claims,
        plugins_dir: Path,
        registry_dir: Path,
        clock: Clock,
        poll_s: float,
        metrics: DevicePluginMetrics,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        life = secrets.token_hex(4)
        self._folder = plugins_dir / names.DRA_DRIVER
        self._socket = self._folder / f"{life}.sock"
        self._registry = registry_dir / f"{names.DRA_DRIVER}-{life}-reg.sock"
        self._plugin = DraPlugin(claims, self._socket, on_registered=self._registered)
        # The registration comes last: kubelet looks at it at once.
        self._sockets = SocketServer(self._socket, self._registry, register=self._plugin.add_to)
        self._clock = clock
        self._poll_s = poll_s
        self._metrics = metrics
        self._on_change = on_change
        self._problem: str | None = "not registered with kubelet yet"

    @property
    def folder(self) -> Path:
        """Where the sockets of this driver are on which kubelet asks about claims."""
        return self._folder

    @property
    def problem(self) -> str | None:
        """Why kubelet does not ask us about claims, or None."""
        return self._problem

    async def raise_mistake(self) -> NoReturn:
        """Raise the first error that no call should have, once one has."""
        await self._sockets.raise_mistake()

    async def run(self) -> None:
        """Serve again whenever a socket is gone, until cancelled."""
        while True:
            await self._clock.sleep(self._poll_s)
            try:
                await self.start()
            except SocketError as error:
                self._set_problem(str(error))

    async def start(self) -> None:
        """Serve, unless the server is running and its sockets are those that it created.

        Raises:
            SocketError: a path is too long, or a socket cannot be created.
        """
        if await self._sockets.start():
            log.info("plugin_served", socket=str(self._socket), registration=str(self._registry))

    async def stop(self, limit_s: float) -> None:
        """Wait for the calls in flight, then have kubelet forget us, which would cut them off."""
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + limit_s
        await self._sockets.close()
        while self._plugin.calls and now_s() < end_s:
            await self._clock.sleep(_STOP_POLL_S)
        self._registry.unlink(missing_ok=True)
        await self._sockets.stop(max(0.0, end_s - now_s()))

    def remove_others(self) -> None:
        """Remove the sockets of agents that were killed, so that kubelet forgets them."""
        registered = self._registry.parent.glob(f"{names.DRA_DRIVER}-*-reg.sock")
        for path in (*registered, *self._folder.glob("*.sock")):
            if path not in (self._socket, self._registry):
                path.unlink(missing_ok=True)

    def _registered(self, refused: str | None) -> None:
        self._metrics.registered("registered" if refused is None else "failed")
        if refused is None:
            log.info("plugin_registered", kubelet=str(self._registry))
        self._set_problem(refused)

    def _set_problem(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        if problem is not None:
            log.warning("plugin_not_registered", reason=problem)
        self._problem = problem
        self._on_change()
