"""Requests to the API server as bytes; the only place that catches the HTTP library's errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from kube.errors import Cause, KubeDecodeError, KubeError, Unavailable, error_from_status
from kube.objects import Status, StatusDetails, VersionInfo, decode, encode, readable

if TYPE_CHECKING:
    import ssl

_VERSION = "/version"
_ONE_SECOND = timedelta(seconds=1)  # a Date has no fractions of it
_CONNECT_LIMIT_S = 10.0
_CONNECTIONS = 100  # at once; kubernetes-asyncio's default
_READ_BUFFER = 1 << 21  # bytes, as kubernetes-asyncio has it: an event may be 1.5 MiB long
_ERROR_BODY_LIMIT = 1 << 16  # bytes of an error's body that are read at most
_LINE_LIMIT = 1 << 26  # bytes; etcd caps an object at 1.5 MiB, so a longer line is not an event


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerVersion:
    """What the API server says of itself, afresh for each who asks.

    Attributes:
        git_version: e.g. ``v1.36.2``.
        time: that it notes on the answer, in whole seconds; None if it notes none, or something
            else. Source: RFC 9110, section 6.6.1 (Date).
    """

    git_version: str
    time: datetime | None

    def ahead(self, *, before: datetime, after: datetime) -> timedelta | None:
        """Return by how much a clock is ahead of the server's; None if that did not say the time.

        That is right however long the answer took.

        Args:
            before: the clock's time when the question was sent.
            after: its time when the answer had come.
        """
        if self.time is None:
            return None
        nothing = timedelta(0)
        return max(before - (self.time + _ONE_SECOND), nothing) or min(after - self.time, nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """Where an API server is, and how one is known to it.

    Attributes:
        url: its address, without a slash at the end.
        tls: whom to trust, and the client certificate; None for the system's authorities.
        authorization: returns the header of that name for the next request; empty for none.
        user_agent: what calls.
        tls_server_name: the name to expect in its certificate; empty for that of *url*.
        proxy: a proxy in between; empty for that of the environment, if any.
        proxy_headers: what to tell the proxy.
        as_user: the user to impersonate; empty for oneself.
    """

    url: str
    tls: ssl.SSLContext | None = None
    authorization: Callable[[], Awaitable[str]]
    user_agent: str
    tls_server_name: str = ""
    proxy: str = ""
    proxy_headers: Mapping[str, str] = field(default_factory=dict)
    as_user: str = ""


@asynccontextmanager
async def open_transport(server: ApiServer) -> AsyncIterator[ApiTransport]:
    """Open connections to an API server as they are needed; close them at the end.

    The environment is asked for a proxy now, and not in a thread before each request as aiohttp
    does, which takes longer than the request. A netrc file is not read: credentials come from the
    kubeconfig or the cluster, and a request cannot have two. Cookies are not kept, as by kubectl.
    """
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=server.tls or True),
        headers={
            "User-Agent": server.user_agent,
            "Accept": "application/json",
            **({"Impersonate-User": server.as_user} if server.as_user else {}),
        },
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BUFFER,
    ) as session:
        proxy = server.proxy or _proxy_for(server.url) or ""
        yield ApiTransport(replace(server, proxy=proxy), session)


class ApiTransport:
    """Requests to one API server through *session*, which its opener closes."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session
        # Only what is set: each of them is a default of the library otherwise.
        options = {
            "server_hostname": server.tls_server_name,
            "proxy": server.proxy,
            "proxy_headers": server.proxy_headers,
        }
        self._options: dict[str, Any] = {name: value for name, value in options.items() if value}

    async def request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> bytes:
        """Send one request and return the body of a 2xx answer.

        Raises:
            KubeError: another answer, or none within *timeout_s*.
        """
        with_limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_LIMIT_S)
        async with self._answer(verb, path, query, body, content_type, with_limit) as response:
            return readable(await response.read())

    async def version(self, *, timeout_s: float) -> ServerVersion:
        """Return the API server's version and time; everybody may ask for them.

        Raises:
            KubeError: no answer, a refusal, or something else than a version.
        """
        with_limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_LIMIT_S)
        async with self._answer(
            "GET", _VERSION, None, None, "application/json", with_limit
        ) as response:
            body, date = await response.read(), response.headers.get("Date")
        try:
            found = decode(body, VersionInfo)
        except ValueError as error:
            raise KubeDecodeError(
                verb="GET",
                path=_VERSION,
                status=200,
                reason="NotTheJsonPromised",
                message=str(error),
            ) from error
        return ServerVersion(git_version=found.git_version, time=_time(date))

    async def stream_lines(
        self, path: str, *, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a GET that lasts until the server ends it.

        A line may come in any number of chunks and be longer than any buffer.
        An unfinished last line is dropped: the connection ended in the middle of it.

        Raises:
            KubeError: an answer other than 2xx, a broken connection, or *inactivity_s* of silence.
        """
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_LIMIT_S, sock_read=inactivity_s
        )
        async with (
            self._answer("GET", path, query, None, "application/json", timeout) as response,
            aclosing(split_lines(response.content.iter_any(), path=path)) as lines,
        ):
            async for line in lines:
                yield readable(line)

    @asynccontextmanager
    async def _answer(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        content_type: str,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the HTTP library keeps this limit
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            response = await self._session.request(
                verb,
                f"{self._server.url}{path}" + (f"?{urlencode(query)}" if query else ""),
                headers=await self._headers(content_type),
                data=None if body is None else encode(body),
                timeout=timeout,
                **self._options,
            )
            async with response:
                try:
                    if not 200 <= response.status < 300:  # noqa: PLR2004
                        raise await _refusal(verb, path, response)
                    yield response
                finally:
                    _give_up(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(verb, path, error) from error

    async def _headers(self, content_type: str) -> dict[str, str]:
        # Reads a rotated token again, or runs an exec plugin, when that is due.
        authorization = await self._server.authorization()
        known = {"Authorization": authorization} if authorization else {}
        return {"Content-Type": content_type, **known}


def _give_up(response: aiohttp.ClientResponse) -> None:
    """Cut the connection of an answer that is not read to its end.

    To close it would be to wait for the server's end of TLS, which nobody does: it would stay open
    until the garbage collector finds it, or for half a minute.
    """
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def split_lines(chunks: AsyncIterator[bytes], *, path: str) -> AsyncGenerator[bytes, None]:
    """Yield the complete, non-empty lines of *chunks*, wherever these were cut.

    Raises:
        Unavailable: a line is longer than 64 MiB.
    """
    pending = bytearray()
    async for chunk in chunks:
        head, newline, rest = chunk.partition(b"\n")
        pending += head
        if len(pending) > _LINE_LIMIT:
            raise Unavailable(
                verb="GET",
                path=path,
                status=200,
                reason="LineTooLong",
                message=f"a line of the watch is longer than {_LINE_LIMIT} bytes",
            )
        if not newline:
            continue
        first = bytes(pending)
        *lines, last = rest.split(b"\n")
        pending = bytearray(last)
        for line in (first, *lines):
            if line.strip():
                yield line


async def _refusal(verb: str, path: str, response: aiohttp.ClientResponse) -> KubeError:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _ERROR_BODY_LIMIT:
            break
    return error_from_body(
        verb=verb,
        path=path,
        status=response.status,
        body=bytes(body),
        retry_after=response.headers.get("Retry-After"),
    )


def error_from_body(
    *, verb: str, path: str, status: int, body: bytes, retry_after: str | None = None
) -> KubeError:
    """Return the error of an answer: a ``Status`` object, or the text of a proxy in between."""
    try:
        answer = decode(body, Status)
    except ValueError:
        answer = Status(message=body.decode(errors="replace").strip())
    details = answer.details or StatusDetails()
    wait_s = details.retry_after_seconds or _seconds(retry_after)
    return error_from_status(
        verb=verb,
        path=path,
        status=status or answer.code,
        reason=answer.reason or "Unknown",
        message=answer.message or "without a message",
        causes=[
            Cause(type=cause.reason, message=cause.message, field=cause.field)
            for cause in details.causes or ()
        ],
        retry_after_s=wait_s,
    )


def _time(header: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(header or "")
    except ValueError:
        return None
    return found.replace(tzinfo=found.tzinfo or UTC)


def _seconds(header: str | None) -> float | None:
    # The API server always writes seconds; a date, which HTTP allows too, is from a proxy.
    return float(header) if header is not None and header.isdecimal() else None


def _proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for *url*; one that speaks TLS is not used."""
    try:
        scheme, host = urlsplit(url).scheme, urlsplit(url).hostname or ""
    except ValueError:  # each request will say what is wrong with the address
        return None
    found = getproxies().get(scheme, "")
    return found if found.startswith("http://") and not proxy_bypass(host) else None


def _no_answer(verb: str, path: str, error: Exception) -> Unavailable:
    what = str(error) or type(error).__name__
    reason = "Timeout" if isinstance(error, TimeoutError) else "NoAnswer"
    return Unavailable(verb=verb, path=path, status=None, reason=reason, message=what)
