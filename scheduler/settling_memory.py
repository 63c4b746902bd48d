"""Keeps what a start makes out of the garbage collector's sight, so that it stops nothing later."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from component.leader_gate import LeaderGate, ListWatcher
from process.clock import Clock
from process.memory import freeze_until
from scheduler.core import SchedulerCore


def settling_memory(
    leader_gate: LeaderGate, core: SchedulerCore, clock: Clock, *, lists: Sequence[ListWatcher]
) -> Callable[[], Awaitable[None]]:
    """Return the task that freezes what is made until the lists are read and the mix is learnt.

    A replica starts in two parts: it lists, and once it leads it learns from what is listed. While
    it waits in between, maybe for weeks, nothing is frozen.
    """

    async def settle() -> None:
        await freeze_until(lambda: all(one.synced for one in lists), clock)
        order = core.least_waste
        # Where nothing can be learnt there is nothing to wait for.
        learnt = partial(freeze_until, lambda: order.learnt or order.problem is not None, clock)
        await leader_gate.once_listed(learnt)()
        await asyncio.Event().wait()

    return settle
