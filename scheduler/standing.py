"""Whether this replica may answer and write now: it leads, and it has listed the cluster since."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from kube.lease import LeaseLost
from process.lifecycle import EndProcess


class Candidate(Protocol):
    """What we need of :class:`kube.lease.Election`."""

    def still_leader(self) -> bool: ...

    async def wait_leading(self) -> None: ...

    async def run(self) -> None: ...


class List(Protocol):
    """What we need of an informer: whether its first list has been read, and the loop itself."""

    @property
    def synced(self) -> bool: ...

    async def wait_synced(self) -> None: ...

    async def run(self) -> None: ...


class Standing:
    """Leadership and fresh lists, as one reason not to act.

    The lists are begun only once the lease is ours: whatever the previous leader bound is then in
    them. A replica that waits its turn holds nothing in memory.
    """

    def __init__(self, election: Candidate) -> None:
        self._election = election
        self._lists: dict[str, List] = {}

    def follow(self, name: str, informer: List) -> Callable[[], Awaitable[None]]:
        """Count *informer* in, and give the task that runs it from leadership on."""
        self._lists[name] = informer

        async def run() -> None:
            await self._election.wait_leading()
            await informer.run()

        return run

    def once_listed(self, task: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Give a task that begins once this replica leads and every list has been read."""

        async def run() -> None:
            await self._election.wait_leading()
            for informer in self._lists.values():
                await informer.wait_synced()
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
        """Give the reason not to answer now, or None."""
        if not self.leads:
            return "another replica leads"
        unread = [name for name, informer in self._lists.items() if not informer.synced]
        return f"not listed yet: {', '.join(unread)}" if unread else None
