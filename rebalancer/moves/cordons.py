"""Keeps new slices off hot cards, by a Node annotation whose entries expire by themselves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from fracgpu import names
from fracgpu.cards.annotations import write_cordons
from fracgpu.cards.card import CardUuid, Cordon, NodeCards
from fracgpu.errors import WireError
from fracgpu.state.node_info import read_node
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import NODES
from kube.objects import decode_object, identity

log = structlog.get_logger()

REASON: Final = "hot"  # identifies our entries


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredCordons:
    """The desired cordons.

    Attributes:
        cordon: cards to keep new slices off.
        cool: cards known to be cool, whose cordon by us is removed at once. Cordons of other cards
            are left to expire: unknown heat is no reason to uncordon a card.
        lasting: how long a cordon lasts unless it is renewed.
    """

    cordon: frozenset[CardUuid]
    cool: frozenset[CardUuid]
    lasting: timedelta


def desired_on(
    node: NodeCards, desired: DesiredCordons, *, now: datetime
) -> tuple[Cordon, ...] | None:
    """Return the cordons desired on *node*; None if its annotation is already right.

    Cordons of others are kept until they expire, even on a card that we would cordon: they keep
    slices off it as well. Ours are renewed when half their life is over.

    An unreadable annotation closes the whole node to new slices, so it is replaced by a cordon for
    each card that is not known to be cool, since the old one may have cordoned it.
    """
    mine = [cordon for cordon in node.cordons if cordon.reason == REASON]
    others = [cordon for cordon in node.cordons if cordon.reason != REASON and cordon.until > now]
    taken = {cordon.card for cordon in others}
    here = {card.uuid for card in node.cards}
    until = {
        cordon.card: cordon.until
        for cordon in mine
        if cordon.until > now and cordon.card not in desired.cool
    }
    unreadable = names.NODE_CORDONS in node.unreadable
    repel = (here - desired.cool) | desired.cordon if unreadable else desired.cordon
    for card in (repel & here) - taken:
        if card not in until or until[card] - now < desired.lasting / 2:
            until[card] = now + desired.lasting
    ours = [Cordon(card=card, until=end, reason=REASON) for card, end in until.items()]
    after = [*others, *ours]
    changed = {(cordon.card, cordon.until) for cordon in after} != {
        (cordon.card, cordon.until) for cordon in node.cordons
    }
    return tuple(sorted(after, key=lambda cordon: cordon.card)) if changed or unreadable else None


class Cordons:
    """Writes the desired cordons, node by node; a node that fails is left to the next cycle.

    Args:
        client: reaches the API server.
        guard: raises where this process must not write any more.
    """

    def __init__(self, client: KubeClient, *, guard: Callable[[], None]) -> None:
        self._client = client
        self._guard = guard

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
        self._guard()
        await self._client.patch(NODES, name, {"metadata": metadata})
        log.info("cordons_written", node=name, cards=[cordon.card for cordon in entries])
