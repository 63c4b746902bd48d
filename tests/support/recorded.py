"""Recorded usage for replays: as series of a real Prometheus, and as pieces."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from fracgpu.cards.card import CardUuid
from simulator.usage_replay.recording import Frame, Piece, RecordedCard, RecordedPod
from tests.support.backfill import Past, steady

CARD_MIB = 24_000
POD_MIB = 8_000
REPLICAS = ("web-6d4cf56db6-bcd4f", "web-6d4cf56db6-xzz7b")


def recorded_series(
    cards: Mapping[str, float],
    pods: Mapping[str, tuple[str, float]],
    *,
    since_s: float,
    left_out: str = "",
) -> list[Past]:
    """Return the series of cards (busy per cent by ``node/index``), and of pods on them.

    The UUID of a card is ``GPU-node/index``; the UID of a pod is ``uid-`` and its name.
    """
    found = []
    for name, busy in cards.items():
        node, _, index = name.partition("/")
        labels = {"UUID": f"GPU-{name}", "gpu": index, "modelName": "A30", "node": node}
        found += [
            Past(
                name="fracgpu_card_util",
                labels=labels,
                points=steady(busy, since_s=since_s),
            ),
            Past(
                name="fracgpu_card_memory_shareable_mib",
                labels=labels,
                points=steady(CARD_MIB, since_s=since_s),
            ),
        ]
    for pod, (card, use) in pods.items():
        labels = {"UUID": f"GPU-{card}", "pod_uid": f"uid-{pod}", "pod": pod, "namespace": "ml"}
        labels["container"] = "main"
        found += [
            Past(name="fracgpu_pod_sm_util", labels=labels, points=steady(use, since_s=since_s)),
            Past(
                name="fracgpu_pod_gpu_memory_limit_mib",
                labels=labels,
                points=steady(POD_MIB, since_s=since_s),
            ),
        ]
    return [series for series in found if series.name != left_out]


def a_piece(
    start: datetime,
    *,
    cards: Sequence[str],
    pods: Mapping[str, tuple[str, float]],
    rest: Mapping[str, float] | None = None,
    frames: int,
) -> Piece:
    """Return a piece of minutes in which every pod draws the same all the time; shares are 0..1."""
    uuid = {name: CardUuid(f"GPU-{name}") for name in cards}
    busy = {uuid[name]: (rest or {}).get(name, 0.0) for name in cards}
    for card, use in pods.values():
        busy[uuid[card]] = min(1.0, busy[uuid[card]] + use)
    return Piece(
        cards={
            uuid[name]: RecordedCard(
                uuid=uuid[name],
                node=name.partition("/")[0],
                index=int(name.partition("/")[2]),
                model="A30",
                mib=CARD_MIB,
            )
            for name in cards
        },
        pods={
            f"uid-{pod}": RecordedPod(
                uid=f"uid-{pod}", namespace="ml", name=pod, mib={uuid[card]: POD_MIB}
            )
            for pod, (card, _) in pods.items()
        },
        frames=tuple(
            Frame(
                at=start + timedelta(minutes=number),
                busy=busy,
                uses={f"uid-{pod}": {uuid[card]: use} for pod, (card, use) in pods.items()},
            )
            for number in range(frames)
        ),
    )
