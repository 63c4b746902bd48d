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


def test_what_an_id_was_allocated_to_is_known_once_its_pod_starts() -> None:
    history = SlotHistory()
    history.allocated(ONE)
    history.allocated(BOTH)
    history.took(ONE, pod_uid="u1", most=1, live=("u1", "u2"))

    assert history.takers(BOTH) == {"s1": {"u1": 1, "": 1}, "s2": {"": 1}}
    history.took(BOTH, pod_uid="u2", most=1, live=("u1", "u2"))

    assert history.takers(BOTH) == {"s1": {"u1": 1, "u2": 1, "": 0}, "s2": {"u2": 1, "": 0}}


def test_a_pod_that_starts_again_explains_no_further_allocation() -> None:
    history = SlotHistory()
    history.allocated(ONE)
    history.took(ONE, pod_uid="u1", most=1, live=("u1",))
    history.allocated(ONE)

    history.took(ONE, pod_uid="u1", most=1, live=("u1",))

    assert history.takers(ONE) == {"s1": {"u1": 1, "": 1}}


def test_pods_that_have_ended_and_what_nobody_else_can_have_been_given_are_forgotten() -> None:
    history = SlotHistory()
    history.allocated(ONE)
    history.took(ONE, pod_uid="u1", most=1, live=("u1",))
    for _ in range(2):
        history.allocated(ONE)
    history.took(ONE, pod_uid="u2", most=1, live=("u2",))
    assert history.takers(ONE) == {"s1": {"u2": 1, "": 1}}

    history.took(ONE, pod_uid="u2", most=1, live=())

    assert history.takers(ONE) == {"s1": {"u2": 1, "": 0}}


def test_of_ids_that_were_not_allocated_since_the_agent_began_nothing_is_known() -> None:
    history = SlotHistory()

    history.took(ONE, pod_uid="u1", most=1, live=())

    assert history.takers(ONE) == {"s1": {}}


def test_the_ids_of_a_container_are_known_as_long_as_its_pod_lives() -> None:
    history = SlotHistory()
    history.has_started(ONE, pod_uid="u1", container="train", live=("u1",))
    history.has_started(OTHER, pod_uid="u2", container="train", live=("u1", "u2"))
    assert history.started == {("u1", "train"): ONE, ("u2", "train"): OTHER}

    history.has_started(OTHER, pod_uid="u2", container="train", live=("u2",))

    assert history.started == {("u2", "train"): OTHER}
