import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid, Health
from fracgpu.device_claims.devices import cards_by_device, device_name, pool_spec
from fracgpu.units import Mib
from tests.support.core import a_card


def test_a_card_is_a_device_of_all_that_it_shares() -> None:
    card = replace(
        a_card("GPU-1A2b", mib=24_050, index=3, model="NVIDIA A30"), numa_node=1, slots=8
    )

    spec = pool_spec("node-a", [card], generation=4, isolation=("kernel", "mps"), card_class="a30")

    (device,) = spec["devices"]

    assert device == {
        "name": "gpu-1a2b",
        "attributes": {
            "uuid": {"string": "GPU-1A2b"},
            "vendor": {"string": "nvidia"},
            "model": {"string": "NVIDIA-A30"},
            "index": {"int": 3},
            "numa": {"int": 1},
            "isolation": {"string": "kernel,mps"},
            "cardClass": {"string": "a30"},
        },
        "capacity": {
            "memory": {
                "value": "24000Mi",
                "requestPolicy": {
                    "default": "24000Mi",
                    "validRange": {"min": "1Mi", "step": "1Mi"},
                },
            },
            "borrowed": {
                "value": "24000Mi",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1Mi"}},
            },
            "cores": {
                "value": "100",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}},
            },
            "slots": {
                "value": "8",
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
            },
        },
        "allowMultipleAllocations": True,
    }


def test_a_card_whose_containers_the_driver_does_not_limit_lends_nothing() -> None:
    (device,) = pool_spec("n", [a_card("GPU-a")], generation=1, isolation=("mps",))["devices"]

    assert device["capacity"].keys() == {"memory", "cores", "slots"}


def test_cards_that_take_nobody_are_left_out_of_the_pool() -> None:
    cards = [
        replace(a_card("GPU-ill"), health=Health.UNHEALTHY),
        replace(a_card("GPU-kept"), reserved_mib=Mib(24_000)),
        replace(a_card("GPU-closed"), slots=0),
        a_card("GPU-b", index=2),
        a_card("GPU-a", index=1),
    ]

    spec = pool_spec("node-a", cards, generation=1)

    assert [device["name"] for device in spec["devices"]] == ["gpu-a", "gpu-b"]
    assert spec["pool"] == {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
    assert (spec["driver"], spec["nodeName"]) == ("gpu.fracgpu.io", "node-a")


@given(st.text(min_size=1, max_size=90))
def test_the_name_of_a_device_is_a_dns_label(uuid: str) -> None:
    name = device_name(f"GPU-{uuid}x")

    assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)


def test_cards_are_found_again_by_their_devices() -> None:
    cards = [CardUuid("GPU-4D3C0A2B-1111"), CardUuid("GPU-4d3c0a2c-1111")]

    assert cards_by_device(cards) == {"gpu-4d3c0a2b-1111": cards[0], "gpu-4d3c0a2c-1111": cards[1]}
