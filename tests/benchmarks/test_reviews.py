"""The mixture of reviews that the benchmark sends: of every kind, and decided as it is meant."""

from collections import Counter

import msgspec

from benchmarks.fixtures.live_webhook import POLYGLOT
from benchmarks.fixtures.reviews import mixed_reviews, other_settings_reviews, unlike_reviews
from tests.webhook.builders import CLASSES, RULES
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import admit_create
from webhook.admission.relevant import relevant_parts
from webhook.admission.review import Operation, read_pods, read_review
from webhook.admission.update import admit_update
from webhook.admission.verdict import AdmissionResult
from webhook.admission.workload import admit_workload


def judged(path: str, body: bytes) -> AdmissionResult:
    review = read_review(body)
    labels = {"fracgpu.io/dialects": "all"} if review.namespace == POLYGLOT else {}
    if path == "/validate":
        return admit_workload(
            review, DecisionContext(classes=CLASSES, config=RULES, namespace_labels=labels)
        )
    pod, old = read_pods(review)
    if review.operation is Operation.UPDATE and old is not None:
        return admit_update(old, pod, user=review.user, config=RULES)
    return admit_create(
        pod, DecisionContext(classes=CLASSES, config=RULES, namespace_labels=labels)
    )


def test_mixed_reviews_are_of_every_kind_and_no_two_alike() -> None:
    reviews = mixed_reviews(300, seed=1)

    assert len(set(reviews)) == 300
    assert reviews == mixed_reviews(300, seed=1)
    outcomes = Counter(type(judged(*review)).__name__ for review in reviews)
    dialects = {judged(*review).dialect for review in reviews}
    assert min(outcomes[name] for name in ("Patched", "Allowed", "Denied")) > 20
    assert {"fracgpu", "none", "gpushare", "hami", "kai", "volcano", "aws"} <= dialects
    assert max(len(body) for _, body in reviews) > 60_000


def test_unlike_reviews_differ_in_what_admission_reads() -> None:
    pods = [read_pods(read_review(body))[0] for body in unlike_reviews(300)]

    assert len({msgspec.json.encode(relevant_parts(pod)) for pod in pods}) == 300


def test_pods_of_other_settings_differ_only_in_what_admission_does_not_read() -> None:
    pods = [read_pods(read_review(body))[0] for body in other_settings_reviews(300)]

    assert len({msgspec.json.encode(pod.spec) for pod in pods}) == 300
    assert len({msgspec.json.encode(relevant_parts(pod).spec) for pod in pods}) == 1
