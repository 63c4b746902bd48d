"""Whether the cluster fills up or turns over, and what counts then.

While pods come and hardly any leave, each node is filled once, and what matters is what will be
left of it when it is full. Once as much ends as starts, a node is never full for good: room opens
here and there, and what matters is whether the next pod can use it, and that nodes which are nearly
empty become so. Either way of counting loses in the other world, see decision 70.
"""

from dataclasses import dataclass
from typing import Final

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI

# What has started weighs half after as much as this has started since.
_HALF_LIFE_MILLI: Final = 256 * WHOLE_CARD_MILLI
# Nothing is concluded from a few pods: this much is taken to have started, and not to have ended.
_UNKNOWN_MILLI: Final = _HALF_LIFE_MILLI / 10
# What ends for each card that starts: at the one ratio the cluster turns over, below the other it
# fills up again, and in between nothing changes.
_TURNS_OVER_RATIO, _FILLS_RATIO = 0.5, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What counts how much in the cost of a node.

    Attributes:
        fill: what is expected to stay idle once the node is full.
        fragment: what is idle and cannot be used by the next pod.
        fragment_of_whole: whether that pod may request whole cards; else a share of a card.
        scarcity: what idle cards are worth to pods that are short of such cards.
        premium_limit: what scarcity makes of one card at the most, in cards, if pods name models.
        idle: what is idle on the node before the pod. A little of it breaks ties, towards the
            fuller node; more of it lets nodes that are nearly empty become so.
        ample: the same, as far as CPU is ample and pods name no models. Then nodes can be filled in
            any order, and one after the other leaves each gap open to most pods.
    """

    fill: float
    fragment: float
    fragment_of_whole: bool
    scarcity: float
    premium_limit: float
    idle: float
    ample: float


# A gap that a share fills exactly costs about as much as any other, until little is idle; then the
# gaps left over fit no pod. So some of the fragment counts here too, and fuller nodes come first.
FILLING: Final = Weights(
    fill=1.0,
    fragment=0.05,
    fragment_of_whole=False,
    scarcity=0.1,
    premium_limit=30.0,
    idle=1e-4,
    ample=0.1,
)
# Pods of eight cards that also name a model soon meet a limit of 30 and are lost, see decision 70.
TURNING_OVER: Final = Weights(
    fill=0.1,
    fragment=1.0,
    fragment_of_whole=True,
    scarcity=0.3,
    premium_limit=300.0,
    idle=0.02,
    ample=0.0,
)


class Turnover:
    """Counts the cards that pods take and give back, the latest ones most.

    It needs no clock. A server that has just started knows nothing, and takes the cluster to fill
    up.

    Attributes:
        weights: what counts how much now.
    """

    def __init__(self) -> None:
        self.weights = FILLING
        self._started_milli = 0.0
        self._ended_milli = 0.0

    def started(self, milli: int) -> None:
        """Count a pod that took so many thousandths of cards."""
        kept = 2.0 ** (-milli / _HALF_LIFE_MILLI)
        self._started_milli = self._started_milli * kept + milli
        self._ended_milli *= kept
        self._decide()

    def ended(self, milli: int) -> None:
        """Count a pod that gave back so many thousandths of cards."""
        # When nothing starts any more, what ended long ago is still not more than a few half-lives.
        self._ended_milli = min(self._ended_milli + milli, 2.0 * _HALF_LIFE_MILLI)
        self._decide()

    def _decide(self) -> None:
        ratio = self._ended_milli / (self._started_milli + _UNKNOWN_MILLI)
        if ratio >= _TURNS_OVER_RATIO:
            self.weights = TURNING_OVER
        elif ratio < _FILLS_RATIO:
            self.weights = FILLING
