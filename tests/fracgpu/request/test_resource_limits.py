import pytest

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.language import limit_of, parse_resource_limits, split_over_cards
from fracgpu.units import Mib

MEM, SLOT = names.GPU_MEM, names.GPU_SLOT


def a_spec(limits: dict[str, str], requests: dict[str, str] | None = None) -> ContainerSpec:
    return ContainerSpec(name="train", limits=limits, requests=requests or {})


@pytest.mark.parametrize(
    ("limits", "requests", "wanted"),
    [
        ({}, {}, (None, None)),
        ({"cpu": "1"}, {"cpu": "1"}, (None, None)),
        ({MEM: "4096"}, {}, (4096, None)),
        ({MEM: "8k", SLOT: "2"}, {MEM: "8000", SLOT: "2"}, (8000, 2)),
        ({SLOT: "1"}, {}, (None, 1)),
    ],
)
def test_what_limits_say_of_ours_is_read_and_requests_may_repeat_it(
    limits: dict[str, str], requests: dict[str, str], wanted: tuple[int | None, int | None]
) -> None:
    assert parse_resource_limits(a_spec(limits, requests)) == wanted


@pytest.mark.parametrize(
    ("limits", "requests", "words"),
    [
        (
            {"fracgpu.io/gpu-count": "2"},
            {},
            "limits['fracgpu.io/gpu-count'] of container 'train' is '2'; want fracgpu.io/gpu-mem "
            "in whole MiB; use the annotation fracgpu.io/cards for several cards",
        ),
        (
            {},
            {MEM: "1"},
            "requests['fracgpu.io/gpu-mem'] of container 'train' is '1'; want the same amount in "
            "limits; set fracgpu.io/gpu-mem in limits alone",
        ),
        (
            {MEM: "2"},
            {MEM: "1"},
            "requests['fracgpu.io/gpu-mem'] of container 'train' is '1'; want what its limits say, "
            "2; leave the request out; Kubernetes copies the limit",
        ),
        (
            {MEM: "2", SLOT: "0"},
            {},
            "limits['fracgpu.io/gpu-slot'] of container 'train' is '0'; want what the webhook "
            "writes; set fracgpu.io/gpu-mem instead",
        ),
    ],
)
def test_amounts_that_make_no_sense_are_refused_in_these_words(
    limits: dict[str, str], requests: dict[str, str], words: str
) -> None:
    with pytest.raises(RequestError) as refused:
        parse_resource_limits(a_spec(limits, requests))

    assert str(refused.value) == words


def test_a_total_is_split_evenly_or_not_at_all() -> None:
    assert split_over_cards(Mib(8000), 2, "a") == 4000
    with pytest.raises(RequestError) as refused:
        split_over_cards(Mib(2), 3, "a")

    assert str(refused.value) == (
        "limits['fracgpu.io/gpu-mem'] of container 'a' is '2'; want a number of MiB that divides "
        "evenly over its 3 cards; '3' would do"
    )


def test_a_limit_is_named_with_its_container() -> None:
    assert limit_of(MEM, "train") == "limits['fracgpu.io/gpu-mem'] of container 'train'"
