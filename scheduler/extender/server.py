"""The extender's HTTP server: kube-scheduler's four verbs, probes and metrics."""

import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import web

from component.leader_gate import LeaderGate
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock
from process.telemetry import HttpServer, Readiness, Registry, add_telemetry_routes
from scheduler.extender import api
from scheduler.extender.api import ExtenderArgs, FilterResult, ProtocolError
from scheduler.extender.bind import Binder
from scheduler.extender.filter import Extender
from scheduler.extender.preempt import Preemptor
from scheduler.extender.stale_cache_retry import StaleCacheRetry
from scheduler.metrics import RequestOutcome, SchedulerMetrics, Verb
from scheduler.request_activity import RequestActivity

log = structlog.get_logger()

_MIB: Final = 1024 * 1024
_JSON: Final = "application/json"


class NotReady(Exception):  # noqa: N818 - an answer, not a mistake
    """This replica must not answer now; ``str()`` says why."""


class ExtenderServer(HttpServer):
    """``POST /filter /prioritize /preempt /bind`` and ``GET /livez /readyz /metrics``.

    A malformed body is answered with 400 and a reason. While this replica does not lead, filter and
    bind return the reason in their ``Error`` field; the others have no such field and answer 503.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        *,
        extender: Extender,
        patient: StaleCacheRetry,
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
    ) -> None:
        self._extender = extender
        self._patient = patient
        self._preemptor = preemptor
        self._binder = binder
        self._leader_gate = leader_gate
        self._metrics = metrics
        self._clock = clock
        self._on_filtered = on_filtered
        self._narrow = narrow
        self._activity = activity or RequestActivity()
        app = web.Application(client_max_size=body_limit_mib * _MIB)
        app.router.add_post("/filter", self._route(Verb.FILTER, self._filter))
        app.router.add_post("/prioritize", self._route(Verb.PRIORITIZE, self._prioritize))
        app.router.add_post("/preempt", self._route(Verb.PREEMPT, self._preempt))
        app.router.add_post("/bind", self._route(Verb.BIND, self._bind))
        add_telemetry_routes(app, registry=registry, readiness=readiness)
        super().__init__(app, host=host, port=port, ssl_context=ssl_context)

    async def _filter(self, body: bytes) -> bytes:
        args = api.read_args(body)
        why_not = self._leader_gate.why_not()
        result = FilterResult(error=why_not) if why_not else await self._patient.filter(args)
        self._on_filtered(args.pod, result)
        if self._narrow is not None:
            result = self._narrow(args, result)
        return api.write_filter_result(result, args)

    async def _prioritize(self, body: bytes) -> bytes:
        args = api.read_args(body)
        why_not = self._leader_gate.why_not()
        if why_not:
            raise NotReady(why_not)
        return api.write_priorities(args.node_names, self._extender.prioritize(args))

    async def _preempt(self, body: bytes) -> bytes:
        args = api.read_preemption_args(body)
        why_not = self._leader_gate.why_not()
        if why_not:
            raise NotReady(why_not)
        return api.write_preemption_result(await self._preemptor.preempt(args))

    async def _bind(self, body: bytes) -> bytes:
        args = api.read_binding_args(body)
        error = self._leader_gate.why_not() or await self._binder.bind(args)
        return api.write_binding_result(error)

    def _route(
        self, verb: Verb, answer: Callable[[bytes], Awaitable[bytes]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            with self._activity:
                return await answered(request)

        async def answered(request: web.Request) -> web.Response:
            body = await request.read()  # raises 413 above the limit
            began_s = self._clock.monotonic()
            outcome = RequestOutcome.FAILED
            try:
                found = await answer(body)
                outcome = RequestOutcome.ANSWERED
                return web.Response(body=found, content_type=_JSON)
            except ProtocolError as error:
                outcome = RequestOutcome.MALFORMED
                log.warning("request_malformed", verb=verb.value, error=str(error))
                return web.Response(status=400, text=f"{error}\n")
            except NotReady as error:
                outcome = RequestOutcome.NOT_READY
                return web.Response(status=503, text=f"{error}\n")
            finally:
                took_s = self._clock.monotonic() - began_s
                self._metrics.request(verb, outcome, took_s=took_s)

        return handle
