"""YAML by whomever: a value, or one error that says why there is none."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.yaml_text import NotYamlError, read_yaml


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [1", "while parsing a flow sequence"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: 2026-02-30", "day is out of range"),
        ("a: !!timestamp noon", "a value that is not what its tag"),
        ("a: !!bool perhaps", "a value that is not what its tag"),
        ("a: !!int ''", "a value that is not what its tag"),
        ("a: !!float x", "could not convert string to float"),
        ("[" * 5000, "maximum recursion depth exceeded"),
        ("a: \x00", "unacceptable character"),
        (b"a: \xff", "unacceptable character"),
        ("a: b\n---\nc: d\n", "expected a single document"),
    ],
)
def test_what_is_wrong_is_said_on_one_line(text: str | bytes, why: str) -> None:
    with pytest.raises(NotYamlError) as caught:
        read_yaml(text)

    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_a_stream_no_line_is_quoted() -> None:
    text = "users: [{token: secret}\n"

    with pytest.raises(NotYamlError) as caught:
        read_yaml(io.StringIO(text))
    assert "secret" not in str(caught.value)
    with pytest.raises(NotYamlError, match="secret"):
        read_yaml(text)


@given(
    st.text()
    | st.binary()
    | st.builds(
        "{}!!{} {}".format,
        st.sampled_from(["", "- ", "a: ", "? "]),
        st.sampled_from(["int", "float", "bool", "null", "timestamp", "binary", "set", "omap"]),
        st.text(max_size=9),
    )
)
def test_nothing_but_its_own_error_comes_of_any_text(text: str | bytes) -> None:
    problem = "none"
    try:
        read_yaml(text)
    except NotYamlError as error:
        problem = str(error)
    assert problem
