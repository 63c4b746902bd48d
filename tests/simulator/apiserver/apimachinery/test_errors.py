from __future__ import annotations

from simulator.apiserver.apimachinery.errors import (
    StatusCause,
    already_exists,
    bad_request,
    conflict,
    expired,
    forbidden,
    internal,
    invalid,
    method_not_supported,
    not_found,
    plain_failure,
    precondition_failed,
    stale,
    too_large_version,
    too_many_requests,
    unknown_resource,
    unprocessable_patch,
    unsupported_media_type,
    version_required,
    wrong_uid,
    wrong_version,
)
from simulator.apiserver.apimachinery.resources import DEPLOYMENTS, PODS
from tests.simulator.harness import at

BAD = StatusCause(field="spec.replicas", reason="FieldValueInvalid", message='Invalid value: "x"')


def test_every_refusal_has_its_code_and_reason() -> None:
    pod = at(PODS, "a")
    refusals = [
        (bad_request(""), 400, "BadRequest"),
        (not_found(PODS, "a"), 404, "NotFound"),
        (unknown_resource(), 404, "NotFound"),
        (method_not_supported(), 405, "MethodNotAllowed"),
        (already_exists(PODS, "a"), 409, "AlreadyExists"),
        (conflict(PODS, "a", "why"), 409, "Conflict"),
        (stale(PODS, "a"), 409, "Conflict"),
        (wrong_uid(pod, wanted="1", found="2"), 409, "Conflict"),
        (wrong_version(pod, wanted="1", found="2"), 409, "Conflict"),
        (precondition_failed(PODS, "a", field="UID", wanted="1", found="2"), 409, "Conflict"),
        (invalid(PODS, "a", [BAD]), 422, "Invalid"),
        (version_required(PODS, "a"), 422, "Invalid"),
        (unprocessable_patch(), 422, "Invalid"),
        (forbidden(PODS, "a", "why"), 403, "Forbidden"),
        (expired("old"), 410, "Expired"),
        (too_large_version(asked=9, current=1), 504, "Timeout"),
        (too_many_requests("m", retry_after_s=10, cause="c"), 429, "TooManyRequests"),
        (internal("m"), 500, "InternalError"),
        (plain_failure("m"), 500, ""),
        (unsupported_media_type("m"), 415, "UnsupportedMediaType"),
    ]
    assert [(e.code, e.reason) for e, *_ in refusals] == [(c, r) for _, c, r in refusals]
    for error, code, reason in refusals:
        body = error.body()
        assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", code)
        assert body.get("reason", "") == reason


def test_one_fault_is_told_alone_and_several_in_brackets() -> None:
    one = invalid(DEPLOYMENTS, "d", [BAD])
    two = invalid(DEPLOYMENTS, "d", [BAD, BAD])

    cause = 'spec.replicas: Invalid value: "x"'
    assert one.message == f'Deployment.apps "d" is invalid: {cause}'
    assert two.message == f'Deployment.apps "d" is invalid: [{cause}, {cause}]'
    assert one.body()["details"] == {
        "name": "d",
        "group": "apps",
        "kind": "Deployment",
        "causes": [
            {
                "reason": "FieldValueInvalid",
                "message": 'Invalid value: "x"',
                "field": "spec.replicas",
            }
        ],
    }


def test_a_budget_tells_its_cause_and_when_to_come_back() -> None:
    later = too_many_requests("no", retry_after_s=10, cause="still being counted")
    never = too_many_requests("no", retry_after_s=0, cause="nobody may go")

    assert later.retry_after_s == 10
    assert never.retry_after_s == 0
    assert later.body()["details"] == {
        "causes": [{"reason": "DisruptionBudget", "message": "still being counted"}],
        "retryAfterSeconds": 10,
    }


def test_a_conflict_on_a_subresource_names_it() -> None:
    error = conflict(PODS, "a", "taken", subresource="binding")

    assert error.message == 'Operation cannot be fulfilled on pods/binding "a": taken'
    assert error.body()["details"] == {"name": "a", "kind": "pods/binding"}
