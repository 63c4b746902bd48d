"""One picture of what cards and pods use, put together from readings, owners and assignments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from deviceplugin.attribution import Owner
from deviceplugin.cards import CardFacts, CardProcess, Reading, ReadingRound
from deviceplugin.inventory import Stock
from fracgpu.card import CardUuid
from fracgpu.views import PodView

_FULL_PERCENT = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """What one container holds of one card, and what it uses of it.

    Attributes:
        limit_mib: what it was promised.
        used_mib: what its processes hold, or None where nobody can say.
        sm_percent: its part of the card's time, 0..100; the parts of a card's pods never add up
            to more than the card's own figure. None where nobody can say.
    """

    namespace: str
    pod: str
    pod_uid: str
    container: str
    limit_mib: int
    used_mib: float | None = None
    sm_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """One card: its figures, its pods, and what runs on it and belongs to none of them.

    Attributes:
        degraded: the card is busy, and the driver does not say with whose work.
    """

    facts: CardFacts
    reading: Reading | None
    allocated_mib: int = 0
    pods: tuple[PodUse, ...] = ()
    unattributed_processes: int = 0
    unattributed_mib: float = 0.0
    degraded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePicture:
    """All cards of the node at *taken_at_s*, in seconds since the epoch."""

    taken_at_s: float
    driver: str = ""
    cards: tuple[CardUse, ...] = ()
    troubles: Mapping[CardUuid, str] = field(default_factory=dict)


def picture_usage(
    *,
    taken_at_s: float,
    stock: Stock,
    readings: ReadingRound,
    owners: Mapping[int, Owner | None],
    pods: Iterable[PodView],
) -> UsagePicture:
    """Put the picture together; *pods* are the live pods of this node."""
    live = [pod for pod in pods if pod.record.live and pod.record.assignment]
    return UsagePicture(
        taken_at_s=taken_at_s,
        driver=stock.survey.driver,
        cards=tuple(
            _card_use(facts, readings.readings.get(facts.card.uuid), owners, live)
            for facts in stock.survey.cards
        ),
        troubles=readings.troubles,
    )


def _card_use(
    facts: CardFacts,
    reading: Reading | None,
    owners: Mapping[int, Owner | None],
    pods: Iterable[PodView],
) -> CardUse:
    here = _holders(facts.card.uuid, pods)
    allocated_mib = sum(use.limit_mib for use in here)
    if reading is None or not reading.processes_known:
        return CardUse(
            facts=facts,
            reading=reading,
            allocated_mib=allocated_mib,
            pods=tuple(here),
            degraded=reading is not None and bool(reading.figures.gpu_percent),
        )
    by_pod: dict[str, list[CardProcess]] = {use.pod_uid: [] for use in here}
    strangers = []
    for process in reading.processes:
        owner = owners.get(process.pid)
        if owner is not None and owner.pod_uid in by_pod:
            by_pod[owner.pod_uid].append(process)
        else:
            strangers.append(process)
    shares = _sm_shares(reading)
    return CardUse(
        facts=facts,
        reading=reading,
        allocated_mib=allocated_mib,
        pods=tuple(_measured(use, by_pod, here, shares) for use in here),
        unattributed_processes=len(strangers),
        unattributed_mib=sum(it.used_mib or 0 for it in strangers),
        degraded=shares is None,
    )


def _holders(card: CardUuid, pods: Iterable[PodView]) -> list[PodUse]:
    found = []
    for pod in pods:
        record = pod.record
        for container, slices in (record.assignment or {}).items():
            found += [
                PodUse(
                    namespace=record.namespace,
                    pod=record.name,
                    pod_uid=record.uid,
                    container=container,
                    limit_mib=part.mib,
                )
                for part in slices
                if part.card == card
            ]
    return sorted(found, key=lambda use: (use.namespace, use.pod, use.container))


def _sm_shares(reading: Reading) -> Mapping[int, float] | None:
    """Give each process its part of the card's time, in percent of the card.

    The driver's figures for single processes do not add up to the card's own under time-slicing,
    so they only say how to divide it. Where none is busy and the card is, nobody can say who: None.
    """
    total = sum(it.sm_percent for it in reading.processes)
    card_percent = reading.figures.gpu_percent
    if total <= 0:
        return None if card_percent else {it.pid: 0.0 for it in reading.processes}
    scale = min(1.0, _FULL_PERCENT / total) if card_percent is None else card_percent / total
    return {it.pid: it.sm_percent * scale for it in reading.processes}


def _measured(
    use: PodUse,
    by_pod: Mapping[str, list[CardProcess]],
    here: Iterable[PodUse],
    shares: Mapping[int, float] | None,
) -> PodUse:
    processes = by_pod[use.pod_uid]
    # Two containers of one pod on one card: cgroups tell the pod, so the first one shows the use.
    first = next(other for other in here if other.pod_uid == use.pod_uid)
    if use is not first:
        return replace(use, used_mib=0.0, sm_percent=0.0)
    known = [it.used_mib for it in processes if it.used_mib is not None]
    return replace(
        use,
        used_mib=float(sum(known)) if len(known) == len(processes) else None,
        sm_percent=None if shares is None else sum(shares[it.pid] for it in processes),
    )
