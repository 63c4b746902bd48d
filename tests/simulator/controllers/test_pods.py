from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kube.kinds import REPLICASETS
from simulator.controllers.pods import deletion_rank, from_template

if TYPE_CHECKING:
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


def test_a_pod_made_from_a_template_is_controlled_and_does_not_share_it() -> None:
    template: Json = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": []}}
    owner: Json = {"metadata": {"name": "rs", "uid": "u1"}}

    pod = from_template(template, kind=REPLICASETS, owner=owner)
    pod["metadata"]["labels"]["app"] = "b"

    assert template["metadata"]["labels"] == {"app": "a"}
    assert pod["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "rs",
            "uid": "u1",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
