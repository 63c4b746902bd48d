"""Claims on a simulated kubelet: finds drivers, has claims prepared, and gives them back.

It uses the real protocols over real unix sockets and behaves as kubelet does: it watches the folder
of registrations, asks the connected driver that registered last, asks once for each claim however
many pods use it, deletes the node's slices when it starts, and a driver's when it stays away.
Unlike kubelet it forgets what was prepared when it ends, as its containers end with it.
Source: k8s.io/kubernetes pkg/kubelet/cm/dra and pkg/kubelet/pluginmanager.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import structlog

from deviceplugin.proto import dra_pb2 as messages
from deviceplugin.proto import dra_pb2_grpc as services
from deviceplugin.proto import pluginregistration_pb2 as registration
from deviceplugin.proto import pluginregistration_pb2_grpc as registration_services
from kube.errors import KubeError, NotFound
from kube.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from kube.objects import decode_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube.client import KubeClient
    from process.clock import Clock
    from simulator.kubelet.pod_status import KubeletPod

log = structlog.get_logger()

_TYPE: Final = "DRAPlugin"
_SERVICE: Final = "v1.DRAPlugin"
_POLL_S: Final = 0.1  # kubelet is told by inotify
_CALL_LIMIT_S: Final = 45.0
_AGAIN_S: Final = 1.0
_CHANNEL_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)


class ClaimError(Exception):
    """A pod's claims cannot be prepared; the text is kubelet's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device of a claim, as its driver answered."""

    driver: str
    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_devices: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class PreparedClaim:
    """One claim and the pods that use it; *devices* are None until its drivers have answered."""

    uid: str
    namespace: str
    name: str
    drivers: tuple[str, ...]
    devices: tuple[PreparedDevice, ...] | None = None
    pods: set[str] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def message(self) -> messages.Claim:
        return messages.Claim(namespace=self.namespace, uid=self.uid, name=self.name)

    def devices_of(self, request: str) -> tuple[PreparedDevice, ...]:
        """Return what a container gets that names *request*; empty: all requests.

        Names are compared literally: an answer with the name of a subrequest is nobody's.
        """
        return tuple(
            device
            for device in self.devices or ()
            if not request or not device.requests or request in device.requests
        )


@dataclass(slots=True, kw_only=True)
class _Driver:
    """The drivers of one name by their registrations, the last one last.

    Attributes:
        away_since_s: since when none is connected; None while one is.
    """

    channels: dict[Path, grpc.aio.Channel] = field(default_factory=dict)
    away_since_s: float | None = None

    @property
    def connected(self) -> list[grpc.aio.Channel]:
        ready = grpc.ChannelConnectivity.READY
        return [
            each for each in self.channels.values() if each.get_state(try_to_connect=True) is ready
        ]


class ClaimManager:
    """The part of a simulated kubelet that has to do with claims.

    Args:
        client: of the API server.
        clock: for pauses.
        node: its name.
        registry: the folder in which drivers register.
        away_s: how long a driver may stay away before its slices are deleted.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        node: str,
        registry: Path,
        away_s: float = 30.0,
    ) -> None:
        self._client = client
        self._clock = clock
        self._node = node
        self._registry = registry
        self._away_s = away_s
        self._drivers: dict[str, _Driver] = {}
        self._sockets: dict[Path, str] = {}
        self._claims: dict[str, PreparedClaim] = {}

    # -- drivers -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Delete the slices of this node, then follow its drivers until cancelled."""
        self._registry.mkdir(parents=True, exist_ok=True)
        await self._delete_slices()
        async with AsyncExitStack() as channels:
            while True:
                for socket in sorted(self._registry.glob("*.sock")):
                    if socket not in self._sockets:
                        await self._register(socket, channels)
                for socket in [socket for socket in self._sockets if not socket.exists()]:
                    self._forget(socket)
                for name, driver in self._drivers.items():
                    await self._look_after(name, driver)
                await self._clock.sleep(_POLL_S)

    async def _register(self, socket: Path, channels: AsyncExitStack) -> None:
        try:
            async with grpc.aio.insecure_channel(f"unix:{socket}", _CHANNEL_OPTIONS) as channel:
                stub = registration_services.RegistrationStub(channel)  # type: ignore[no-untyped-call]
                info = await stub.GetInfo(registration.InfoRequest(), timeout=_AGAIN_S)
                refused = ""
                if info.type != _TYPE or _SERVICE not in info.supported_versions:
                    versions = ", ".join(info.supported_versions)
                    refused = f"want a {_TYPE} with {_SERVICE}; got {info.type} with {versions}"
                else:
                    await self._connect(info.name, socket, info.endpoint, channels)
                status = registration.RegistrationStatus(
                    plugin_registered=not refused, error=refused
                )
                await stub.NotifyRegistrationStatus(status, timeout=_AGAIN_S)
        except grpc.aio.AioRpcError as error:
            log.info("driver_not_registered", socket=socket.name, reason=error.details())
            return
        self._sockets[socket] = info.name
        log.info("driver_registered", driver=info.name, socket=socket.name, refused=refused)

    async def _connect(
        self, name: str, socket: Path, endpoint: str, channels: AsyncExitStack
    ) -> None:
        channel = await channels.enter_async_context(
            grpc.aio.insecure_channel(f"unix:{endpoint}", _CHANNEL_OPTIONS)
        )
        self._drivers.setdefault(name, _Driver()).channels[socket] = channel

    def _forget(self, socket: Path) -> None:
        driver = self._drivers.get(self._sockets.pop(socket))
        if driver is not None:
            driver.channels.pop(socket, None)

    async def _look_after(self, name: str, driver: _Driver) -> None:
        """Delete a driver's slices once none of its name was connected for long."""
        if driver.connected:
            driver.away_since_s = None
        elif driver.away_since_s is None:
            driver.away_since_s = self._clock.monotonic()
        elif self._clock.monotonic() - driver.away_since_s > self._away_s:
            await self._delete_slices(name)
            driver.away_since_s = float("inf")

    async def _delete_slices(self, driver: str = "") -> None:
        """Delete this node's slices, those of one driver or all."""
        selected = f"spec.nodeName={self._node}" + (f",spec.driver={driver}" if driver else "")
        while True:
            try:
                listed = await self._client.list(RESOURCE_SLICES, field_selector=selected)
                for raw in listed.items:
                    await self._client.delete(
                        RESOURCE_SLICES, decode_object(bytes(raw))["metadata"]["name"]
                    )
            except NotFound:
                return  # this API server has none
            except KubeError as error:
                log.warning("slices_not_deleted", node=self._node, reason=str(error))
                await self._clock.sleep(_AGAIN_S)
            else:
                return

    # -- claims --------------------------------------------------------------------------------

    async def prepare(self, pod: KubeletPod) -> None:
        """Have all claims of a pod prepared; those that are prepared already count for it too.

        Raises:
            ClaimError: one is not for this pod, or its driver refuses or cannot be asked.
        """
        for name in sorted(set(pod.claims.values())):
            found = await self._read(pod, name)
            # Known before anybody is asked: what was begun is given back when the pod ends.
            claim = self._claims.setdefault(found.uid, found)
            claim.pods.add(pod.uid)
            async with claim.lock:
                if claim.devices is None:
                    devices: list[PreparedDevice] = []
                    for driver in claim.drivers:
                        devices += await self._ask(claim, driver)
                    claim.devices = tuple(devices)

    async def _read(self, pod: KubeletPod, name: str) -> PreparedClaim:
        try:
            claim = await self._client.get_object(RESOURCE_CLAIMS, name, namespace=pod.namespace)
        except KubeError as error:
            raise ClaimError(f"failed to fetch ResourceClaim {name}: {error}") from error
        reserved = (claim.get("status") or {}).get("reservedFor") or ()
        if not any(each["uid"] == pod.uid for each in reserved):
            text = f"pod {pod.name}({pod.uid}) is not allowed to use ResourceClaim {name}"
            raise ClaimError(f"{text}({claim['metadata']['uid']})")
        results = claim["status"]["allocation"]["devices"]["results"]
        return PreparedClaim(
            uid=claim["metadata"]["uid"],
            namespace=pod.namespace,
            name=name,
            drivers=tuple(sorted({result["driver"] for result in results})),
        )

    async def _ask(self, claim: PreparedClaim, driver: str) -> list[PreparedDevice]:
        request = messages.NodePrepareResourcesRequest(claims=[claim.message])
        try:
            stub = self._stub(driver)
            answer = await stub.NodePrepareResources(request, timeout=_CALL_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            text = f"rpc error: code = {error.code().name} desc = {error.details()}"
            raise ClaimError(f"NodePrepareResources failed: {text}") from error
        found = answer.claims.get(claim.uid)
        if found is None or found.error:
            why = "no answer" if found is None else found.error
            where = f"{claim.namespace}/{claim.name}"
            raise ClaimError(f"NodePrepareResources failed for claim {where}: {why}")
        return [
            PreparedDevice(
                driver=driver,
                requests=tuple(device.request_names),
                pool=device.pool_name,
                device=device.device_name,
                cdi_devices=tuple(device.cdi_device_ids),
            )
            for device in found.devices
        ]

    def _stub(self, driver: str) -> services.DRAPluginStub:
        known = self._drivers.get(driver)
        if known is None or not known.channels:
            raise ClaimError(f"DRA driver {driver} is not registered")
        *_others, newest = known.connected or known.channels.values()
        return services.DRAPluginStub(newest)  # type: ignore[no-untyped-call]

    def of(
        self, pod: KubeletPod, container: str
    ) -> Iterator[tuple[PreparedClaim, tuple[PreparedDevice, ...]]]:
        """Yield each claim that a container of a pod names, with its devices."""
        plan = next(plan for plan in pod.containers if plan.name == container)
        for reference in plan.claims:
            for claim in self._claims.values():
                if pod.uid in claim.pods and claim.name == pod.claims.get(reference.name):
                    yield claim, claim.devices_of(reference.request)

    async def unprepare(self, pod_uid: str) -> None:
        """Release the claims that no other pod uses; tried until their drivers have done it."""
        for claim in [each for each in self._claims.values() if pod_uid in each.pods]:
            claim.pods.discard(pod_uid)
            while not claim.pods and claim.uid in self._claims:
                async with claim.lock:
                    why = await self._give_back(claim)
                if not why:
                    break
                log.warning("claim_not_given_back", claim=claim.name, reason=why)
                await self._clock.sleep(_AGAIN_S)

    async def _give_back(self, claim: PreparedClaim) -> str:
        """Return why a claim could not be given back; empty if it was."""
        for driver in claim.drivers:
            request = messages.NodeUnprepareResourcesRequest(claims=[claim.message])
            try:
                stub = self._stub(driver)
                answer = await stub.NodeUnprepareResources(request, timeout=_CALL_LIMIT_S)
            except ClaimError as error:
                return str(error)
            except grpc.aio.AioRpcError as error:
                return str(error.details())
            found = answer.claims.get(claim.uid)
            if found is None or found.error:
                return "no answer" if found is None else str(found.error)
        self._claims.pop(claim.uid, None)
        return ""
