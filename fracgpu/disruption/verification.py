"""Whether a move helped: the source has cooled, and the target has not become hot instead."""

from dataclasses import dataclass
from typing import Final

from fracgpu.disruption.heat import CardReading
from fracgpu.disruption.policy import RebalancerPolicy

NEEDED_RELIEF: Final = 0.5  # share of the pod's use by which the source must be less busy
# Mean share of its time from which on a card may give its pods less than they ask for: load varies,
# and what lies above 100 % in some of the samples is missing from the mean.
SATURATED_RATIO: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the cards show some time after a move.

    Attributes:
        relieved: the move helped; None if nobody knows, because a card is not measured, or because
            the other pods of a source that was saturated use what the one that left had used.
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
    pod_uid: str = "",
) -> Verification:
    """Return whether a move helped.

    A source that was saturated, and stays busy with its other pods, shows nothing: they had less
    than they asked for, and now get what the pod that left had used. Had the source not been
    saturated, they would not have lacked anything; then the move was useless.

    Args:
        before_ratio: how busy the source was when the move was planned, 0..1.
        pod_ratio: the pod's share of it.
        source: what the source shows now; None if it has no trusted reading.
        target: the same for the card that the replacement got.
        policy: has the line above which a card is hot, and the share of a card's use that its pods
            have to account for.
        pod_uid: the pod that left; the windows of the source may still have its use.
    """
    if source is None or target is None:
        unmeasured = "the source" if source is None else "the replacement's card"
        return Verification(relieved=None, detail=f"{unmeasured} is not measured")
    relief = before_ratio - source.level_ratio
    detail = f"the source went from {before_ratio:.0%} to {source.level_ratio:.0%} busy"
    detail += f", the replacement's card is {target.level_ratio:.0%} busy"
    cooled = relief >= NEEDED_RELIEF * pod_ratio
    stays_cool = target.level_ratio < policy.hot_ratio
    if before_ratio >= SATURATED_RATIO and not cooled and stays_cool:
        others = sum(use for uid, use in source.pods.items() if uid != pod_uid)
        if others >= max(policy.attribution_ratio, NEEDED_RELIEF) * source.level_ratio:
            detail += ", by its other pods"
            return Verification(relieved=None, relief_ratio=relief, detail=detail)
    return Verification(relieved=cooled and stays_cool, relief_ratio=relief, detail=detail)
