import pytest

from kube.errors import (
    AccessError,
    AlreadyExists,
    Cause,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeDecodeError,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_from_status,
)


def an_error(status: int, reason: str = "", message: str = "why", **more: object) -> KubeError:
    return error_from_status(
        verb="GET",
        path="/api/v1/pods",
        status=status,
        reason=reason,
        message=message,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("status", "reason", "wanted"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", KubeError),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (0, "Expired", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
def test_each_status_has_its_error(status: int, reason: str, wanted: type[KubeError]) -> None:
    assert type(an_error(status, reason)) is wanted


def test_an_error_names_the_request_and_the_answer() -> None:
    error = an_error(403, "Forbidden", "pods is forbidden")

    assert str(error) == (
        "kube-apiserver answered 403 Forbidden to GET /api/v1/pods: pods is forbidden"
    )


def test_silence_is_not_reported_as_an_answer() -> None:
    error = Unavailable(verb="GET", path="/x", status=None, reason="Timeout", message="too late")

    assert str(error) == "no answer from kube-apiserver to GET /x: too late"


def test_a_long_message_is_cut() -> None:
    error = an_error(422, "Invalid", "x" * 5000)

    assert len(error.message) == 1000
    assert error.message.endswith("…")


def test_a_busy_server_and_a_disruption_budget_can_be_told_apart() -> None:
    busy = an_error(429, retry_after_s=3.0)
    budget = an_error(429, causes=[Cause(type="DisruptionBudget")])

    assert isinstance(busy, TooManyRequests)
    assert isinstance(budget, TooManyRequests)
    assert (busy.by_disruption_budget, busy.retry_after_s) == (False, 3.0)
    assert (budget.by_disruption_budget, budget.retry_after_s) == (True, None)


def test_an_undecodable_answer_is_a_value_error_too() -> None:
    assert issubclass(KubeDecodeError, ValueError)


def test_an_access_error_is_its_message() -> None:
    assert str(AccessError("no kubeconfig")) == "no kubeconfig"
