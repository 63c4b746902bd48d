"""What the rebalancer would do, card by card: the move, or what holds every pod back."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.brakes import OpenBreaker, effective_mode
from fracgpu.disruption.disruption_state import DisruptionState, card_level
from fracgpu.disruption.heat import Heat, fresh_ratio
from fracgpu.disruption.move import HeldBack, HoldReason, Plan
from fracgpu.disruption.planner import plan_moves
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import MoveSpec

CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """One hot card.

    Attributes:
        name: ``node/index``.
        moves: what would be moved off it now, or once nothing blocks it.
        held: why nothing more is moved: about the card itself, then about each pod.
        blocked: what holds back everything at the moment; None for a move that would be made.
    """

    card: CardUuid
    name: str
    model: str
    level_ratio: float
    heat: Heat
    moves: tuple[MoveSpec, ...]
    held: tuple[HeldBack, ...]
    blocked: HeldBack | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The whole answer.

    Attributes:
        mode: in which new moves would be made now; an open breaker changes it.
        cards: the hot ones, the busiest first.
        warming: cards that may become hot.
        names: ``node/index`` of every card.
    """

    mode: Mode
    policy: RebalancerPolicy
    breakers: tuple[OpenBreaker, ...]
    trusted_ratio: float
    blocked: tuple[HeldBack, ...]
    cards: tuple[CardPlan, ...]
    warming: tuple[str, ...]
    names: dict[CardUuid, str]

    @property
    def reasons(self) -> Counter[HoldReason]:
        """How often each reason holds a card, or a pod on one, back."""
        return Counter(held.reason for card in self.cards for held in card.held)

    def of_namespace(self, namespace: str) -> "PlanReport":
        """Return the answer without the pods of other namespaces; cards keep what concerns them."""

        def ours(subject: str) -> bool:
            pod_namespace, slash, _ = subject.partition("/")
            return not slash or pod_namespace == namespace

        cards = tuple(
            replace(
                card,
                moves=tuple(move for move in card.moves if ours(move.pod.key)),
                held=tuple(held for held in card.held if ours(held.subject)),
            )
            for card in self.cards
        )
        return replace(self, cards=cards)

    @property
    def would_move(self) -> tuple[MoveSpec, ...]:
        """The moves that nothing blocks."""
        return tuple(move for card in self.cards if card.blocked is None for move in card.moves)


def report_on(
    state: DisruptionState,
    *,
    policy: RebalancerPolicy,
    breakers: Sequence[OpenBreaker],
    now: datetime,
) -> PlanReport:
    """Return what would be done now; the same input always gives the same answer.

    A card that something blocks as a whole (a budget of the cluster, a pause, a freeze, the mode)
    is looked at as if nothing did, and says what blocks it.
    """
    mode = effective_mode(policy, breakers)
    plan = plan_moves(state, policy=replace(policy, mode=mode), now=now)
    open_policy = replace(
        policy,
        mode=Mode.DRY_RUN if mode is Mode.OFF else mode,
        paused=False,
        change_freezes=(),
        startup_grace_s=0,
        fresh_cards_ratio=0,
        max_in_flight=1_000_000,
        max_per_hour=1_000_000,
        max_per_day=1_000_000,
    )
    without_blocks = plan_moves(state, policy=open_policy, now=now)
    blocked = tuple(held for held in plan.held if held.subject == CLUSTER)
    hot = [card for card, heat in state.heat.items() if heat.heat in (Heat.HOT, Heat.RELIEVING)]
    hot.sort(key=lambda card: (-card_level(state, card), card))
    names = _names(state)
    return PlanReport(
        mode=mode,
        policy=policy,
        breakers=tuple(breakers),
        trusted_ratio=fresh_ratio(state.usage, state.cards()),
        blocked=blocked,
        cards=tuple(
            _card_plan(state, card, names[card], plan, without_blocks, blocked) for card in hot
        ),
        warming=tuple(
            sorted(names[card] for card, heat in state.heat.items() if heat.heat is Heat.WARMING)
        ),
        names=names,
    )


def report_json(report: PlanReport) -> dict[str, Any]:
    """Return the answer as JSON."""
    return {
        "mode": report.mode.value,
        "configuredMode": report.policy.mode.value,
        "breakers": [
            {"name": breaker.breaker.value, "why": breaker.why, "until": breaker.until}
            for breaker in report.breakers
        ],
        "trustedRatio": round(report.trusted_ratio, 4),
        "blocked": [_held_json(held, report) for held in report.blocked],
        "hotCards": [
            {
                "card": card.card,
                "name": card.name,
                "model": card.model,
                "levelRatio": round(card.level_ratio, 4),
                "heat": card.heat.value,
                "blockedBy": card.blocked.reason.label if card.blocked else None,
                "moves": [_move_json(move, report) for move in card.moves],
                "held": [_held_json(held, report) for held in card.held],
            }
            for card in report.cards
        ],
        "reasons": {reason.label: count for reason, count in report.reasons.most_common()},
        "warmingCards": list(report.warming),
        "moves": [_move_json(move, report) for move in report.would_move],
    }


def _card_plan(
    state: DisruptionState,
    card: CardUuid,
    name: str,
    plan: Plan,
    without_blocks: Plan,
    blocked: tuple[HeldBack, ...],
) -> CardPlan:
    looked_at = _concerns(plan, card)
    answer = plan if looked_at or not blocked else without_blocks
    info = state.snapshot.card(card)
    return CardPlan(
        card=card,
        name=name,
        model=info.card.model if info else "",
        level_ratio=card_level(state, card),
        heat=state.heat[card].heat,
        moves=tuple(move for move in answer.moves if move.source.card == card),
        held=tuple(held for held in answer.held if card in (held.subject, held.card)),
        blocked=None if looked_at or not blocked else blocked[0],
    )


def _concerns(plan: Plan, card: CardUuid) -> bool:
    return any(move.source.card == card for move in plan.moves) or any(
        card in (held.subject, held.card) for held in plan.held
    )


def _names(state: DisruptionState) -> dict[CardUuid, str]:
    found = {
        uuid: f"{node}/{info.card.index}"
        for node, node_info in state.snapshot.nodes.items()
        for uuid, info in node_info.cards.items()
    }
    return {uuid: found.get(uuid, uuid) for uuid in {*found, *state.heat}}


def _move_json(move: MoveSpec, report: PlanReport) -> dict[str, Any]:
    return {
        "pod": move.pod.key,
        "from": report.names.get(move.source.card, move.source.card),
        "to": report.names.get(move.target.card, move.target.card),
        "target": move.target.card,
        "mib": move.request.mib,
        "busyRatio": round(move.reason.busy_ratio, 4),
        "gainPoints": move.reason.gain_points,
        "mode": move.mode.value,
        "method": move.method,
    }


def _held_json(held: HeldBack, report: PlanReport) -> dict[str, Any]:
    return {
        "subject": report.names.get(CardUuid(held.subject), held.subject),
        "reason": held.reason.label,
        "text": held.reason.value,
        "detail": held.detail,
        "gainPoints": held.gain_points,
    }
