"""The extender's HTTP server: kube-scheduler's four verbs, probes and metrics."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import web

from component.leader_gate import LeaderGate
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock
from process.http2.connections import Http2Connections
from process.http2.request import Request
from process.telemetry import (
    Answer,
    HttpServer,
    Readiness,
    Registry,
    Telemetry,
    add_telemetry_routes,
)
from scheduler.extender import api
from scheduler.extender.api import ExtenderArgs, FilterResult, ProtocolError
from scheduler.extender.bind import Binder
from scheduler.extender.binding_cycles import BindingCycles
from scheduler.extender.filter import Extender, StaleCacheRetry
from scheduler.extender.gangs import Gangs
from scheduler.extender.preempt import Preemptor
from scheduler.metrics import RequestActivity, RequestOutcome, SchedulerMetrics, Verb

log = structlog.get_logger()

_MIB: Final = 1024 * 1024
_JSON: Final = "application/json"


_Body = Callable[[bytes], Awaitable[bytes]]  # answers a body


class NotReady(Exception):  # noqa: N818 - an answer, not a mistake
    """This replica must not answer now; ``str()`` says why."""


class ExtenderServer(HttpServer):
    """``POST /filter /prioritize /preempt /bind`` and ``GET /livez /readyz /metrics``.

    A malformed body is answered with 400 and a reason. While this replica does not lead, filter and
    bind return the reason in their ``Error`` field; the others have no such field and answer 503.
    The connection is closed then: a Service leads only new connections to the leader.
    With TLS a caller may choose HTTP/2, as kube-scheduler does.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        *,
        extender: Extender,
        stale_cache_retry: StaleCacheRetry,
        cycles: BindingCycles,
        gangs: Gangs,
        preemptor: Preemptor,
        binder: Binder,
        leader_gate: LeaderGate,
        metrics: SchedulerMetrics,
        clock: Clock,
        registry: Registry,
        readiness: Callable[[], Readiness],
        host: str,
        port: int,
        body_limit_mib: int,
        ssl_context: ssl.SSLContext | None = None,
        on_filtered: Callable[[PodInfo, FilterResult], None] = lambda *_: None,
        narrow: Callable[[ExtenderArgs, FilterResult], FilterResult] | None = None,
        activity: RequestActivity | None = None,
        find: Callable[[str, str], PodInfo | None] = lambda *_: None,
    ) -> None:
        self._extender = extender
        self._stale_cache_retry = stale_cache_retry
        self._cycles = cycles
        self._gangs = gangs
        self._groups = gangs.pod_groups
        self._preemptor = preemptor
        self._binder = binder
        self._leader_gate = leader_gate
        self._metrics = metrics
        self._clock = clock
        self._on_filtered = on_filtered
        self._narrow = narrow
        self._activity = activity or RequestActivity()
        self._find = find
        self._refreshing = asyncio.Lock()
        self._telemetry = Telemetry(registry, readiness)
        self._verbs: Mapping[str, tuple[Verb, _Body]] = {
            f"/{verb.value}": (verb, answer)
            for verb, answer in (
                (Verb.FILTER, self._filter),
                (Verb.PRIORITIZE, self._prioritize),
                (Verb.PREEMPT, self._preempt),
                (Verb.BIND, self._bind),
            )
        }
        app = web.Application(client_max_size=body_limit_mib * _MIB)
        for path in self._verbs:
            app.router.add_post(path, self._over_http1)
        add_telemetry_routes(app, registry=registry, readiness=readiness)
        http2 = Http2Connections(self._over_http2, body_limit=body_limit_mib * _MIB)
        other = None if ssl_context is None else http2
        super().__init__(app, host=host, port=port, ssl_context=ssl_context, other=other)

    async def _filter(self, body: bytes) -> bytes:
        args = api.read_args(body, find=self._find)
        why_not = self._leader_gate.why_not()
        if why_not:
            return self._filtered(args, FilterResult(error=why_not))
        before = self._cycles.begin(args.pod)
        if before is not None:
            await before
        if self._groups.trying or args.pod.pod_group:
            self._groups.begin(args.pod)
        result = None if args.pod.gang is None else await self._gangs.filter(args)
        if result is None:
            result = await self._stale_cache_retry.filter(args)
        return self._filtered(args, result)

    def _filtered(self, args: ExtenderArgs, result: FilterResult) -> bytes:
        self._cycles.filtered(args.pod, result)
        self._on_filtered(args.pod, result)
        if args.pod.pod_group:
            result = self._groups.answer(args, result)
        elif self._narrow is not None:
            result = self._narrow(args, result)
        return api.write_filter_result(result, args)

    async def _prioritize(self, body: bytes) -> bytes:
        args = api.read_args(body, find=self._find)
        why_not = self._leader_gate.why_not()
        if why_not:
            raise NotReady(why_not)
        return api.write_priorities(args.node_names, self._extender.prioritize(args))

    async def _preempt(self, body: bytes) -> bytes:
        args = api.read_preemption_args(body)
        why_not = self._leader_gate.why_not()
        if why_not:
            raise NotReady(why_not)
        if self._gangs.waits(args.pod):
            return api.write_preemption_result({})
        return api.write_preemption_result(await self._preemptor.preempt(args))

    async def _bind(self, body: bytes) -> bytes:
        args = api.read_binding_args(body)
        error = self._leader_gate.why_not()
        if not error and args.uid in self._gangs.of_pod:
            error = await self._gangs.gather(args.uid)
        error = error or await self._binder.bind(args)
        self._cycles.settle(args.uid)  # also where it was refused
        return api.write_binding_result(error)

    def _counted(self, path: str) -> AbstractContextManager[None]:
        # A bind waits nearly all of its time: for its group, and for the API server.
        verb, _ = self._verbs[path]
        return nullcontext() if verb is Verb.BIND else self._activity

    async def _over_http1(self, request: web.Request) -> web.Response:
        body = await request.read()  # raises 413 above the limit
        answer = await self._answer(request.path, body)
        headers = {"Content-Type": answer.content_type}
        response = web.Response(body=answer.body, status=answer.status, headers=headers)
        if answer.last:
            response.force_close()
        return response

    async def _over_http2(self, request: Request) -> Answer:
        verb, get = request.path in self._verbs, request.method in ("GET", "HEAD")
        if verb and request.method == "POST":
            return await self._answer(request.path, request.body)
        found = self._telemetry.answer(request.path, accept=request.accept)
        if found is None and not verb:
            return Answer(HTTPStatus.NOT_FOUND, b"404: Not Found\n")
        if found is None or not get:
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"405: Method Not Allowed\n")
        return found

    async def _answer(self, path: str, body: bytes) -> Answer:
        """Return the answer to a POST, and count it."""
        verb, answer = self._verbs[path]
        outcome, began_s = RequestOutcome.FAILED, self._clock.monotonic()
        try:
            with self._counted(path):
                # Requests stay in the order in which they came.
                async with self._refreshing:
                    for _ in self._extender.refreshing():
                        await asyncio.sleep(0)
                result = await answer(body)
            last = not self._leader_gate.leads
            outcome = RequestOutcome.NOT_LEADING if last else RequestOutcome.ANSWERED
            return Answer(HTTPStatus.OK, result, _JSON, last=last)
        except ProtocolError as error:
            outcome = RequestOutcome.MALFORMED
            log.warning("request_malformed", verb=verb.value, error=str(error))
            return Answer(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
        except NotReady as error:
            last = not self._leader_gate.leads
            outcome = RequestOutcome.NOT_LEADING if last else RequestOutcome.NOT_READY
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(), last=last)
        finally:
            took_s = self._clock.monotonic() - began_s
            self._metrics.request(verb, outcome, took_s=took_s)
