"""The claims of all Moves, and who consumed them."""

from datetime import datetime, timedelta

from fracgpu.cards.card import CardUuid
from fracgpu.state.ledger import ReservationIndex, ReservationState
from fracgpu.state.move_object import MovePhase
from fracgpu.state.reservation import MoveClaims, claims_of, read_claims
from tests.support.moves import RESERVED_UNTIL, move_of

NOW = RESERVED_UNTIL - timedelta(minutes=5)


def an_index(*claims: MoveClaims) -> ReservationIndex:
    index = ReservationIndex()
    for one in claims:
        index.put(one)
    return index


def held(index: ReservationIndex, *, node: str = "node-2", now: datetime = NOW) -> list[str]:
    return [reservation.move for reservation in index.on_node(node, now=now)]


def test_each_change_says_which_node_it_concerns() -> None:
    index = ReservationIndex()
    first = claims_of(move_of("a"))

    assert index.put(first) == {"node-2"}
    assert index.put(first) == frozenset()
    moved = claims_of(move_of("a", target=("node-3", "GPU-x")))
    assert index.put(moved) == {"node-2", "node-3"}
    assert index.consume("a", pod_uid="p") == {"node-3"}
    assert index.release("a", pod_uid="p") == {"node-3"}
    assert index.remove("a") == {"node-3"}
    assert index.remove("a") == frozenset()


def test_a_reservation_is_consumed_while_any_pod_carries_its_name() -> None:
    index = an_index(claims_of(move_of("a")))

    index.consume("a", pod_uid="p")
    index.consume("a", pod_uid="q")
    assert held(index) == []
    index.release("a", pod_uid="p")
    assert held(index) == []
    index.release("a", pod_uid="q")
    index.release("a", pod_uid="nobody")
    assert held(index) == ["a"]


def test_what_an_assumption_consumed_counts_again_when_that_lapses() -> None:
    index = an_index(claims_of(move_of("a")))
    until = NOW + timedelta(minutes=1)

    index.consume("a", pod_uid="p", until=until)

    assert held(index) == []
    assert held(index, now=until) == ["a"]
    assert until in index.changes_on("node-2")


def test_a_reservation_is_for_the_next_pod_of_its_controller_and_not_for_the_moved_one() -> None:
    index = an_index(claims_of(move_of("a", owner_uid="web", pod=("ns", "old", "uid-old"))))

    def found(owner: str, pod: str) -> list[str]:
        return [one.move for one in index.for_pod(owner, pod, now=NOW)]

    assert found("web", "uid-new") == ["a"]
    assert found("web", "uid-old") == []
    assert found("other", "uid-new") == []
    assert index.for_pod("web", "uid-new", now=RESERVED_UNTIL) == []


def test_what_a_pod_consumed_itself_is_still_for_it_and_for_nobody_else() -> None:
    index = an_index(claims_of(move_of("a", owner_uid="web")))
    index.consume("a", pod_uid="uid-new")

    assert index.for_pod("web", "uid-new", now=NOW)
    assert not index.for_pod("web", "uid-other", now=NOW)


def test_of_several_reservations_the_first_to_lapse_comes_first() -> None:
    later = RESERVED_UNTIL + timedelta(minutes=1)
    index = an_index(
        claims_of(move_of("a", reserved_until=later)),
        claims_of(move_of("c")),
        claims_of(move_of("b")),
    )

    assert [one.move for one in index.for_pod("uid-web", "new", now=NOW)] == ["b", "c", "a"]


def test_a_move_that_cannot_be_read_is_for_nobody() -> None:
    body = b'{"metadata":{"name":"a"},"spec":{"target":{"node":"node-2","card":"GPU-x"}}}'
    index = an_index(read_claims(body))

    assert held(index) == ["a"]
    assert index.for_pod("", "new", now=NOW) == []


def test_the_cards_that_a_controller_left_are_denied_to_it_for_a_time() -> None:
    index = an_index(
        claims_of(move_of("a", phase=MovePhase.DONE)),
        claims_of(move_of("b", phase=MovePhase.ABORTED, source=("node-9", "GPU-aborted"))),
    )

    assert index.denied("uid-web", now=NOW) == {CardUuid("GPU-source"): "node-1"}
    assert index.denied("other", now=NOW) == {}
    assert index.denied("uid-web", now=RESERVED_UNTIL) == {}
    index.remove("a")
    assert index.denied("uid-web", now=NOW) == {}


def test_of_very_many_denied_cards_those_denied_for_longest_count() -> None:
    index = an_index(
        *(
            claims_of(
                move_of(
                    f"m{n}",
                    source=("node-1", f"GPU-{n}"),
                    source_denied_until=RESERVED_UNTIL + timedelta(seconds=n),
                )
            )
            for n in range(1000)
        )
    )

    denied = index.denied("uid-web", now=NOW)

    assert len(denied) == 32
    assert CardUuid("GPU-999") in denied


def test_reservations_are_counted_by_state() -> None:
    body = b'{"metadata":{"name":"x"},"spec":{"target":{"node":"node-2","card":"GPU-x"}}}'
    index = an_index(
        claims_of(move_of("held")),
        claims_of(move_of("consumed")),
        claims_of(move_of("lapsed", reserved_until=NOW)),
        claims_of(move_of("done", phase=MovePhase.DONE)),
        read_claims(body),
    )
    index.consume("consumed", pod_uid="p")

    assert index.states(now=NOW) == dict.fromkeys(ReservationState, 1)
