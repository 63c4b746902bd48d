"""What doctor looks at where kube-scheduler allocates claims, and what it leaves alone there."""

from datetime import timedelta
from typing import Any

import pytest

from fracgpu import names
from fracgpu.doctor.checkup import examine
from fracgpu.doctor.facts import Unread
from fracgpu.doctor.finding import Verdict
from tests.support.claims import claim_name
from tests.support.examined import (
    NODE,
    NOON,
    a_class,
    cards_of,
    found_by,
    healthy,
    pending,
    result_of,
    with_claims,
)

Json = dict[str, Any]


def a_waiting_pod(name: str, *, age_s: float) -> Json:
    entry = {"name": names.POD_CLAIM, "resourceClaimName": claim_name(name)}
    made = f"{NOON - timedelta(seconds=age_s):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": made},
        "spec": {"resourceClaims": [entry], "containers": []},
    }


def a_claim(name: str, *pods: str) -> Json:
    used = [{"resource": "pods", "name": pod} for pod in pods]
    return {"metadata": {"name": name, "namespace": "ml"}, "status": {"reservedFor": used}}


def test_nothing_is_missed_that_the_wiring_does_not_have() -> None:
    verdicts = {result.check.name: result.verdict for result in examine(with_claims())}

    assert set(verdicts.values()) == {Verdict.FINE}, verdicts


def test_without_the_wiring_nobody_looks_for_its_objects() -> None:
    unread = Unread("the server could not find the requested resource")
    facts = healthy(device_classes=unread, card_slices=unread, claims=unread)

    for name in ("claims-served", "slices", "claims"):
        assert result_of(name, facts).verdict is Verdict.FINE


@pytest.mark.parametrize(
    ("check", "changed", "observed"),
    [
        ("claims-served", {"server_version": "v1.35.1"}, "needs Kubernetes 1.36"),
        (
            "claims-served",
            {"device_classes": (a_class("fracgpu"),)},
            "no DeviceClass fracgpu-placed",
        ),
        (
            "claims-served",
            {"card_slices": (cards_of(NODE, allowMultipleAllocations=None),)},
            "each card goes to one pod whole",
        ),
        ("slices", {"card_slices": ()}, f"node {NODE} says that it shares its cards, and has no"),
        ("slices", {"card_slices": (cards_of("another"),)}, f"node {NODE} says"),
        (
            "claims",
            {"requesting": pending(a_waiting_pod("late", age_s=31))},
            "1 pod, such as ml/late, waited",
        ),
        ("claims", {"claims": (a_claim(claim_name("a"), "one", "two"),)}, "2 pods (one, two)"),
    ],
)
def test_what_is_wrong_is_named(check: str, changed: Json, observed: str) -> None:
    assert observed in found_by(check, with_claims(**changed)).observed


def test_a_pod_may_wait_a_moment_for_its_claim_and_longer_for_room() -> None:
    pods = pending(a_waiting_pod("young", age_s=29), a_waiting_pod("long", age_s=3600))

    facts = with_claims(requesting=pods, claims=(a_claim(claim_name("long")),))

    assert result_of("claims", facts).verdict is Verdict.FINE


def test_a_pod_of_a_gang_may_wait_for_the_others() -> None:
    pod = a_waiting_pod("one", age_s=3600)
    pod["metadata"]["annotations"] = {names.GANG: "train/4"}

    assert result_of("claims", with_claims(requesting=pending(pod))).verdict is Verdict.FINE


def test_what_cannot_be_read_is_not_called_fine() -> None:
    facts = with_claims(
        device_classes=Unread("404"), card_slices=Unread("404"), claims=Unread("404")
    )

    for name in ("claims-served", "slices", "claims"):
        assert result_of(name, facts).verdict is Verdict.NOT_CHECKED
