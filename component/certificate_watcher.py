"""The serving certificate: read from its Secret through the API, and replaced while serving."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, Final

import structlog

from component.certificate_expiry import not_after
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import SECRETS
from process.handshake import why_refused
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY, ServingTls, TlsError, read_secret
from webhook.metrics import WebhookMetrics
from webhook.seal_keys import SealKeys

log = structlog.get_logger()

_LOOK_AGAIN_S: Final = 60.0  # kubelet takes about as long to renew a mounted file


class SecretCertificate:
    """Keeps a server's TLS at what one Secret holds.

    A Secret that is gone or spoilt changes nothing: the old certificate serves on, and the log and
    the metrics say so.

    Args:
        client: where the Secret is.
        tls: of the server.
        metrics: where certificates are counted.
        namespace: of the Secret.
        secret: its name.
        service_name: DNS name by which the API server calls; empty does not compare names.
        now: the time.
    """

    def __init__(  # noqa: PLR0913 - one keyword per independent fact
        self,
        client: KubeClient,
        tls: ServingTls,
        metrics: WebhookMetrics,
        *,
        namespace: str,
        secret: str,
        service_name: str,
        now: Callable[[], datetime],
    ) -> None:
        self._tls = tls
        self._now = now
        self._metrics = metrics
        self._last: Change[Mapping[str, bytes]] | None = None
        self._where = f"{namespace}/{secret}"
        self._problem = f"there is no Secret {self._where} yet"
        self._seal_keys = SealKeys()
        self._service_name = service_name
        self._trusted_pem, self._partial = b"", False
        self._informer = Informer(
            client,
            SECRETS,
            decode=read_secret,
            namespace=namespace,
            field_selector=f"metadata.name={secret}",
            on_change=self._take,
        )

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that keep this current."""
        return {"follow_certificate": self._informer.run, "follow_client_ca": self._look_again}

    async def _look_again(self) -> None:
        """Take the same Secret once more: the file of the clients' authority may be another now."""
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            if self._last is not None and self._tls.loaded:
                self._take(self._last)

    def problem(self) -> str | None:
        """Say why there is no certificate that the API server would take, or None.

        What can be known here: the dates, by this machine's clock, the names, the purpose, and the
        signature by an authority that the Secret names (``ca.crt``). Whether the configurations'
        ``caBundle`` has that authority is not: they are the certificates role's to keep true.
        """
        if not self._tls.loaded:
            return self._problem
        why = why_refused(
            self._tls.context,
            name=self._service_name,
            trusted_pem=self._trusted_pem,
            partial=self._partial,
        )
        if not why:
            return None
        called = f" at {self._service_name}" if self._service_name else ""
        return f"Secret {self._where}: the API server would refuse the certificate{called}: {why}"

    def seal_keys(self, now: datetime) -> tuple[bytes, ...]:
        """Give secrets that only the replicas share, made of the private keys that they serve.

        The first one seals at *now*; those of certificates just before or after it follow.
        """
        return self._seal_keys.at(now)

    def _take(self, change: Change[Mapping[str, bytes]]) -> None:
        if change.type is ChangeType.DELETED:
            log.warning("certificate_secret_deleted", secret=self._where)
            return
        self._last = change
        try:
            replaced = self._tls.apply_secret(change.object)
        except TlsError as error:
            self._problem = f"Secret {self._where}: {error}"
            self._metrics.certificate(taken=False)
            log.warning("certificate_refused", secret=self._where, error=str(error))
            return
        if replaced:
            self._metrics.certificate(taken=True)
            key = _seal_key(change.object[PRIVATE_KEY_KEY])
            self._seal_keys.learn(key, now=self._now())
            ca_pem = change.object.get(CA_KEY, b"")
            self._trusted_pem, self._partial = ca_pem or change.object[CERT_KEY], not ca_pem
            self._watch_expiry(change.object[CERT_KEY])
            log.info("certificate_replaced", secret=self._where)

    def _watch_expiry(self, cert_pem: bytes) -> None:
        try:
            ends = not_after(cert_pem)
        except ValueError as error:
            # OpenSSL took it, so it serves; only the metric is blind.
            log.warning("certificate_end_unknown", secret=self._where, error=str(error))
            return

        def left_s() -> float:
            return (ends - self._now()).total_seconds()

        self._metrics.watch_expiry(left_s)


def _seal_key(private_key_pem: bytes) -> bytes:
    # The key itself signs handshakes; what is derived from it can tell nothing about it.
    return hmac.new(private_key_pem, b"fracgpu.io/granted", hashlib.sha256).digest()
