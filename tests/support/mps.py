"""MPS daemons as the pod of their own runs them, and waiting for one as a node's agent sees it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from deviceplugin.container.mps import Folders, MpsOfNode
from deviceplugin.container.mps_daemons import MpsDaemons
from deviceplugin.container.spec_builder import MpsError
from fracgpu.cards.card import CardUuid
from process.clock import SystemClock
from simulator.background import background
from tests.support.waiting import until_true


@asynccontextmanager
async def mps_daemons(root: Path, program: str, *cards: CardUuid) -> AsyncIterator[MpsDaemons]:
    """Run the daemons of *cards* while the block runs."""
    daemons = MpsDaemons(root, cards=lambda: cards, program=program, clock=SystemClock())
    async with background(daemons.run()):
        yield daemons


async def answering(root: Path, card: CardUuid) -> Folders:
    """Wait until the node's agent finds that a card's daemon answers."""
    found: list[Folders] = []

    def answers() -> bool:
        with suppress(MpsError):
            found.append(MpsOfNode(root).folders(card))
        return bool(found)

    await until_true(answers, what=f"the daemon of {card} answers", limit_s=60)
    return found[0]
