"""Whether this replica may answer and write now: it leads, and it has listed the cluster since."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from kube.leader_election import LeaseLost
from process.lifecycle import EndProcess


class Elector(Protocol):
    """What we need of :class:`kube.leader_election.LeaderElector`."""

    @property
    def another_leads(self) -> bool: ...

    def still_leader(self) -> bool: ...

    async def wait_leading(self) -> None: ...

    async def run(self) -> None: ...


class ListWatcher(Protocol):
    """What we need of an informer: whether its list has been read, and the loop itself."""

    @property
    def synced(self) -> bool: ...

    def list_again(self) -> None: ...

    async def wait_synced(self) -> None: ...

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Followed:
    """A list, and whether it was begun anew once the lease was ours."""

    list: ListWatcher
    ours: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fresh(self) -> bool:
        return self.ours.is_set() and self.list.synced

    async def wait_fresh(self) -> None:
        await self.ours.wait()
        await self.list.wait_synced()


class LeaderGate:
    """Leadership and fresh lists, as one reason not to act.

    A replica that waits its turn follows the cluster too, so that it is known to be able to. Once
    the lease is ours everything is listed again: whatever the previous leader bound is then in it.
    """

    def __init__(self, election: Elector) -> None:
        self._election = election
        self._followed: dict[str, _Followed] = {}
        self._also: list[Callable[[], str | None]] = []

    def follow(self, name: str, informer: ListWatcher) -> Callable[[], Awaitable[None]]:
        """Count *informer* in, and give the task that runs it, and anew from leadership on."""
        followed = self._followed[name] = _Followed(informer)

        async def run() -> None:
            await self._until_leading(informer)
            informer.list_again()
            followed.ours.set()
            await informer.run()

        return run

    def also(self, why_not: Callable[[], str | None]) -> None:
        """Count in one more reason not to answer, asked once everything has been listed."""
        self._also.append(why_not)

    def once_listed(self, task: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Give a task that begins once this replica leads and every list has been read since."""

        async def run() -> None:
            await self._election.wait_leading()
            for followed in self._followed.values():
                await followed.wait_fresh()
            await task()

        return run

    async def run(self) -> None:
        """Stand for election, then lead until that ends, which ends the process.

        Raises:
            EndProcess: another replica may lead from now on.
        """
        try:
            await self._election.run()
        except LeaseLost as lost:
            raise EndProcess(str(lost)) from lost

    @property
    def leads(self) -> bool:
        """Whether nobody else can hold the lease at this moment. Ask right before every write."""
        return self._election.still_leader()

    def why_not(self) -> str | None:
        """Give the reason not to answer kube-scheduler now, or None."""
        if not self.leads:
            return "another replica leads"
        unread = self._unread(lambda it: it.fresh)
        return unread or next((why for each in self._also if (why := each())), None)

    def why_not_ready(self) -> str | None:
        """Give the reason why Kubernetes should not count on this replica, or None.

        One that waits its turn behind a leader is as good as that leader, once it has listed.
        """
        if self._election.another_leads and not self.leads:
            return self._unread(lambda it: it.list.synced)
        return self.why_not() if self.leads else "no replica leads yet"

    def _unread(self, is_read: Callable[[_Followed], bool]) -> str | None:
        unread = [name for name, it in self._followed.items() if not is_read(it)]
        return f"not listed yet: {', '.join(unread)}" if unread else None

    async def _until_leading(self, informer: ListWatcher) -> None:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(informer.run(), name="follow in the meantime")
            await self._election.wait_leading()
            following.cancel()
