"""Fields are found by path, also under conditions, and a lost one is an error."""

from typing import Any

import pytest

from tools.helm_chart.places import MissingFieldError, append, only_alternative, read, write
from tools.helm_chart.template import ABSENT, Choice


def pod() -> dict[str, Any]:
    return {
        "spec": {
            "containers": [
                {"name": "web", "args": ["run"]},
                Choice((("not .Values.x", {"name": "side", "cpu": 1}),), ABSENT),
            ]
        },
        "data": {"cards.yaml": "text"},
    }


def test_a_path_leads_through_names_and_keys_with_dots() -> None:
    assert read(pod(), "spec.containers[web].args") == ["run"]
    assert read(pod(), "data[cards.yaml]") == "text"
    assert read(pod(), "spec.containers[other].args") is ABSENT


def test_what_stands_under_a_condition_is_changed_there() -> None:
    body = pod()

    write(body, "spec.containers[side].cpu", lambda old: old + 1)

    assert only_alternative(body["spec"]["containers"][1])["cpu"] == 2


def test_a_field_that_is_not_there_yet_is_written_into_its_object() -> None:
    body = pod()

    write(body, "spec.containers[web].env", lambda old: old is ABSENT)

    assert read(body, "spec.containers[web].env") is True


@pytest.mark.parametrize("path", ["spec.containers[gone].args", "spec.pods.args"])
def test_a_lost_object_is_an_error(path: str) -> None:
    with pytest.raises(MissingFieldError):
        write(pod(), path, lambda old: old)
    with pytest.raises(MissingFieldError):
        append(pod(), path, ["x"])


def test_several_alternatives_are_an_error() -> None:
    with pytest.raises(MissingFieldError, match="2 alternatives"):
        only_alternative(Choice((("a", 1),), 2))
