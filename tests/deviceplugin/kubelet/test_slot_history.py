"""Ids keep their owner until they are allocated again, and a token until the owner is verified."""

from deviceplugin.kubelet.slot_history import SlotHistory

BOTH = frozenset({"s1", "s2"})
ONE = frozenset({"s1"})
OTHER = frozenset({"s3"})


def test_a_verified_owner_stays_until_the_ids_are_handed_out_again() -> None:
    history = SlotHistory()
    history.verified(ONE, pod_uid="u1")

    history.allocated(OTHER)
    assert history.owner_uid(ONE) == "u1"
    history.allocated(ONE)
    assert history.owner_uid(ONE) == ""


def test_ids_handed_out_in_another_set_are_forgotten_as_well() -> None:
    history = SlotHistory()
    history.verified(BOTH, pod_uid="u1")
    token = history.issue_token(ONE)

    history.allocated(ONE)

    assert history.owner_uid(BOTH) == ""
    assert history.token(ONE) == ""
    assert history.issue_token(ONE) != token


def test_a_question_is_asked_once_and_closed_by_its_answer() -> None:
    history = SlotHistory()

    first = history.issue_token(ONE)
    assert history.issue_token(ONE) == first == history.token(ONE)
    history.verified(ONE, pod_uid="u1")

    assert history.token(ONE) == ""
    assert history.issue_token(ONE) != first
    assert history.owner_uid(ONE) == "u1"


def test_two_questions_never_carry_the_same_token() -> None:
    history = SlotHistory()

    assert len({history.issue_token(frozenset({f"s{n}"})) for n in range(100)}) == 100


def test_every_handing_out_is_another_turn() -> None:
    history = SlotHistory()
    before = history.generation(BOTH)

    history.allocated(OTHER)
    assert history.generation(BOTH) == before
    history.allocated(ONE)
    assert history.generation(BOTH) != before
