"""Reads and writes the Secrets of certificates.

Writes use the resourceVersion as an optimistic lock, so that concurrent writers agree on one
content. Stored data may be unusable, so every reader validates it.
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
    """A Secret as it was read; the repr omits its data."""

    name: str
    data: Mapping[str, bytes] = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)


class CertStore:
    """The Secrets of one namespace."""

    def __init__(self, client: SecretClient, *, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def read(self, name: str) -> StoredSecret | None:
        """Return a Secret, or None if it does not exist. Values that are not base64 are omitted.

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
        """Store *data* unless the Secret changed since *over* was read; report whether it did.

        False means that another writer was faster: read the Secret and decide again. Labels and
        other values of the Secret are kept.

        Raises:
            KubeError: the API server did not answer, or refused.
        """
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if over is None:
            return await self._create(name, encoded)
        kept = over.body.get("data") or {}
        try:
            # The object still has the resourceVersion that was read, which is the lock.
            await self._client.replace(SECRETS, {**over.body, "data": {**kept, **encoded}})
        except (Conflict, NotFound):  # changed or deleted since it was read
            return False
        return True

    async def _create(self, name: str, encoded: Mapping[str, str]) -> bool:
        labels = {"app.kubernetes.io/part-of": "fracgpu"}  # goes when FracGPU is uninstalled
        metadata = {"name": name, "namespace": self._namespace, "labels": labels}
        body = {"metadata": metadata, "type": _TLS_TYPE, "data": encoded}
        try:
            await self._client.create(SECRETS, body, namespace=self._namespace)
        except AlreadyExists:
            return False
        return True


log = structlog.get_logger()

ROTATE_KEY: Final = "fracgpu.io/rotate"
"""Annotation of a Secret: the fingerprint of the certificate to be renewed.

It requests exactly one renewal, however often it is read: the new certificate has another
fingerprint.
"""


def stored_pair(stored: StoredSecret | None) -> tuple[Pair | None, CertificateInfo | None]:
    """Return certificate and key; both None if they are missing or do not belong together."""
    if stored is None or not stored.data.get(CERT_KEY):
        return None, None
    pair = Pair(cert_pem=stored.data[CERT_KEY], key_pem=stored.data.get(PRIVATE_KEY_KEY, b""))
    try:
        return pair, read_pair(pair)
    except AuthorityError as error:
        log.warning("secret_unusable", secret=stored.name, reason=str(error))
        return None, None


def stored_bundle(stored: StoredSecret | None) -> list[tuple[bytes, CertificateInfo]]:
    """Return each authority of the bundle; empty if it is missing or invalid."""
    return read_bundle(stored.data.get(CA_KEY, b"") if stored is not None else b"")


def read_bundle(bundle_pem: bytes) -> list[tuple[bytes, CertificateInfo]]:
    """Return each authority of a bundle; empty if it is invalid."""
    try:
        return [(pem, read(pem)) for pem in split(bundle_pem)]
    except AuthorityError as error:
        log.warning("bundle_unusable", reason=str(error))
        return []


def asked_for(stored: StoredSecret | None, info: CertificateInfo | None) -> bool:
    """Report whether a rotation of this very certificate was requested."""
    if stored is None or info is None:
        return False
    annotations = stored.body.get("metadata", {}).get("annotations") or {}
    return bool(annotations.get(ROTATE_KEY) == info.fingerprint)
