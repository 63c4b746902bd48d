"""The HTTPS route of the webhook: bytes in, one judgement, bytes out."""

from collections.abc import Callable, Sequence
from typing import Final

import structlog
from aiohttp import web

from fracgpu.card import CardClass
from process.clock import Clock
from process.telemetry import HttpServer, Readiness, Registry, add_telemetry_routes
from process.tls import ServingTls
from webhook.metrics import Decision, WebhookMetrics
from webhook.mutation import Outcome, Patch, Refusal, Rules, Untouched, judge_change, judge_new
from webhook.review import (
    MalformedReviewError,
    Operation,
    Review,
    read_review,
    write_allowed,
    write_refused,
)
from webhook.settings import WebhookSettings

log = structlog.get_logger()

ROUTE: Final = "/mutate"
_BYTES_PER_MIB: Final = 1024 * 1024


class Reviewer:
    """Answers AdmissionReviews over what the cluster looks like now."""

    def __init__(
        self,
        classes: Callable[[], Sequence[CardClass] | None],
        metrics: WebhookMetrics,
        clock: Clock,
        *,
        rules: Rules,
    ) -> None:
        self._classes = classes
        self._metrics = metrics
        self._clock = clock
        self._rules = rules

    async def handle(self, request: web.Request) -> web.Response:
        """Answer 200 with a verdict, 400 to what is no review, 413 to what is too long."""
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            self._metrics.decided(Decision.TOO_LARGE, duration_s=0)
            log.warning("review_too_large", reason=error.text)
            raise
        began_s = self._clock.monotonic()
        decision, response = self._answer(body)
        self._metrics.decided(decision, duration_s=self._clock.monotonic() - began_s)
        return response

    def _answer(self, body: bytes) -> tuple[Decision, web.Response]:
        try:
            review = read_review(body)
        except MalformedReviewError as error:
            log.warning("review_malformed", reason=str(error), body_bytes=len(body))
            return Decision.MALFORMED, web.Response(status=400, text=f"{error}\n")
        outcome = self._judge(review)
        decision, answer = _answered(review, outcome)
        return decision, web.Response(body=answer, content_type="application/json")

    def _judge(self, review: Review) -> Outcome:
        if review.operation is Operation.UPDATE:
            assert review.old is not None, "read_review refuses an update without"  # noqa: S101
            return judge_change(review.old, review.pod, user=review.user, rules=self._rules)
        return judge_new(review.pod, self._classes(), rules=self._rules)


def _answered(review: Review, outcome: Outcome) -> tuple[Decision, bytes]:
    told = log.bind(
        namespace=review.namespace,
        pod=review.name,
        operation=review.operation.value,
        dry_run=review.dry_run,
    )
    match outcome:
        case Patch():
            told.info("pod_granted", granted=outcome.granted)
            answer = write_allowed(review.uid, edits=outcome.edits, warnings=outcome.warnings)
            return Decision.GRANTED, answer
        case Untouched():
            return Decision.UNTOUCHED, write_allowed(review.uid, warnings=outcome.warnings)
        case Refusal():
            told.info("pod_refused", reason=outcome.message, user=review.user)
            answer = write_refused(
                review.uid, message=outcome.message, code=outcome.code, reason=outcome.reason
            )
            return Decision.REFUSED, answer


class WebhookServer(HttpServer):
    """The reviewer over HTTPS, with probes and metrics beside it."""

    def __init__(
        self,
        settings: WebhookSettings,
        reviewer: Reviewer,
        tls: ServingTls,
        *,
        registry: Registry,
        readiness: Callable[[], Readiness],
    ) -> None:
        app = web.Application(client_max_size=settings.body_limit_mib * _BYTES_PER_MIB)
        app.router.add_post(ROUTE, reviewer.handle)
        add_telemetry_routes(app, registry=registry, readiness=readiness)
        super().__init__(
            app, host=settings.listen_host, port=settings.listen_port, ssl_context=tls.context
        )
