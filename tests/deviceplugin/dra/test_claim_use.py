"""Which containers have which requests of a pod's claims."""

import json

import pytest

from deviceplugin.dra.claim_use import ClaimUse, claims_of_pod
from fracgpu.cards.card import CardUuid
from fracgpu.errors import WireError
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from tests.deviceplugin.dra.builders import CLAIM, pod_body

FIRST = (Slice(card=CardUuid("GPU-a"), mib=Mib(1)),)
SECOND = (Slice(card=CardUuid("GPU-b"), mib=Mib(2)),)
BOTH = {"first": FIRST, "second": SECOND}


def test_our_claim_has_a_request_for_each_container() -> None:
    found = claims_of_pod(json.dumps(pod_body()).encode())

    assert found == {CLAIM: ClaimUse(requests={"train": ("train",)})}


def test_a_claim_from_a_template_has_its_name_in_the_status() -> None:
    body = pod_body(need=None, uses=[("a", "cards", "first"), ("b", "cards", "")])
    body["spec"]["resourceClaims"] = [{"name": "cards", "resourceClaimTemplateName": "t"}]
    body["status"]["resourceClaimStatuses"] = [{"name": "cards", "resourceClaimName": "a-cards-x"}]

    found = claims_of_pod(json.dumps(body).encode())

    assert found == {"a-cards-x": ClaimUse(requests={"a": ("first",), "b": ()})}


def test_two_entries_of_a_pod_that_name_one_claim_are_one() -> None:
    """The API server admits them."""
    body = pod_body(
        need=None,
        claims={"cards": "mine", "again": "mine"},
        uses=[("a", "cards", "first"), ("b", "again", "second")],
    )

    found = claims_of_pod(json.dumps(body).encode())

    assert found == {"mine": ClaimUse(requests={"a": ("first",), "b": ("second",)})}


def test_a_container_without_a_request_has_all_of_the_claim() -> None:
    use = ClaimUse(requests={"a": ("first",), "b": ("second",), "c": ()})

    assert use.assigned({"first": FIRST}) == {"a": FIRST, "c": FIRST}
    assert use.ambiguous({"first": FIRST}) == ""
    assert use.ambiguous(BOTH) == "c"


def test_what_is_no_pod_is_said() -> None:
    with pytest.raises(WireError, match="Pod"):
        claims_of_pod(b"[]")
