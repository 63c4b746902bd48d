"""Several builds become one, from which each can be taken again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.helm_chart.template import ABSENT, Choice
from tools.helm_chart.variants import ConflictError, Variant, combine


def chosen(value: Any, conditions: frozenset[str]) -> Any:
    """Return what a combined value is under *conditions*."""
    match value:
        case Choice(branches, otherwise):
            for told, inner in branches:
                names = told.removeprefix("or ").replace("(", "").replace(")", "").split(" ")
                if conditions & set(names):
                    return chosen(inner, conditions)
            return chosen(otherwise, conditions)
        case dict():
            found = {key: chosen(inner, conditions) for key, inner in value.items()}
            return {key: inner for key, inner in found.items() if inner is not ABSENT}
        case list():
            items = [chosen(item, conditions) for item in value]
            return [item for item in items if item is not ABSENT]
        case _:
            return value


WORDS = st.lists(st.sampled_from(["run", "--fast", "--slow", "x"]), max_size=5)
NAMED = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abc"), "value": st.integers(0, 2)}),
    max_size=3,
    unique_by=lambda item: str(item["name"]),
)
BODIES = st.fixed_dictionaries(
    {}, optional={"args": WORDS, "env": NAMED, "replicas": st.integers(0, 2)}
)


def sorted_items(body: dict[str, Any]) -> dict[str, Any]:
    return {
        key: sorted(value, key=lambda item: str(item["name"])) if key == "env" else value
        for key, value in body.items()
    }


@given(BODIES, BODIES, BODIES)
def test_under_its_condition_each_variant_is_itself_and_else_the_base(
    base: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> None:
    variants = [Variant("same", "A", one), Variant("same", "B", other)]

    merged = combine(base, variants)

    for conditions, wanted in ((set(), base), ({"A"}, one), ({"B"}, other)):
        found = chosen(merged, frozenset(conditions))
        assert sorted_items(found) == sorted_items(wanted)


def test_two_overlays_that_can_be_chosen_together_may_add_to_one_list() -> None:
    merged = combine(
        {"args": ["run"]},
        [Variant("x", "A", {"args": ["run", "--a"]}), Variant("y", "B", {"args": ["run", "--b"]})],
    )

    assert chosen(merged, frozenset({"A", "B"})) == {"args": ["run", "--a", "--b"]}


def test_two_overlays_that_can_be_chosen_together_must_not_contradict() -> None:
    with pytest.raises(ConflictError, match=r"\.replicas: the overlays for A and B both change it"):
        combine(
            {"replicas": 1},
            [Variant("x", "A", {"replicas": 2}), Variant("y", "B", {"replicas": 3})],
        )
