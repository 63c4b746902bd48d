"""Whether a move helped: the source has cooled, and the target has not become hot instead."""

from dataclasses import dataclass
from typing import Final

from fracgpu.disruption.heat import CardReading
from fracgpu.disruption.policy import RebalancerPolicy

NEEDED_RELIEF: Final = 0.5  # share of the pod's use by which the source must be less busy
# Above this a card is busy all the time: its pods may lack any amount, and it does not show.
SATURATED: Final = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the cards show some time after a move.

    Attributes:
        relieved: the move helped; None if nobody knows, because a card is not measured, or because
            the source was saturated and still is: its other pods take what the pod left them.
        relief_ratio: by how much of its time the source is less busy; negative if it is busier.
        detail: the figures, for people.
    """

    relieved: bool | None
    relief_ratio: float = 0.0
    detail: str


def verify_room(
    *, started: bool, target: CardReading | None, policy: RebalancerPolicy
) -> Verification:
    """Return whether a move that makes room helped.

    Args:
        started: the pod that waited has a node.
        target: what the card shows now that the replacement got; None without a trusted reading.
        policy: has the line above which a card is hot.
    """
    if not started:
        return Verification(relieved=False, detail="the pod that waited did not start")
    if target is None:
        return Verification(relieved=None, detail="the replacement's card is not measured")
    detail = f"the replacement's card is {target.level_ratio:.0%} busy"
    return Verification(relieved=target.level_ratio < policy.hot_ratio, detail=detail)


def verify(
    *,
    before_ratio: float,
    pod_ratio: float,
    source: CardReading | None,
    target: CardReading | None,
    policy: RebalancerPolicy,
) -> Verification:
    """Return whether a move helped.

    Args:
        before_ratio: how busy the source was when the move was planned, 0..1.
        pod_ratio: the pod's share of it.
        source: what the source shows now; None if it has no trusted reading.
        target: the same for the card that the replacement got.
        policy: has the line above which a card is hot.
    """
    if source is None or target is None:
        unmeasured = "the source" if source is None else "the replacement's card"
        return Verification(relieved=None, detail=f"{unmeasured} is not measured")
    relief = before_ratio - source.level_ratio
    detail = f"the source went from {before_ratio:.0%} to {source.level_ratio:.0%} busy"
    detail += f", the replacement's card is {target.level_ratio:.0%} busy"
    stays_cool = target.level_ratio < policy.hot_ratio
    if before_ratio >= SATURATED and source.level_ratio >= SATURATED and stays_cool:
        return Verification(relieved=None, relief_ratio=relief, detail=f"{detail}: saturated still")
    cooled = relief >= NEEDED_RELIEF * pod_ratio
    return Verification(relieved=cooled and stays_cool, relief_ratio=relief, detail=detail)
