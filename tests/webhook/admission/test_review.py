import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.builders import Json, a_pod, a_review
from webhook.admission.review import (
    CREATE,
    MalformedReviewError,
    read_pods,
    read_review,
    write_allowed,
    write_refused,
)

UID = "9e8992f7-5761-4a27-a7b0-501b0d61c7f6"


def body(review: Json) -> bytes:
    return json.dumps(review).encode()


def test_a_review_is_read_as_the_question_it_is() -> None:
    review = read_review(body(a_review(a_pod(fraction="0.5"), dryRun=True)))

    assert (review.uid, review.operation, review.dry_run) == (UID, CREATE, True)
    assert (review.namespace, review.name, review.user_info.username) == ("ml", "job-1", "alice")
    pod, old = read_pods(review)
    assert pod.annotations == {"fracgpu.io/fraction": "0.5"}
    assert old is None


def test_an_update_brings_the_pod_before() -> None:
    review = read_review(
        body(a_review(a_pod(), operation="UPDATE", oldObject=a_pod(fraction="0.5")))
    )

    _, old = read_pods(review)
    assert old is not None
    assert old.annotations == {"fracgpu.io/fraction": "0.5"}


def test_fields_that_a_newer_api_server_adds_are_passed_over() -> None:
    review = a_review(a_pod(spec={"brandNew": [1, {"x": None}]}), brandNew={"a": 1})

    assert read_review(body(review)).uid == UID


MALFORMED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "the body cannot be read: Input data was truncated"),
    "no JSON": (b"hello", "the body cannot be read: JSON is malformed: invalid character (byte 0)"),
    "another kind": (
        body({**a_review(a_pod()), "kind": "Review"}),
        "the body is admission.k8s.io/v1 Review; want admission.k8s.io/v1 AdmissionReview",
    ),
    "an old version": (
        body({**a_review(a_pod()), "apiVersion": "admission.k8s.io/v1beta1"}),
        "the body is admission.k8s.io/v1beta1 AdmissionReview; "
        "want admission.k8s.io/v1 AdmissionReview",
    ),
    "no request": (
        body({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}),
        "the body cannot be read: Object missing required field `request`",
    ),
    "no uid": (
        body(a_review(a_pod(), uid="")),
        "request.uid is empty; want the uid that the answer repeats",
    ),
    "another kind of object": (
        body(a_review(a_pod(), kind={"group": "apps", "version": "v1", "kind": "Deployment"})),
        "request.kind is apps Deployment; want core Pod, as the webhook's rules say",
    ),
    "an operation without a pod": (
        body(a_review(None, operation="DELETE")),
        "request.operation is 'DELETE'; want CREATE or UPDATE",
    ),
    "no pod": (body(a_review(None)), "request.object is null; want the object"),
    "an update without the pod before": (
        body(a_review(a_pod(), operation="UPDATE")),
        "request.oldObject is null; want the object before the update",
    ),
    "a pod without containers": (
        body(a_review({"metadata": {}, "spec": {}})),
        "request.object cannot be read: Object missing required field `containers` - at `$.spec`",
    ),
    "a number where an annotation stands": (
        body(a_review({**a_pod(), "metadata": {"annotations": {"a": 1}}})),
        "request.object cannot be read: Expected `str`, got `int` - "
        "at `$.metadata.annotations[...]`",
    ),
}


@pytest.mark.parametrize(("content", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_review_of_a_pod_is_malformed_in_these_words(
    content: bytes, message: str
) -> None:
    with pytest.raises(MalformedReviewError) as refused:
        read_pods(read_review(content))

    assert str(refused.value) == message


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"apiVersion":' + b'{"a":' * 200_000,
        body(a_review(a_pod())).replace(b'"job-1"', b'"\xff\xfe"'),
        body(a_review(a_pod())).replace(b'"job-1"', b'"\\ud800"'),
    ],
    ids=["deep lists", "deep objects", "not UTF-8", "half a character"],
)
def test_hostile_bytes_are_malformed_and_nothing_worse(content: bytes) -> None:
    with pytest.raises(MalformedReviewError):
        read_pods(read_review(content))


@given(st.binary())
def test_arbitrary_bytes_are_malformed(content: bytes) -> None:
    with pytest.raises(MalformedReviewError):
        read_pods(read_review(content))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from(["uid", "kind", "operation", "object", "oldObject", "userInfo", "dryRun"]),
    json_values,
)
def test_one_field_of_any_shape_is_read_or_malformed(field: str, value: Any) -> None:
    content = body(a_review(a_pod(), **{field: value}))

    with contextlib.suppress(MalformedReviewError):
        assert read_pods(read_review(content))[0].spec.containers


def test_yes_with_edits_is_a_json_patch_in_base64() -> None:
    answer = json.loads(
        write_allowed(UID, patch=b'[{"path":"/a","value":{"b":1},"op":"add"}]', warnings=["w"])
    )

    patch = json.loads(base64.b64decode(answer["response"].pop("patch")))
    assert patch == [{"op": "add", "path": "/a", "value": {"b": 1}}]
    assert answer == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": UID, "allowed": True, "patchType": "JSONPatch", "warnings": ["w"]},
    }


def test_yes_without_edits_has_no_patch_at_all() -> None:
    assert json.loads(write_allowed(UID))["response"] == {"uid": UID, "allowed": True}


def test_no_carries_the_reason_where_kubectl_looks_for_it() -> None:
    answer = json.loads(write_refused(UID, message="why", code=422, reason="Invalid"))

    assert answer["response"] == {
        "uid": UID,
        "allowed": False,
        "status": {"code": 422, "message": "why", "reason": "Invalid"},
    }


def test_a_refusal_that_quotes_a_flood_is_cut() -> None:
    answer = json.loads(write_refused(UID, message="x" * 5000, code=422, reason="Invalid"))

    message = answer["response"]["status"]["message"]
    assert (len(message), message[-1]) == (998, "…")
