"""Odd pods where every dialect is enabled: decided without a crash, and twice the same."""

import json

from benchmarks.fixtures.odd_reviews import odd_reviews
from tests.webhook.builders import CLASSES, RULES, Json, parsed, stored
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import admit_create
from webhook.admission.review import MalformedReviewError, Pod, read_pods, read_review
from webhook.admission.verdict import AdmissionResult, Allowed, Patched

ALL = {"fracgpu.io/dialects": "all"}


def judged(pod: Pod) -> AdmissionResult:
    return admit_create(pod, DecisionContext(classes=CLASSES, config=RULES, namespace_labels=ALL))


def test_whatever_is_granted_passes_a_second_look_untouched() -> None:
    granted = 0
    for path, body in odd_reviews(1200, seed=7):
        if path != "/mutate":
            continue
        try:
            review = read_review(body)
            pod, old = read_pods(review)
        except MalformedReviewError:
            continue
        outcome = judged(pod)
        if old is not None or not isinstance(outcome, Patched):
            continue
        try:
            once: Json = stored(json.loads(bytes(review.object)), outcome)
        except (ValueError, TypeError, RecursionError):
            continue  # other parts of the pod are so odd that no API server could store them
        granted += 1
        assert isinstance(judged(parsed(once)), Allowed), outcome.granted
    assert granted > 40
