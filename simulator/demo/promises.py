"""The demo's own promises, judged from observed facts; pure, so that a test can break each one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fracgpu.state.allocation import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFact:
    """One pod at the end: what it was assigned, and what its containers really got.

    Attributes:
        owner: the workload to which it belongs.
        wired: container name → UUIDs that the container received at its last start.
    """

    key: str
    owner: str
    running: bool
    assignment: Assignment | None
    wired: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalFact:
    """One bad request and the API server's answer; *message* None means that it was admitted."""

    name: str
    mentions: tuple[str, ...]
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPeak:
    """The most MiB ever allocated on one card, computed from the pods at every change."""

    card: str
    capacity_mib: int
    peak_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatFact:
    """What Prometheus showed of the card that was heated, as shares of its time (0..1).

    Attributes:
        card: its UUID.
        card_name: its node and index, as people call it.
        moved_pods: the pods that left it.
        replacement: the pod that runs in the place of the moved one.
        new_card_name: the card of the replacement.
    """

    card: str = ""
    card_name: str = ""
    peak_busy: float = 0.0
    last_busy: float = 1.0
    hot_line: float = 0.8
    moved_pods: tuple[str, ...] = ()
    replacement: str = ""
    new_card_name: str = ""
    hot_after_s: float | None = None
    relieved_after_s: float | None = None

    @property
    def move(self) -> str:
        """The move in words, with the pod and both cards; empty: nothing has moved yet."""
        if not self.moved_pods or not self.replacement:
            return ""
        return (
            f"{self.moved_pods[-1]} left card {self.card_name}; {self.replacement} runs in its "
            f"place on card {self.new_card_name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFact:
    """What became of a pod that wants more memory than its share, in MiB.

    Attributes:
        mib: its share.
        used_mib: what it could use of what it wants.
        resized_mib: its limit after it was resized, as its node's agent has confirmed it.
        resized_used_mib: what it could use then.
    """

    wanted_mib: int = 0
    mib: int = 0
    used_mib: int = 0
    resized_mib: int = 0
    resized_used_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFacts:
    """Everything on which the promises are judged.

    Attributes:
        by_claims: the wiring is that by claims, which cannot do all of it yet: see
            :data:`LEFT_OUT_BY_CLAIMS`.
    """

    expected_pods: Mapping[str, int]
    pods: Sequence[PodFact]
    refusals: Sequence[RefusalFact]
    peaks: Sequence[CardPeak]
    heat: HeatFact
    scrape_targets: Mapping[str, bool] = field(default_factory=dict)
    limit: LimitFact = field(default_factory=LimitFact)
    by_claims: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise, whether it held, and the figures that show it."""

    name: str
    held: bool
    detail: str


# What of the story is left out with the wiring by claims, and why.
LEFT_OUT_BY_CLAIMS: Final = (
    "resizing a pod while it runs: what a claim was allocated never changes",
)


def judge(facts: DemoFacts) -> tuple[Promise, ...]:
    """Return every promise of the demo, judged."""
    return (
        _exact_cards(facts.pods),
        _refused(facts.refusals),
        _never_overcommitted(facts.peaks),
        _limited(facts.limit, resizes=not facts.by_claims),
        _relieved(facts.heat),
        _none_lost(facts),
        _scraped(facts.scrape_targets),
    )


def _exact_cards(pods: Sequence[PodFact]) -> Promise:
    wrong = [pod.key for pod in pods if not _exact(pod)]
    containers = sum(len(pod.wired) for pod in pods)
    return Promise(
        name="every admitted pod runs on exactly the cards its assignment names",
        held=bool(pods) and not wrong,
        detail=f"{len(pods)} pods, {containers} containers, wrong: {', '.join(wrong) or 'none'}",
    )


def _exact(pod: PodFact) -> bool:
    if not pod.running or not pod.assignment:
        return False
    assigned = {
        container: tuple(sorted(part.card for part in slices))
        for container, slices in pod.assignment.items()
    }
    return assigned == {container: tuple(sorted(cards)) for container, cards in pod.wired.items()}


def _refused(refusals: Sequence[RefusalFact]) -> Promise:
    silent = [
        refusal.name
        for refusal in refusals
        if refusal.message is None or not all(part in refusal.message for part in refusal.mentions)
    ]
    return Promise(
        name="bad requests are refused with a reason",
        held=bool(refusals) and not silent,
        detail=f"{len(refusals)} tried, admitted or unexplained: {', '.join(silent) or 'none'}",
    )


def _never_overcommitted(peaks: Sequence[CardPeak]) -> Promise:
    over = [peak.card for peak in peaks if peak.peak_mib > peak.capacity_mib]
    fullest = max((peak.peak_mib / peak.capacity_mib for peak in peaks), default=0.0)
    return Promise(
        name="no card was ever above its MiB",
        held=bool(peaks) and not over,
        detail=(
            f"{len(peaks)} cards, fullest {fullest:.0%}, overbooked: {', '.join(over) or 'none'}"
        ),
    )


def _limited(limit: LimitFact, *, resizes: bool) -> Promise:
    refused = 0 < limit.used_mib <= limit.mib < limit.wanted_mib
    used = (
        f"of {limit.wanted_mib} MiB that it wanted it used {limit.used_mib} with a share of "
        f"{limit.mib}"
    )
    if not resizes:
        return Promise(name="a pod is held to its share", held=refused, detail=used)
    resized = limit.mib < limit.resized_used_mib <= limit.resized_mib
    return Promise(
        name="a pod is held to its share, and to the one to which it is resized",
        held=refused and resized,
        detail=f"{used}; then {limit.resized_used_mib} with {limit.resized_mib}",
    )


def _relieved(heat: HeatFact) -> Promise:
    was_hot = heat.peak_busy >= heat.hot_line
    cool_now = heat.last_busy < heat.hot_line
    when = "" if heat.relieved_after_s is None else f" after {heat.relieved_after_s:.0f} s of heat"
    return Promise(
        name="the hot card was relieved",
        held=was_hot and cool_now and bool(heat.moved_pods) and heat.relieved_after_s is not None,
        detail=(
            f"card {heat.card_name or 'none'} peaked at {heat.peak_busy:.0%}, now "
            f"{heat.last_busy:.0%}{when}; {heat.move or 'no pod has moved'}"
        ),
    )


def _none_lost(facts: DemoFacts) -> Promise:
    running = {
        owner: sum(pod.running for pod in facts.pods if pod.owner == owner)
        for owner in facts.expected_pods
    }
    short = [
        f"{owner} {running[owner]}/{want}"
        for owner, want in facts.expected_pods.items()
        if running[owner] != want
    ]
    return Promise(
        name="no pod was lost",
        held=bool(facts.expected_pods) and not short,
        detail=f"{sum(running.values())} of {sum(facts.expected_pods.values())} running; "
        f"short: {', '.join(short) or 'none'}",
    )


def _scraped(targets: Mapping[str, bool]) -> Promise:
    down = [name for name, up in targets.items() if not up]
    return Promise(
        name="Prometheus scrapes every role",
        held=bool(targets) and not down,
        detail=f"{len(targets)} targets, down: {', '.join(down) or 'none'}",
    )
