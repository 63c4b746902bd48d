"""What the annotations of a resize say, and what cannot be read."""

import json
from dataclasses import replace

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.errors import WireError
from fracgpu.state.allocation import WHOLE_CARD, Assignment, Slice, sizes, write_assignment
from fracgpu.state.bound_pod import bound_pod_of, decode_bound_pod
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.state.resize import Granted, Refused, answer, is_answered, read_resize, write_resize
from fracgpu.units import Mib
from tests.support.gpu import a_gpu_pod


def on(mib: int, card: str = "GPU-a", container: str = "train") -> Assignment:
    return {container: (Slice(card=CardUuid(card), mib=Mib(mib)),)}


def resized(granted: int, applied: int | None = None, **notes: str) -> bytes:
    """Return a bound pod of 2,000 MiB after a resize."""
    annotations = {
        names.ASSIGNMENT: write_assignment(on(2000)),
        names.RESIZED: write_resize(f"{granted}Mi", on(granted)),
        **({} if applied is None else {names.APPLIED: write_assignment(on(applied))}),
        **notes,
    }
    pod = a_gpu_pod("p", mib=2000, annotations=annotations, nodeName="n")
    pod["metadata"]["uid"] = "u"
    return json.dumps(pod).encode()


@pytest.mark.parametrize(
    ("granted", "applied", "counts", "under_way"),
    [(5000, None, 5000, True), (5000, 5000, 5000, False), (500, None, 2000, True)],
)
def test_the_larger_of_what_is_granted_and_applied_counts(
    granted: int, applied: int | None, counts: int, *, under_way: bool
) -> None:
    body = resized(granted, applied)

    record = decode_pod_info(body).record
    bound = decode_bound_pod(body)

    assert record.resize is not None
    assert sum(sizes(record.assignment or {}).values()) == counts
    assert sum(sizes(record.limits or {}).values()) == granted
    assert record.resize.under_way is under_way
    assert bound is not None
    assert bound.allocation.by_card[CardUuid("GPU-a")].mib == counts
    assert bound == bound_pod_of(decode_pod_info(body))


@pytest.mark.parametrize(
    "spoilt",
    [
        {names.RESIZED: "much"},
        {names.RESIZED: write_resize("x", on(1, card="GPU-b"))},
        {names.RESIZED: write_resize("x", on(1, container="other"))},
        {names.APPLIED: "{}"},
        {names.APPLIED: write_assignment(on(1, card="GPU-b"))},
    ],
)
def test_a_resize_that_cannot_be_read_counts_as_the_whole_of_any_card(
    spoilt: dict[str, str],
) -> None:
    """Its limits say what it was created with, and it may have more by now."""
    bound = decode_bound_pod(resized(5000, 5000, **spoilt))

    assert bound is not None
    assert bound.problem != ""
    assert bound.allocation.unplaced == WHOLE_CARD
    assert bound == bound_pod_of(decode_pod_info(resized(5000, 5000, **spoilt)))


def test_what_is_asked_is_open_until_that_very_size_is_answered() -> None:
    text = write_resize("4Gi", on(2000), refused="too much")

    assert not is_answered("4Gi", None)
    assert is_answered("4Gi", text)
    assert not is_answered("4096Mi", text)
    # Nothing is granted on top of what cannot be read.
    assert is_answered("4Gi", "spoilt")
    asks = decode_bound_pod(resized(5000, 5000, **{names.RESIZE: "1Gi"}))
    assert asks is not None
    assert asks.asks_resize


def test_a_refusal_is_read_with_its_reason() -> None:
    text = write_resize("9Gi", on(3000), refused="too much")

    found = read_resize(on(2000), resized=text, applied=None)

    assert (found.asked, found.refused) == ("9Gi", "too much")
    assert (found.granted, found.applied) == (on(3000), on(2000))
    with pytest.raises(WireError):
        read_resize(on(2000, card="GPU-b"), resized=text, applied=None)


def test_of_several_cards_the_fullest_says_how_much_fits() -> None:
    both = {
        "train": (
            Slice(card=CardUuid("GPU-a"), mib=Mib(2000)),
            Slice(card=CardUuid("GPU-b"), mib=Mib(2000)),
        )
    }
    free = {"GPU-a": Mib(5000), "GPU-b": Mib(1000)}

    def ask(size: str, assigned: Assignment = both) -> object:
        kernel = dict.fromkeys(assigned, "kernel")
        return answer(
            size, assigned, None, isolation=kernel, free_mib=lambda card, _: free.get(card)
        )

    assert ask("4000Mi") == Refused("at most 3000Mi fit on the pod's card now")
    granted = ask("3000Mi")
    assert isinstance(granted, Granted)
    assert set(sizes(granted.assignment).values()) == {3000}
    several = {**on(1000), **on(1000, container="other")}
    assert isinstance(ask("1Gi", several), Refused)


def test_a_size_stays_within_the_pods_limit_which_it_keeps() -> None:
    may_borrow = {"train": (replace(on(2000)["train"][0], own_limit_mib=Mib(5000)),)}
    asked: list[bool] = []

    def free(_: CardUuid, with_limit: bool) -> Mib:
        asked.append(with_limit)
        return Mib(9000)

    def ask(size: str, assigned: Assignment) -> object:
        return answer(size, assigned, None, isolation={"train": "kernel"}, free_mib=free)

    granted = ask("5000Mi", may_borrow)
    assert isinstance(granted, Granted)
    (part,) = granted.assignment["train"]
    assert (part.mib, part.limit_mib) == (5000, 5000)
    smaller = ask("1000Mi", may_borrow)
    assert isinstance(smaller, Granted)
    assert smaller.assignment["train"][0].limit_mib == 5000
    assert ask("5001Mi", may_borrow) == Refused("more than the 5000Mi that the pod may use at most")
    # The limit of a pod without one becomes larger with it.
    ask("3000Mi", on(2000))
    assert asked == [False, True]
