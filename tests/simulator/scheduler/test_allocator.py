"""Which devices are taken, where the contract tests do not go: pools, and devices not to share."""

from typing import Any

from simulator.scheduler.allocator import Devices, allocate, devices_of, taken_by
from tests.support.device_claims import (
    CLASS,
    a_device,
    a_device_claim,
    a_device_slice,
    a_request,
)
from tests.support.objects import Json


def devices(*slices: Json, allocated: tuple[Json, ...] = ()) -> Devices:
    return Devices(
        by_node=devices_of(slices), taken=taken_by(allocated), classes={CLASS: {"spec": {}}}
    )


def claim(*requests: Json) -> Json:
    body = a_device_claim("c", *requests)
    for request in requests:  # as the API server's defaults
        request["exactly"] = {"allocationMode": "ExactCount", "count": 1, **request["exactly"]}
    return body


def names_on(node: str, wanted: Json, found: Devices) -> list[str] | None:
    allocations = allocate([wanted], node, found)
    if allocations is None:
        return None
    return [result["device"] for result in allocations[0]["devices"]["results"]]


def in_slices(node: str, count: int, *names: str, **more: Any) -> Json:
    made = a_device_slice(node, *(a_device(name) for name in names), **more)
    made["spec"]["pool"]["resourceSliceCount"] = count
    return made


def test_a_pool_is_used_once_all_slices_of_its_newest_generation_are_there() -> None:
    old = in_slices("n", 1, "gpu-a", generation=1)
    first, second = (in_slices("n", 2, name, generation=2) for name in ("gpu-b", "gpu-c"))

    assert names_on("n", claim(a_request()), devices(old, first)) is None
    assert names_on("n", claim(a_request()), devices(old, first, second)) == ["gpu-b"]
    assert names_on("other", claim(a_request()), devices(old)) is None


def test_requests_go_back_where_the_first_that_fits_would_leave_another_without() -> None:
    found = devices(a_device_slice("n", a_device("gpu-a"), a_device("gpu-b")))
    wanted = claim(a_request("any", "20000Mi"), a_request("first", "20000Mi", cards=["GPU-A"]))

    assert names_on("n", wanted, found) == ["gpu-b", "gpu-a"]


def test_a_device_that_is_not_shared_is_given_once() -> None:
    alone = a_device("gpu-a", allowMultipleAllocations=False)
    node = a_device_slice("n", alone)
    allocations = allocate([claim(a_request())], "n", devices(node))
    assert allocations is not None
    (first,) = allocations
    held = {**claim(), "status": {"allocation": first}}

    assert "shareID" not in first["devices"]["results"][0]
    assert names_on("n", claim(a_request()), devices(node, allocated=(held,))) is None
    assert names_on("n", claim(a_request("main", "24001Mi")), devices(node)) is None


def test_an_amount_of_what_no_device_has_fits_nowhere() -> None:
    found = devices(a_device_slice("n", a_device("gpu-a")))
    wanted = claim(a_request(capacity={"requests": {"other": "1"}}))

    assert names_on("n", wanted, found) is None
