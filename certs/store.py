"""Secrets with certificates: written with an optimistic lock, read with doubt.

Several writers agree on one content by the lock. What is stored may be nothing usable.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from certs.authority import AuthorityError, CertificateInfo, Pair, read, read_pair, split
from kube.errors import AlreadyExists, Conflict, NotFound
from kube.kinds import SECRETS, Kind
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY, secret_values

_TLS_TYPE: Final = "kubernetes.io/tls"


class SecretClient(Protocol):
    """What the store needs of ``kube.client.KubeClient``."""

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]: ...

    async def create(
        self, kind: Kind, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]: ...

    async def replace(self, kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSecret:
    """A Secret as it was read; what it holds never shows in a repr."""

    name: str
    data: Mapping[str, bytes] = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)


class CertStore:
    """The Secrets of one namespace."""

    def __init__(self, client: SecretClient, *, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def read(self, name: str) -> StoredSecret | None:
        """Read a Secret; None when there is none. Values that are not base64 are left out.

        Raises:
            KubeError: the API server did not answer, or refused.
        """
        try:
            body = await self._client.get_object(SECRETS, name, namespace=self._namespace)
        except NotFound:
            return None
        return StoredSecret(name=name, data=secret_values(body.get("data")), body=body)

    async def write(
        self, name: str, data: Mapping[str, bytes], *, over: StoredSecret | None
    ) -> bool:
        """Store *data*, if nobody wrote since *over* was read; tell whether we did.

        False means that somebody else was faster: read theirs and decide again. Labels and other
        values of the Secret stay as they are.

        Raises:
            KubeError: the API server did not answer, or refused.
        """
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if over is None:
            return await self._create(name, encoded)
        kept = over.body.get("data") or {}
        try:
            # The resourceVersion that was read is still inside: it is the lock.
            await self._client.replace(SECRETS, {**over.body, "data": {**kept, **encoded}})
        except (Conflict, NotFound):  # written or deleted since it was read
            return False
        return True

    async def _create(self, name: str, encoded: Mapping[str, str]) -> bool:
        metadata = {"name": name, "namespace": self._namespace}
        body = {"metadata": metadata, "type": _TLS_TYPE, "data": encoded}
        try:
            await self._client.create(SECRETS, body, namespace=self._namespace)
        except AlreadyExists:
            return False
        return True


log = structlog.get_logger()

ROTATE_KEY: Final = "fracgpu.io/rotate"
"""Annotation of a Secret: the fingerprint of the certificate that shall be made anew.

It asks for one renewal and no more, whoever reads it how often: the new one has another.
"""


def stored_pair(stored: StoredSecret | None) -> tuple[Pair | None, CertificateInfo | None]:
    """Read certificate and key; both None when they are missing or do not belong together."""
    if stored is None or not stored.data.get(CERT_KEY):
        return None, None
    pair = Pair(cert_pem=stored.data[CERT_KEY], key_pem=stored.data.get(PRIVATE_KEY_KEY, b""))
    try:
        return pair, read_pair(pair)
    except AuthorityError as error:
        log.warning("secret_unusable", secret=stored.name, reason=str(error))
        return None, None


def stored_bundle(stored: StoredSecret | None) -> list[tuple[bytes, CertificateInfo]]:
    """Read each authority of the bundle; nothing when there is none or it is no bundle."""
    return read_bundle(stored.data.get(CA_KEY, b"") if stored is not None else b"")


def read_bundle(bundle_pem: bytes) -> list[tuple[bytes, CertificateInfo]]:
    """Read each authority of a bundle; nothing when it is no bundle."""
    try:
        return [(pem, read(pem)) for pem in split(bundle_pem)]
    except AuthorityError as error:
        log.warning("bundle_unusable", reason=str(error))
        return []


def asked_for(stored: StoredSecret | None, facts: CertificateInfo | None) -> bool:
    """Tell whether somebody asked to replace just this certificate."""
    if stored is None or facts is None:
        return False
    annotations = stored.body.get("metadata", {}).get("annotations") or {}
    return bool(annotations.get(ROTATE_KEY) == facts.fingerprint)
