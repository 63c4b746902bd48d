import msgspec

from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.device_claims.claims import claim_of
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from rebalancer.claimed_pods import ClaimedPods
from tests.support.claims import a_claiming_pod, allocated, claim_name
from tests.support.rebalancing import HOT_CARD, a_node


def added(pod: PodInfo, name: str) -> Change[DeviceClaim]:
    assert pod.need is not None
    body = claim_of(pod.record, name, pod.need, {"train": [HOT_CARD]})
    body["metadata"]["uid"] = f"uid-{name}"
    claim = decode_claim(
        msgspec.json.encode(allocated(body, {"train": [HOT_CARD]}, node="n1", pod=pod.record))
    )
    return Change(
        type=ChangeType.ADDED,
        key=ObjectKey(claim.namespace, claim.name),
        uid=claim.uid,
        resource_version="1",
        object=claim,
    )


def test_two_claims_of_a_pod_that_is_gone_are_both_counted_on_their_card() -> None:
    body = a_claiming_pod("gone", 4_000, claim=claim_name("gone"))
    pod = decode_pod_info(msgspec.json.encode(body))
    claimed = ClaimedPods()
    for name in (claim_name("gone"), claim_name("forged")):
        assert list(claimed.claim_changed(added(pod, name))) == [pod.record.uid]

    held = claimed.alone(pod.record.uid, {"n1": a_node("n1", HOT_CARD)})

    assert (held.node, held.by_card[HOT_CARD].mib, held.by_card[HOT_CARD].slots) == ("n1", 8_000, 2)
