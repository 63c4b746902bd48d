"""Whether this replica may answer and write now."""

import asyncio

import pytest

from kube.lease import LeaseLost
from process.lifecycle import EndProcess
from scheduler.standing import Standing


class AnElection:
    def __init__(self) -> None:
        self.leading = asyncio.Event()
        self.lost = asyncio.Event()

    def still_leader(self) -> bool:
        return self.leading.is_set()

    async def wait_leading(self) -> None:
        await self.leading.wait()

    async def run(self) -> None:
        await self.lost.wait()
        raise LeaseLost("another holds it")


class AList:
    def __init__(self) -> None:
        self.synced = False
        self.began = False
        self.done = asyncio.Event()

    async def wait_synced(self) -> None:
        await self.done.wait()

    async def run(self) -> None:
        self.began = True
        await asyncio.Event().wait()


def test_who_does_not_lead_does_not_answer() -> None:
    standing = Standing(AnElection())

    assert standing.why_not() == "another replica leads"
    assert not standing.leads


def test_a_new_leader_answers_once_all_is_listed() -> None:
    election, pods, nodes = AnElection(), AList(), AList()
    standing = Standing(election)
    standing.follow("pods", pods)
    standing.follow("nodes", nodes)
    election.leading.set()

    assert standing.why_not() == "not listed yet: pods, nodes"
    pods.synced = True
    assert standing.why_not() == "not listed yet: nodes"
    nodes.synced = True
    assert standing.why_not() is None
    assert standing.leads


async def test_nothing_is_listed_before_the_lease_is_ours() -> None:
    election, pods = AnElection(), AList()
    run = Standing(election).follow("pods", pods)

    async def follow() -> None:
        await run()

    async def turns() -> bool:
        for _ in range(10):
            await asyncio.sleep(0)
        return pods.began

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow(), name="pods")
        before = await turns()
        election.leading.set()
        after = await turns()
        task.cancel()

    assert (before, after) == (False, True)


async def test_a_task_that_needs_the_lists_waits_for_leadership_and_for_all_of_them() -> None:
    election, pods, nodes = AnElection(), AList(), AList()
    standing = Standing(election)
    standing.follow("pods", pods)
    standing.follow("nodes", nodes)
    began: list[bool] = []

    async def task() -> None:
        began.append(True)

    async def turns() -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return len(began)

    async def run() -> None:
        await standing.once_listed(task)()

    async with asyncio.TaskGroup() as group:
        group.create_task(run(), name="task")
        election.leading.set()
        pods.done.set()
        before = await turns()
        nodes.done.set()
        after = await turns()

    assert (before, after) == (0, 1)


async def test_a_lost_lease_ends_the_process() -> None:
    election = AnElection()
    election.lost.set()

    with pytest.raises(EndProcess, match="another holds it"):
        await Standing(election).run()
