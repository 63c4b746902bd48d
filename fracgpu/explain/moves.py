"""What Moves have to do with a card that takes no pod."""

from typing import Final

from fracgpu.placement.fit import FitReason
from fracgpu.state.cluster_state import ClusterState
from fracgpu.state.snapshot import CardInfo

_TAKEN: Final = (FitReason.TOO_LITTLE_FREE, FitReason.TOO_FEW_CORES, FitReason.NO_FREE_SLOT)


def words_of_moves(why: FitReason, card_info: CardInfo, state: ClusterState) -> str:
    """Return what to add to the reason *why* a card is not taken; empty if Moves do not matter."""
    if why is FitReason.CORDONED and card_info.card.uuid in state.denied:
        return " for pods of this controller, one of which was moved off it"
    if why not in _TAKEN:
        return ""
    held = [
        state.reservations[move] for move in sorted(card_info.moves) if move in state.reservations
    ]
    if not held:
        return ""
    first, more = held[0], f" and {len(held) - 1} more" if len(held) > 1 else ""
    return (
        f"; {card_info.reserved_mib} MiB reserved for the replacement of "
        f"{first.pod or 'a pod'} (move {first.move}){more}"
    )


def words_of_hold(why: FitReason, card_info: CardInfo, state: ClusterState) -> str:
    """Return for whom a card is kept that takes no other pod; empty if that is not the reason."""
    if why is not FitReason.CORDONED or not card_info.kept_for:
        return ""
    reservation = state.reservations.get(card_info.kept_for)
    if reservation is not None:
        moved = reservation.pod or "a pod"
        return f"reserved for the replacement of {moved} (move {reservation.move})"
    uuid = card_info.card.uuid
    hold = next(
        (
            hold
            for _, hold in sorted(state.holds.items())
            if hold.pod_uid == card_info.kept_for and uuid in hold.cards
        ),
        None,
    )
    pod = state.pods.get(card_info.kept_for)
    words = f"kept for {pod.record.key if pod else 'a waiting pod'}"
    return words if hold is None else f"{words}, for which move {hold.move} makes room"
