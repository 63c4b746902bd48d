"""Queries Prometheus with a blocking library in its own thread, limited in time and size.

Anything but a complete answer without warnings is :class:`QueryFailed`, with the kind of error.
Thanos, Mimir and VictoriaMetrics answer the same API, and are asked not to leave anything out.
"""

import asyncio
import io
import json
import math
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import requests
import structlog
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util import Retry, Timeout

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
_DENIED: Final = (requests.codes.unauthorized, requests.codes.forbidden)

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

    Redirects are not followed, so no credentials reach another host.

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
        self._session = requests.Session()
        # Prometheus is in the cluster: proxies and .netrc of the environment must not apply.
        self._session.trust_env = False
        # The next cycle queries again anyway, so a failed query is not retried.
        self._once = Retry(total=0, read=False)  # "False" keeps a timeout a timeout
        self._connect = PrometheusConnect(url=self._url, session=self._session, retry=self._once)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prometheus")
        self._busy = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connect.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        """Return an instant vector (a scalar is one sample without labels).

        Args:
            query: PromQL.
            at_s: Unix time to evaluate at; None means the server's current time.

        Raises:
            QueryFailed: there is none that can be used.
        """
        return await self._in_thread(lambda: self._ask(query, at_s))

    async def query_range(
        self, query: str, *, start_s: float, end_s: float, step_s: float
    ) -> tuple[Series, ...]:
        """Return the values of a query at every *step_s* from *start_s* to *end_s*.

        Raises:
            QueryFailed: there is no answer that can be used.
        """
        return await self._in_thread(lambda: self._ask_range(query, start_s, end_s, step_s))

    async def _in_thread(self, ask: Callable[[], _T]) -> _T:
        if self._busy:
            raise QueryFailed(QueryError.SLOW, "the previous query is still waiting for its answer")
        loop = asyncio.get_running_loop()
        self._busy = True
        work = loop.run_in_executor(self._thread, ask)
        work.add_done_callback(self._done)
        try:
            # The thread enforces the limit itself, except for a name server that does not answer.
            async with asyncio.timeout(2 * self._limit_s):
                return await asyncio.shield(work)
        except TimeoutError as error:
            raise QueryFailed(
                QueryError.SLOW, f"no answer within {2 * self._limit_s:g} s"
            ) from error

    def _done(self, work: asyncio.Future[_T]) -> None:
        self._busy = False
        if not work.cancelled():
            work.exception()  # the caller has given up waiting

    def _ask(self, query: str, at_s: float | None) -> tuple[Sample, ...]:
        params = {} if at_s is None else {"time": f"{at_s:.3f}"}
        with _troubles(self._credentials()):
            return samples_in(self._connect.custom_query(query, params={**params, **_COMPLETE}))

    def _ask_range(
        self, query: str, start_s: float, end_s: float, step_s: float
    ) -> tuple[Series, ...]:
        with _troubles(self._credentials()):
            found = self._connect.custom_query_range(
                query,
                start_time=datetime.fromtimestamp(start_s, tz=UTC),
                end_time=datetime.fromtimestamp(end_s, tz=UTC),
                step=f"{step_s:g}",
                params=dict(_COMPLETE),
            )
            return series_in(found)

    def _credentials(self) -> Credentials:
        """Return the credentials that are in the files now, and use them from here on."""
        try:
            credentials = read_credentials(self._files)
            if credentials != self._in_use:
                self._use(credentials)
        except CredentialsUnusable as error:
            raise QueryFailed(QueryError.CREDENTIALS, str(error)) from error
        return credentials

    def _use(self, credentials: Credentials) -> None:
        """Use these credentials from the next query on, on new connections."""
        adapter = _Adapter(
            context=tls_context(credentials) if self._url.startswith("https:") else None,
            server_name=self._server_name,
            limit_s=self._limit_s,
            limit_bytes=self._limit_bytes,
            retry=self._once,
        )
        self._session.adapters.get(f"{self._url}/api/", adapter).close()
        # The longest matching prefix takes precedence over the adapter that the library mounted.
        self._session.mount(f"{self._url}/api/", adapter)
        for name in self._in_use.headers if self._in_use else ():
            self._session.headers.pop(name, None)
        self._session.headers.update(credentials.headers)
        if credentials.headers and not self._url.startswith("https:"):
            log.warning("credentials_sent_unencrypted", presented=credentials.presented)
        log.info(
            "prometheus_credentials_read",
            presented=credentials.presented,
            trusted=credentials.trusted,
        )
        self._in_use = credentials


@contextmanager
def _troubles(credentials: Credentials) -> Iterator[None]:
    """Convert the libraries' exceptions into :class:`QueryFailed`, without secrets."""
    try:
        yield
    except (*_ANSWER_ERRORS, requests.RequestException, PrometheusApiClientException) as error:
        trouble, detail = _explained(error, credentials)
        # Without its cause, in which the server may have repeated what it was sent.
        raise QueryFailed(trouble, credentials.masked(detail)) from None


def _explained(error: Exception, credentials: Credentials) -> tuple[QueryError, str]:
    match error:
        case _Disputed(trouble=QueryError.UNAUTHORIZED):
            hint = f"it was presented {credentials.presented}; see {DIR_FLAG}"
            return QueryError.UNAUTHORIZED, f"{error}; {hint}"
        case _Disputed():
            return error.trouble, str(error)
        case PrometheusApiClientException():
            return QueryError.REFUSED, str(error)
        case requests.exceptions.JSONDecodeError():
            return QueryError.GARBLED, f"not JSON: {error}"
        case requests.exceptions.SSLError():
            hint = f"trusted are {credentials.trusted}, presented is {credentials.presented}"
            return QueryError.TLS, f"{hint}: {error}"
        case requests.exceptions.Timeout():
            return QueryError.SLOW, str(error)
        case requests.RequestException() | OSError():
            return QueryError.UNREACHABLE, str(error)
        case _:
            return (
                QueryError.GARBLED,
                f"not an answer to a query: {type(error).__name__}: {error}",
            )


# What reading an answer raises where it is not as the API specifies.
_ANSWER_ERRORS: Final = (
    *(OSError, KeyError, TypeError, ValueError, IndexError),
    *(AttributeError, OverflowError, RecursionError),
)


class _Disputed(requests.RequestException):
    """An answer that cannot be trusted, or must not be read to its end."""

    def __init__(self, trouble: QueryError, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble


class _Adapter(HTTPAdapter):
    """Limits the size of the body and the time of the whole answer; checks how it was answered.

    The library itself limits only each single read, drops the warnings next to the result, and
    would follow redirects. Without a *context* it can only connect without TLS.
    """

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None,
        server_name: str,
        limit_s: float,
        limit_bytes: int,
        retry: Retry,
    ) -> None:
        self._tls: dict[str, Any] = {"ssl_context": context} if context else {}
        if context and server_name:
            self._tls["server_hostname"] = server_name
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes
        super().__init__(max_retries=retry)

    def init_poolmanager(
        self,
        connections: int,
        maxsize: int,
        block: Any = False,  # noqa: FBT002 - as the base
        **options: Any,
    ) -> None:
        super().init_poolmanager(connections, maxsize, block, **options, **self._tls)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Do nothing: the context verifies, and must not trust other authorities besides."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override]  # as the base, its options unnamed
        deadline_s = time.monotonic() + self._limit_s
        # One limit for the connection and the head of the answer together.
        timeout = Timeout(total=self._limit_s)
        response = super().send(request, **{**options, "timeout": timeout})
        body = self._read(response, deadline_s)
        response.raw = io.BytesIO(body)  # the library reads what is read already
        _check_status(response, body)
        _refuse_partial(response, body)
        return response

    def _read(self, response: requests.Response, deadline_s: float) -> bytes:
        body = bytearray()
        complete = False
        try:
            while chunk := response.raw.read1(65536, decode_content=True):
                body += chunk
                self._check(len(body), deadline_s)
            complete = True
        except _Disputed:  # also an OSError, because the library derives from it
            raise
        except ReadTimeoutError as error:
            raise requests.Timeout(str(error)) from error
        except (HTTPError, OSError) as error:
            raise requests.ConnectionError(str(error)) from error
        finally:
            if not complete:
                response.raw.close()  # the rest of this answer must not be read as the next one
            response.raw.release_conn()
        return bytes(body)

    def _check(self, size: int, deadline_s: float) -> None:
        if size > self._limit_bytes:
            raise _Disputed(QueryError.TOO_LARGE, f"more than {self._limit_bytes} bytes")
        if time.monotonic() > deadline_s:
            raise _Disputed(QueryError.SLOW, f"not all there after {self._limit_s:g} s")


def _check_status(response: requests.Response, body: bytes) -> None:
    status = response.status_code
    if status in _DENIED:
        text = body.decode(errors="replace").strip()
        raise _Disputed(QueryError.UNAUTHORIZED, f"HTTP {status} {text[:_ERROR_CHARS]}".strip())
    if response.is_redirect:
        parts = urlsplit(response.headers["location"])
        where = f"{parts.scheme}://{parts.hostname}" if parts.hostname else "another path"
        raise _Disputed(
            QueryError.REFUSED,
            f"HTTP {status} redirects to {where}, which is not followed; "
            "want the address that answers as --prometheus-url",
        )


def _refuse_partial(response: requests.Response, body: bytes) -> None:
    if response.status_code != requests.codes.ok:
        return
    try:
        answer = json.loads(body)
    except ValueError:
        return  # the library raises for it
    if not isinstance(answer, dict):
        return
    if answer.get("warnings"):
        raise _Disputed(QueryError.PARTIAL, f"answered with warnings: {answer['warnings']}")
    if answer.get("isPartial"):
        raise _Disputed(QueryError.PARTIAL, "answered that a part of the data is missing")


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
