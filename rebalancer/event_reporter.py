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
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import CARRIED_OUT, ENDED, Ending, Move, MovePhase
from kube.events import EventLevel, Regarding
from kube.kinds import CONFIGMAPS, Kind
from rebalancer.metrics import RebalancerMetrics, move_labels
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

    async def planned(self, move: Move, *, dry_run: bool = False) -> None:
        """Report a move that is made, or in a dry run only would be."""
        spec, reason = move.spec, move.spec.reason
        log.info(
            "move_planned",
            move=move.name,
            pod=spec.pod.key,
            source=spec.source.card,
            target=spec.target.card,
            busy_ratio=reason.busy_ratio,
            gain_points=reason.gain_points,
            dry_run=dry_run,
        )
        would = "would" if dry_run else "will"
        waiting = _waiting(move)
        cause = (
            f"for which pod {waiting} waits"
            if waiting
            else f"which is busy {reason.level_ratio:.0%} of the time"
        )
        note = (
            f"pod {spec.pod.key} {would} be moved off card {move.spec.source.display}, {cause}; "
            f"card {move.spec.target.display} has room"
        )
        await self._tell(move, "MovePlanned", note)

    async def done(
        self, action: Action, move: Move, result: EvictionResult, policy: RebalancerPolicy
    ) -> None:
        """Report how the API server answered a step."""
        pod = move.spec.pod.key
        if action in (Action.PREFLIGHT, Action.EVICT):
            rehearsed = action is Action.PREFLIGHT
            counter = self._metrics.dry_runs if rehearsed else self._metrics.evictions
            counter.labels(result.outcome.value).inc()
            log.info(
                "eviction_rehearsed" if rehearsed else "eviction_answered",
                move=move.name,
                pod=pod,
                outcome=result.outcome.value,
                detail=result.detail,
            )
        if result.outcome is not EvictionOutcome.ALLOWED:
            return
        if action is Action.NOTICE:
            at = move.phase_since + notice_of(move, policy)
            await self._tell(move, "MoveNoticed", f"{_leaving(move)} at {at:%H:%M:%S} UTC")
        elif action is Action.RELEASE:
            log.info("surge_started", move=move.name, pod=pod)
            target = move.spec.target.display
            note = f"{_leaving(move)}: its ReplicaSet makes a replacement, for card {target}"
            await self._tell(move, "SurgeStarted", note)
        elif action is Action.RESTORE:
            self._metrics.reverts.inc()
            log.warning("surge_rolled_back", move=move.name, pod=pod, why=move.status.message)
            note = (
                f"pod {pod} stays on card {move.spec.source.display}, and goes back to its "
                f"ReplicaSet: {move.status.message}"
            )
            await self._tell(move, "RolledBack", note, level=EventLevel.WARNING)

    async def entered(self, move: Move, before: Move, context: StepContext) -> None:
        """Report that a move came to another phase than that of *before*."""
        if not move.only_shown:
            in_phase_s = before.age(now=context.now).total_seconds()
            self._metrics.phase_s.labels(before.phase.name.lower()).observe(in_phase_s)
        pod, source = move.spec.pod.key, move.spec.source.display
        if move.phase is MovePhase.REPLACEMENT_READY:
            log.info("replacement_ready", move=move.name, replacement=move.replacement)
            note = f"{move.replacement} is Ready on card {_landed(move)}; {_leaving(move)}"
            await self._tell(move, "ReplacementReady", note)
        elif move.phase is MovePhase.EVICTED and before.phase is MovePhase.EVICTING:
            log.info("pod_evicted", move=move.name, pod=pod, card=move.spec.source.card)
            waiting = _waiting(move)
            aim = f"free card {source} for pod {waiting}" if waiting else f"relieve card {source}"
            await self._tell(move, "Evicted", f"pod {pod} was evicted to {aim}")
        elif move.phase is MovePhase.VERIFYING:
            await self._completed(move, before, context)
        elif move.phase in ENDED:
            if before.phase is MovePhase.VERIFYING and move.ending is not Ending.UNVERIFIED:
                relief = verification(before, context).relief_ratio
                self._metrics.relief.inc(100 * max(0.0, relief))
            await self.ended(move)

    async def _completed(self, move: Move, before: Move, context: StepContext) -> None:
        """Report a ready replacement; *before* is the Move in the previous phase."""
        spec, metrics = move.spec, self._metrics
        metrics.unavailable_s.observe((move.phase_since - before.phase_since).total_seconds())
        if move.landed != spec.target.card:
            metrics.misplaced.inc()
        within = timedelta(seconds=context.policy.return_cooldown_s)
        if _returned(move, context.state, within=within):
            metrics.ping_pongs.inc()
        log.info(
            "move_completed",
            move=move.name,
            pod=spec.pod.key,
            replacement=move.replacement,
            source=spec.source.card,
            target=spec.target.card,
            landed=move.landed,
        )
        note = (
            f"{move.replacement} runs on card {_landed(move)} in the place of pod "
            f"{spec.pod.key}, which was on card {spec.source.display}"
        )
        await self._tell(move, "MoveCompleted", note)

    async def ended(self, move: Move) -> None:
        """Report how a move ended; only bad news is an Event."""
        ending = move.ending
        assert ending is not None, "a move that ended without an ending"  # noqa: S101
        mode = "dryRun" if move.only_shown else move.spec.mode.value.lower()
        self._metrics.moves.labels(*move_labels(mode, ending)).inc()
        log.info(
            "move_ended",
            move=move.name,
            pod=move.spec.pod.key,
            ending=ending.value,
            detail=move.status.message,
        )
        if ending is Ending.USELESS:
            self._metrics.useless.inc()
            nothing = "helped nobody" if _waiting(move) else "relieved nothing"
            note = f"{_move(move)} {nothing}: {move.status.message}"
            await self._tell(move, "MoveIneffective", note, level=EventLevel.WARNING)
        elif ending is Ending.LOST:
            self._metrics.lost_pods.inc()
        elif ending is Ending.MISPLACED:
            self._metrics.misplaced.inc()
        if ending not in CARRIED_OUT | {Ending.DRY_RUN}:
            note = f"{_move(move)} was given up ({ending.value}): {move.status.message}"
            await self._tell(move, "MoveAborted", note, level=EventLevel.WARNING)

    async def _tell(
        self,
        move: Move,
        reason: str,
        note: str,
        *,
        level: EventLevel = EventLevel.NORMAL,
    ) -> None:
        for regarding in _concerned(move):
            await self._events.emit(regarding, reason=reason, note=note, level=level)


def _concerned(move: Move) -> tuple[Regarding, ...]:
    """Return the pod, its controller and the node that the pod leaves."""
    pod, owner = move.spec.pod, move.spec.owner
    kind = Kind(owner.api_version, plural="", kind=owner.kind, namespaced=True)  # never a path
    return (
        Regarding.pod(pod),
        Regarding(kind=kind, name=owner.name, namespace=pod.namespace, uid=owner.uid),
        Regarding.node(move.spec.source.node),
    )


def _waiting(move: Move) -> str:
    """Return the pod that the move makes room for; empty if it relieves its source."""
    beneficiary = move.spec.beneficiary
    return beneficiary.key if beneficiary else ""


def _leaving(move: Move) -> str:
    return f"pod {move.spec.pod.key} is moved off card {move.spec.source.display}"


def _move(move: Move) -> str:
    return f"moving pod {move.spec.pod.key} off card {move.spec.source.display}"


def _landed(move: Move) -> str:
    """Return the card of the replacement: its node and index if it is one of the Move's."""
    for card in (move.spec.target, move.spec.source):
        if move.landed == card.card:
            return card.display
    return move.landed or "unknown"


def _returned(move: Move, state: DisruptionState, *, within: timedelta) -> bool:
    """Report whether the replacement got a card that its owner was moved off recently.

    A useless move that is taken back is meant to return.
    """
    return any(
        other.spec.owner.uid == move.spec.owner.uid
        and other.spec.source.card == move.landed
        and move.phase_since - other.planned_at < within
        and not (other.useless and other.replacement_uid == move.spec.pod.uid)
        for other in state.past
    )
