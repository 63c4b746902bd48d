"""Which cards past moves keep for pods that wait: the rebalancer's view of a hold."""

from collections.abc import Sequence
from datetime import datetime

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import PastMove
from fracgpu.state.move_object import MovePhase


def held_for(past: Sequence[PastMove], *, now: datetime) -> dict[CardUuid, str]:
    """Return the cards that moves keep for waiting pods, with the UID of the pod."""
    return {
        CardUuid(card): past_move.move.beneficiary.uid
        for past_move in past
        if holds_cards(past_move, now=now) and past_move.move.beneficiary is not None
        for card in past_move.move.beneficiary.cards
    }


def holds_cards(past_move: PastMove, *, now: datetime) -> bool:
    """Report whether a move keeps cards for its beneficiary: as `fracgpu.state.card_hold` says."""
    beneficiary = past_move.move.beneficiary
    if beneficiary is None:
        return False
    if past_move.phase in (MovePhase.ROLLING_BACK, MovePhase.ABORTED):
        return False
    if past_move.phase is MovePhase.RECOMMENDED:
        return past_move.under_way  # planned in this very cycle, to be shown
    return past_move.under_way or now < beneficiary.held_until
