"""The extender's certificate: read from its Secret through the API, and replaced while serving."""

from collections.abc import Awaitable, Callable, Mapping

import structlog

from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import SECRETS
from process.tls import ServingTls, TlsError, read_secret

log = structlog.get_logger()


class SecretCertificate:
    """Keeps the server's TLS at what one Secret holds.

    A Secret that is gone or spoilt changes nothing: the old certificate serves on.
    """

    def __init__(self, client: KubeClient, tls: ServingTls, *, namespace: str, secret: str) -> None:
        self._tls = tls
        self._where = f"{namespace}/{secret}"
        self._problem = f"there is no Secret {self._where} yet"
        self._informer = Informer(
            client,
            SECRETS,
            decode=read_secret,
            namespace=namespace,
            field_selector=f"metadata.name={secret}",
            on_change=self.take,
        )

    @property
    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """The loop that keeps this current."""
        return {"certificate": self._informer.run}

    def problem(self) -> str | None:
        """Say why there is no certificate to serve, or None."""
        return None if self._tls.loaded else self._problem

    def take(self, change: Change[dict[str, bytes]]) -> None:
        """Serve what the Secret holds now."""
        if change.type is ChangeType.DELETED:
            log.warning("certificate_secret_deleted", secret=self._where)
            return
        try:
            replaced = self._tls.apply_secret(change.object)
        except TlsError as error:
            self._problem = f"Secret {self._where}: {error}"
            log.warning("certificate_refused", secret=self._where, error=str(error))
            return
        if replaced:
            log.info("certificate_replaced", secret=self._where)
