"""Decides from each sample which cards are healthy; a card can recover."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.cards.interface import CardSample, CardSamples
from deviceplugin.cards.xid import Severity, severity, xid_text
from fracgpu.cards.card import Card, CardUuid

# One failed sample may be a slow driver; after three in a row the card counts as gone.
_FAILURES_UNTIL_UNREACHABLE: Final = 3


@dataclass(slots=True)
class _Watched:
    """What was seen of one card so far."""

    xids: Mapping[int, int] = field(default_factory=dict)
    ecc: float | None = None
    failures: int = 0
    error: str = ""
    remap_failed: bool = False
    held_until_s: dict[str, float] = field(default_factory=dict)


class HealthWatch:
    """Turns samples into health reasons by card, each for as long as it lasts.

    Errors that are events, such as an XID, last *hold_s* from their latest occurrence; states, such
    as a failed row remapping or a card that does not answer, last until a sample is without them.

    Args:
        hold_s: how long an error keeps its card unhealthy after its latest occurrence.
    """

    def __init__(self, *, hold_s: float) -> None:
        self._hold_s = hold_s
        self._cards: dict[CardUuid, _Watched] = {}
        self._out_of_service: frozenset[str] = frozenset()
        self.restored = False
        """Whether it is known what the agent before held against the cards."""

    def restore(self, cards: Iterable[Card], *, now_s: float) -> None:
        """Hold the errors of *cards*, as the agent before wrote them, once more from now on.

        The driver reports them only to those who wait at that moment.
        """
        for card in cards:
            held = dict.fromkeys(card.errors, now_s + self._hold_s)
            self._cards.setdefault(card.uuid, _Watched()).held_until_s |= held
        self.restored = True

    def observe(self, samples: CardSamples, *, now_s: float) -> None:
        """Record one sample of all cards."""
        for uuid, sample in samples.samples.items():
            self._read(self._cards.setdefault(uuid, _Watched()), sample, now_s)
        for uuid, error in samples.errors.items():
            card = self._cards.setdefault(uuid, _Watched())
            card.failures += 1
            card.error = error

    def errors(self, *, now_s: float) -> Mapping[CardUuid, tuple[str, ...]]:
        """Return the errors that are held against cards now."""
        return {uuid: tuple(_held(card, now_s)) for uuid, card in self._cards.items()}

    def take_out(self, uuids: Iterable[str]) -> None:
        """Set the cards that an operator has put out of service; all others are back in service."""
        self._out_of_service = frozenset(uuids)

    def health_reasons(self, *, now_s: float) -> Mapping[CardUuid, str]:
        """Return why cards are unhealthy; a healthy card is absent."""
        found = {uuid: "; ".join(_reasons(card, now_s)) for uuid, card in self._cards.items()}
        reasons = {uuid: text for uuid, text in found.items() if text}
        for uuid in sorted(self._out_of_service):
            card = CardUuid(uuid)
            reasons[card] = "; ".join(
                filter(None, ("out of service by an operator", reasons.get(card)))
            )
        return reasons

    def _read(self, card: _Watched, sample: CardSample, now_s: float) -> None:
        card.failures, card.error = 0, ""
        until_s = now_s + self._hold_s
        before = card.xids
        for xid, count in sample.xids.items():
            if count > before.get(xid, 0) and severity(xid) is Severity.CARD:
                card.held_until_s[xid_text(xid)] = until_s
        card.xids = sample.xids
        ecc = sample.figures.ecc_uncorrected
        if ecc is not None and card.ecc is not None and ecc > card.ecc:
            card.held_until_s["uncorrectable memory errors"] = until_s
        card.ecc = ecc if ecc is not None else card.ecc
        if sample.figures.row_remap_failed is not None:  # else unchanged
            card.remap_failed = bool(sample.figures.row_remap_failed)


def _reasons(card: _Watched, now_s: float) -> Iterable[str]:
    if card.failures >= _FAILURES_UNTIL_UNREACHABLE:
        yield f"it does not answer: {card.error}"
    if card.remap_failed:
        yield "remapping a memory row failed"
    yield from _held(card, now_s)


def _held(card: _Watched, now_s: float) -> Iterable[str]:
    return (text for text, until_s in sorted(card.held_until_s.items()) if until_s > now_s)
