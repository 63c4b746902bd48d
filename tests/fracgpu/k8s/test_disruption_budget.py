"""PodDisruptionBudgets, as far as preemption needs them to choose victims."""

import json
from typing import Any

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.disruption_budget import BudgetIndex, read_budget
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.snapshot import PodAllocation


def a_budget(allowed: int = 1, **selector: Any) -> bytes:
    return json.dumps(
        {
            "metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": selector or {"matchLabels": {"app": "a"}}},
            "status": {"disruptionsAllowed": allowed, "disruptedPods": {"taken": "2026-01-01"}},
        }
    ).encode()


def a_subject(name: str = "p", namespace: str = "default", **labels: str) -> BoundPod:
    held = PodAllocation(pod_uid=name, node="n", by_card={})
    return BoundPod(namespace=namespace, name=name, labels=labels, allocation=held)


def test_more_victims_than_a_budget_allows_break_it() -> None:
    budgets = BudgetIndex([read_budget(a_budget(allowed=1))])

    assert budgets.violations([a_subject("p", app="a")]) == 0
    assert budgets.violations([a_subject("p", app="a"), a_subject("q", app="a")]) == 1


def test_pods_of_others_and_pods_taken_already_break_nothing() -> None:
    budgets = BudgetIndex([read_budget(a_budget(allowed=0))])

    assert budgets.violations([a_subject(app="b"), a_subject(namespace="other", app="a")]) == 0
    assert budgets.violations([a_subject("taken", app="a")]) == 0
    assert budgets.violations([a_subject(app="a")]) == 1


def test_of_pods_with_equal_labels_only_the_one_that_is_not_taken_already_counts() -> None:
    index = BudgetIndex([read_budget(a_budget(allowed=1))])
    pods = [a_subject(name, app="a") for name in ("p", "taken", "q")]

    assert [len(index.of(pod)) for pod in pods] == [1, 0, 1]
    assert index.violations(pods) == 1


@pytest.mark.parametrize(
    ("operator", "values", "labels", "covered"),
    [
        ("In", ["x", "y"], {"tier": "x"}, True),
        ("In", ["x", "y"], {}, False),
        ("NotIn", ["x"], {"tier": "x"}, False),
        ("NotIn", ["x"], {}, True),
        ("Exists", None, {"tier": ""}, True),
        ("Exists", None, {}, False),
        ("DoesNotExist", None, {}, True),
        ("DoesNotExist", None, {"tier": "x"}, False),
        ("Later", None, {}, True),
        ("Gt", ["1"], {}, True),  # of nodes alone so far
    ],
)
def test_expressions_select_as_kubernetes_does(
    operator: str, values: list[str] | None, labels: dict[str, str], covered: bool
) -> None:
    expression = {"key": "tier", "operator": operator, "values": values}
    budget = read_budget(a_budget(matchExpressions=[expression]))

    assert budget.covers("default", labels) is covered


def test_a_budget_without_a_selector_covers_nothing() -> None:
    assert not read_budget(b"{}").covers("", {})


def test_what_is_no_budget_is_refused() -> None:
    with pytest.raises(WireError, match="poddisruptionbudget"):
        read_budget(b"[]")
