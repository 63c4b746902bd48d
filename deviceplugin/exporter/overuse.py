"""Finds the pods that use more of a card's memory than they are assigned, and says so.

That is possible only where nothing limits them. A moment does not count: programs let go of memory
late, and a pod is known to have ended later than its processes have.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

import structlog

from deviceplugin.exporter.usage import CardUse, PodCardUsage, UsageSnapshot
from fracgpu.cards.card import CardUuid
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import PODS
from process.clock import Clock

log = structlog.get_logger()

_MOST_RATIO: Final = 1.05  # of what is assigned
_MOST_MIB: Final = 256  # beyond it
_LASTS_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overuse:
    """One pod that has used too much of one card for long enough.

    Attributes:
        mib: what it is assigned of the card.
        used_mib: what it uses.
    """

    namespace: str
    pod: str
    pod_uid: str
    card: CardUuid
    mib: int
    used_mib: float

    @property
    def beyond_mib(self) -> float:
        """What it uses beyond its share."""
        return self.used_mib - self.mib


class OveruseWatch:
    """Follows the snapshots; :attr:`lasting` are the pods that have used too much all the while."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[str, CardUuid], float] = {}
        self.lasting: tuple[Overuse, ...] = ()

    def observe(self, snapshot: UsageSnapshot, *, now_s: float) -> None:
        """Add a snapshot, taken at *now_s* of the monotonic clock.

        What is not known in it is as it was.
        """
        over = {(each.pod_uid, each.card): each for each in _over(snapshot)}
        unknown = _unknown(snapshot)
        self._since_s = {
            key: self._since_s.get(key, now_s)
            for key in (*over, *(key for key in self._since_s if key in unknown))
        }
        self.lasting = tuple(
            each for key, each in over.items() if now_s - self._since_s[key] >= _LASTS_S
        )


def _over(snapshot: UsageSnapshot) -> Iterator[Overuse]:
    for use in snapshot.cards:
        for uid, parts in _by_pod(use).items():
            used_mib = sum(part.used_mib or 0.0 for part in parts)
            # More than is guaranteed may be used only as far as it is limited. A container that has
            # ended uses nothing, and is not counted.
            limited = all(part.counted is not None for part in parts if part.used_mib)
            mib = parts[0].pod_limit_mib if limited else parts[0].pod_mib
            if used_mib > max(mib * _MOST_RATIO, mib + _MOST_MIB):
                yield Overuse(
                    namespace=parts[0].namespace,
                    pod=parts[0].pod,
                    pod_uid=uid,
                    card=use.hardware.card.uuid,
                    mib=mib,
                    used_mib=used_mib,
                )


def _unknown(snapshot: UsageSnapshot) -> frozenset[tuple[str, CardUuid]]:
    """Return the pods, with their cards, of which it is not known what they use."""
    return frozenset(
        (part.pod_uid, use.hardware.card.uuid)
        for use in snapshot.cards
        for part in use.pods
        if part.used_mib is None
    )


def _by_pod(use: CardUse) -> Mapping[str, Sequence[PodCardUsage]]:
    found: dict[str, list[PodCardUsage]] = {}
    for part in use.pods:
        found.setdefault(part.pod_uid, []).append(part)
    return found


class OveruseEvents:
    """Writes an Event on each pod that has come to use too much.

    Args:
        lasting: the pods that do, as last found.
        recorder: writes events.
        clock: paces the comparisons.
        period_s: between two.
    """

    def __init__(
        self,
        *,
        lasting: Callable[[], Iterable[Overuse]],
        recorder: EventRecorder,
        clock: Clock,
        period_s: float,
    ) -> None:
        self._lasting = lasting
        self._recorder = recorder
        self._clock = clock
        self._period_s = period_s
        self._said: Set[tuple[str, CardUuid]] = frozenset()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self.sync()
            await self._clock.sleep(self._period_s)

    async def sync(self) -> None:
        """Compare once, and write what is new."""
        now = {(each.pod_uid, each.card): each for each in self._lasting()}
        said, self._said = self._said, now.keys()
        for key in sorted(now.keys() - said):
            await self._say(now[key])

    async def _say(self, found: Overuse) -> None:
        note = (
            f"for {_LASTS_S / 60:.0f} minutes the pod has used more memory of card {found.card} "
            f"than its {found.mib} MiB: {found.used_mib:.0f} MiB; nothing limits it"
        )
        log.warning("memory_overused", uid=found.pod_uid, card=found.card, reason=note)
        await self._recorder.emit(
            Regarding(kind=PODS, name=found.pod, namespace=found.namespace, uid=found.pod_uid),
            reason="MemoryOverused",
            note=note,
            level=EventLevel.WARNING,
        )
