"""The cards of one snapshot after the other."""

from fracgpu.cards.card import CardUuid
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import PodAllocation, Snapshot
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.rebalancing import CARD_MIB, a_node

NEED = PodNeed(containers=(ContainerNeed(name="main", mib=Mib(CARD_MIB)),))


def snapshot(*names: str) -> Snapshot:
    ledger = Ledger()
    for name in names:
        ledger.set_node(a_node(name, f"GPU-{name}"))
    return ledger.snapshot(now=NOON)


def fitting(index: SnapshotIndex, shown: Snapshot) -> set[str]:
    """Return the nodes with a card on which the need fits."""
    matrix = index.matrix(shown)
    cells = index.fitting(NEED, shown)
    return {matrix.names[row] for row, here in enumerate(cells) if here.any()}


def test_it_goes_back_and_forth_between_snapshots() -> None:
    index, before = SnapshotIndex(), snapshot("a", "b")
    held = CardAllocation(mib=Mib(1))
    after = before.with_(PodAllocation(pod_uid="p", node="a", by_card={CardUuid("GPU-a"): held}))

    assert fitting(index, before) == {"a", "b"}
    assert fitting(index, after) == {"b"}
    assert fitting(index, before) == {"a", "b"}


def test_nodes_come_and_go() -> None:
    index = SnapshotIndex()

    assert fitting(index, snapshot("a", "b")) == {"a", "b"}
    assert fitting(index, snapshot("b", "c")) == {"b", "c"}
    assert index.places(snapshot("b", "c")).keys() == {"GPU-b", "GPU-c"}


def test_excluded_cards_are_left_out_and_unknown_ones_ignored() -> None:
    index, shown = SnapshotIndex(), snapshot("a", "b")
    excluded = frozenset({CardUuid("GPU-a"), CardUuid("GPU-x")})

    row, column = index.places(shown)[CardUuid("GPU-a")]

    assert not index.without(excluded, shown)[row, column]
    assert index.without(frozenset(), shown).all()
