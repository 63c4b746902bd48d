"""Watches the Secret of a serving certificate, and replaces the certificate while serving."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import structlog

from component.certificate_expiry import not_after
from component.metrics import CertificateMetrics
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import SECRETS
from process.handshake import why_refused
from process.tls import CA_KEY, CERT_KEY, ServingTls, TlsError, read_secret

log = structlog.get_logger()

_LOOK_AGAIN_S: Final = 60.0  # kubelet takes about as long to update a mounted Secret


class CertificateWatcher:
    """Keeps a server's certificate equal to the one in a Secret.

    While the Secret is missing or invalid, the last certificate keeps serving, with a warning in
    the log.

    Args:
        client: reads the Secret.
        tls: of the server.
        metrics: count what was read, and show when the served certificate expires.
        namespace: of the Secret.
        secret: its name.
        service_name: DNS name by which the API server calls; empty skips the comparison of names,
            and None the entire check whether the API server would accept the certificate.
        on_taken: called with the Secret's data when another certificate is served.
    """

    def __init__(  # noqa: PLR0913 - one keyword per independent fact
        self,
        client: KubeClient,
        tls: ServingTls,
        *,
        metrics: CertificateMetrics,
        namespace: str,
        secret: str,
        service_name: str | None = None,
        on_taken: Callable[[Mapping[str, bytes]], None] | None = None,
    ) -> None:
        self._tls = tls
        self._on_taken = on_taken
        self._metrics = metrics
        self._last: Change[Mapping[str, bytes]] | None = None
        self._where = f"{namespace}/{secret}"
        self._problem = f"there is no Secret {self._where} yet"
        self._service_name = service_name
        self._trusted_pem, self._partial = b"", False
        self._informer = Informer(
            client,
            SECRETS,
            decode=read_secret,
            namespace=namespace,
            field_selector=f"metadata.name={secret}",
            on_change=self.take,
        )

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that keep the certificate current."""
        return {"follow_certificate": self._informer.run, "follow_client_ca": self._look_again}

    async def _look_again(self) -> None:
        """Apply the same Secret again every minute: the clients' CA file may have changed."""
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            if self._last is not None and self._tls.loaded:
                self.take(self._last)

    def problem(self) -> str | None:
        """Return why the API server would not accept the certificate, or None.

        Checks the dates by this machine's clock, the names, the purpose, and the signature by the
        authority in the Secret (``ca.crt``). It does not check whether the ``caBundle`` of the
        webhook configurations has that authority: the certs role keeps them current.
        """
        if not self._tls.loaded:
            return self._informer.problem or self._problem
        if self._service_name is None:
            return None
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

    def take(self, change: Change[Mapping[str, bytes]]) -> None:
        """Serve the certificate that the Secret holds now."""
        if change.type is ChangeType.DELETED:
            log.warning("certificate_secret_deleted", secret=self._where)
            return
        self._last = change
        try:
            replaced = self._tls.apply_secret(change.object)
        except TlsError as error:
            self._problem = f"Secret {self._where}: {error}"
            self._metrics.refused()
            log.warning("certificate_refused", secret=self._where, error=str(error))
            return
        if replaced:
            self._metrics.taken()
            if self._on_taken is not None:
                self._on_taken(change.object)
            ca_pem = change.object.get(CA_KEY, b"")
            self._trusted_pem, self._partial = ca_pem or change.object[CERT_KEY], not ca_pem
            self._report_expiry(change.object[CERT_KEY])
            log.info("certificate_replaced", secret=self._where)

    def _report_expiry(self, cert_pem: bytes) -> None:
        try:
            ends = not_after(cert_pem)
        except ValueError as error:
            # OpenSSL accepted the certificate, so it serves; only its expiry is not reported.
            log.warning("certificate_end_unknown", secret=self._where, error=str(error))
            return
        self._metrics.expires(ends)
