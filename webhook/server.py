"""The HTTPS routes of the webhook: decode a review, decide, encode the answer."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from component.wiring import Wiring, Wirings
from fracgpu import names
from fracgpu.cards.card_class import CardClass, SelectedNodes
from fracgpu.cards.pool_catalogue import PoolCatalogue
from fracgpu.errors import quoted, shorten
from fracgpu.k8s.node_affinity import NodeRules
from fracgpu.request.grant_note import NO_SEAL, Seal
from process.clock import Clock
from process.connections import Connections, Stage
from process.telemetry import HttpServer, Readiness, Registry, add_telemetry_routes, tracked
from process.tls import ServingTls
from webhook.admission.bounds import asks_in_json, check_size
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import admit_create, refuse_written_keys
from webhook.admission.review import (
    MalformedReviewError,
    Review,
    read_pods,
    read_review,
    write_allowed,
    write_refused,
)
from webhook.admission.update import admit_update
from webhook.admission.verdict import (
    NO_DIALECT,
    NOT_FOUND,
    AdmissionResult,
    Allowed,
    Denied,
    Patched,
)
from webhook.admission.workload import admit_workload, grant_templates
from webhook.admission_config import AdmissionConfig
from webhook.metrics import Decision, WebhookMetrics
from webhook.namespaces import NamespaceUnreadError
from webhook.settings import WebhookSettings

log = structlog.get_logger()

MUTATE: Final = "/mutate"
MUTATE_TEMPLATES: Final = "/mutate-templates"
VALIDATE: Final = "/validate"
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_BYTES_PER_MIB: Final = 1024 * 1024
# Nearly every review is smaller. Only a few larger ones are read at once: 200 half-sent bodies of
# 3 MiB took 1.2 GB, and the Deployment's limit is 512 MiB.
_LARGE_BYTES: Final = 128 * 1024
_LARGE_AT_ONCE: Final = 4
_MOST_NAME: Final = 253  # of an object, RFC 1123 subdomain


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionContext:
    """What a decision depends on besides the review; called for every review.

    Attributes:
        classes: the cluster's card classes; None while they are unknown.
        select: the nodes that a pod's selectors allow, with their card classes.
        declared: the classes of the pool catalogue that a pod's selectors allow.
        pools: the pool catalogue.
        config: the administrator's configuration.
        namespace_labels: labels of a namespace by its name; None if not known yet.
        ask_labels: gets the same from the API server, for a namespace that is not known yet; None
            if there is none. It may raise :class:`NamespaceUnreadError`.
        seal: the seal for grants made now in a namespace.
        wirings: how pods may get their cards.
        claim: returns a name for the claim of a pod, never the same twice.
    """

    classes: Callable[[], Sequence[CardClass] | None]
    select: Callable[[NodeRules], SelectedNodes]
    declared: Callable[[NodeRules], Sequence[CardClass]]
    pools: Callable[[], PoolCatalogue]
    config: Callable[[], AdmissionConfig]
    namespace_labels: Callable[[str], Mapping[str, str] | None]
    ask_labels: Callable[[str], Awaitable[Mapping[str, str] | None]]
    seal: Callable[[str], Seal]
    wirings: Wirings = field(default_factory=Wirings)
    claim: Callable[[], str] = str

    def decision(self, labels: Mapping[str, str], seal: Seal = NO_SEAL) -> DecisionContext:
        """Return what a decision depends on about an object in a namespace with these *labels*."""
        config, claim, problem = self.config(), "", ""
        try:
            if self.wirings.of(labels) is Wiring.CLAIMS:
                claim = self.claim()
                if config.scheduler_name == names.SCHEDULER_NAME:
                    # There is none of ours for such a pod, unless the administrator says so.
                    config = replace(config, scheduler_name=_DEFAULT_SCHEDULER)
        except ValueError as error:
            problem = str(error)
        return DecisionContext(
            classes=self.classes(),
            config=config,
            select=self.select,
            declared=self.declared,
            pools=self.pools(),
            namespace_labels=labels,
            seal=seal,
            claim=claim,
            claims_served=self.wirings.serves(Wiring.CLAIMS),
            wiring_problem=problem,
        )


class RequestGate:
    """Admits requests: which clients may connect, and how many bytes are in memory at once.

    A connection whose request is being decided is never closed for a new one. Large bodies are
    read a few at a time, so that a few clients cannot exhaust the memory.

    Args:
        connections: the server's open connections.
        body_timeout_s: longest that receiving a body may take.
        client_names: common names of accepted client certificates; empty accepts every client.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        body_timeout_s: float = 5.0,
        client_names: Collection[str] = (),
    ) -> None:
        self.connections: Final = connections
        self._body_timeout_s = body_timeout_s
        self._client_names = frozenset(client_names)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._held_by: set[int] = set()  # the ids of the requests that count as large

    async def read(self, request: web.Request) -> bytes:
        """Return a request's body; a large one counts against the limit until it is answered.

        For handlers that are :meth:`guarded`.

        Raises:
            HTTPRequestTimeout: the body did not arrive in time.
            HTTPRequestEntityTooLarge: the body is longer than the limit.
        """
        length = request.content_length
        small = length is not None and length <= _LARGE_BYTES
        if small and request.content.is_eof():
            return await request.read()  # nearly every body comes with its head
        if length is not None and length > request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(request.client_max_size, length)
        self._enter(request, Stage.READING)
        try:
            async with asyncio.timeout(self._body_timeout_s):
                if not small:
                    await self._large.acquire()
                    self._held_by.add(id(request))
                body = await request.read()
        except TimeoutError:
            text = f"the body did not arrive within {self._body_timeout_s:g} s\n"
            raise web.HTTPRequestTimeout(text=text) from None
        self._enter(request, Stage.JUDGING)
        return body

    def guarded(self, handler: Handler) -> Handler:
        """Return a handler that tracks its connections, and refuses unknown clients."""
        return tracked(self.connections, partial(self._guard, handler))

    async def _guard(self, handler: Handler, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        try:
            if self._client_names and (
                transport is None or _client_name(transport) not in self._client_names
            ):
                raise web.HTTPForbidden(
                    text="the client certificate has no common name that is let in\n"
                )
            return await handler(request)
        finally:
            if id(request) in self._held_by:
                self._held_by.remove(id(request))
                self._large.release()

    def _enter(self, request: web.Request, stage: Stage) -> None:
        transport = request.transport
        if transport is not None:
            self.connections.enter(transport.get_extra_info("socket").fileno(), stage)


def _client_name(transport: asyncio.Transport) -> str:
    """Return the common name of the client's certificate; empty without one."""
    shown = transport.get_extra_info("peercert") or {}
    fields = [field for group in shown.get("subject", ()) for field in group]
    return next((str(value) for key, value in fields if key == "commonName"), "")


_Judge = Callable[[Review, Mapping[str, str]], AdmissionResult]


class AdmissionHandler:
    """Answers AdmissionReviews by the cluster's current state.

    Each handler answers with 200, or 400 if the body is no review, or 413 if it is too long, or 503
    if the labels of its namespace cannot be read.

    Attributes:
        mutate: answers a pod's review.
        validate: answers a workload's review, never with a patch.
        mutate_templates: answers a workload's review, never with a refusal.
    """

    def __init__(
        self,
        context: AdmissionContext,
        metrics: WebhookMetrics,
        clock: Clock,
        gate: RequestGate,
    ) -> None:
        self._gate = gate
        self._context = context
        self._metrics = metrics
        self._clock = clock
        self._log = log.bind()  # made anew for each line otherwise
        self.mutate = partial(self._answer, self._judge_pod)
        self.validate = partial(self._answer, partial(self._judge_workload, admit_workload))
        self.mutate_templates = partial(
            self._answer, partial(self._judge_workload, grant_templates)
        )

    async def _answer(self, judge: _Judge, request: web.Request) -> web.Response:
        try:
            body = await self._gate.read(request)
        except web.HTTPRequestEntityTooLarge as error:
            self._metrics.decided(Decision.TOO_LARGE, duration_s=0)
            log.warning("review_too_large", reason=error.text)
            raise
        except web.HTTPRequestTimeout as error:
            self._metrics.decided(Decision.TOO_SLOW, duration_s=0)
            log.warning("review_too_slow", reason=error.text)
            raise
        began_s = self._clock.monotonic()
        try:
            review = read_review(body)
            labels = self._context.namespace_labels(review.namespace)
            if labels is None:
                labels = await self._context.ask_labels(review.namespace)
            if labels is None:
                return self._of_no_namespace(review, began_s)
            result = judge(review, labels)
        except NamespaceUnreadError as error:
            # No answer, so that the entry's failure policy decides: dialects may be on there.
            took_s = self._clock.monotonic() - began_s
            self._metrics.decided(Decision.NAMESPACE_UNREAD, duration_s=took_s)
            return web.Response(status=503, text=f"{error}\n")
        except MalformedReviewError as error:
            self._metrics.decided(Decision.MALFORMED, duration_s=self._clock.monotonic() - began_s)
            log.warning("review_malformed", reason=str(error), body_bytes=len(body))
            return web.Response(status=400, text=f"{error}\n")
        decision, event, details, response = _outcome_of(review, result)
        took_s = self._clock.monotonic() - began_s
        self._metrics.decided(decision, duration_s=took_s, dialect=result.dialect)
        # Who requested what, and the decision with its reason.
        self._log.info(
            event,
            uid=shorten(review.uid),
            operation=review.operation,
            kind=shorten(review.kind.kind),
            namespace=shorten(review.namespace),
            name=shorten(review.name, limit=_MOST_NAME),
            user=shorten(review.user_info.username, limit=_MOST_NAME),
            dry_run=bool(review.dry_run),
            took_us=round(took_s * 1e6),
            **details,
        )
        return web.Response(body=response, content_type="application/json")

    def _of_no_namespace(self, review: Review, began_s: float) -> web.Response:
        """Refuse a review of an object in a namespace that does not exist.

        The API server refuses such objects before it calls webhooks, so it did not send this
        review: it leaves no line beside those of decisions that took effect.
        """
        message = f"namespace {quoted(review.namespace)} does not exist"
        took_s = self._clock.monotonic() - began_s
        self._metrics.decided(Decision.UNKNOWN_NAMESPACE, duration_s=took_s)
        answer = write_refused(review.uid, message=message, code=NOT_FOUND, reason="NotFound")
        return web.Response(body=answer, content_type="application/json")

    def _judge_pod(self, review: Review, labels: Mapping[str, str]) -> AdmissionResult:
        config, stored = self._context.config(), review.old
        excluded = stored is None and review.namespace in config.excluded_namespaces
        beyond = check_size(review.object, stored, what="the pod")
        if beyond is not None:
            forged = names.GRANTED.encode() in bytes(review.object)
            return _excluded(review) if excluded and not forged else beyond
        try:
            pod, old = read_pods(review)
        except MalformedReviewError as error:
            if not asks_in_json(review.object):
                raise
            # The API server shows nothing of another status than 200.
            return Denied(message=str(error))
        if old is not None:
            known = self._context.classes() is not None
            select = self._context.select if known else None
            pools = self._context.pools()
            declared = self._context.declared if pools and config.card_classes.wait else None
            return admit_update(
                old,
                pod,
                user=review.user_info.username,
                config=config,
                select=select,
                declared=declared,
            )
        if excluded:
            with_claims = self._context.wirings.serves(Wiring.CLAIMS)
            return refuse_written_keys(pod, with_claims=with_claims) or _excluded(review)
        seal = self._context.seal(review.namespace)
        return admit_create(pod, self._context.decision(labels, seal))

    def _judge_workload(
        self,
        judge: Callable[[Review, DecisionContext], AdmissionResult],
        review: Review,
        labels: Mapping[str, str],
    ) -> AdmissionResult:
        config = self._context.config()
        if review.namespace in config.excluded_namespaces:
            return _excluded(review)
        return judge(review, self._context.decision(labels))


def _excluded(review: Review) -> Allowed:
    return Allowed(
        warnings=(
            f"namespace {review.namespace} is excluded from FracGPU by its administrator, so "
            f"requests in {names.PREFIX} keys are ignored",
        )
    )


def _outcome_of(
    review: Review, result: AdmissionResult
) -> tuple[Decision, str, Mapping[str, str], bytes]:
    """Return how a review was answered: for metrics and for the log, with details, and in JSON."""
    match result:
        case Patched():
            event = "pod_granted" if review.kind.kind == "Pod" else "template_granted"
            response = write_allowed(review.uid, patch=result.patch, warnings=result.warnings)
            return Decision.GRANTED, event, {"granted": result.granted}, response
        case Allowed():
            passed = result.dialect == NO_DIALECT
            response = write_allowed(review.uid, warnings=result.warnings)
            decision = Decision.UNTOUCHED if passed else Decision.UNCHANGED
            return decision, "review_passed", {}, response
        case Denied():
            event = "pod_refused" if review.kind.kind == "Pod" else "workload_refused"
            response = write_refused(
                review.uid, message=result.message, code=result.code, reason=result.reason
            )
            return Decision.REFUSED, event, {"reason": result.message}, response


class WebhookServer(HttpServer):
    """Serves the admission handler over HTTPS, with probes and metrics."""

    def __init__(
        self,
        settings: WebhookSettings,
        handler: AdmissionHandler,
        tls: ServingTls,
        *,
        registry: Registry,
        readiness: Callable[[], Readiness],
        gate: RequestGate,
    ) -> None:
        app = web.Application(client_max_size=settings.body_limit_mib * _BYTES_PER_MIB)
        app.router.add_post(MUTATE, gate.guarded(handler.mutate))
        app.router.add_post(MUTATE_TEMPLATES, gate.guarded(handler.mutate_templates))
        app.router.add_post(VALIDATE, gate.guarded(handler.validate))
        add_telemetry_routes(app, registry=registry, readiness=readiness, guarded=gate.guarded)
        super().__init__(
            app,
            host=settings.listen_host,
            port=settings.listen_port,
            ssl_context=tls.context,
            connections=gate.connections,
        )
