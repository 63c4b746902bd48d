"""Reading a recording: in pieces that fit, without what is impossible; what is missing is named."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from fracgpu.cards.card import CardUuid
from rebalancer.usage import promql
from rebalancer.usage.prometheus import QueryError, QueryFailed, Sample, Series
from simulator.usage_replay.recording import Piece, RecordingMissing, read_pieces

START = datetime(2026, 1, 1, tzinfo=UTC)
CARD = {"UUID": "GPU-1", "gpu": "3", "modelName": "A30", "node": "n1"}
POD = {"UUID": "GPU-1", "pod_uid": "p1", "pod": "web-1", "namespace": "ml"}


class Scripted:
    """A recorder with one card and one pod, which answers for so many steps at most."""

    def __init__(self, *, most_steps: int = 1_000_000, busy: float = 90.0) -> None:
        self.most_steps = most_steps
        self.busy = busy
        self.card: Mapping[str, str] = CARD
        self.pod: Mapping[str, str] = POD
        self.fails: QueryError | None = None
        self.asked: list[tuple[float, float]] = []

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        if query.startswith("count"):
            return ()
        if "shareable" in query:
            return (Sample(labels=self.card, value=24_000),) if self.card else ()
        return (Sample(labels=self.pod, value=8_000),) if self.pod else ()

    async def query_range(
        self, query: str, *, start_s: float, end_s: float, step_s: float
    ) -> tuple[Series, ...]:
        steps = int((end_s - start_s) / step_s) + 1
        if self.fails is not None:
            raise QueryFailed(self.fails, "as scripted")
        if steps > self.most_steps:
            raise QueryFailed(QueryError.TOO_LARGE, "as scripted")
        device = query == promql.BUSY
        if device:
            self.asked.append((start_s, end_s))
        labels = {"UUID": "GPU-1"} if device else {"UUID": "GPU-1", "pod_uid": "p1"}
        value = self.busy if device else 40.0
        points = tuple((start_s + n * step_s, value) for n in range(steps))
        return (Series(labels=labels, points=points),)


async def pieces_of(recorder: Scripted, *, hours: float = 2) -> list[Piece]:
    end = START + timedelta(hours=hours)
    return [piece async for piece in read_pieces(recorder, start=START, end=end, step_s=60)]


async def test_every_step_is_read_once_an_hour_at_a_time() -> None:
    recorder = Scripted()

    pieces = await pieces_of(recorder, hours=2.5)

    times = [frame.at for piece in pieces for frame in piece.frames]
    assert times == [START + timedelta(minutes=n) for n in range(150)]
    assert [len(piece.frames) for piece in pieces] == [60, 60, 30]


async def test_an_answer_that_is_too_large_is_asked_for_in_halves() -> None:
    pieces = await pieces_of(Scripted(most_steps=20))

    assert [frame.at for piece in pieces for frame in piece.frames] == [
        START + timedelta(minutes=n) for n in range(120)
    ]
    assert max(len(piece.frames) for piece in pieces) <= 20


async def test_what_is_too_large_even_for_one_step_fails() -> None:
    with pytest.raises(QueryFailed, match="too_large"):
        await pieces_of(Scripted(most_steps=0))


async def test_another_error_is_not_tried_again() -> None:
    recorder = Scripted()
    recorder.fails = QueryError.UNAUTHORIZED

    with pytest.raises(QueryFailed, match="unauthorized"):
        await pieces_of(recorder)


async def test_cards_and_pods_have_what_their_labels_say() -> None:
    (piece, _) = await pieces_of(Scripted())

    card = piece.cards[CardUuid("GPU-1")]
    assert (card.node, card.index, card.model, card.mib) == ("n1", 3, "A30", 24_000)
    pod = piece.pods["p1"]
    assert (pod.namespace, pod.name, pod.mib) == ("ml", "web-1", {"GPU-1": 8_000})
    frame = piece.frames[0]
    assert frame.busy == {"GPU-1": 0.9}
    assert frame.uses == {"p1": {"GPU-1": 0.4}}


async def test_labels_that_a_scrape_renamed_are_understood() -> None:
    recorder = Scripted()
    recorder.card = {"UUID": "GPU-1", "node": "n7", "gpu": ""}
    recorder.pod = {
        "UUID": "GPU-1", "pod_uid": "p1", "pod": "agent", "namespace": "fracgpu-system",
        "exported_pod": "web-1", "exported_namespace": "ml",
    }  # fmt: skip

    (piece, _) = await pieces_of(recorder)

    assert piece.cards[CardUuid("GPU-1")].node == "n7"
    assert (piece.pods["p1"].namespace, piece.pods["p1"].name) == ("ml", "web-1")


@pytest.mark.parametrize("busy", [float("nan"), -1.0, 101.0, float("inf")])
async def test_an_impossible_sample_is_left_out(busy: float) -> None:
    (piece, _) = await pieces_of(Scripted(busy=busy))

    assert all(frame.busy == {} for frame in piece.frames)


async def test_a_time_without_cards_is_an_error_that_names_the_series() -> None:
    recorder = Scripted()
    recorder.card = {}

    with pytest.raises(RecordingMissing, match="no series fracgpu_card_memory_shareable_mib from"):
        await pieces_of(recorder)
