"""The log's lines about reviews: who asked for what, and the decision with its reason."""

import asyncio
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import structlog

from fracgpu.errors import shorten
from process.clock import Clock
from webhook.admission.review import Review
from webhook.admission.verdict import AdmissionResult, Allowed, Denied, Patched

log = structlog.get_logger()

_LATEST_S: Final = 0.1  # after which a line is written at the latest
_MANY_LINES: Final = 16  # are written as soon as the answer is: a third of a millisecond
_MOST_NAME: Final = 253  # of an object, RFC 1123 subdomain


class ReviewLog:
    """Writes one line for each review, a few together.

    A line that is written alone, between two reviews, takes several times the CPU of one among
    others: nothing that it needs is in the processor's caches. So lines wait for at most a tenth of
    a second. Each has the time of its review, and none is lost when the process stops in order.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Bound once: the module's lazy logger would be built again for each line.
        self._log: structlog.typing.FilteringBoundLogger = log.bind()
        self._lines: deque[tuple[datetime, str, Mapping[str, object]]] = deque()
        self._flush: asyncio.Handle | None = None

    def add(self, review: Review, result: AdmissionResult, *, took_s: float) -> None:
        """Log a decision on a review, soon."""
        event, said = _told(review, result)
        # Shortened now: a review may be long, and must not stay in memory until it is written.
        line: dict[str, object] = {
            "uid": shorten(review.uid),
            "operation": review.operation.value,
            "kind": shorten(review.kind),
            "namespace": shorten(review.namespace),
            "name": shorten(review.name, limit=_MOST_NAME),
            "user": shorten(review.user, limit=_MOST_NAME),
            "dry_run": review.dry_run,
            "took_us": round(took_s * 1e6),
            **said,
        }
        self._lines.append((self._clock.now(), event, line))
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(_LATEST_S, self.flush)
        elif len(self._lines) == _MANY_LINES:
            self._flush.cancel()
            self._flush = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write the lines that wait."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        while self._lines:  # of which a failed write loses one
            at, event, line = self._lines.popleft()
            timestamp = at.isoformat().replace("+00:00", "Z")
            self._log.info(event, **line, timestamp=timestamp)


def _told(review: Review, result: AdmissionResult) -> tuple[str, Mapping[str, str]]:
    match result:
        case Patched():
            return "pod_granted", {"granted": result.granted}
        case Allowed():
            return "review_passed", {}
        case Denied():
            event = "pod_refused" if review.kind == "Pod" else "workload_refused"
            return event, {"reason": result.message}
