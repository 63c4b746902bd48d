"""Queries Prometheus with a blocking library in its own thread, limited in time and size.

Anything but a complete answer without warnings is :class:`QueryFailed`, with the kind of error.
"""

import asyncio
import json
import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util import Retry

_ERROR_CHARS: Final = 300
_VECTOR_PARTS: Final = 2


class QueryError(Enum):
    """Why a query failed; also a metric label."""

    UNREACHABLE = "unreachable"
    SLOW = "slow"
    REFUSED = "refused"  # an HTTP status other than 200
    PARTIAL = "partial"  # answered with warnings: some data is missing
    GARBLED = "garbled"  # not as the API specifies
    TOO_LARGE = "too_large"


class QueryFailed(Exception):  # noqa: N818 - says what happened
    """Prometheus gave no answer that can be used."""

    def __init__(self, trouble: QueryError, detail: str) -> None:
        super().__init__(f"{trouble.value}: {detail[:_ERROR_CHARS]}")
        self.trouble = trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of an instant vector; *value* may be NaN or infinite."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """A client of one Prometheus, or of a server with the same API.

    Args:
        url: its base address.
        limit_s: longest wait for one answer.
        limit_bytes: largest answer that is read.
        token_file: holds a bearer token; read before each query, because it is rotated.
        ca_file: CA certificates to trust instead of the system's.
    """

    def __init__(
        self,
        url: str,
        *,
        limit_s: float,
        limit_bytes: int,
        token_file: Path | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._token_file = token_file
        self._session = requests.Session()
        # Prometheus is in the cluster: proxies and .netrc of the environment must not apply.
        self._session.trust_env = False
        if ca_file is not None:
            self._session.verify = str(ca_file)
        # The next cycle queries again anyway, so a failed query is not retried.
        once = Retry(total=0, read=False)  # "False" keeps a timeout a timeout
        self._connect = PrometheusConnect(url=url.rstrip("/"), session=self._session, retry=once)
        adapter = _LimitedAdapter(limit_s=limit_s, limit_bytes=limit_bytes, retry=once)
        # The longest matching prefix takes precedence over the adapter that the library mounted.
        self._session.mount(f"{url.rstrip('/')}/api/", adapter)
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
            NoAnswer: there is none that can be used.
        """
        if self._busy:
            raise QueryFailed(QueryError.SLOW, "the previous query is still waiting for its answer")
        loop = asyncio.get_running_loop()
        self._busy = True
        work = loop.run_in_executor(self._thread, self._ask, query, at_s)
        work.add_done_callback(self._done)
        try:
            # The thread enforces the limit itself, except for a name server that does not answer.
            async with asyncio.timeout(2 * self._limit_s):
                return await asyncio.shield(work)
        except TimeoutError as error:
            raise QueryFailed(
                QueryError.SLOW, f"no answer within {2 * self._limit_s:g} s"
            ) from error

    def _done(self, work: asyncio.Future[tuple[Sample, ...]]) -> None:
        self._busy = False
        if not work.cancelled():
            work.exception()  # the caller has given up waiting

    def _ask(self, query: str, at_s: float | None) -> tuple[Sample, ...]:
        params = {} if at_s is None else {"time": f"{at_s:.3f}"}
        with _troubles():
            if self._token_file is not None:
                token = self._token_file.read_text(encoding="utf-8").strip()
                self._session.headers["Authorization"] = f"Bearer {token}"
            return _samples(self._connect.custom_query(query, params=params))


@contextmanager
def _troubles() -> Iterator[None]:
    """Convert the libraries' exceptions into :class:`QueryFailed`."""
    try:
        yield
    except PrometheusApiClientException as error:
        raise QueryFailed(QueryError.REFUSED, str(error)) from error
    except _Disputed as error:
        raise QueryFailed(error.trouble, str(error)) from error
    except requests.exceptions.JSONDecodeError as error:
        raise QueryFailed(QueryError.GARBLED, f"not JSON: {error}") from error
    except requests.exceptions.Timeout as error:
        raise QueryFailed(QueryError.SLOW, str(error)) from error
    except (requests.RequestException, OSError) as error:
        raise QueryFailed(QueryError.UNREACHABLE, str(error)) from error
    except (KeyError, TypeError, ValueError, IndexError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise QueryFailed(QueryError.GARBLED, f"not an answer to a query: {detail}") from error


def _samples(result: Any) -> tuple[Sample, ...]:
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


class _Disputed(requests.RequestException):
    """An answer that cannot be trusted, or must not be read to its end."""

    def __init__(self, trouble: QueryError, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble


class _LimitedAdapter(HTTPAdapter):
    """Limits the size of the body, and the time of the whole answer.

    The library itself limits only each single read, and drops the warnings next to the result.
    """

    def __init__(self, *, limit_s: float, limit_bytes: int, retry: Retry) -> None:
        super().__init__(max_retries=retry)
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override]  # as the base, its options unnamed
        deadline_s = time.monotonic() + self._limit_s
        response = super().send(request, **{**options, "timeout": self._limit_s})
        body = self._read(response, deadline_s)
        response.raw = _Body(body)
        _refuse_warnings(response, body)
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


class _Body:
    """A body that was already read, in the form that the library reads."""

    def __init__(self, content: bytes) -> None:
        self._rest = content

    def read(self, size: int) -> bytes:
        part, self._rest = self._rest[:size], self._rest[size:]
        return part

    def close(self) -> None:
        self._rest = b""

    def release_conn(self) -> None:
        """Do nothing: the connection was released when the body had been read."""


def _refuse_warnings(response: requests.Response, body: bytes) -> None:
    if response.status_code != requests.codes.ok:
        return
    try:
        answer = json.loads(body)
    except ValueError:
        return  # the library raises for it
    if isinstance(answer, dict) and answer.get("warnings"):
        raise _Disputed(QueryError.PARTIAL, f"answered with warnings: {answer['warnings']}")


def is_sane(value: float, *, low: float, high: float) -> bool:
    """Report whether a measured value is finite and within bounds."""
    return math.isfinite(value) and low <= value <= high
