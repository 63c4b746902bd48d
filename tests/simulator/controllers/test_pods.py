import pytest

from simulator.controllers.pods import deletion_rank
from simulator.objects import Json

EARLY, LATE = "2026-01-05T12:00:00Z", "2026-01-05T13:00:00Z"


def a_pod(name: str, *, created: str = EARLY, ready_since: str = "", **parts: Json) -> Json:
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": ready_since}
    return {
        "metadata": {"name": name, "creationTimestamp": created, **parts.get("metadata", {})},
        "spec": {"nodeName": "n1", **parts.get("spec", {})},
        "status": {"phase": "Running", "conditions": [condition] if ready_since else []},
    }


def costly(cost: str) -> Json:
    return {"annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (a_pod("z", spec={"nodeName": ""}), a_pod("a")),
        (a_pod("z"), a_pod("a", ready_since=EARLY)),
        (a_pod("z", ready_since=EARLY, metadata=costly("-1")), a_pod("a", ready_since=LATE)),
        (a_pod("z", ready_since=LATE), a_pod("a", ready_since=EARLY)),
        (a_pod("z", created=LATE), a_pod("a", created=EARLY)),
        (a_pod("a"), a_pod("z")),
    ],
    ids=["unassigned", "not-ready", "cheap", "ready-later", "younger", "by-name"],
)
def test_what_is_lost_least_goes_first(first: Json, second: Json) -> None:
    assert sorted([second, first], key=deletion_rank) == [first, second]


def test_a_deletion_cost_that_is_no_number_counts_as_none() -> None:
    assert deletion_rank(a_pod("a", metadata=costly("dear"))) == deletion_rank(a_pod("a"))
