"""Objects as text of a template: what is not for Helm arrives unchanged."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tools.helm_chart.template import (
    ABSENT,
    SPLICED,
    Block,
    Choice,
    Expression,
    Splice,
    Text,
    render,
)

# Braces are for Helm: what it makes of them, tests/deploy/test_chart.py shows.
LETTERS = st.characters(
    codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"), include_characters="\n"
).filter(lambda letter: letter not in "{}")
SCALARS = st.none() | st.booleans() | st.integers() | st.text(LETTERS)
KEYS = st.text("abcdefghijklmnopqrstuvwxyz./-", min_size=1, max_size=12)
BODIES = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=12,
    ),
    min_size=1,
    max_size=4,
)


@given(BODIES)
@example({"a": [{"a": "\xa0"}]})  # a space that is not YAML's
def test_an_object_without_values_is_its_own_yaml(body: dict[str, Any]) -> None:
    assert yaml.safe_load(render(body)) == body


def test_braces_of_an_alert_are_not_helms() -> None:
    assert render({"text": "{{ $value }} cards"}) == (
        """text: '{{ "{{" }} $value {{ "}}" }} cards'\n"""
    )


def test_conditions_stand_around_entries_and_items() -> None:
    body = {
        "args": ["run", Choice(((".Values.fast", "--fast"),), ABSENT)],
        "image": Choice(((".Values.own", "mine"),), "ours"),
        "gone": Choice(((".Values.none", ABSENT),), 1),
    }

    assert render(body).splitlines() == [
        "args:",
        "  - run",
        "{{- if .Values.fast }}",
        "  - --fast",
        "{{- end }}",
        "{{- if not (.Values.none) }}",
        "gone: 1",
        "{{- end }}",
        "{{- if .Values.own }}",
        "image: mine",
        "{{- else }}",
        "image: ours",
        "{{- end }}",
    ]


def test_values_are_expressions_blocks_texts_and_further_items() -> None:
    body = {
        "a": Expression(".Values.a", quoted=True),
        "b": Block("toYaml .Values.b"),
        "c": Text(".Values.c"),
        "d": ["x", Splice(".Values.d")],
        "e": {"x": "1", SPLICED: Splice(".Values.e")},
    }

    assert render(body).splitlines() == [
        "a: {{ .Values.a | quote }}",
        "b:",
        "  {{- toYaml .Values.b | nindent 2 }}",
        "c: |",
        "  {{- .Values.c | nindent 2 }}",
        "d:",
        "  - x",
        "{{- with .Values.d }}",
        "  {{- toYaml . | nindent 2 }}",
        "{{- end }}",
        "e:",
        "{{- with .Values.e }}",
        "  {{- toYaml . | nindent 2 }}",
        "{{- end }}",
        "  x: '1'",
    ]


def test_an_item_that_begins_with_a_condition_is_an_error() -> None:
    with pytest.raises(ValueError, match="begins with a condition"):
        render({"items": [{"a": Choice(((".Values.x", 1),), ABSENT)}]})
