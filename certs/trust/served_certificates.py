"""Checks by TLS handshakes which certificates the replicas of a Service serve."""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import ENDPOINT_SLICES
from kube.objects import decode_object

log = structlog.get_logger()

_HANDSHAKE_LIMIT_S: Final = 3.0
_SERVICE_LABEL: Final = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Replica:
    """The address and port of one replica."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class ServedCertificates:
    """Finds the replicas of Services in EndpointSlices and checks their certificates."""

    def __init__(self, client: KubeClient, *, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def all_serve(self, services: Sequence[str], *, trusting: bytes) -> bool:
        """Report whether every replica of every service is trusted by a client of only *trusting*.

        False if a service has no replicas, or a replica cannot be reached.

        Args:
            services: names of Services.
            trusting: authorities, PEM.

        Raises:
            KubeError: the API server did not answer, or refused.
        """
        context = _trusting_only(trusting)
        for service in services:
            replicas = await self._replicas(service)
            if not replicas:
                log.debug("replicas_not_found", service=service)
                return False
            for replica in replicas:
                if not await _passes(replica, context):
                    log.debug("replica_not_renewed", service=service, replica=str(replica))
                    return False
        return True

    async def _replicas(self, service: str) -> list[Replica]:
        try:
            listed = await self._client.list(
                ENDPOINT_SLICES,
                namespace=self._namespace,
                label_selector=f"{_SERVICE_LABEL}={service}",
            )
        except NotFound:  # the API server does not serve EndpointSlices
            return []
        found = set()
        for raw in listed.items:
            body = decode_object(raw)
            # Not only ready ones: a replica that starts or ends may still receive calls.
            hosts = [
                host for endpoint in body.get("endpoints") or () for host in endpoint["addresses"]
            ]
            ports = [port["port"] for port in body.get("ports") or () if port.get("port")]
            found |= {Replica(host=host, port=port) for host in hosts for port in ports}
        return sorted(found)


def _trusting_only(authorities_pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A replica is called at its pod's address, which is not in the certificate.
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authorities_pem.decode("ascii"))
    return context


async def _passes(replica: Replica, context: ssl.SSLContext) -> bool:
    # A server that requests a client certificate sends its own first, and in TLS 1.3 our side
    # of the handshake completes before the server notices that ours is missing.
    try:
        async with asyncio.timeout(_HANDSHAKE_LIMIT_S):
            _, writer = await asyncio.open_connection(replica.host, replica.port, ssl=context)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except (OSError, TimeoutError):  # ssl.SSLError is an OSError
        return False
    return True
