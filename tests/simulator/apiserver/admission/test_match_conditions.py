from __future__ import annotations

import pytest

from simulator.apiserver.admission.match_conditions import ConditionError, all_hold

POD = {
    "metadata": {"name": "a", "annotations": {"fracgpu.io/fraction": "0.5"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"a/b": "1"}}}]},
}
VARIABLES = {"object": POD, "oldObject": None, "request": {"operation": "CREATE"}}


def holds(*expressions: str) -> bool:
    conditions = [{"name": f"c{i}", "expression": text} for i, text in enumerate(expressions)]
    return all_hold(conditions, VARIABLES)


def test_one_that_is_false_decides_even_beside_one_that_fails() -> None:
    broken = "object.spec.gone == 1"

    assert not holds(broken, "false")
    with pytest.raises(ConditionError, match=r"c0: .*gone"):
        holds(broken, "true")


def test_an_answer_that_is_not_yes_or_no_is_an_error() -> None:
    with pytest.raises(ConditionError, match="must evaluate to bool"):
        holds("object.metadata.name")


@pytest.mark.parametrize(
    "expression",
    [
        "object.metadata.name ==",
        "",
        "object.?spec.hasValue()",
        "quantity('1Gi').isGreaterThan(quantity('1Mi'))",
        "authorizer.group('').resource('pods').check('get').allowed()",
        "foo(1) == 1",
    ],
)
def test_what_cannot_be_evaluated_here_is_an_error(expression: str) -> None:
    with pytest.raises(ConditionError):
        holds(expression)
