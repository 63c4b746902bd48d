"""Whether this replica may answer and write now."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from component.leader_gate import LeaderGate
from kube.leader_election import LeaseLost
from process.lifecycle import EndProcess
from simulator.background import background


class AnElection:
    def __init__(self) -> None:
        self.another_leads = False
        self.failure = ""
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
    """An informer whose lists are read when a test says so."""

    def __init__(self, failure: str = "") -> None:
        self.failure = failure
        self.runs: list[str] = []
        self._read = asyncio.Event()

    @property
    def synced(self) -> bool:
        return self._read.is_set()

    def list_again(self) -> None:
        self._read.clear()

    def read(self) -> None:
        self._read.set()

    async def wait_synced(self) -> None:
        await self._read.wait()

    async def run(self) -> None:
        self.runs.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            self.runs.append("ended")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def following(gate: LeaderGate, **lists: AList) -> AsyncIterator[None]:
    async with background(
        *(as_coroutine(gate.follow(name, watcher)) for name, watcher in lists.items())
    ):
        await turns()
        yield


async def as_coroutine(task: Callable[[], Awaitable[None]]) -> None:
    await task()


def test_who_does_not_lead_does_not_answer() -> None:
    gate = LeaderGate(AnElection())

    assert gate.why_not() == "another replica leads"
    assert not gate.leads


async def test_a_new_leader_answers_once_all_is_listed_anew() -> None:
    election, pods, nodes = AnElection(), AList(), AList()
    gate = LeaderGate(election)
    async with following(gate, pods=pods, nodes=nodes):
        pods.read()
        nodes.read()
        await turns()
        assert gate.why_not() == "another replica leads"

        election.leading.set()
        # Also before listing again: the old lists may lack the previous leader's Binding.
        assert gate.why_not() == "not listed yet: pods, nodes"
        await turns()
        assert gate.why_not() == "not listed yet: pods, nodes"
        assert pods.runs == ["began", "ended", "began"]
        pods.read()
        assert gate.why_not() == "not listed yet: nodes"
        nodes.read()
        assert gate.why_not() is None
        assert gate.leads


async def test_why_a_list_cannot_be_read_is_part_of_the_reason() -> None:
    election, pods, nodes = AnElection(), AList("answered 403 Forbidden"), AList()
    gate = LeaderGate(election)
    election.leading.set()
    async with following(gate, pods=pods, nodes=nodes):
        assert gate.why_not_ready() == "not listed yet: pods, nodes: answered 403 Forbidden"


async def test_a_further_reason_counts_once_all_is_listed() -> None:
    election, pods = AnElection(), AList()
    gate = LeaderGate(election)
    reasons = ["pending pods are not marked yet"]
    gate.also(lambda: reasons[0] if reasons else None)
    async with following(gate, pods=pods):
        election.leading.set()
        await turns()
        assert gate.why_not() == "not listed yet: pods"
        pods.read()
        assert gate.why_not() == gate.why_not_ready() == reasons[0]
        reasons.clear()
        assert gate.why_not() is None


async def test_a_standby_that_has_listed_is_ready_while_another_leads() -> None:
    election, pods = AnElection(), AList()
    gate = LeaderGate(election)
    async with following(gate, pods=pods):
        assert gate.why_not_ready() == "no replica leads yet"
        election.another_leads = True
        assert gate.why_not_ready() == "not listed yet: pods"
        pods.read()
        assert gate.why_not_ready() is None
        assert gate.why_not() == "another replica leads"
        election.another_leads = False
        assert gate.why_not_ready() == "no replica leads yet"
        election.failure = "may not get leases"
        assert gate.why_not_ready() == "no replica leads yet: may not get leases"


async def test_a_leader_is_ready_once_it_answers() -> None:
    election, pods = AnElection(), AList()
    gate = LeaderGate(election)
    election.leading.set()
    async with following(gate, pods=pods):
        assert gate.why_not_ready() == gate.why_not() == "not listed yet: pods"
        pods.read()
        assert gate.why_not_ready() is None


async def test_a_list_that_fails_while_another_leads_ends_the_task() -> None:
    class Failing(AList):
        async def run(self) -> None:
            raise OSError("cannot be followed")

    with pytest.raises(ExceptionGroup) as caught:
        await LeaderGate(AnElection()).follow("pods", Failing())()

    assert caught.group_contains(OSError, match="cannot be followed")


async def test_a_task_that_needs_the_lists_waits_for_leadership_and_for_fresh_ones() -> None:
    election, pods, nodes = AnElection(), AList(), AList()
    gate = LeaderGate(election)
    began = asyncio.Event()

    async def task() -> None:
        began.set()

    async with following(gate, pods=pods, nodes=nodes), asyncio.TaskGroup() as group:
        group.create_task(as_coroutine(gate.once_listed(task)), name="task")
        pods.read()
        nodes.read()
        election.leading.set()
        await turns()
        pods.read()
        await turns()
        assert not began.is_set()
        nodes.read()
        await turns()
        assert began.is_set()


async def test_a_lost_lease_ends_the_process() -> None:
    election = AnElection()
    election.lost.set()

    with pytest.raises(EndProcess, match="another holds it"):
        await LeaderGate(election).run()


def test_who_may_not_lead_any_more_is_ended_before_it_writes() -> None:
    election = AnElection()
    gate = LeaderGate(election)

    with pytest.raises(EndProcess, match="the lease may be lost"):
        gate.guard()

    election.leading.set()
    gate.guard()
