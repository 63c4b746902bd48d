"""Logs each decision that is new: what is moved, or the first rule against every candidate.

A line holds what is needed to ask later why a pod was moved or was not, and its size is bounded,
whatever users named their pods.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

import structlog

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import HeldBack, Plan
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.errors import shorten

log = structlog.get_logger()

_AGAIN_AFTER: Final = timedelta(minutes=10)
_MOST_LINES: Final = 100  # of one cycle
_MOST_CANDIDATES: Final = 50  # of one line
_MOST_CHARS: Final = 120  # of a detail; a pod's name is bounded by Kubernetes


class DecisionLog:
    """Remembers what it wrote of each card, to write only what is new."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[str, datetime]] = {}

    def write(
        self,
        state: DisruptionState,
        plan: Plan,
        *,
        queried_at_s: float | None,
        policy: RebalancerPolicy,
        mode: Mode,
        now: datetime,
    ) -> None:
        """Write the decisions of one cycle, planned in *mode*, that differ from its last ones."""
        head = {"queried_at_s": queried_at_s, "config": policy.digest, "mode": mode.value}
        found = decisions(state, plan)
        new = (entry for entry in found if self._is_new(entry, now=now))
        for entry in islice(new, _MOST_LINES):
            log.info("decided", **head, **entry)
        there = {entry["card"] for entry in found}
        self._written = {card: entry for card, entry in self._written.items() if card in there}

    def _is_new(self, entry: Mapping[str, Any], *, now: datetime) -> bool:
        """Report whether a decision differs from the last one of its card, scores aside."""
        rules = [(part["subject"], part.get("refused_by")) for part in entry["candidates"]]
        digest = str((entry["outcome"], entry.get("target"), rules))
        before = self._written.get(entry["card"])
        if before is not None and before[0] == digest and now - before[1] < _AGAIN_AFTER:
            return False
        self._written[entry["card"]] = digest, now
        return True


def decisions(state: DisruptionState, plan: Plan) -> list[dict[str, Any]]:
    """Return one entry for each hot card, and for what else is held back as a whole."""
    by_card: dict[str, list[HeldBack]] = {}
    for hold in plan.held:
        by_card.setdefault(hold.card or hold.subject, []).append(hold)
    found: list[dict[str, Any]] = []
    for move in plan.moves:
        chosen = {
            "subject": move.pod.key,
            "gain_points": move.reason.gain_points,
            "busy_ratio": move.reason.busy_ratio,
        }
        entry = {
            "card": state.display(move.source.card),
            "outcome": "move",
            "pod_uid": move.pod.uid,
            "target": state.display(move.target.card),
            "level_ratio": move.reason.level_ratio,
        }
        found.append({**entry, **_candidates(by_card.pop(move.source.card, []), chosen)})
    for subject, held in by_card.items():
        name = state.display(CardUuid(subject))
        found.append({"card": name, "outcome": "held", **_candidates(held)})
    return found


def _candidates(held: Sequence[HeldBack], *chosen: dict[str, Any]) -> dict[str, Any]:
    shown = [*chosen, *map(_refused, held[: _MOST_CANDIDATES - len(chosen)])]
    more = len(held) + len(chosen) - len(shown)
    return {"candidates": shown, **({"more": more} if more else {})}


def _refused(hold: HeldBack) -> dict[str, Any]:
    entry: dict[str, Any] = {"subject": hold.subject, "refused_by": hold.reason.label}
    if hold.gain_points is not None:
        entry["gain_points"] = hold.gain_points
    if hold.detail:
        entry["detail"] = shorten(hold.detail, limit=_MOST_CHARS)
    return entry
