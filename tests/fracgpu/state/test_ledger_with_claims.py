"""A snapshot with what Moves claim is the very one that the scheduler extender's ledger shows."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.k8s.container import ContainerSpec
from fracgpu.state.allocation import PodRecord, Slice
from fracgpu.state.ledger import Ledger, with_claims
from fracgpu.state.move_object import Move, MovePhase, RequestedShare
from fracgpu.state.reservation import claims_of
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.core import a_card
from tests.support.moves import a_beneficiary, move_of

NODES = {"n1": ("GPU-a", "GPU-b"), "n2": ("GPU-c",)}
CARDS = [(node, card) for node, cards in NODES.items() for card in cards]
NAMES = ("move-1", "move-2", "move-3")
UIDS = ("p1", "p2", "p3")


@st.composite
def a_claiming_move(draw: st.DrawFn, name: str) -> Move:
    (source_node, source), (target_node, target) = draw(st.permutations(CARDS))[:2]
    minutes = st.integers(-5, 5).map(lambda count: NOON + timedelta(minutes=count))
    beneficiary = None
    if draw(st.booleans()):
        kept = draw(st.lists(st.sampled_from(NODES[source_node]), min_size=1, unique=True))
        uid = draw(st.sampled_from(UIDS))
        beneficiary = a_beneficiary(*kept, uid=uid, held_until=draw(minutes))
    move = move_of(
        name=name,
        phase=draw(st.sampled_from(MovePhase)),
        source=(source_node, source),
        target=(target_node, target),
        reserved_until=draw(minutes),
        beneficiary=beneficiary,
    )
    request = RequestedShare(mib=Mib(draw(st.integers(1, 4000))), slots=draw(st.integers(1, 3)))
    return replace(move, spec=replace(move.spec, request=request))


@st.composite
def a_bound_pod(draw: st.DrawFn, uid: str) -> PodRecord:
    node, card = draw(st.sampled_from(CARDS))
    part = Slice(card=CardUuid(card), mib=Mib(draw(st.integers(1, 2000))))
    return PodRecord(
        uid=uid,
        namespace="ml",
        name=uid,
        node=node,
        containers=(ContainerSpec(name="main"),),
        assignment={"main": (part,)},
        move=draw(st.sampled_from(("", *NAMES))),
    )


def a_ledger(pods: list[PodRecord]) -> Ledger:
    ledger = Ledger()
    for node, cards in NODES.items():
        held = tuple(a_card(uuid, index=index) for index, uuid in enumerate(cards))
        ledger.set_node(NodeCards(node=node, cards=held))
    for pod in pods:
        ledger.set_pod(pod)
    return ledger


@given(
    st.lists(st.sampled_from(NAMES), unique=True).flatmap(
        lambda found: st.tuples(*(a_claiming_move(name) for name in found))
    ),
    st.lists(st.sampled_from(UIDS), unique=True).flatmap(
        lambda found: st.tuples(*(a_bound_pod(uid) for uid in found))
    ),
)
def test_moves_count_as_in_the_ledger_of_the_extender(
    moves: tuple[Move, ...], pods: tuple[PodRecord, ...]
) -> None:
    extenders = a_ledger([*pods])
    for move in moves:
        extenders.set_claims(claims_of(move))

    observed = a_ledger([*pods]).snapshot(now=NOON)
    counted = with_claims(observed, [claims_of(move) for move in moves], now=NOON)

    assert counted == extenders.snapshot(now=NOON)


def test_without_claims_a_snapshot_is_the_same_one() -> None:
    snapshot = a_ledger([]).snapshot(now=NOON)
    assert with_claims(snapshot, [], now=NOON) is snapshot


def test_a_card_may_be_reserved_and_kept_for_a_pod() -> None:
    ledger, until = a_ledger([]), NOON + timedelta(minutes=5)
    a_card_of_n1, a_card_of_n2 = ("n1", "GPU-a"), ("n2", "GPU-c")
    kept = a_beneficiary("GPU-a", uid="waits", held_until=until)
    for name, source, target, beneficiary in (
        ("move-1", a_card_of_n1, a_card_of_n2, kept),
        ("move-2", a_card_of_n2, a_card_of_n1, None),
    ):
        move = move_of(
            name=name,
            source=source,
            target=target,
            mib=500,
            reserved_until=until,
            beneficiary=beneficiary,
        )
        ledger.set_claims(claims_of(move))

    node = ledger.node("n1", now=NOON)

    assert node is not None
    card_info = node.cards[CardUuid("GPU-a")]
    assert (card_info.kept_for, card_info.reserved_mib) == ("waits", 500)
