"""Updates of a stored pod; what an update may not change is in test_mutation."""

import copy
from typing import Any

import pytest

from fracgpu import names
from tests.webhook.admission.test_mutation import required
from tests.webhook.builders import (
    AGENT,
    REBALANCER,
    Json,
    a_container,
    a_pod,
    judged,
    judged_change,
    patched,
    stored,
)
from webhook.admission.verdict import Allowed, Denied

ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
OWN_AFFINITY = required([{"matchExpressions": [ZONE]}])
HAMI = {"fracgpu.io/dialects": "hami"}


def applied_again(pod: Json, once: Json) -> Json:
    """Return the stored pod as ``kubectl apply`` changes it: back to its manifest, by field."""
    again = copy.deepcopy(once)
    again["spec"]["affinity"] = copy.deepcopy(pod["spec"].get("affinity"))
    again["spec"]["schedulerName"] = pod["spec"]["schedulerName"]
    for old, new in zip(pod["spec"]["containers"], again["spec"]["containers"], strict=True):
        for which, amounts in (old.get("resources") or {}).items():
            new["resources"][which] |= amounts
    return again


def a_hami_pod() -> Json:
    limits = {"nvidia.com/gpumem": "3000", "cpu": "1"}
    resources = {"limits": limits, "requests": dict(limits)}
    spec = {**OWN_AFFINITY, "schedulerName": "hami-scheduler"}
    return a_pod(a_container(resources=resources), spec=spec)


@pytest.mark.parametrize(
    ("pod", "labels"),
    [
        (a_pod(fraction="0.5", spec=OWN_AFFINITY), {}),
        (a_pod(a_container(), a_container("web"), memory="web=1Gi", spec=OWN_AFFINITY), {}),
        (a_hami_pod(), HAMI),
    ],
    ids=["its own affinity", "two containers", "another system's pod"],
)
def test_the_same_bare_pod_applied_twice_is_as_it_was(pod: Json, labels: dict[str, str]) -> None:
    once = stored(pod, judged(pod, labels=labels))
    again = applied_again(pod, once)

    assert stored(again, patched(judged_change(once, again))) == once


def test_an_update_that_changes_nothing_of_ours_is_left_alone() -> None:
    pod = a_pod(fraction="0.5", spec=OWN_AFFINITY)
    once = stored(pod, judged(pod))
    labelled = copy.deepcopy(once)
    labelled["metadata"]["labels"] = {"team": "a"}

    assert judged_change(once, labelled) == Allowed()


def test_nothing_is_put_back_on_a_pod_that_was_granted_nothing() -> None:
    old, new = a_pod(spec=OWN_AFFINITY), a_pod()

    assert judged_change(old, new) == Allowed()


@pytest.mark.parametrize("scheduler", ["batch", "fracgpu-scheduler"])
def test_another_scheduler_than_the_one_it_named_is_left_to_the_api_server(scheduler: str) -> None:
    pod = a_pod(fraction="0.5")
    once = stored(pod, judged(pod))
    changed: dict[str, Any] = copy.deepcopy(once)
    changed["spec"]["schedulerName"] = scheduler

    assert judged_change(once, changed) == Allowed()


def with_note(key: str, text: str) -> Json:
    pod = a_pod(fraction="0.5")
    pod["metadata"]["annotations"][key] = text
    return pod


@pytest.mark.parametrize("user", [REBALANCER, AGENT, "admin"])
@pytest.mark.parametrize("key", [names.MOVE, names.MOVED_BY, names.NOTICE])
def test_what_is_said_of_a_move_on_a_pod_is_changed_by_the_rebalancer_or_by_nobody(
    key: str, user: str
) -> None:
    plain, noted = a_pod(fraction="0.5"), with_note(key, "m")
    allowed = user == REBALANCER and key != names.MOVE

    for old, new in ((plain, noted), (noted, plain), (noted, with_note(key, "other"))):
        outcome = judged_change(old, new, user=user)
        assert isinstance(outcome, Allowed) == allowed
        if isinstance(outcome, Denied):
            assert outcome.message.startswith(key)
            assert "want no change" in outcome.message
    assert isinstance(judged_change(noted, with_note(key, "m"), user=user), Allowed)


@pytest.mark.parametrize(("key", "writer"), [(names.RESIZED, ""), (names.APPLIED, AGENT)])
@pytest.mark.parametrize("user", [REBALANCER, AGENT, "admin"])
def test_a_resize_is_answered_and_confirmed_by_ours_alone(key: str, writer: str, user: str) -> None:
    outcome = judged_change(a_pod(fraction="0.5"), with_note(key, "{}"), user=user)

    assert isinstance(outcome, Allowed) == (user == writer)


@pytest.mark.parametrize("size", ["12Gi", "800Mi"])
def test_a_resize_is_asked_for_with_a_size(size: str) -> None:
    change = with_note(names.RESIZE, size)

    assert judged_change(a_pod(fraction="0.5"), change, user="admin") == Allowed()


def test_what_an_unwatched_note_calls_its_dialect_is_no_label_of_a_metric() -> None:
    pod = a_pod(fraction="0.5", spec=OWN_AFFINITY)
    once = stored(pod, judged(pod))
    annotations = once["metadata"]["annotations"]
    note = annotations[names.GRANTED]
    annotations[names.GRANTED] = note.replace('"containers":', '"dialect":"made-up","containers":')

    assert patched(judged_change(once, applied_again(pod, once))).dialect == "fracgpu"


MISREAD = [
    ("move-grace", "30s", "whole seconds"),
    ("move-grace", "-5", "whole seconds"),
    ("move-grace", "١٢", "whole seconds"),
    ("move-ready", "True", "true or false"),
    ("move-requested", "false", "remove the annotation to take it back"),
    ("move-requested", "", "the time of the request"),
    ("resize", "12", "a Kubernetes quantity with a unit"),
    ("resize", "", "a Kubernetes quantity with a unit"),
]


@pytest.mark.parametrize(("key", "value", "wanted"), MISREAD)
def test_what_the_rebalancer_or_the_scheduler_would_misread_is_refused(
    key: str, value: str, wanted: str
) -> None:
    plain = a_pod(fraction="0.5")
    once = stored(plain, judged(plain))
    changed = copy.deepcopy(once)
    changed["metadata"]["annotations"][f"fracgpu.io/{key}"] = value

    for outcome in (judged(a_pod(fraction="0.5", also={key: value})), judged_change(once, changed)):
        assert isinstance(outcome, Denied)
        assert f"fracgpu.io/{key} is" in outcome.message
        assert wanted in outcome.message


def test_a_pod_that_has_had_such_a_value_is_updated_all_the_same() -> None:
    plain = a_pod(fraction="0.5")
    once = stored(plain, judged(plain))
    once["metadata"]["annotations"]["fracgpu.io/move-grace"] = "30s"
    changed = copy.deepcopy(once)
    changed["metadata"]["annotations"]["fracgpu.io/rebalance"] = "never"

    assert judged_change(once, changed) == Allowed()


def test_a_running_pod_asks_to_be_moved_and_says_how() -> None:
    plain = a_pod(fraction="0.5")
    once = stored(plain, judged(plain))
    changed = copy.deepcopy(once)
    changed["metadata"]["annotations"] |= {
        "fracgpu.io/move-grace": "120",
        "fracgpu.io/move-ready": "true",
        "fracgpu.io/move-requested": "2026-01-05T12:00:00Z",
    }

    assert judged_change(once, changed) == Allowed()


def test_a_new_pod_does_not_ask_to_be_moved_or_each_replacement_would() -> None:
    pod = a_pod(fraction="0.5", also={"move-requested": "now"})

    outcome = patched(judged(pod))

    assert "fracgpu.io/move-requested has no effect in a new pod" in "".join(outcome.warnings)
    assert stored(pod, outcome) == stored(a_pod(fraction="0.5"), judged(a_pod(fraction="0.5")))
