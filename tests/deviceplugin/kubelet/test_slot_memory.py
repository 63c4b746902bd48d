"""Ids keep their owner until they are allocated again, and a token until the owner is verified."""

from deviceplugin.kubelet.slot_memory import SlotHistory

BOTH = frozenset({"s1", "s2"})
ONE = frozenset({"s1"})
OTHER = frozenset({"s3"})


def test_a_verified_owner_stays_until_the_ids_are_handed_out_again() -> None:
    memory = SlotHistory()
    memory.verified(ONE, pod_uid="u1")

    memory.allocated(OTHER)
    assert memory.owner_uid(ONE) == "u1"
    memory.allocated(ONE)
    assert memory.owner_uid(ONE) == ""


def test_ids_handed_out_in_another_set_are_forgotten_as_well() -> None:
    memory = SlotHistory()
    memory.verified(BOTH, pod_uid="u1")
    token = memory.ask(ONE)

    memory.allocated(ONE)

    assert memory.owner_uid(BOTH) == ""
    assert memory.token(ONE) == ""
    assert memory.ask(ONE) != token


def test_a_question_is_asked_once_and_closed_by_its_answer() -> None:
    memory = SlotHistory()

    first = memory.ask(ONE)
    assert memory.ask(ONE) == first == memory.token(ONE)
    memory.verified(ONE, pod_uid="u1")

    assert memory.token(ONE) == ""
    assert memory.ask(ONE) != first
    assert memory.owner_uid(ONE) == "u1"


def test_two_questions_never_carry_the_same_token() -> None:
    memory = SlotHistory()

    assert len({memory.ask(frozenset({f"s{n}"})) for n in range(100)}) == 100


def test_every_handing_out_is_another_turn() -> None:
    memory = SlotHistory()
    before = memory.turn(BOTH)

    memory.allocated(OTHER)
    assert memory.turn(BOTH) == before
    memory.allocated(ONE)
    assert memory.turn(BOTH) != before
