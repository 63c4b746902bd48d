"""Keeps the EndpointSlice by which kube-scheduler reaches the replica that leads.

A Service with a selector has every ready replica, and standby replicas are ready too. So the
Service that kube-scheduler calls has no selector, and no controller changes its EndpointSlice:
https://kubernetes.io/docs/concepts/services-networking/service/#services-without-selectors
"""

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from kube.kinds import ENDPOINT_SLICES, Kind
from process.clock import Clock

log = structlog.get_logger()

PORT_NAME: Final = "extender"
"""Name of the Service's port: kube-proxy matches ports of Service and slice by name."""
_LABELS: Final = {
    # kube-proxy finds a Service's slices by the first label. The second keeps the cluster's own
    # EndpointSlice controllers away: each manages only the slices labelled with its name.
    "kubernetes.io/service-name": "",
    "endpointslice.kubernetes.io/managed-by": "fracgpu-scheduler",
}
_LOOK_EVERY_S: Final = 5.0
_RETRY_S: Final = 1.0
_WITHDRAW_LIMIT_S: Final = 2.0


class SliceClient(Protocol):
    """What this module needs of ``kube.client.KubeClient``."""

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]: ...

    async def create(
        self, kind: Kind, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]: ...

    async def replace(self, kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]: ...

    async def delete(self, kind: Kind, name: str, *, namespace: str | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """This replica's IP address and port, and its node if known."""

    address: str
    port: int
    node: str = ""


class LeaderEndpoint:
    """Keeps this replica as the only endpoint of *service* while it leads.

    The slice has the Service's name. A leader that ends removes itself; one that is killed stays
    in the slice until the next leader writes it, and calls to it fail, so kube-scheduler retries.
    """

    def __init__(
        self,
        client: SliceClient,
        clock: Clock,
        *,
        service: str,
        namespace: str,
        endpoint: Endpoint,
        leads: Callable[[], bool],
    ) -> None:
        self._client = client
        self._clock = clock
        self._leads = leads
        self._namespace = namespace
        self._name = service
        self._wanted = _slice(service, namespace, endpoint)
        self._written: dict[str, Any] | None = None

    async def run(self) -> None:
        """Keep the slice as desired until cancelled, once this replica leads."""
        try:
            while True:
                try:
                    await self._announce()
                    pause_s = _LOOK_EVERY_S
                except KubeError as error:
                    log.warning("leader_not_announced", slice=self._name, error=str(error))
                    pause_s = _RETRY_S
                await self._clock.sleep(pause_s)
        finally:
            await self._withdraw()

    async def _announce(self) -> None:
        try:
            found = await self._client.get_object(
                ENDPOINT_SLICES, self._name, namespace=self._namespace
            )
        except NotFound:
            await self._write(None)
            return
        if _says(found, self._wanted):
            self._written = found
            return
        if found["addressType"] != self._wanted["addressType"]:  # the address type is immutable
            await self._client.delete(ENDPOINT_SLICES, self._name, namespace=self._namespace)
            await self._write(None)
            return
        await self._write(found)

    async def _write(self, over: dict[str, Any] | None) -> None:
        # Checked last; and the resourceVersion that was read is a lock, so that a delayed write of
        # a replica that lost the lease cannot overwrite the next leader's.
        if not self._leads():
            return
        try:
            if over is None:
                self._written = await self._client.create(ENDPOINT_SLICES, self._wanted)
            else:
                metadata = over["metadata"]
                labels = {**(metadata.get("labels") or {}), **self._wanted["metadata"]["labels"]}
                body = {**self._wanted, "metadata": {**metadata, "labels": labels}}
                self._written = await self._client.replace(ENDPOINT_SLICES, body)
        except (Conflict, AlreadyExists):
            log.info("leader_announced_by_another", slice=self._name)
            return
        log.info("leader_announced", slice=self._name, endpoints=self._wanted["endpoints"])

    async def _withdraw(self) -> None:
        """Remove all endpoints, unless the slice changed since; takes at most 2 s, never raises."""
        written, self._written = self._written, None
        if written is None:
            return
        try:
            async with asyncio.timeout(_WITHDRAW_LIMIT_S):
                await self._client.replace(ENDPOINT_SLICES, {**written, "endpoints": []})
        except (KubeError, TimeoutError) as error:
            log.info("leader_not_withdrawn", slice=self._name, error=str(error))


def _slice(service: str, namespace: str, endpoint: Endpoint) -> dict[str, Any]:
    version = ipaddress.ip_address(endpoint.address).version
    ready = {"ready": True, "serving": True, "terminating": False}
    where: dict[str, Any] = {"addresses": [endpoint.address], "conditions": ready}
    if endpoint.node:
        where["nodeName"] = endpoint.node
    return {
        "metadata": {
            "name": service,
            "namespace": namespace,
            "labels": {**_LABELS, "kubernetes.io/service-name": service},
        },
        "addressType": f"IPv{version}",
        "endpoints": [where],
        "ports": [{"name": PORT_NAME, "port": endpoint.port, "protocol": "TCP"}],
    }


def _says(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    labels = found["metadata"].get("labels") or {}
    return labels.items() >= wanted["metadata"]["labels"].items() and all(
        found.get(key) == wanted[key] for key in ("addressType", "endpoints", "ports")
    )
