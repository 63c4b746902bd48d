"""A server's TLS context whose certificate can be replaced while connections are open."""

import base64
import hashlib
import json
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CERT_KEY: Final = "tls.crt"
PRIVATE_KEY_KEY: Final = "tls.key"
CA_KEY: Final = "ca.crt"
"""The keys of a Secret of type kubernetes.io/tls, and of files mounted from one."""


class TlsError(Exception):
    """A certificate, key or CA bundle that cannot be served."""


class ServingTls:
    """One SSL context for a server's whole lifetime, TLS 1.2 or newer.

    Each handshake takes the newest certificate; connections already open keep theirs, so a
    renewal drops nothing. Before the first ``replace`` every handshake fails.
    """

    def __init__(
        self,
        *,
        require_client_certificate: bool = False,
        client_ca_file: str = "",
        alpn: Sequence[str] = (),
    ) -> None:
        """Create the context, without a certificate yet.

        Args:
            require_client_certificate: whether clients must present one.
            client_ca_file: the CA that signs client certificates, a PEM file that may change; if it
                is set, a certificate is required. Without it the CA comes from ``replace`` and
                ``apply_secret``.
            alpn: names of the protocols that clients may choose from, the preferred one first.
        """
        self._alpn = tuple(alpn)
        self._client_ca_file = Path(client_ca_file) if client_ca_file else None
        self._require_client = require_client_certificate or bool(client_ca_file)
        self._current: ssl.SSLContext | None = None
        self._fingerprint: bytes | None = None
        self.context: Final = self._new_context()
        # Called in every handshake, with or without SNI, before a certificate is chosen.
        self.context.sni_callback = self._use_newest

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate to serve."""
        return self._current is not None

    def replace(
        self, *, cert_pem: bytes, key_pem: bytes, client_ca_pem: bytes | None = None
    ) -> bool:
        """Serve this certificate from the next handshake on; return whether it is a new one.

        The private key is never in a file that another user could open, nor in one that remains.

        Raises:
            TlsError: the parts are unreadable or do not match; the old ones stay in use.
        """
        fingerprint = hashlib.sha256(b"\0".join((cert_pem, key_pem, client_ca_pem or b""))).digest()
        if fingerprint == self._fingerprint:
            return False
        if self._require_client and client_ca_pem is None:
            raise TlsError("client certificates are required, but there is no CA to check them")
        context = self._new_context()
        try:
            with private_file(cert_pem + b"\n" + key_pem) as path:
                context.load_cert_chain(path, password=_no_password)
            if client_ca_pem is not None:
                context.load_verify_locations(cadata=client_ca_pem.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(f"certificate and key cannot be served: {error}") from error
        self._current, self._fingerprint = context, fingerprint
        return True

    def apply_secret(self, data: Mapping[str, bytes]) -> bool:
        """Serve the certificate of a Secret of type kubernetes.io/tls; return whether it is new.

        *data* has the decoded bytes of ``tls.crt`` and ``tls.key`` (and of ``ca.crt``, which
        verifies client certificates where they are required).

        Raises:
            TlsError: a part is missing or unusable; the old certificate stays in use.
        """
        missing = [key for key in (CERT_KEY, PRIVATE_KEY_KEY) if not data.get(key)]
        if missing:
            raise TlsError(f"the Secret has no {' and no '.join(missing)}")
        return self.replace(
            cert_pem=data[CERT_KEY],
            key_pem=data[PRIVATE_KEY_KEY],
            client_ca_pem=self._client_ca(data),
        )

    def _client_ca(self, data: Mapping[str, bytes]) -> bytes | None:
        if self._client_ca_file is not None:
            try:
                return self._client_ca_file.read_bytes()
            except OSError as error:
                raise TlsError(f"the CA of client certificates cannot be read: {error}") from error
        return data.get(CA_KEY) if self._require_client else None

    def _use_newest(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        if self._require_client and connection.session_reused:
            # TLS 1.2 resumes by session ID too, which the ssl module cannot switch off; the client
            # comes again with a whole handshake.
            return ssl.AlertDescription.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
        if self._current is not None:
            connection.context = self._current
        return None

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._alpn:
            context.set_alpn_protocols(list(self._alpn))
        if self._require_client:
            context.verify_mode = ssl.CERT_REQUIRED
            # A resumed session skips the client's certificate, so a removed CA would stay trusted.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


def read_secret(raw: bytes) -> dict[str, bytes]:
    """Decode the ``data`` of a Secret's JSON; fits an informer's ``decode``.

    Raises:
        ValueError: *raw* is not a JSON object.
    """
    secret = json.loads(raw)
    if not isinstance(secret, dict):
        raise ValueError("want the JSON object of a Secret")  # noqa: TRY004 - what informers catch
    return secret_values(secret.get("data"))


def secret_values(data: object) -> dict[str, bytes]:
    """Decode the values of a Secret's ``data``.

    A value that is not base64 is omitted; its reader reports it as missing.
    """
    values: dict[str, bytes] = {}
    for key, text in data.items() if isinstance(data, dict) else ():
        try:
            values[str(key)] = base64.b64decode(text, validate=True)
        except (TypeError, ValueError):
            continue
    return values


@contextmanager
def private_file(content: bytes, *, folder: Path | None = None) -> Iterator[str]:
    """Yield the path of a temporary file with *content* that only this user can read.

    OpenSSL takes a key only from a file. Where the system supports it, the file is in memory, so
    that a read-only root file system suffices and the key is never on a disk. Elsewhere, or if a
    *folder* is given, it is a file of mode 0600.
    """
    if folder is None and hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("fracgpu-tls"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile(prefix="fracgpu-tls-", dir=folder, buffering=0) as named:
        named.write(content)
        yield named.name


def _no_password() -> str:
    raise ValueError("the private key is encrypted; want one without a password")
