from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fracgpu import names
from fracgpu.device_claims.preparation import why_not_prepared
from fracgpu.request.need import PodNeed
from fracgpu.state.allocation import Assignment
from fracgpu.state.pod_info import PodInfo, decode_pod_info
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
    _terminating(claim)

    assert why_not(claim, a_pod()) == ""


def test_a_claim_that_is_prepared_already_does_not_count_twice() -> None:
    assert why_not(a_claim(), a_pod(), a_claim()) == ""


def _other_amount(claim: Json) -> None:
    request = claim["spec"]["devices"]["requests"][0]["exactly"]
    request["capacity"]["requests"]["memory"] = "8000Mi"


def _other_allocation(claim: Json) -> None:
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    result["consumedCapacity"]["memory"] = "1Mi"


def _two_cards(claim: Json) -> None:
    results = claim["status"]["allocation"]["devices"]["results"]
    results.append(results[0] | {"device": "gpu-b"})


def _of_nobody(claim: Json) -> None:
    del claim["metadata"]["ownerReferences"]


def _of_another(claim: Json) -> None:
    claim["metadata"]["ownerReferences"][0]["uid"] = "other"


def _shared(claim: Json) -> None:
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "thief", "uid": "t"})


def _reserved_for_another(claim: Json) -> None:
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "thief", "uid": "t"}]


def _reserved_for_nobody(claim: Json) -> None:
    del claim["status"]["reservedFor"]


def _elsewhere(claim: Json) -> None:
    claim["status"]["allocation"]["devices"]["results"][0]["pool"] = "other-node"


def _unknown_card(claim: Json) -> None:
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-z"


def _unallocated(claim: Json) -> None:
    del claim["status"]["allocation"]


def _terminating(claim: Json) -> None:
    claim["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"


def _another_container(claim: Json) -> None:
    claim["spec"]["devices"]["requests"][0]["name"] = "other"


def _every_card(claim: Json) -> None:
    claim["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] = "All"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_other_amount, "requests something else for container 'main'"),
        (_every_card, "requests something else for container 'main'"),
        (_other_allocation, "was allocated other amounts than it requests"),
        (_two_cards, "has 2 card(s) for container 'main', which was granted 1"),
        (_another_container, "requests for other containers"),
        (_of_nobody, "was not made for pod pod-pod-uid by FracGPU"),
        (_of_another, "was not made for pod pod-pod-uid by FracGPU"),
        (_shared, "is reserved for 2 pods"),
        (_reserved_for_another, "pod thief, which claim fracgpu-0123456789 is reserved for"),
        (_reserved_for_nobody, "is reserved for no pod"),
        (_elsewhere, "has a card of node other-node"),
        (_unknown_card, "device gpu-z, which is no card of this node"),
        (_unallocated, "has no card allocated"),
    ],
)
def test_any_other_claim_is_refused_with_a_sentence(
    change: Callable[[Json], None], why: str
) -> None:
    claim = a_claim()
    change(claim)

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


def test_a_users_own_claim_is_prepared_for_a_pod_without_a_grant() -> None:
    claim = a_claim(name="mine")
    _of_nobody(claim)
    body: dict[str, Any] = {"metadata": {"name": "p", "uid": "pod-uid"}, "spec": {}}
    pod = decode_pod_info(msgspec.json.encode(body))

    assert why_not(claim, pod) == ""
    _shared(claim)
    assert "claim mine is reserved for 2 pods" in why_not(claim, pod)
    of_a_template = a_claim(name="fracgpu-web-gpu-x7k2p")
    _of_nobody(of_a_template)
    assert why_not(of_a_template, pod) == ""
    ours = a_claim()
    assert "a name that only FracGPU gives" in why_not(ours, pod)
