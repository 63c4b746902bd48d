"""The status of a pod, in the one word that kubectl shows."""

from typing import Any

import pytest

from simulator.apiserver.endpoints.pod_cells import pod_cells

READY = {"type": "Ready", "status": "True"}


def cells(status: dict[str, Any], *, deleted: bool = False, **spec: Any) -> list[Any]:
    meta = {"name": "x", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    body = {
        "metadata": meta,
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], **spec},
        "status": status,
    }
    return list(pod_cells(body, since=lambda text: f"since {text}"))


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"state": state, **more}


def ended(code: int, **more: Any) -> dict[str, Any]:
    return container({"terminated": {"exitCode": code, **more}})


RUNS = container({"running": {}}, ready=True)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({"phase": "Pending"}, "Pending"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        ({"phase": "Running", "containerStatuses": [RUNS, RUNS]}, "Running"),
        (
            {
                "phase": "Pending",
                "containerStatuses": [container({"waiting": {"reason": "ImagePullBackOff"}})],
            },
            "ImagePullBackOff",
        ),
        ({"phase": "Failed", "containerStatuses": [ended(2)]}, "ExitCode:2"),
        ({"phase": "Failed", "containerStatuses": [ended(137, signal=9)]}, "Signal:9"),
        (
            {
                "phase": "Running",
                "conditions": [READY],
                "containerStatuses": [ended(0, reason="Completed"), RUNS],
            },
            "Running",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [ended(0, reason="Completed"), ended(1, reason="Error")],
            },
            "Error",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}],
            },
            "SchedulingGated",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_status_is_the_reason_that_tells_most(status: dict[str, Any], shown: str) -> None:
    assert cells(status)[2] == shown


def test_a_pod_that_is_being_deleted_terminates_until_it_has_ended() -> None:
    assert cells({"phase": "Running"}, deleted=True)[2] == "Terminating"
    assert cells({"phase": "Succeeded"}, deleted=True)[2] == "Succeeded"


def test_an_init_container_is_told_first() -> None:
    first = {"phase": "Pending", "initContainerStatuses": [container({"running": {}})]}
    failed = {"phase": "Pending", "initContainerStatuses": [ended(0), ended(3)]}

    assert cells(first, initContainers=[{}, {}])[2] == "Init:0/2"
    assert cells(failed, initContainers=[{}, {}])[2] == "Init:ExitCode:3"


def test_ready_containers_and_restarts_are_counted() -> None:
    again = {"restartCount": 2, "lastState": {"terminated": {"finishedAt": "then"}}}
    status = {"phase": "Running", "containerStatuses": [{**RUNS, **again}, container({})]}

    _, ready, _, restarts, *wide = cells(status, nodeName="n1")

    assert (ready, restarts) == ("1/2", "2 (since then ago)")
    assert wide == ["<none>", "n1", "<none>", "<none>"]


def test_readiness_gates_are_counted() -> None:
    gates = [{"conditionType": "Ready"}, {"conditionType": "other"}]

    assert cells({"conditions": [READY]}, readinessGates=gates)[-1] == "1/2"
