from typing import Any

import pytest

from fracgpu.errors import RequestError
from tests.webhook.builders import a_container, a_pod, parsed
from webhook.admission.pod_edits import refuse_chosen_cards


def with_env(*env: dict[str, Any]) -> dict[str, Any]:
    return a_container(env=list(env))


@pytest.mark.parametrize(
    "env",
    [
        [],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}],
        [{"name": "X"}],
    ],
)
def test_a_container_that_shows_itself_no_card_is_fine(env: list[dict[str, Any]]) -> None:
    refuse_chosen_cards(parsed(a_pod(a_container(env=env))))


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        ({"value": "all"}, "all"),
        ({"value": "0,1"}, "0,1"),
        ({"value": ""}, "no plain value"),
        ({"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}, "no plain value"),
    ],
)
def test_a_container_that_chooses_cards_is_refused_in_these_words(
    variable: dict[str, Any], found: str
) -> None:
    pod = a_pod(init=[with_env({"name": "NVIDIA_VISIBLE_DEVICES", **variable})])

    with pytest.raises(RequestError) as refused:
        refuse_chosen_cards(parsed(pod))

    assert str(refused.value) == (
        f"env NVIDIA_VISIBLE_DEVICES of container 'train' is '{found}'; want no such variable: "
        "FracGPU chooses the cards, and shows them; leave it out"
    )


@pytest.mark.parametrize("value", ["all", "0", "void"])
def test_a_container_that_names_amds_cards_for_amds_runtime_is_refused(value: str) -> None:
    pod = a_pod(with_env({"name": "AMD_VISIBLE_DEVICES", "value": value}))

    with pytest.raises(RequestError, match="FracGPU chooses the cards, and shows them"):
        refuse_chosen_cards(parsed(pod))


@pytest.mark.parametrize("name", ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"])
@pytest.mark.parametrize("value", ["80000", "void", ""])
def test_a_container_that_sets_the_limit_of_a_cards_memory_is_refused(
    name: str, value: str
) -> None:
    pod = a_pod(with_env({"name": "A", "value": "b"}, {"name": name, "value": value}))

    with pytest.raises(RequestError, match="want no such variable: FracGPU limits the memory"):
        refuse_chosen_cards(parsed(pod))
