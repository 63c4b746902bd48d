from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from msgspec import structs

from fracgpu import names
from fracgpu.device_claims.preparation import why_not_prepared
from fracgpu.request.need import PodNeed
from fracgpu.state.allocation import Assignment
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.units import Mib
from tests.support.claims import a_claim_entry, an_allocated_claim, decoded, granted
from tests.support.core import a_card, a_need, a_pod_need, a_record, on
from tests.support.gpu import Json

NAME = "fracgpu-0123456789"
CARDS = (a_card("GPU-a", mib=8000), a_card("GPU-b", mib=8000, index=1))
NEED = a_pod_need(a_need(6000, cores=60))


def a_pod(need: PodNeed = NEED, *, uid: str = "pod-uid", claim: str = NAME) -> PodInfo:
    containers = [
        {"name": one.name, "resources": {"claims": [{"name": "fracgpu", "request": one.name}]}}
        for one in need.containers
    ]
    body = {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "default",
            "uid": uid,
            "annotations": {names.GRANTED: granted(need), names.CORES: "60"},
        },
        "spec": {
            "containers": containers,
            "resourceClaims": [a_claim_entry(claim)],
        },
    }
    return decode_pod_info(msgspec.json.encode(body))


def a_claim(
    assignment: Assignment | None = None, *, pod: str = "pod-uid", name: str = NAME
) -> Json:
    choice = assignment or on("GPU-a", 6000)
    return an_allocated_claim(a_record(pod), NEED, choice, node="n", name=name)


def why_not(claim: Json, pod: PodInfo | None, *prepared: Json) -> str:
    return why_not_prepared(
        decoded(claim), pod, node="n", cards=CARDS, prepared=[decoded(one) for one in prepared]
    )


def test_the_pods_own_claim_of_what_it_was_granted_is_prepared() -> None:
    assert why_not(a_claim(), a_pod()) == ""


def test_a_claim_that_is_being_deleted_is_prepared_for_its_pod_after_a_reboot() -> None:
    claim = a_claim()
    edit(claim, "metadata.deletionTimestamp", "2026-01-05T12:00:00Z")

    assert why_not(claim, a_pod()) == ""


def test_a_claim_that_is_prepared_already_does_not_count_twice() -> None:
    assert why_not(a_claim(), a_pod(), a_claim()) == ""


OWN = {"resource": "pods", "name": "pod-pod-uid", "uid": "pod-uid"}
THIEF = {"resource": "pods", "name": "thief", "uid": "t"}
REQUEST, RESULT = "spec.devices.requests.0", "status.allocation.devices.results.0"
OWNERS, FOR = "metadata.ownerReferences", "status.reservedFor"


def edit(claim: Json, path: str, value: object = None) -> None:
    """Write a value at a path such as ``spec.devices.requests.0.name``; None removes it."""
    *way, last = path.split(".")
    place: Any = claim
    for word in way:
        place = place[int(word) if isinstance(place, list) else word]
    if value is None:
        del place[last]
    else:
        place[last] = value


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (f"{REQUEST}.exactly.capacity.requests.memory", "8000Mi",
         "requests something else for container 'main'"),
        (f"{REQUEST}.exactly.allocationMode", "All",
         "requests something else for container 'main'"),
        (f"{REQUEST}.name", "other", "requests for other containers"),
        (f"{RESULT}.consumedCapacity.memory", "1Mi",
         "was allocated other amounts than it requests"),
        (f"{RESULT}.pool", "other-node", "has a card of node other-node"),
        (f"{RESULT}.device", "gpu-z", "device gpu-z, which is no card of this node"),
        ("status.allocation", None, "has no card allocated"),
        (OWNERS, None, "was not made for pod pod-pod-uid by FracGPU"),
        (f"{OWNERS}.0.uid", "other", "was not made for pod pod-pod-uid by FracGPU"),
        (FOR, [OWN, THIEF], "is reserved for 2 pods"),
        (FOR, [THIEF], "pod thief, which claim fracgpu-0123456789 is reserved for"),
        (FOR, None, "is reserved for no pod"),
    ],
)  # fmt: skip
def test_any_other_claim_is_refused_with_a_sentence(path: str, value: object, why: str) -> None:
    claim = a_claim()
    edit(claim, path, value)

    assert why in why_not(claim, a_pod())


def test_a_claim_of_more_cards_than_were_granted_is_refused() -> None:
    claim = a_claim()
    results = claim["status"]["allocation"]["devices"]["results"]
    results.append(results[0] | {"device": "gpu-b"})

    why = "has 2 card(s) for container 'main', which was granted 1"
    assert why in why_not(claim, a_pod())


def test_a_claim_without_its_pod_is_refused() -> None:
    assert "is gone" in why_not(a_claim(), None)


def test_a_claim_that_the_pod_does_not_name_is_refused() -> None:
    assert f"was granted claim {NAME}, not mine" in why_not(a_claim(name="mine"), a_pod())


def test_a_grant_that_cannot_be_read_is_refused() -> None:
    pod = a_pod()
    annotations = {**pod.annotations, names.GRANTED: "half a card"}

    assert "no grant that can be read" in why_not(a_claim(), replace(pod, annotations=annotations))


@pytest.mark.parametrize(
    ("mib", "cores", "slots", "why"),
    [
        (3000, 0, 1, "9000 MiB with claim fracgpu-0123456789, and has 8000"),
        (1000, 50, 1, "110 % of the compute with claim"),
        (1000, 0, 32, "33 slots with claim"),
    ],
)
def test_a_card_that_would_hold_too_much_is_refused(
    mib: int, cores: int, slots: int, why: str
) -> None:
    other = a_claim(pod="other-uid", name="fracgpu-other")
    other["metadata"]["uid"] = "other-claim"
    (result,) = other["status"]["allocation"]["devices"]["results"]
    result["consumedCapacity"] = {"memory": f"{mib}Mi", "cores": str(cores), "slots": str(slots)}

    assert why in why_not(a_claim(), a_pod(), other)
    assert why_not(a_claim(on("GPU-b", 6000)), a_pod(), other) == ""


def a_lending(claim: Json, *, mib: int, borrow_mib: int) -> Json:
    """Return a claim that lets its container use more than it is guaranteed."""
    (request,) = claim["spec"]["devices"]["requests"]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    amounts = {"memory": f"{mib + borrow_mib}Mi", "borrowed": f"{borrow_mib}Mi"}
    request["exactly"]["capacity"]["requests"] |= amounts
    result["consumedCapacity"] |= amounts
    return claim


@pytest.mark.parametrize(
    "limit", [{"limit_mib": Mib(7000)}, {"limit_share": Fraction(7, 8)}], ids=["mib", "share"]
)
def test_a_container_may_use_no_more_than_it_was_granted(limit: dict[str, Any]) -> None:
    need = a_pod_need(structs.replace(NEED.containers[0], **limit))

    assert why_not(a_lending(a_claim(), mib=6000, borrow_mib=1000), a_pod(need)) == ""
    assert "use 7001 MiB, and it was granted at most 7000" in why_not(
        a_lending(a_claim(), mib=6000, borrow_mib=1001), a_pod(need)
    )
    assert "use 6001 MiB, and it was granted at most 6000" in why_not(
        a_lending(a_claim(), mib=6000, borrow_mib=1), a_pod()
    )


def test_what_may_be_borrowed_counts_on_a_card() -> None:
    need = a_pod_need(structs.replace(NEED.containers[0], limit_mib=Mib(8000)))
    other = a_lending(
        an_allocated_claim(
            a_record("other"), a_pod_need(a_need(500)), on("GPU-a", 500), node="n", name="fracgpu-2"
        ),
        mib=500,
        borrow_mib=1000,
    )
    other["metadata"] |= {"uid": "other-claim", "name": "fracgpu-1111111111"}

    assert why_not(a_lending(a_claim(), mib=6000, borrow_mib=500), a_pod(need), other) == ""
    assert "would hold 8001 MiB" in why_not(
        a_lending(a_claim(), mib=6000, borrow_mib=501), a_pod(need), other
    )


def test_a_users_own_claim_is_prepared_for_a_pod_without_a_grant() -> None:
    claim = a_claim(name="mine")
    edit(claim, OWNERS)
    body: dict[str, Any] = {"metadata": {"name": "p", "uid": "pod-uid"}, "spec": {}}
    pod = decode_pod_info(msgspec.json.encode(body))

    assert why_not(claim, pod) == ""
    edit(claim, FOR, [OWN, THIEF])
    assert "claim mine is reserved for 2 pods" in why_not(claim, pod)
    of_a_template = a_claim(name="fracgpu-web-gpu-x7k2p")
    edit(of_a_template, OWNERS)
    assert why_not(of_a_template, pod) == ""
    ours = a_claim()
    assert "a name that only FracGPU gives" in why_not(ours, pod)
