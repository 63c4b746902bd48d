"""All cards of all nodes as arrays."""

from dataclasses import replace
from datetime import timedelta

import pytest

from fracgpu.cards.card import HEAT_MAX_AGE, CardUuid, Cordon, Health, NodeCards
from fracgpu.placement.fit import ABSENT, USABLE, FitReason
from fracgpu.placement.node_matrix import UNSEEN, NodeMatrix
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import MovePhase
from fracgpu.state.reservation import claims_of
from fracgpu.state.snapshot import PodAllocation
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.core import a_card
from tests.support.moves import a_beneficiary, move_of

CORDONED = FitReason.CORDONED.code
EMPTY = FitReason.NO_INVENTORY.code
UNHEALTHY = FitReason.UNHEALTHY.code


def a_matrix(*nodes: NodeCards) -> tuple[Ledger, NodeMatrix]:
    ledger = Ledger()
    for node in nodes:
        ledger.set_node(node)
    matrix = NodeMatrix(ledger)
    matrix.refresh(now=NOON)
    return ledger, matrix


def test_what_is_free_of_each_card_stands_in_its_column() -> None:
    cards = (a_card("GPU-b", index=1, mib=800), a_card("GPU-a", index=0, mib=400))
    ledger, matrix = a_matrix(NodeCards(node="n", cards=cards))
    ledger.observe(
        PodAllocation(
            pod_uid="p",
            node="n",
            by_card={CardUuid("GPU-b"): CardAllocation(mib=Mib(300), cores=20)},
        )
    )
    matrix.refresh(now=NOON)
    (row,) = matrix.rows_of(["n"]).tolist()

    assert matrix.uuids(row) == ("GPU-a", "GPU-b")
    assert matrix.free_mib[row].tolist() == [400, 500]
    assert matrix.free_cores[row].tolist() == [100, 80]
    assert matrix.capacity_mib[row].tolist() == [400, 800]


def test_sick_and_cordoned_cards_and_those_that_are_not_there_are_told_apart() -> None:
    wide = NodeCards(node="wide", cards=tuple(a_card(f"GPU-{n}", index=n) for n in range(3)))
    sick = NodeCards(node="sick", cards=(a_card("GPU-s", health=Health.UNHEALTHY),))
    _, matrix = a_matrix(wide, sick, NodeCards(node="empty"))
    rows = matrix.rows_of(["wide", "sick", "empty", "nowhere"]).tolist()

    assert matrix.state[rows[0]].tolist() == [USABLE] * 3
    assert matrix.state[rows[1]].tolist() == [UNHEALTHY, ABSENT, ABSENT]
    assert matrix.node_state[rows[2]] == EMPTY
    assert rows[3] == UNSEEN
    assert matrix.uuids(UNSEEN) == ()
    assert CORDONED not in matrix.state


def test_no_card_is_usable_that_is_cordoned_or_kept_for_one_pod() -> None:
    later = NOON + timedelta(hours=1)
    node = NodeCards(
        node="n",
        cards=tuple(a_card(f"GPU-{n}", index=n) for n in range(3)),
        cordons=(Cordon(card=CardUuid("GPU-0"), until=later, reason="hot"),),
    )
    ledger, matrix = a_matrix(node)
    ledger.set_claims(
        claims_of(
            move_of(
                source=("n", "GPU-1"),
                target=("m", "GPU-x"),
                phase=MovePhase.DONE,
                beneficiary=a_beneficiary("GPU-1", uid="waits", held_until=later),
            )
        )
    )

    matrix.refresh(now=NOON)

    (row,) = matrix.rows_of(["n"]).tolist()
    assert matrix.state[row].tolist() == [CORDONED, CORDONED, USABLE]


def test_a_cards_heat_is_what_its_agent_says_and_full_if_it_is_unknown() -> None:
    cards = tuple(a_card(f"GPU-{n}", index=n) for n in range(2))
    measured = {CardUuid("GPU-0"): 0.25}
    measured_node = NodeCards(node="told", cards=cards, heat=measured, load_time=NOON)
    old = NodeCards(node="old", cards=cards, heat=measured, load_time=NOON - HEAT_MAX_AGE)
    _, matrix = a_matrix(measured_node, old)

    rows = matrix.rows_of(["told", "old"])

    assert matrix.heat[rows].tolist() == [[0.25, 1.0], [1.0, 1.0]]


def test_only_what_changed_is_written_again() -> None:
    nodes = [NodeCards(node=f"n{n}", cards=(a_card(f"GPU-{n}"),)) for n in range(100)]
    ledger, matrix = a_matrix(*nodes)
    moment = matrix.now

    ledger.set_node(nodes[3])
    matrix.refresh(now=NOON)
    assert matrix.now == moment

    ledger.set_node(replace(nodes[3], schedulable=False))
    matrix.refresh(now=NOON)
    assert matrix.changed_since(moment).tolist() == matrix.rows_of(["n3"]).tolist()


def test_many_changes_are_taken_over_in_steps_or_all_at_once_where_somebody_needs_them() -> None:
    ledger, matrix = a_matrix()
    for number in range(10):
        ledger.set_node(NodeCards(node=f"n{number}", cards=(a_card(f"GPU-{number}"),)))

    assert not matrix.refresh(now=NOON, most=4)
    assert len(matrix.rows) == 4
    assert not matrix.refresh(now=NOON, most=4)
    assert matrix.refresh(now=NOON)
    assert len(matrix.rows) == 10
    assert matrix.refresh(now=NOON, most=4)


@pytest.mark.parametrize("names", [[], ["b"], ["b", "a"], ["b", "gone", "a"], ["gone"]], ids=str)
def test_rows_come_in_the_order_of_the_names(names: list[str]) -> None:
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.set_node(NodeCards(node=name))
    matrix = NodeMatrix(ledger)
    matrix.refresh(now=NOON)

    found = matrix.rows_of(names)

    assert [matrix.names[row] or "gone" for row in found.tolist()] == names
