"""Which containers have which requests of a pod's claims."""

import json

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.pod import decode_pod
from fracgpu.state.allocation import Slice
from fracgpu.state.claim_use import ClaimUse, claim_uses
from fracgpu.units import Mib
from tests.deviceplugin.dra.builders import CLAIM, pod_body

FIRST = (Slice(card=CardUuid("GPU-a"), mib=Mib(1)),)
SECOND = (Slice(card=CardUuid("GPU-b"), mib=Mib(2)),)
BOTH = {"first": FIRST, "second": SECOND}


def test_our_claim_has_a_request_for_each_container() -> None:
    found = claim_uses(decode_pod(json.dumps(pod_body()).encode()))

    assert found == {CLAIM: ClaimUse(requests={"train": ("train",)})}


def test_a_claim_from_a_template_has_its_name_in_the_status() -> None:
    body = pod_body(need=None, uses=[("a", "cards", "first"), ("b", "cards", "")])
    body["spec"]["resourceClaims"] = [{"name": "cards", "resourceClaimTemplateName": "t"}]
    body["status"]["resourceClaimStatuses"] = [{"name": "cards", "resourceClaimName": "a-cards-x"}]

    found = claim_uses(decode_pod(json.dumps(body).encode()))

    assert found == {"a-cards-x": ClaimUse(requests={"a": ("first",), "b": ()})}


def test_a_container_without_a_request_has_all_of_the_claim() -> None:
    use = ClaimUse(requests={"a": ("first",), "b": ("second",), "c": ()})

    assert use.assigned({"first": FIRST}) == {"a": FIRST, "c": FIRST}
    assert use.ambiguous({"first": FIRST}) == ""
    assert use.ambiguous(BOTH) == "c"
