"""The embedded API server over real HTTP."""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import aclosing, asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import structlog
from aiohttp import ClientError, ClientSession, ClientTimeout, ServerDisconnectedError, web

from process.clock import SystemClock
from simulator.apiserver.admission.webhooks import Call, CallError, WebhookAdmission
from simulator.apiserver.apimachinery.request_info import User
from simulator.apiserver.apimachinery.storage import Store
from simulator.apiserver.endpoints.handlers import Handlers, Reply, Request
from simulator.apiserver.registry.registry import Registry
from simulator.kubeconfig import write_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from process.clock import Clock

log = structlog.get_logger()

_LARGEST_BODY_BYTES: Final = 3 * 1024 * 1024  # the real server's limit
_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")


class ApiServer:
    """A running API server; make one with :meth:`start`."""

    def __init__(
        self, rest: Handlers, runner: web.AppRunner, *, url: str, ca_pem: str | None
    ) -> None:
        self.url: Final = url
        self._rest = rest
        self._runner = runner
        self._ca_pem = ca_pem

    @classmethod
    @asynccontextmanager
    async def start(  # noqa: PLR0913 - each has a default that is right for almost everybody
        cls,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        store: Store | None = None,
        seed: int | None = None,
        bookmark_every_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        ca_pem: str | None = None,
        resolve_service: Callable[[str, str, int], str] | None = None,
    ) -> AsyncIterator[Self]:
        """Serve until the context ends; then every watch ends at once and the port is free.

        Args:
            host: address to listen on.
            port: 0 for any free one.
            clock: for creation and deletion times.
            store: the objects of an earlier server, to restart it; a new one is empty.
            seed: of uids and generated names, which are then the same in every run.
            bookmark_every_s: seconds between the bookmarks of a quiet watch.
            tls: serve HTTPS with this context; plain HTTP without.
            ca_pem: the CA that the kubeconfig has clients trust, with *tls*.
            resolve_service: (namespace, name, port) to the ``https://host:port`` of a Service
                that webhook configurations name; without it only those with a URL are reached.
        """
        rng = random.Random(seed)  # noqa: S311 - names and uids, nothing secret
        store = store or Store()
        webhooks = WebhookClient()
        admission = WebhookAdmission(store, webhooks, rng, resolve_service=resolve_service)
        registry = Registry(store, admission, clock or SystemClock(), rng)
        rest = Handlers(registry, bookmark_every_s=bookmark_every_s)
        await _create_namespaces(rest)
        # A real server's watch cache starts empty as well: watches from before get 410.
        registry.store.compact()
        app = web.Application(client_max_size=_LARGEST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", _handler(rest))
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, ssl_context=tls, reuse_address=True)
            await site.start()
            bound = runner.addresses[0][1]
            url = f"{'https' if tls else 'http'}://{host}:{bound}"
            log.info("api_server_started", url=url)
            yield cls(rest, runner, url=url, ca_pem=ca_pem)
        finally:
            store.end_subscriptions()
            await runner.cleanup()
            await webhooks.close()

    async def stop(self) -> None:
        """Close the port and every connection now; the objects stay in :attr:`store`."""
        self.store.end_subscriptions()
        await self._runner.cleanup()

    @property
    def store(self) -> Store:
        """The objects, to restart the server with them."""
        return self._rest.registry.store

    def compact(self) -> None:
        """Drop the history and paged lists: clients that lag behind get 410 and must list again."""
        self.store.compact()
        self._rest.lister.forget()

    def kubeconfig(self, path: Path, *, user: str = "kubernetes-admin") -> Path:
        """Write a kubeconfig for *user* (any name is accepted) and return *path*."""
        ca_file = None
        if self._ca_pem:
            ca_file = path.with_suffix(".ca.crt")
            ca_file.write_text(self._ca_pem)
        return write_kubeconfig(path, server=self.url, token=user, ca_file=ca_file, user=user)


class WebhookClient:
    """Carries AdmissionReviews over TLS, for `admission.webhooks`."""

    def __init__(self) -> None:
        self._session: ClientSession | None = None
        self._trust: dict[bytes, ssl.SSLContext] = {}

    async def post(self, call: Call) -> bytes:
        """POST an AdmissionReview.

        Raises:
            CallError: as :class:`simulator.apiserver.admission.webhooks.Caller` says.
        """
        if self._session is None:
            self._session = ClientSession()
        try:
            return await self._attempt(self._session, call)
        except ServerDisconnectedError:
            # The webhook had closed an idle connection; an AdmissionReview may be sent twice.
            return await self._last_attempt(self._session, call)

    async def _last_attempt(self, session: ClientSession, call: Call) -> bytes:
        try:
            return await self._attempt(session, call)
        except ServerDisconnectedError as error:
            raise CallError(f'failed to call webhook: Post "{call.url}": EOF') from error

    async def _attempt(self, session: ClientSession, call: Call) -> bytes:
        try:
            async with session.post(
                call.url,
                data=call.body,
                headers={"Content-Type": "application/json"},
                ssl=self._context(call.ca_pem),
                server_hostname=call.server_name,
                timeout=ClientTimeout(total=call.timeout_s),
            ) as response:
                body = await response.read()
                if response.status != HTTPStatus.OK:
                    shown = body[:200].decode(errors="replace")
                    raise CallError(f"the webhook answered {response.status}: {shown}")
                return body
        except TimeoutError as error:
            raise CallError(
                f'failed to call webhook: Post "{call.url}": context deadline exceeded'
            ) from error
        except ServerDisconnectedError:
            raise
        except (ClientError, OSError, ssl.SSLError, asyncio.IncompleteReadError) as error:
            raise CallError(f'failed to call webhook: Post "{call.url}": {error}') from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _context(self, ca_pem: bytes) -> ssl.SSLContext:
        if ca_pem not in self._trust:
            try:
                # Only the bundle is trusted; without one, the system's authorities are.
                bundle = ca_pem.decode("ascii") or None
                self._trust[ca_pem] = ssl.create_default_context(cadata=bundle)
            except (ssl.SSLError, ValueError) as error:
                raise CallError(f"unable to load root certificates: {error}") from error
        return self._trust[ca_pem]


async def _create_namespaces(rest: Handlers) -> None:
    for name in _NAMESPACES:
        body = b'{"metadata":{"name":"%s"}}' % name.encode()
        await rest.handle(Request(method="POST", path="/api/v1/namespaces", body=body))


def _handler(rest: Handlers) -> Any:
    async def handle(request: web.Request) -> web.StreamResponse:
        reply = await rest.handle(
            Request(
                method=request.method,
                path=request.path,
                query=request.query,
                content_type=request.content_type,
                body=await request.read(),
                user=_user(request),
                accept=",".join(request.headers.getall("Accept", [])),
            )
        )
        return await _send(request, reply)

    return handle


def _user(request: web.Request) -> User:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme != "Bearer" or not token or token == User().name:
        return User()
    groups: tuple[str, ...] = ("system:authenticated",)
    if token.startswith("system:serviceaccount:"):
        namespace = token.split(":")[2]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", *groups)
    return User(name=token, groups=groups)


async def _send(request: web.Request, reply: Reply) -> web.StreamResponse:
    headers = {"Content-Type": reply.content_type}
    if reply.retry_after_s:
        headers["Retry-After"] = str(reply.retry_after_s)
    if reply.stream is None:
        response = web.Response(status=reply.code, body=reply.body, headers=headers)
        for warning in reply.warnings:
            response.headers.add("Warning", f"299 - {_quoted(warning)}")
        return response
    streaming = web.StreamResponse(status=reply.code, headers=headers)
    streaming.enable_chunked_encoding()
    await streaming.prepare(request)
    with suppress(ConnectionError):  # the watcher disconnected, which is how watches end
        async with aclosing(reply.stream) as lines:
            async for line in lines:
                await streaming.write(line)
    return streaming


def _quoted(text: str) -> str:
    """Return an RFC 9110 quoted-string; control characters cannot be in one."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    escaped = clean.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
