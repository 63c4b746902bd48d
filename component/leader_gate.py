"""Whether this replica may answer and write: it leads, and has listed the cluster since then."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from kube.leader_election import LeaseLost
from process.lifecycle import EndProcess


class Elector(Protocol):
    """What the gate needs of :class:`kube.leader_election.LeaderElector`."""

    @property
    def another_leads(self) -> bool: ...

    @property
    def failure(self) -> str: ...

    def still_leader(self) -> bool: ...

    async def wait_leading(self) -> None: ...

    async def run(self) -> None: ...


class ListWatcher(Protocol):
    """What the gate needs of an informer: whether its list has been read, and the loop."""

    @property
    def synced(self) -> bool: ...

    @property
    def failure(self) -> str: ...

    def list_again(self) -> None: ...

    async def wait_synced(self) -> None: ...

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Followed:
    """An informer, and whether it has to list again since this replica leads."""

    list: ListWatcher
    ours: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fresh(self) -> bool:
        return self.ours.is_set() and self.list.synced

    async def wait_fresh(self) -> None:
        await self.ours.wait()
        await self.list.wait_synced()


class LeaderGate:
    """Combines leadership and fresh lists into one reason not to act.

    A standby replica runs its informers too, which shows that it could take over. When it becomes
    the leader it lists everything again, and so sees all that the previous leader bound.
    """

    def __init__(self, election: Elector) -> None:
        self._election = election
        self._followed: dict[str, _Followed] = {}
        self._also: list[Callable[[], str | None]] = []

    def follow(self, name: str, informer: ListWatcher) -> Callable[[], Awaitable[None]]:
        """Require *informer* to be synced; return the task that runs it, and again once leading."""
        followed = self._followed[name] = _Followed(informer)

        async def run() -> None:
            await self._until_leading(informer)
            informer.list_again()
            followed.ours.set()
            await informer.run()

        return run

    def also(self, why_not: Callable[[], str | None]) -> None:
        """Add a check: *why_not* is called once everything has been listed."""
        self._also.append(why_not)

    def once_listed(self, task: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Return a task that starts once this replica leads and every list has been read since."""

        async def run() -> None:
            await self._election.wait_leading()
            for followed in self._followed.values():
                await followed.wait_fresh()
            await task()

        return run

    async def run(self) -> None:
        """Take part in leader election; losing the lease ends the process.

        Raises:
            EndProcess: the lease was lost, so another replica may lead now.
        """
        try:
            await self._election.run()
        except LeaseLost as lost:
            raise EndProcess(str(lost)) from lost

    @property
    def leads(self) -> bool:
        """Whether no other replica can hold the lease now. Check right before every write."""
        return self._election.still_leader()

    def guard(self) -> None:
        """End the process unless this replica leads; to be called right before every write.

        Raises:
            EndProcess: another replica may hold the lease now.
        """
        if not self.leads:
            raise EndProcess("the lease may be lost; nothing more is written")

    def why_not(self) -> str | None:
        """Return the reason not to answer kube-scheduler now, or None."""
        if not self.leads:
            return "another replica leads"
        unread = self._unread(lambda followed: followed.fresh)
        return unread or next((why for each in self._also if (why := each())), None)

    def why_not_ready(self) -> str | None:
        """Return the reason why this replica is not ready, or None.

        A standby replica is ready once it has listed everything and another replica leads.
        """
        if self._election.another_leads and not self.leads:
            return self._unread(lambda followed: followed.list.synced)
        if self.leads:
            return self.why_not()
        return ": ".join(filter(None, ("no replica leads yet", self._election.failure)))

    def _unread(self, is_read: Callable[[_Followed], bool]) -> str | None:
        unread = [name for name, followed in self._followed.items() if not is_read(followed)]
        if not unread:
            return None
        failures = (self._followed[name].list.failure for name in unread)
        return ": ".join((f"not listed yet: {', '.join(unread)}", *filter(None, failures)))

    async def _until_leading(self, informer: ListWatcher) -> None:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(informer.run(), name="follow in the meantime")
            await self._election.wait_leading()
            following.cancel()
