"""The audit log: one JSON object a line for each cycle, and for each decision that is new.

A line holds what is needed to ask later why a pod was moved or was not: the query time, the hash of
the inputs and of the configuration, and every candidate with its score or the first rule that
refused it. Its size is bounded, whatever users named their pods.
"""

import hashlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import HOT_STATES, blindness, fresh_ratio
from fracgpu.disruption.move import HeldBack, Move, Plan
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.errors import shorten
from rebalancer.usage.measured import Measured

log = structlog.get_logger()

STDOUT: Final = "-"
_CLUSTER: Final = "cluster"
_AGAIN_AFTER: Final = timedelta(minutes=10)
_MOST_DECISIONS: Final = 100  # lines of one cycle
_MOST_CANDIDATES: Final = 50  # of one decision
_MOST_CHARS: Final = 120  # of a detail; a pod's name is bounded by Kubernetes


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else repr(value)


_encoder: Final = msgspec.json.Encoder(order="deterministic", enc_hook=_plain)


class AuditLog:
    """Writes the lines; remembers what it wrote of each card, to write only what is new.

    Args:
        target: a file, ``-`` for standard output, or empty for nowhere.
        limit_mib: size at which the file is renamed to ``FILE.1``, replacing an older one.
    """

    def __init__(self, target: str = "", *, limit_mib: int = 64) -> None:
        self._handler = _handler(target, limit_mib=limit_mib)
        self._written: dict[str, tuple[str, datetime]] = {}

    def write(
        self,
        state: DisruptionState,
        plan: Plan,
        measured: Measured,
        *,
        policy: RebalancerPolicy,
        mode: Mode,
        now: datetime,
    ) -> None:
        """Write the lines of one cycle, planned in *mode*.

        A line that cannot be written is reported in the log, never raised.
        """
        if self._handler is None:
            return
        head = {
            "at": now.isoformat(),
            "query_at_s": measured.at_s,
            "config": policy.digest,
            "mode": mode.value,
            "inputs": inputs_hash(state),
        }
        self._line({"audit": "cycle", **head, **cycle_entry(state, plan, measured, policy)})
        decisions = decision_entries(state, plan)
        for entry in decisions[:_MOST_DECISIONS]:
            if self._is_new(entry, now=now):
                self._line({"audit": "decision", **head, **entry})
        there = {entry["card"] for entry in decisions}
        self._written = {card: entry for card, entry in self._written.items() if card in there}

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()

    def _is_new(self, entry: Mapping[str, Any], *, now: datetime) -> bool:
        """Report whether the decision differs from the last one of its card, scores aside."""
        rules = [(part["subject"], part.get("refused_by")) for part in entry["candidates"]]
        digest = str((entry["outcome"], entry.get("target"), rules))
        before = self._written.get(entry["card"])
        if before is not None and before[0] == digest and now - before[1] < _AGAIN_AFTER:
            return False
        self._written[entry["card"]] = digest, now
        return True

    def _line(self, entry: Mapping[str, Any]) -> None:
        assert self._handler is not None, "there is nowhere to write"  # noqa: S101
        text = json.dumps(entry, separators=(",", ":"))
        self._handler.emit(logging.LogRecord("audit", logging.INFO, "", 0, text, None, None))


def cycle_entry(
    state: DisruptionState, plan: Plan, measured: Measured, policy: RebalancerPolicy
) -> dict[str, Any]:
    """Return what one cycle saw and decided, in numbers."""
    cards = state.cards()
    return {
        "blind": shorten(
            measured.trouble or blindness(state.usage, cards, policy), limit=_MOST_CHARS
        ),
        "cards": len(cards),
        "trusted_ratio": round(fresh_ratio(state.usage, cards), 4),
        "hot": sum(card_heat.heat in HOT_STATES for card_heat in state.heat.values()),
        "moves": len(plan.moves),
        "under_way": sum(move.under_way for move in state.past),
        "held": dict(sorted(Counter(hold.reason.label for hold in plan.held).items())),
    }


def decision_entries(state: DisruptionState, plan: Plan) -> list[dict[str, Any]]:
    """Return one entry for each hot card, and one for the cluster if that holds every move back."""
    by_card: dict[str, list[HeldBack]] = {}
    for hold in plan.held:
        by_card.setdefault(hold.card or hold.subject, []).append(hold)
    entries = []
    for move in plan.moves:
        held = by_card.pop(move.source, [])
        entries.append(_moved(state, move, held))
    for subject, held in by_card.items():
        card = CardUuid(subject)
        name = _display(state, card) if state.snapshot.card(card) else subject
        entries.append({"card": name, "outcome": "held", **_candidates(held)})
    return entries


def inputs_hash(state: DisruptionState) -> str:
    """Return a hash of what the plan was made from: equal inputs give equal hashes.

    Pods without a card, and what guards pods, are left out: there are too many to hash in a cycle.
    """
    inputs = (
        state.usage,
        state.heat,
        state.snapshot.pods,
        sorted(state.cards()),
        state.past,
        state.scheduling.nodes,
        state.workloads.unknown,
        state.strategy,
    )
    return hashlib.sha256(_encoder.encode(inputs)).hexdigest()[:16]


def _moved(state: DisruptionState, move: Move, held: Sequence[HeldBack]) -> dict[str, Any]:
    chosen = {"subject": move.pod, "gain_points": move.gain_points, "busy_ratio": move.busy_ratio}
    others = _candidates(held, room=_MOST_CANDIDATES - 1)
    return {
        "card": _display(state, move.source),
        "outcome": "move",
        "pod_uid": move.pod_uid,
        "target": _display(state, move.target),
        "level_ratio": move.level_ratio,
        **others,
        "candidates": [chosen, *others["candidates"]],
    }


def _candidates(held: Sequence[HeldBack], *, room: int = _MOST_CANDIDATES) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    for hold in held[:room]:
        entry: dict[str, Any] = {"subject": hold.subject, "refused_by": hold.reason.label}
        if hold.gain_points is not None:
            entry["gain_points"] = hold.gain_points
        if hold.detail:
            entry["detail"] = shorten(hold.detail, limit=_MOST_CHARS)
        shown.append(entry)
    more = len(held) - len(shown)
    return {"candidates": shown, **({"more": more} if more else {})}


def _display(state: DisruptionState, card: CardUuid) -> str:
    """Return a card's node and index, by which people know it."""
    info = state.snapshot.card(card)
    return f"{state.node_of(card)}/{info.card.index}" if info else card


class _Quiet:
    """What a handler does if it cannot write: it says so in the log of the process."""

    def handleError(self, _: logging.LogRecord) -> None:  # noqa: N802 - of logging.Handler
        log.warning("audit_not_written", error=str(sys.exc_info()[1]))


class _File(_Quiet, RotatingFileHandler):
    pass


class _Stream(_Quiet, logging.StreamHandler[Any]):
    pass


def _handler(target: str, *, limit_mib: int) -> logging.Handler | None:
    if not target:
        return None
    if target == STDOUT:
        return _Stream(sys.stdout)
    limit = limit_mib * 1024 * 1024
    return _File(Path(target), maxBytes=limit, backupCount=1, encoding="utf-8", delay=True)
