"""What Prometheus recorded of cards and pods, read in pieces of bounded size."""

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from fracgpu import names
from fracgpu.cards.card import CardUuid
from rebalancer.usage import promql
from rebalancer.usage.prometheus import QueryError, QueryFailed, Sample, Series

_PERCENT: Final = 100.0
_LONGEST_PIECE_S: Final = 3600.0
# An answer beyond the client's limit, or too slow, is asked for in halves.
_TOO_MUCH: Final = (QueryError.TOO_LARGE, QueryError.SLOW)

_POD_USE: Final = f"sum by (UUID, pod_uid) ({names.METRIC_POD_BUSY})"
_CARD_LABELS: Final = "UUID, gpu, modelName, node"
_POD_LABELS: Final = "UUID, pod_uid, namespace, pod, exported_namespace, exported_pod"


class RecordingMissing(Exception):  # noqa: N818 - says what is wrong
    """Prometheus has not recorded what a replay needs; the message names the series."""


class Recorder(Protocol):
    """What this module needs of :class:`rebalancer.usage.prometheus.Prometheus`."""

    def query(self, query: str, *, at_s: float | None = None) -> Awaitable[tuple[Sample, ...]]: ...

    def query_range(
        self, query: str, *, start_s: float, end_s: float, step_s: float
    ) -> Awaitable[tuple[Series, ...]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCard:
    """A card as its exporter labelled it; *mib* is what pods may share of it."""

    uuid: CardUuid
    node: str
    index: int
    model: str
    mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPod:
    """A pod and its MiB by card."""

    uid: str
    namespace: str
    name: str
    mib: Mapping[CardUuid, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One moment: shares of a card's time, 0..1.

    Attributes:
        busy: by card; one without a sample is left out.
        uses: by pod UID and card.
    """

    at: datetime
    busy: Mapping[CardUuid, float]
    uses: Mapping[str, Mapping[CardUuid, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of time, with the cards and pods that were there."""

    cards: Mapping[CardUuid, RecordedCard]
    pods: Mapping[str, RecordedPod]
    frames: tuple[Frame, ...] = field(repr=False)


async def read_pieces(
    prometheus: Recorder, *, start: datetime, end: datetime, step_s: float
) -> AsyncIterator[Piece]:
    """Yield the recording from *start* to *end*, an hour or less at a time.

    Raises:
        RecordingMissing: there are no cards in the whole time, or no pods.
        QueryFailed: Prometheus gave no answer that can be used.
    """
    at_s, end_s = start.timestamp(), end.timestamp()
    length_s = max(step_s, _LONGEST_PIECE_S)
    anything = False
    while at_s < end_s:
        until_s = min(at_s + length_s, end_s)
        try:
            piece = await _read_piece(prometheus, at_s, until_s, step_s)
        except QueryFailed as error:
            if error.trouble in _TOO_MUCH and length_s > step_s:
                length_s = max(step_s, length_s / 2)
                continue
            raise
        if piece.cards and piece.pods:
            anything = True
            yield piece
        at_s = until_s
    if not anything:
        await _explain_nothing(prometheus, start, end)


async def _read_piece(prometheus: Recorder, start_s: float, end_s: float, step_s: float) -> Piece:
    # Up to, not including, the end: the next piece begins with it.
    last_s = start_s + step_s * max(0, -(-(end_s - start_s) // step_s) - 1)
    window = f"{round(1000 * (end_s - start_s + step_s))}ms"
    cards = await prometheus.query(
        f"max by ({_CARD_LABELS}) (last_over_time({names.METRIC_SHAREABLE}[{window}]))",
        at_s=end_s,
    )
    pods = await prometheus.query(
        f"sum by ({_POD_LABELS}) (last_over_time(fracgpu_pod_gpu_memory_limit_mib[{window}]))",
        at_s=end_s,
    )
    span = {"start_s": start_s, "end_s": last_s, "step_s": step_s}
    busy = await prometheus.query_range(promql.BUSY, **span)
    uses = await prometheus.query_range(_POD_USE, **span)
    return Piece(
        cards={card.uuid: card for card in map(_card, cards) if card is not None},
        pods=_pods(pods),
        frames=tuple(_frames(busy, uses)),
    )


async def _explain_nothing(prometheus: Recorder, start: datetime, end: datetime) -> None:
    window = f"{max(1, round((end - start).total_seconds()))}s"
    for series in (
        names.METRIC_SHAREABLE,
        "fracgpu_pod_gpu_memory_limit_mib",
        names.METRIC_POD_BUSY,
    ):
        found = await prometheus.query(
            f"count(last_over_time({series}[{window}]))", at_s=end.timestamp()
        )
        if not found:
            raise RecordingMissing(
                f"no series {series} from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC: "
                "was FracGPU's exporter scraped then, and does Prometheus keep data for that long?"
            )
    raise RecordingMissing(
        f"cards and pods were never recorded together from {start:%Y-%m-%d %H:%M} to "
        f"{end:%Y-%m-%d %H:%M} UTC"
    )


def _card(sample: Sample) -> RecordedCard | None:
    labels = sample.labels
    uuid = labels.get("UUID", "")
    index = labels.get("gpu", "")
    if not uuid or not sample.value >= 1:  # NaN as well
        return None
    return RecordedCard(
        uuid=CardUuid(uuid),
        node=labels.get("node", "unknown"),
        index=int(index) if index.isdecimal() else 0,
        model=labels.get("modelName", ""),
        mib=int(sample.value),
    )


def _pods(samples: Iterable[Sample]) -> dict[str, RecordedPod]:
    found: dict[str, RecordedPod] = {}
    for sample in samples:
        labels = sample.labels
        uid, card = labels.get("pod_uid", ""), labels.get("UUID", "")
        if not uid or not card or not sample.value >= 1:
            continue
        known = found.get(uid)
        found[uid] = RecordedPod(
            uid=uid,
            namespace=labels.get("exported_namespace") or labels.get("namespace") or "unknown",
            name=labels.get("exported_pod") or labels.get("pod") or uid,
            mib={**(known.mib if known else {}), CardUuid(card): int(sample.value)},
        )
    return found


def _frames(busy: Iterable[Series], uses: Iterable[Series]) -> Iterable[Frame]:
    by_time: dict[float, tuple[dict[CardUuid, float], dict[str, dict[CardUuid, float]]]] = {}
    for series in busy:
        card = CardUuid(series.labels.get("UUID", ""))
        for at_s, value in series.points:
            if card and 0 <= value <= _PERCENT:
                by_time.setdefault(at_s, ({}, {}))[0][card] = value / _PERCENT
    for series in uses:
        card, uid = CardUuid(series.labels.get("UUID", "")), series.labels.get("pod_uid", "")
        for at_s, value in series.points:
            if card and uid and 0 <= value <= 2 * _PERCENT:
                used = by_time.setdefault(at_s, ({}, {}))[1]
                used.setdefault(uid, {})[card] = value / _PERCENT
    for at_s in sorted(by_time):
        found_busy, found_uses = by_time[at_s]
        yield Frame(at=datetime.fromtimestamp(at_s, tz=UTC), busy=found_busy, uses=found_uses)
