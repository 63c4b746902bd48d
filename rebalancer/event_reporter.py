"""Reports what happens to a move: a log line, a metric, and Events on the objects concerned.

An Event about a move is written on the pod, on its controller and on the node that it leaves, so
each note names the pod, and its cards as ``node/index``.
"""

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Protocol

import structlog

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.brakes import OpenBreaker
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import CardReading, unrelievable
from fracgpu.disruption.move import CARRIED_OUT, ENDED, Ending
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import MovePhase
from kube.events import EventLevel, Regarding
from kube.kinds import CONFIGMAPS, Kind
from rebalancer.metrics import RebalancerMetrics, move_labels
from rebalancer.moves.record import MoveRecord
from rebalancer.moves.steps import (
    Action,
    EvictionOutcome,
    EvictionResult,
    StepContext,
    notice_of,
    verification,
)

log = structlog.get_logger()


class Emits(Protocol):
    """What this module needs of :class:`kube.events.EventRecorder`."""

    def emit(
        self,
        regarding: Regarding,
        *,
        reason: str,
        note: str,
        level: EventLevel = EventLevel.NORMAL,
    ) -> Awaitable[None]: ...


class EventReporter:
    """Has one method for each thing that can happen to a move or a card.

    Args:
        events: writes Events.
        metrics: where it is counted.
        namespace: of the ConfigMap with the policy.
    """

    def __init__(
        self,
        events: Emits,
        metrics: RebalancerMetrics,
        *,
        namespace: str,
    ) -> None:
        self._events = events
        self._metrics = metrics
        self._namespace = namespace

    async def config_refused(self, problem: str) -> None:
        await self._warn(
            "ConfigRefused", f"key rebalancer is not in use, the last good one is: {problem}"
        )

    async def settings_ignored(self, keys: Sequence[str]) -> None:
        log.warning("settings_ignored", keys=keys)
        await self._warn(
            "SettingsIgnored",
            f"keys below rebalancer that set nothing any more: {', '.join(keys)}; see "
            "docs/rebalancer-settings.md#keys-of-earlier-versions",
        )

    async def breaker_opened(self, breaker: OpenBreaker) -> None:
        log.error("breaker_opened", breaker=breaker.breaker.value, why=breaker.why)
        await self._warn(
            "BreakerOpened",
            f"moves are only shown, not made: {breaker}; to close it earlier, set "
            "resetBreakersAt in the key rebalancer to the present time",
        )

    async def _warn(self, reason: str, note: str) -> None:
        """Record an Event on the ConfigMap, where the author of the policy looks."""
        regarding = Regarding(kind=CONFIGMAPS, name=names.CONFIG_MAP, namespace=self._namespace)
        await self._events.emit(regarding, reason=reason, note=note, level=EventLevel.WARNING)

    async def hot_card(
        self,
        card: CardUuid,
        *,
        node: str,
        display: str,
        reading: CardReading,
        policy: RebalancerPolicy,
    ) -> None:
        """Report that a card became hot, and whether moving a pod could help at all.

        *display* is the card's ``node/index``.
        """
        why = unrelievable(reading, policy)
        level = reading.level_ratio
        log.warning(
            "hot_card_detected",
            card=card,
            node=node,
            busy_ratio=round(level, 3),
            unrelievable=why.value if why else None,
        )
        note = f"card {display} ({card}) is busy {level:.0%} of the time"
        note += f"; no pod is moved off it: {why.value}" if why else ""
        await self._events.emit(
            Regarding.node(node), reason="HotCardDetected", note=note, level=EventLevel.WARNING
        )

    async def planned(self, record: MoveRecord) -> None:
        move = record.move
        log.info(
            "move_planned",
            move=record.id,
            pod=move.pod,
            source=move.source,
            target=move.target,
            busy_ratio=move.busy_ratio,
            gain_points=move.gain_points,
            dry_run=record.dry_run,
        )
        would = "would" if record.dry_run else "will"
        waiting = _waiting(record)
        cause = (
            f"for which pod {waiting} waits"
            if waiting
            else f"which is busy {move.level_ratio:.0%} of the time"
        )
        note = (
            f"pod {move.pod} {would} be moved off card {record.spec.source.display}, {cause}; "
            f"card {record.spec.target.display} has room"
        )
        await self._tell(record, "MovePlanned", note)

    async def done(
        self, action: Action, record: MoveRecord, result: EvictionResult, policy: RebalancerPolicy
    ) -> None:
        """Report how the API server answered a step."""
        pod = record.move.pod
        if action in (Action.PREFLIGHT, Action.EVICT):
            rehearsed = action is Action.PREFLIGHT
            counter = self._metrics.dry_runs if rehearsed else self._metrics.evictions
            counter.labels(result.outcome.value).inc()
            log.info(
                "eviction_rehearsed" if rehearsed else "eviction_answered",
                move=record.id,
                pod=pod,
                outcome=result.outcome.value,
                detail=result.detail,
            )
        if result.outcome is not EvictionOutcome.ALLOWED:
            return
        if action is Action.NOTICE:
            at = record.phase_since + notice_of(record, policy)
            await self._tell(record, "MoveNoticed", f"{_leaving(record)} at {at:%H:%M:%S} UTC")
        elif action is Action.RELEASE:
            log.info("surge_started", move=record.id, pod=pod)
            target = record.spec.target.display
            note = f"{_leaving(record)}: its ReplicaSet makes a replacement, for card {target}"
            await self._tell(record, "SurgeStarted", note)
        elif action is Action.RESTORE:
            self._metrics.reverts.inc()
            log.warning("surge_rolled_back", move=record.id, pod=pod, why=record.detail)
            note = (
                f"pod {pod} stays on card {record.spec.source.display}, and goes back to its "
                f"ReplicaSet: {record.detail}"
            )
            await self._tell(record, "RolledBack", note, level=EventLevel.WARNING)

    async def entered(self, record: MoveRecord, before: MoveRecord, context: StepContext) -> None:
        """Report that a move came to another phase than that of *before*."""
        if not record.dry_run:
            in_phase_s = before.age(now=context.now).total_seconds()
            self._metrics.phase_s.labels(before.phase.name.lower()).observe(in_phase_s)
        pod, source = record.move.pod, record.spec.source.display
        if record.phase is MovePhase.REPLACEMENT_READY:
            log.info("replacement_ready", move=record.id, replacement=record.replacement)
            note = f"{record.replacement} is Ready on card {_landed(record)}; {_leaving(record)}"
            await self._tell(record, "ReplacementReady", note)
        elif record.phase is MovePhase.EVICTED and before.phase is MovePhase.EVICTING:
            log.info("pod_evicted", move=record.id, pod=pod, card=record.move.source)
            waiting = _waiting(record)
            aim = f"free card {source} for pod {waiting}" if waiting else f"relieve card {source}"
            await self._tell(record, "Evicted", f"pod {pod} was evicted to {aim}")
        elif record.phase is MovePhase.VERIFYING:
            await self._completed(record, before, context)
        elif record.phase in ENDED:
            if before.phase is MovePhase.VERIFYING and record.ending is not Ending.UNVERIFIED:
                relief = verification(before, context).relief_ratio
                self._metrics.relief.inc(100 * max(0.0, relief))
            await self.ended(record)

    async def _completed(
        self, record: MoveRecord, before: MoveRecord, context: StepContext
    ) -> None:
        """Report a ready replacement; *before* is the record of the previous phase."""
        move, metrics = record.move, self._metrics
        metrics.unavailable_s.observe((record.phase_since - before.phase_since).total_seconds())
        if record.landed != move.target:
            metrics.misplaced.inc()
        within = timedelta(seconds=context.policy.return_cooldown_s)
        if _returned(record, context.state, within=within):
            metrics.ping_pongs.inc()
        log.info(
            "move_completed",
            move=record.id,
            pod=move.pod,
            replacement=record.replacement,
            source=move.source,
            target=move.target,
            landed=record.landed,
        )
        note = (
            f"{record.replacement} runs on card {_landed(record)} in the place of pod {move.pod}, "
            f"which was on card {record.spec.source.display}"
        )
        await self._tell(record, "MoveCompleted", note)

    async def ended(self, record: MoveRecord) -> None:
        """Report how a move ended; only bad news is an Event."""
        ending = record.ending
        assert ending is not None, "a record that ended without an ending"  # noqa: S101
        mode = "dryRun" if record.dry_run else record.mode.value.lower()
        self._metrics.moves.labels(*move_labels(mode, ending)).inc()
        log.info(
            "move_ended",
            move=record.id,
            pod=record.move.pod,
            ending=ending.value,
            detail=record.detail,
        )
        if ending is Ending.USELESS:
            self._metrics.useless.inc()
            nothing = "helped nobody" if _waiting(record) else "relieved nothing"
            note = f"{_move(record)} {nothing}: {record.detail}"
            await self._tell(record, "MoveIneffective", note, level=EventLevel.WARNING)
        elif ending is Ending.LOST:
            self._metrics.lost_pods.inc()
        elif ending is Ending.MISPLACED:
            self._metrics.misplaced.inc()
        if ending not in CARRIED_OUT | {Ending.DRY_RUN}:
            note = f"{_move(record)} was given up ({ending.value}): {record.detail}"
            await self._tell(record, "MoveAborted", note, level=EventLevel.WARNING)

    async def _tell(
        self,
        record: MoveRecord,
        reason: str,
        note: str,
        *,
        level: EventLevel = EventLevel.NORMAL,
    ) -> None:
        for regarding in _concerned(record):
            await self._events.emit(regarding, reason=reason, note=note, level=level)


def _concerned(record: MoveRecord) -> tuple[Regarding, ...]:
    """Return the pod, its controller and the node that the pod leaves."""
    pod, owner = record.spec.pod, record.spec.owner
    kind = Kind(owner.api_version, plural="", kind=owner.kind, namespaced=True)  # never a path
    return (
        Regarding.pod(pod),
        Regarding(kind=kind, name=owner.name, namespace=pod.namespace, uid=owner.uid),
        Regarding.node(record.spec.source.node),
    )


def _waiting(record: MoveRecord) -> str:
    """Return the pod that the move makes room for; empty if it relieves its source."""
    beneficiary = record.spec.beneficiary
    return f"{beneficiary.namespace}/{beneficiary.name}" if beneficiary else ""


def _leaving(record: MoveRecord) -> str:
    return f"pod {record.move.pod} is moved off card {record.spec.source.display}"


def _move(record: MoveRecord) -> str:
    return f"moving pod {record.move.pod} off card {record.spec.source.display}"


def _landed(record: MoveRecord) -> str:
    """Return the card of the replacement: its node and index if it is one of the Move's."""
    for card in (record.spec.target, record.spec.source):
        if record.landed == card.card:
            return card.display
    return record.landed or "unknown"


def _returned(record: MoveRecord, state: DisruptionState, *, within: timedelta) -> bool:
    """Report whether the replacement got a card that its owner was moved off recently.

    A useless move that is taken back is meant to return.
    """
    return any(
        move.move.owner_uid == record.move.owner_uid
        and move.move.source == record.landed
        and record.phase_since - move.started_at < within
        and not (move.useless and move.replacement_uid == record.move.pod_uid)
        for move in state.past
    )
