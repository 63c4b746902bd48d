"""Reads the credentials for Prometheus from files, anew for each query, because they are rotated.

A Secret that is mounted as a folder has one file for each of its keys. The keys that are understood
are those of the Secret types of Kubernetes, ``token``, and ``headers``:

============================ ======================================================================
``token``                    sent as ``Authorization: Bearer``
``username``, ``password``   sent as ``Authorization: Basic``
``headers``                  more headers, ``Name: value`` a line, such as Mimir's X-Scope-OrgID
``ca.crt``                   the authorities that may have signed the server's certificate
``tls.crt``, ``tls.key``     the client's certificate and its key
============================ ======================================================================
"""

import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from fracgpu.spelling import unknown_keys
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY, private_file

DIR_FLAG: Final = "--prometheus-credentials-dir"
TOKEN_FLAG: Final = "--prometheus-token-file"  # noqa: S105 - the name of a flag
CA_FLAG: Final = "--prometheus-ca-file"

_TOKEN: Final = "token"  # noqa: S105 - the name of a key
_USERNAME: Final = "username"
_PASSWORD: Final = "password"  # noqa: S105 - the name of a key
_HEADERS: Final = "headers"
_KEYS: Final = (_TOKEN, _USERNAME, _PASSWORD, _HEADERS, CA_KEY, CERT_KEY, PRIVATE_KEY_KEY)

_MOST_BYTES: Final = 1024 * 1024  # a Secret holds no more
_MOST_HEADERS: Final = 20
_SHORTEST_SECRET: Final = 4  # a shorter one would be masked in words where it is none

# https://www.rfc-editor.org/rfc/rfc9110#name-field-names and the section after it
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([!-~]+(?:[ \t]+[!-~]+)*)")
_WORD: Final = re.compile(r"[!-~]+")
_NOT_FREE: Final = {
    "authorization": "the file token, or the files username and password",
    "host": "it in --prometheus-url",
    "connection": "it left to FracGPU",
    "content-length": "it left to FracGPU",
    "transfer-encoding": "it left to FracGPU",
    "accept-encoding": "it left to FracGPU",
}


class CredentialsUnusable(Exception):  # noqa: N818 - says what they are
    """Credentials are missing or invalid; the message names the flag and the file, no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialFiles:
    """Where the credentials are.

    Attributes:
        folder: a mounted Secret; one without keys, as of a Secret that does not exist, is none.
        token_file: a bearer token elsewhere, such as a service account's.
        ca_file: authorities elsewhere.
    """

    folder: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The contents of the files at one time; no secret is in their ``repr``.

    Attributes:
        headers: what is sent with each query.
        ca_pem: the authorities to trust instead of the public ones; empty if there are none.
        client_pem: the client's certificate, then its key; empty if there is none.
        presented: what is presented and where it is from, for error messages.
        trusted: which authorities are trusted, for error messages.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_pem: bytes = b""
    client_pem: bytes = field(default=b"", repr=False)
    presented: str = "no credentials"
    trusted: str = "the public authorities"
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def masked(self, text: str) -> str:
        """Return *text* without the secrets: a server may repeat in its error what it was sent."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def read_credentials(files: CredentialFiles) -> Credentials:
    """Return what the files hold now.

    Raises:
        CredentialsUnusable: a file is missing, unreadable or invalid, or two contradict each other.
    """
    found = _read_folder(files.folder) if files.folder else {}
    where = f"{DIR_FLAG} {files.folder}"
    token, its_place = _one_of(found.get(_TOKEN), where, TOKEN_FLAG, files.token_file)
    presented = f"the token of {its_place}" if token is not None else ""
    headers, secrets = _headers(found.get(_HEADERS, b""), where=where)
    basic = _basic(found, where=where)
    if basic and token is not None:
        raise CredentialsUnusable(f"{where} has a password besides {presented}; want one of them")
    if token is not None:
        word = _word(token, what=presented)
        headers["Authorization"] = f"Bearer {word}"
        secrets.add(word)
    elif basic:
        username, password = basic
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
        secrets |= {password, pair}
        presented = f"the username and password of {where}"
    pair_pem = _both(found, CERT_KEY, PRIVATE_KEY_KEY, where=where)
    client_pem = b"\n".join(pair_pem or ())
    ca_pem, its_place = _one_of(found.get(CA_KEY), f"{CA_KEY} in {where}", CA_FLAG, files.ca_file)
    trusted = "the public authorities" if ca_pem is None else f"the authorities of {its_place}"
    parts = [presented, f"the client certificate of {where}" if client_pem else ""]
    return Credentials(
        headers=headers,
        ca_pem=b"" if ca_pem is None else ca_pem or b"\n",  # an empty file trusts nobody
        client_pem=client_pem,
        presented=" and ".join(part for part in parts if part) or "no credentials",
        trusted=trusted,
        secrets=frozenset(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET),
    )


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """Return a context for connections to Prometheus, TLS 1.2 or newer.

    Raises:
        CredentialsUnusable: OpenSSL cannot use a certificate or key.
    """
    try:
        if credentials.ca_pem:
            context = ssl.create_default_context(cadata=credentials.ca_pem.decode("ascii"))
        else:
            context = ssl.create_default_context(cafile=DEFAULT_CA_BUNDLE_PATH)
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsUnusable(
            f"{credentials.trusted}: {error}; want certificates in PEM"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if credentials.client_pem:
        try:
            with private_file(credentials.client_pem) as path:
                context.load_cert_chain(path, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsUnusable(
                f"{credentials.presented}: {CERT_KEY} and {PRIVATE_KEY_KEY} cannot be used: {error}"
            ) from error
    return context


def _read_folder(folder: Path) -> dict[str, bytes]:
    """Return the files of a mounted Secret, all of one version of it."""
    # kubelet writes each version into a folder of its own, and then exchanges the link ..data:
    # k8s.io/kubernetes pkg/volume/util/atomic_writer.go
    link = folder / "..data"
    try:
        try:
            found = _read_all(link.resolve() if link.is_symlink() else folder)
        except FileNotFoundError:
            if not link.is_symlink():
                raise
            found = _read_all(link.resolve())  # exchanged while it was read
    except OSError as error:
        why = error.strerror or str(error)
        raise CredentialsUnusable(f"{DIR_FLAG} {folder} cannot be read: {why}") from error
    mistakes = unknown_keys(found, _KEYS)
    if mistakes:
        raise CredentialsUnusable(
            f"{DIR_FLAG} {folder}: {'; '.join(mistakes)}; want {', '.join(_KEYS)}"
        )
    return found


def _read_all(folder: Path) -> dict[str, bytes]:
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".."))
    return {name: _bounded(folder / name) for name in names[: len(_KEYS) + 1]}


def _one_of(
    content: bytes | None, place: str, flag: str, file: Path | None
) -> tuple[bytes | None, str]:
    """Return what a key of the Secret holds or, instead of it, a file of its own; and its place."""
    if file is None:
        return content, place
    if content is not None:
        raise CredentialsUnusable(f"{flag} is set and {place} has it too; want one")
    try:
        return _bounded(file), f"{flag} {file}"
    except OSError as error:
        why = error.strerror or error
        raise CredentialsUnusable(f"{flag} {file} cannot be read: {why}") from error


def _both(
    found: Mapping[str, bytes], first: str, second: str, *, where: str
) -> tuple[bytes, bytes] | None:
    """Return what two keys hold that go together; None without either."""
    if first not in found and second not in found:
        return None
    for key, other in ((first, second), (second, first)):
        if key not in found:
            raise CredentialsUnusable(f"{where} has {other} and no {key}; want both")
    return found[first], found[second]


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(f"{path.name} has more than {_MOST_BYTES} bytes")
    return content


def _basic(found: Mapping[str, bytes], *, where: str) -> tuple[str, str] | None:
    pair = _both(found, _USERNAME, _PASSWORD, where=where)
    if pair is None:
        return None
    username = _line(pair[0], what=f"{_USERNAME} in {where}")
    if ":" in username:
        raise CredentialsUnusable(f"{_USERNAME} in {where} has a colon, which ends it; want none")
    return username, _line(pair[1], what=f"{_PASSWORD} in {where}")


def _headers(content: bytes, *, where: str) -> tuple[dict[str, str], set[str]]:
    """Return the headers of the file, and their values."""
    what = f"{_HEADERS} in {where}"
    try:
        lines = [line.strip() for line in content.decode("ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise CredentialsUnusable(f"{what} is not ASCII; want Name: value a line") from error
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        parts = _HEADER.fullmatch(line)
        if parts is None:  # the line may be a secret, so it is not repeated
            raise CredentialsUnusable(f"line {number} of {what} is no header; want Name: value")
        name, value = parts.groups()
        if name.lower() in _NOT_FREE:
            raise CredentialsUnusable(f"{what} has {name}; want {_NOT_FREE[name.lower()]}")
        headers[name] = value
    if len(headers) > _MOST_HEADERS:
        raise CredentialsUnusable(
            f"{what} has {len(headers)} headers; want {_MOST_HEADERS} at most"
        )
    return headers, set(headers.values())


def _word(content: bytes, *, what: str) -> str:
    text = _line(content, what=what)
    if not _WORD.fullmatch(text):
        raise CredentialsUnusable(f"{what} has spaces or characters other than ASCII; want neither")
    return text


def _line(content: bytes, *, what: str) -> str:
    """Return the only line of a file, without the line break that editors add."""
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CredentialsUnusable(f"{what} is not UTF-8") from error
    if not text or not text.isprintable():
        state = "has control characters" if text else "is empty"
        raise CredentialsUnusable(f"{what} {state}; want one line of text")
    return text


def _no_password() -> str:
    raise ValueError("the private key is encrypted; want one without a password")
