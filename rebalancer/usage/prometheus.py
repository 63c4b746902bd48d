"""Queries Prometheus, limited in time and size.

Anything but a complete answer without warnings is :class:`QueryFailed`, with the kind of error.
Thanos, Mimir and VictoriaMetrics answer the same API, and are asked not to leave anything out.
"""

import asyncio
import json
import math
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import structlog

from rebalancer.usage.credentials import (
    DIR_FLAG,
    CredentialFiles,
    Credentials,
    CredentialsUnusable,
    read_credentials,
    tls_context,
)

log = structlog.get_logger()

_T = TypeVar("_T")

_ERROR_CHARS: Final = 300
_VECTOR_PARTS: Final = 2
_CHUNK: Final = 65536
_OK: Final = 200
_DENIED: Final = (401, 403)
_REDIRECTS: Final = (301, 302, 303, 307, 308)
# A Thanos Querier merges the series of replicas, and fails instead of leaving a store out
# (https://thanos.io/tip/components/query.md); so does a vmselect of VictoriaMetrics
# (https://docs.victoriametrics.com/victoriametrics/cluster-victoriametrics/#cluster-availability).
# Other servers ignore parameters that they do not know.
_COMPLETE: Final = {"dedup": "true", "partial_response": "false", "deny_partial_response": "1"}


class QueryError(Enum):
    """Why a query failed; also a metric label."""

    UNREACHABLE = "unreachable"
    SLOW = "slow"
    REFUSED = "refused"  # an HTTP status other than 200
    CREDENTIALS = "credentials"  # what it wants to see of us cannot be read from its files
    UNAUTHORIZED = "unauthorized"  # HTTP 401 or 403
    TLS = "tls"  # no connection: a certificate was not accepted, on either side
    PARTIAL = "partial"  # answered with warnings: some data is missing
    GARBLED = "garbled"  # not as the API specifies
    FROZEN = "frozen"  # its clock stands still: a cache answered, or it repeats itself
    TOO_LARGE = "too_large"


class QueryFailed(Exception):  # noqa: N818 - says what happened
    """Prometheus gave no answer that can be used."""

    def __init__(self, trouble: QueryError, detail: str) -> None:
        super().__init__(f"{trouble.value}: {detail[:_ERROR_CHARS]}")
        self.trouble = trouble


# https://prometheus.io/docs/prometheus/latest/querying/api/#expression-query-result-formats
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of an instant vector; *value* may be NaN or infinite."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of a matrix: pairs of Unix time and value, oldest first."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """A client of one Prometheus, or of a server with the same API.

    Redirects are not followed, so no credentials reach another host, and no proxy of the
    environment is used: Prometheus is in the cluster.

    Args:
        url: its base address, with a path prefix if it has one.
        limit_s: longest wait for one answer.
        limit_bytes: largest answer that is read.
        credentials: read before each query, because they are rotated.
        server_name: the name that the server's certificate must have; empty for that of *url*.
    """

    def __init__(
        self,
        url: str,
        *,
        limit_s: float,
        limit_bytes: int,
        credentials: CredentialFiles | None = None,
        server_name: str = "",
    ) -> None:
        self._url = url.rstrip("/")
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes
        self._files = credentials or CredentialFiles()
        self._server_name = server_name
        self._in_use: Credentials | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        """Return an instant vector (a scalar is one sample without labels).

        Args:
            query: PromQL.
            at_s: Unix time to evaluate at; None means the server's current time.

        Raises:
            QueryFailed: there is none that can be used.
        """
        at = {} if at_s is None else {"time": f"{at_s:.3f}"}
        return await self._ask("query", {"query": query, **at}, samples_in)

    async def query_range(
        self, query: str, *, start_s: float, end_s: float, step_s: float
    ) -> tuple[Series, ...]:
        """Return the values of a query at every *step_s* from *start_s* to *end_s*.

        Raises:
            QueryFailed: there is no answer that can be used.
        """
        span = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return await self._ask("query_range", {"query": query, **span}, series_in)

    async def _ask(self, path: str, params: Mapping[str, str], decode: Callable[[Any], _T]) -> _T:
        session, credentials = await self._opened()
        with _troubles(credentials):
            async with (
                asyncio.timeout(self._limit_s),
                session.get(
                    f"{self._url}/api/v1/{path}",
                    params={**params, **_COMPLETE},
                    headers=credentials.headers,
                    allow_redirects=False,
                    server_hostname=self._server_name or None,
                ) as response,
            ):
                body = bytearray()
                async for chunk in response.content.iter_chunked(_CHUNK):
                    body += chunk
                    if len(body) > self._limit_bytes:
                        raise _DisputedError(
                            QueryError.TOO_LARGE, f"more than {self._limit_bytes} bytes"
                        )
                _check_status(response, bytes(body))
            # Of a thousand cards the answers are long: in a thread they delay no lease.
            return await asyncio.to_thread(lambda: decode(_result_in(bytes(body))))

    async def _opened(self) -> tuple[aiohttp.ClientSession, Credentials]:
        """Return a session with the credentials that are in the files now."""
        try:
            credentials = read_credentials(self._files)
            if self._session is not None and credentials == self._in_use:
                return self._session, credentials
            return await self._open(credentials), credentials
        except CredentialsUnusable as error:
            raise QueryFailed(QueryError.CREDENTIALS, str(error)) from error

    async def _open(self, credentials: Credentials) -> aiohttp.ClientSession:
        """Use these credentials from the next query on, on new connections."""
        encrypted = self._url.startswith("https:")
        context = tls_context(credentials) if encrypted else True
        if self._session is not None:
            await self._session.close()
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))
        self._session, self._in_use = session, credentials
        if credentials.headers and not encrypted:
            log.warning("credentials_sent_unencrypted", presented=credentials.presented)
        log.info(
            "prometheus_credentials_read",
            presented=credentials.presented,
            trusted=credentials.trusted,
        )
        return session


@contextmanager
def _troubles(credentials: Credentials) -> Iterator[None]:
    """Convert every exception of a query into :class:`QueryFailed`, without secrets."""
    try:
        yield
    except (*_ANSWER_ERRORS, aiohttp.ClientError) as error:
        trouble, detail = _explained(error, credentials)
        # Without its cause, in which the server may have repeated what it was sent.
        raise QueryFailed(trouble, credentials.masked(detail)) from None


def _explained(error: Exception, credentials: Credentials) -> tuple[QueryError, str]:
    hint = f"trusted are {credentials.trusted}, presented is {credentials.presented}"
    match error:
        case _DisputedError(trouble=QueryError.UNAUTHORIZED):
            hint = f"it was presented {credentials.presented}; see {DIR_FLAG}"
            return QueryError.UNAUTHORIZED, f"{error}; {hint}"
        case _DisputedError():
            return error.trouble, str(error)
        case TimeoutError():
            return QueryError.SLOW, "no complete answer in time"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return QueryError.TLS, f"{hint}: {error}"
        case aiohttp.ClientOSError() if isinstance(error.__cause__, ssl.SSLError):
            return QueryError.TLS, f"{hint}: {error.__cause__}"
        case json.JSONDecodeError():
            return QueryError.GARBLED, f"not JSON: {error}"
        case aiohttp.ClientError() | OSError():
            return QueryError.UNREACHABLE, str(error) or type(error).__name__
        case _:
            return (
                QueryError.GARBLED,
                f"not an answer to a query: {type(error).__name__}: {error}",
            )


# What reading an answer raises where it is not as the API specifies.
_ANSWER_ERRORS: Final = (OSError, KeyError, TypeError, ValueError, IndexError)


class _DisputedError(OSError):
    """An answer that cannot be trusted, or must not be read to its end."""

    def __init__(self, trouble: QueryError, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble


def _check_status(response: aiohttp.ClientResponse, body: bytes) -> None:
    status, text = response.status, body.decode(errors="replace").strip()
    if status in _DENIED:
        raise _DisputedError(
            QueryError.UNAUTHORIZED, f"HTTP {status} {text[:_ERROR_CHARS]}".strip()
        )
    if status in _REDIRECTS:
        parts = urlsplit(response.headers.get("location", ""))
        where = f"{parts.scheme}://{parts.hostname}" if parts.hostname else "another path"
        raise _DisputedError(
            QueryError.REFUSED,
            f"HTTP {status} redirects to {where}, which is not followed; "
            "want the address that answers as --prometheus-url",
        )
    if status != _OK:
        raise _DisputedError(QueryError.REFUSED, f"HTTP {status} {text}".strip())


def _result_in(body: bytes) -> Any:
    """Return the result in an answer; one that is marked as partial is refused."""
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise TypeError(f"it is {type(answer).__name__}")
    if answer.get("warnings"):
        raise _DisputedError(QueryError.PARTIAL, f"answered with warnings: {answer['warnings']}")
    if answer.get("isPartial"):
        raise _DisputedError(QueryError.PARTIAL, "answered that a part of the data is missing")
    return answer["data"]["result"]


def is_sane(value: float, *, low: float, high: float) -> bool:
    """Report whether a measured value is finite and within bounds."""
    return math.isfinite(value) and low <= value <= high


def samples_in(result: Any) -> tuple[Sample, ...]:
    """Return the samples of an instant query's result.

    Raises:
        TypeError, KeyError, ValueError, IndexError: it is not as the API specifies.
    """
    if not isinstance(result, list):
        raise TypeError(f"result is {type(result).__name__}")
    if len(result) == _VECTOR_PARTS and not isinstance(result[0], dict):
        return (Sample(labels={}, value=float(result[1])),)  # a scalar: [time, "value"]
    return tuple(
        Sample(
            labels={str(k): str(v) for k, v in series["metric"].items()},
            value=float(series["value"][1]),
        )
        for series in result
    )


def series_in(result: Any) -> tuple[Series, ...]:
    """Return the series of a range query's result.

    Raises:
        TypeError, KeyError, ValueError: it is not as the API specifies.
    """
    return tuple(_series(series) for series in result)


def _series(series: Any) -> Series:
    return Series(
        labels={str(k): str(v) for k, v in series["metric"].items()},
        points=tuple((float(at_s), float(value)) for at_s, value in series["values"]),
    )
