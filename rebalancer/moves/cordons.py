"""Keeps new slices off warm and hot cards, by a Node annotation whose entries expire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from fracgpu import names
from fracgpu.cards.annotations import write_cordons
from fracgpu.cards.card import CardUuid, Cordon, CordonEffect, NodeCards
from fracgpu.errors import WireError
from fracgpu.state.node_info import read_node
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import NODES
from kube.objects import decode_object, identity

log = structlog.get_logger()

# What identifies our entries, and tells people why a card is closed or avoided.
_REASONS: Final = {CordonEffect.NO_SCHEDULE: "hot", CordonEffect.PREFER_NO_SCHEDULE: "warm"}


_CLOSED: Final = CordonEffect.NO_SCHEDULE


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredCordons:
    """The desired cordons.

    Attributes:
        cordon: cards to keep new slices off.
        avoid: cards to keep new slices off where they fit elsewhere.
        cool: cards known to be cool, which are opened at once if they were closed by us. Closed
            cards of unknown heat are left to expire: not knowing is no reason to open a card. So
            are avoided ones: no pod waits for them, and a card that is warm now and again would
            change its node each time.
        lasting: how long a cordon lasts unless it is renewed.
    """

    cordon: frozenset[CardUuid]
    avoid: frozenset[CardUuid] = frozenset()
    cool: frozenset[CardUuid]
    lasting: timedelta


def desired_on(
    node: NodeCards, desired: DesiredCordons, *, now: datetime
) -> tuple[Cordon, ...] | None:
    """Return the cordons desired on *node*; None if its annotation is already right.

    Cordons of others are kept until they expire, even on a card that we would cordon: they keep
    slices off it as well. Only one that merely avoids a card gives way where we close it. Ours are
    renewed when half their life is over; one that closes a card is not replaced by one that avoids
    it.

    An unreadable annotation closes the whole node to new slices, so it is replaced by a cordon for
    each card that is not known to be cool, since the old one may have cordoned it.
    """
    live = {cordon.card: cordon for cordon in node.cordons if cordon.until > now}
    ours = {card: cordon for card, cordon in live.items() if _is_ours(cordon)}
    after = {
        card: cordon
        for card, cordon in live.items()
        if not (card in ours and cordon.effect is _CLOSED and card in desired.cool)
    }
    here = {card.uuid for card in node.cards}
    unreadable = names.NODE_CORDONS in node.unreadable
    closed = ((here - desired.cool) | desired.cordon if unreadable else desired.cordon) & here
    wanted = {
        **dict.fromkeys(desired.avoid & here, CordonEffect.PREFER_NO_SCHEDULE),
        **dict.fromkeys(closed, _CLOSED),
    }
    for card, effect in wanted.items():
        if _is_due(after.get(card), effect, desired.lasting, now=now):
            until = now + desired.lasting
            reason = _REASONS[effect]
            after[card] = Cordon(card=card, until=until, reason=reason, effect=effect)
    if set(after.values()) == set(node.cordons) and not unreadable:
        return None
    return tuple(after[card] for card in sorted(after))


def _is_ours(cordon: Cordon) -> bool:
    return cordon.reason in _REASONS.values()


def _is_due(
    there: Cordon | None, effect: CordonEffect, lasting: timedelta, *, now: datetime
) -> bool:
    """Report whether a cordon with this effect has to be written over the one that is there."""
    if there is None:
        return True
    if there.effect is not effect:
        return effect is _CLOSED
    return _is_ours(there) and there.until - now < lasting / 2


class Cordons:
    """Writes the desired cordons, node by node; a node that fails is left to the next cycle.

    Args:
        client: reaches the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def publish(
        self, nodes: Mapping[str, NodeCards], desired: DesiredCordons, *, now: datetime
    ) -> Sequence[str]:
        """Write the desired cordons; return the nodes that could not be written."""
        failed = []
        for name, node in sorted(nodes.items()):
            if desired_on(node, desired, now=now) is None:
                continue
            try:
                await self._write(name, desired, now=now)
            except (KubeError, WireError) as error:
                failed.append(name)
                log.warning("cordon_not_written", node=name, error=str(error))
        return failed

    async def _write(self, name: str, desired: DesiredCordons, *, now: datetime) -> None:
        # Read again: what others wrote since the last watch event must not be lost.
        body = await self._client.get(NODES, name)
        node = read_node(body)
        entries = desired_on(node, desired, now=now)
        if entries is None:
            return
        text = write_cordons(entries) if entries else None
        before = decode_object(body)["metadata"].get("annotations") or {}
        if text is None and names.NODE_CORDONS not in before:
            return
        metadata = {
            "resourceVersion": identity(body).resource_version,
            "annotations": {names.NODE_CORDONS: text},
        }
        await self._client.patch(NODES, name, {"metadata": metadata})
        log.info(
            "cordons_written",
            node=name,
            cards=[cordon.card for cordon in entries if cordon.effect is _CLOSED],
            avoided=[cordon.card for cordon in entries if cordon.effect is not _CLOSED],
        )
