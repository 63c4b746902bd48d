"""A recorded pod as the API server would have shown it: its share, and its owner by its name."""

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.state.pod_info import decode_pod_info
from simulator.usage_replay.pods import ReplayedPod, pod_body
from simulator.usage_replay.recording import RecordedCard, RecordedPod
from tests.fakes.clock import NOON

CARDS = {
    CardUuid(f"GPU-{n}"): RecordedCard(
        uuid=CardUuid(f"GPU-{n}"), node=f"n{n}", index=0, model="A30", mib=24_000
    )
    for n in (1, 2)
}


def a_pod(name: str, **cards: str) -> ReplayedPod:
    mib = {CardUuid(f"GPU-{n[1:]}"): 8000 for n in cards}
    return ReplayedPod(
        recorded=RecordedPod(uid="u", namespace="ml", name=name, mib=mib),
        uid="u-moved-1",
        cards={CardUuid(f"GPU-{n[1:]}"): CardUuid(card) for n, card in cards.items()},
        started_at=NOON,
    )


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("web-6d4cf56db6-xzz7b", "web-6d4cf56db6"),
        ("a-b-c-7f9d8-bcdfg", "a-b-c-7f9d8"),
        ("web-0", None),
        ("agent-xzz7b", None),
        ("job-index-0-xzz7b", None),
    ],
)
def test_a_replica_is_told_by_its_name(name: str, owner: str | None) -> None:
    info = decode_pod_info(pod_body(a_pod(name, n1="GPU-2"), CARDS))

    assert (info.owner[1] if info.owner else None) == owner
    assert (info.owner[0] if info.owner else "ReplicaSet") == "ReplicaSet"


def test_it_holds_its_share_of_the_card_where_the_replay_has_it() -> None:
    info = decode_pod_info(pod_body(a_pod("web-6d4cf56db6-xzz7b", n1="GPU-2"), CARDS))

    assert info.record.node == "n2"
    assert info.record.assignment is not None
    (slices,) = info.record.assignment.values()
    assert [(part.card, part.mib) for part in slices] == [("GPU-2", 8000)]
    assert info.ready
    assert info.started_at == NOON
    assert info.need is not None
