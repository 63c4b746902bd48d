import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest

from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import LEASES
from kube.leader_election import (
    LeaderElector,
    LeaseDurations,
    LeaseLost,
    LeaseNotes,
    micro_time,
)
from kube.retry import RetryPolicy
from tests.fakes.clock import VirtualClock
from tests.fakes.leases import Fault, Leases, LeaseTransport

PATH = LEASES.path(namespace="ml", name="leader")
ONCE = RetryPolicy(attempts=1)
A_LONG_TIME_S = 60


class Candidate:
    """An elector, its clock and its transport to the server."""

    def __init__(
        self,
        leases: Leases,
        clock: VirtualClock,
        identity: str,
        notes: LeaseNotes | None = None,
    ) -> None:
        self.clock = clock
        self.transport = LeaseTransport(leases)
        self.client = KubeClient(self.transport, retry=ONCE)
        self.election = LeaderElector(
            self.client, clock, name="leader", namespace="ml", identity=identity, notes=notes
        )

    async def lose(self) -> None:
        """Run until the lease is lost, as a role's process does."""
        with suppress(LeaseLost):
            await self.election.run()


async def passes(clock: VirtualClock, seconds: float, *, sleepers: int = 1) -> None:
    """Let time pass in small steps; between them every candidate finishes what it does."""
    for _ in range(round(seconds / 0.5)):
        await clock.wait_for_sleepers(sleepers)
        await clock.advance(0.5)
    await clock.wait_for_sleepers(sleepers)


@asynccontextmanager
async def running(*candidates: Candidate) -> AsyncIterator[list[asyncio.Task[None]]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.lose()) for one in candidates]
        yield tasks
        for task in tasks:
            task.cancel()


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def test_the_first_candidate_makes_the_lease_and_leads(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one")
    assert not one.election.still_leader()

    await one.election.acquire()

    assert one.election.still_leader()
    assert leases.stored[PATH]["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-05T12:00:00.000000Z",
        "renewTime": "2026-01-05T12:00:00.000000Z",
        "leaseTransitions": 0,
    }


async def test_of_two_candidates_exactly_one_leads_for_as_long_as_it_renews(
    leases: Leases, clock: VirtualClock
) -> None:
    one, two = Candidate(leases, clock, "one"), Candidate(leases, clock, "two")

    async with running(one, two):
        for _ in range(A_LONG_TIME_S):
            await passes(clock, 1, sleepers=2)
            leading = [each for each in (one, two) if each.election.still_leader()]
            assert len(leading) == 1
            assert leases.holder(PATH) == leading[0].election.identity


async def test_a_holder_that_cannot_renew_loses_before_another_takes_over(
    leases: Leases, clock: VirtualClock
) -> None:
    one, two = Candidate(leases, clock, "one"), Candidate(leases, clock, "two")
    async with running(one) as (first,):
        await passes(clock, 1)
        async with running(two):
            await passes(clock, 4, sleepers=2)
            one.transport.fault = Fault.REFUSED

            lost_at_s = taken_at_s = None
            while taken_at_s is None:
                await passes(clock, 0.5)
                led = one.election.still_leader(), two.election.still_leader()
                assert led != (True, True)
                lost_at_s = lost_at_s or (None if led[0] else clock.monotonic())
                taken_at_s = clock.monotonic() if led[1] else None
                assert clock.monotonic() < A_LONG_TIME_S

            assert first.done()
            assert lost_at_s is not None
            # The five seconds in between are for a write in flight.
            assert taken_at_s - lost_at_s >= 5
            assert leases.stored[PATH]["spec"]["leaseTransitions"] == 1


async def test_a_lease_that_expires_is_taken_at_once_and_not_at_the_next_look(
    leases: Leases, clock: VirtualClock
) -> None:
    times = LeaseDurations()
    one, two = Candidate(leases, clock, "one"), Candidate(leases, clock, "two")
    await one.election.acquire()

    async with running(two):  # it observes the Lease now
        while not two.election.still_leader():
            await clock.wait_for_sleepers(1)
            await clock.advance(0.1)
            assert clock.monotonic() < A_LONG_TIME_S

    late_s = clock.monotonic() - times.duration_s
    assert 0 < late_s < times.retry_s / 2


async def test_losing_the_lease_raises_and_says_why(leases: Leases, clock: VirtualClock) -> None:
    one = Candidate(leases, clock, "one")
    await one.election.acquire()
    one.transport.fault = Fault.REFUSED

    async with asyncio.TaskGroup() as group:
        renewing = group.create_task(_error_of(one.election))
        while not renewing.done():
            await clock.advance(0.5)

    assert "lease ml/leader of 'one' lost: it was not renewed in time" in renewing.result()
    assert not one.election.still_leader()


async def _error_of(election: LeaderElector) -> str:
    with pytest.raises(LeaseLost) as caught:
        await election.renew_until_lost()
    return str(caught.value)


async def test_a_restarted_holder_takes_its_own_lease_back_at_once(
    leases: Leases, clock: VirtualClock
) -> None:
    before = Candidate(leases, clock, "one")
    await before.election.acquire()
    await clock.advance(3)

    after = Candidate(leases, clock, "one")
    await after.election.acquire()

    assert after.election.still_leader()
    spec = leases.stored[PATH]["spec"]
    assert (spec["renewTime"][11:19], spec["acquireTime"][11:19]) == ("12:00:03", "12:00:03")


async def test_each_acquisition_is_a_new_term_also_by_the_same_identity(
    leases: Leases, clock: VirtualClock
) -> None:
    terms = []
    for identity in ("one", "one", "two", "two"):
        candidate = Candidate(leases, clock, identity)
        assert candidate.election.term == ""
        await candidate.election.acquire()
        terms.append(candidate.election.term)
        if identity == "two":
            await candidate.election.release()
        else:
            await clock.advance(A_LONG_TIME_S)
            leases.stored[PATH]["spec"]["holderIdentity"] = "one" if len(terms) == 1 else ""
    leases.stored.clear()
    anew = Candidate(leases, clock, "one")
    await anew.election.acquire()

    assert terms == ["lease-0/0", "lease-0/1", "lease-0/2", "lease-0/3"]
    assert anew.election.term not in terms


async def test_renewing_is_not_a_new_term(leases: Leases, clock: VirtualClock) -> None:
    one = Candidate(leases, clock, "one")
    async with running(one):
        await passes(clock, 1)
        term = one.election.term
        await passes(clock, A_LONG_TIME_S)

        assert one.election.term == term
        assert one.election.still_leader()


async def test_a_process_whose_successor_has_its_name_finds_that_it_no_longer_leads(
    leases: Leases, clock: VirtualClock
) -> None:
    before, after = Candidate(leases, clock, "one"), Candidate(leases, clock, "one")
    async with running(before) as (task,):
        await passes(clock, 1)
        await after.election.acquire()
        await clock.advance(2)
        async with asyncio.timeout(60):
            await task
        assert not before.election.still_leader()
        assert leases.holder(PATH) == "one"


async def test_a_paused_holder_finds_that_it_no_longer_leads(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one")
    await one.election.acquire()

    await clock.advance(9.9)
    assert one.election.still_leader()
    await clock.advance(0.1)
    assert not one.election.still_leader()


async def test_a_suspended_machine_finds_out_by_its_wall_clock(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one")
    await one.election.acquire()

    # The monotonic clock stops while the machine is suspended.
    assert not one.election.still_leader(clock.now() + timedelta(seconds=30))
    assert one.election.still_leader(clock.now() + timedelta(seconds=5))


async def test_a_wall_clock_set_back_does_not_prolong_leadership(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one")
    await one.election.acquire()
    await clock.advance(12)

    assert not one.election.still_leader(clock.now() - timedelta(hours=1))


async def test_a_paused_holder_does_not_renew_what_another_took(
    leases: Leases, clock: VirtualClock
) -> None:
    one, two = Candidate(leases, clock, "one"), Candidate(leases, clock, "two")
    await one.election.acquire()
    async with running(two):
        await passes(clock, 20)  # while one is suspended
        assert two.election.still_leader()

        async with running(one) as (first,):
            pass
        assert first.done()
        assert not one.election.still_leader()
        assert leases.holder(PATH) == "two"


async def test_a_candidate_trusts_its_own_clock_not_the_renew_time(
    leases: Leases, clock: VirtualClock
) -> None:
    ahead = VirtualClock(clock.now() - timedelta(days=1))
    one = Candidate(leases, ahead, "one")
    await one.election.acquire()
    two = Candidate(leases, clock, "two")

    async with running(two):
        await passes(clock, 14)
        assert leases.holder(PATH) == "one"
        await passes(clock, 5)
        assert leases.holder(PATH) == "two"


async def test_an_answer_that_was_lost_is_no_loss(leases: Leases, clock: VirtualClock) -> None:
    one = Candidate(leases, clock, "one")
    async with running(one) as (task,):
        await passes(clock, 1)
        one.transport.fault = Fault.ANSWER_LOST
        await passes(clock, 3)
        one.transport.fault = Fault.NONE
        await passes(clock, A_LONG_TIME_S)

        assert not task.done()
        assert one.election.still_leader()


async def test_a_lease_of_an_older_version_was_restored_and_is_lost_at_the_next_renewal(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one")
    async with running(one) as (task,):
        await passes(clock, 1)
        backup = leases.version, leases.stored[PATH]
        await passes(clock, 10)
        assert leases.version > backup[0]
        leases.version, leases.stored[PATH] = backup

        # As often as it renews.
        await clock.advance(5)
        await task

        assert not one.election.still_leader()


async def test_a_version_that_is_no_number_is_not_compared(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one")
    async with running(one) as (task,):
        await passes(clock, 1)
        held = leases.stored[PATH]
        other = {**held["metadata"], "resourceVersion": "x"}
        leases.stored[PATH] = {**held, "metadata": other}
        await passes(clock, A_LONG_TIME_S)

        assert not task.done()
        assert one.election.still_leader()


async def test_a_lease_that_was_taken_or_deleted_is_lost_at_the_next_renewal(
    leases: Leases, clock: VirtualClock
) -> None:
    for take in (True, False):
        one = Candidate(leases, clock, "one")
        async with running(one) as (task,):
            await clock.wait_for_sleepers(1)
            held = leases.stored[PATH]
            if take:
                thief = held["spec"] | {"holderIdentity": "thief"}
                leases.write(PATH, held | {"spec": thief})
            else:
                del leases.stored[PATH]
            await clock.advance(2)
            async with asyncio.timeout(60):
                await task
            assert not one.election.still_leader()
        leases.stored.clear()


async def test_a_deleted_lease_lets_nobody_lead_beside_a_holder_that_cannot_hear_of_it(
    leases: Leases, clock: VirtualClock
) -> None:
    one, two = Candidate(leases, clock, "one"), Candidate(leases, clock, "two")
    async with running(one) as (first,):
        await passes(clock, 1)
        async with running(two):
            await passes(clock, 4, sleepers=2)
            one.transport.fault = Fault.REFUSED
            del leases.stored[PATH]

            while not two.election.still_leader():
                await passes(clock, 0.5)
                led = one.election.still_leader(), two.election.still_leader()
                assert led != (True, True)
                assert clock.monotonic() < 25
            assert first.done()


async def test_an_outage_while_acquiring_is_waited_out(leases: Leases, clock: VirtualClock) -> None:
    one = Candidate(leases, clock, "one")
    one.transport.fault = Fault.REFUSED
    async with running(one):
        await passes(clock, 10)
        assert not one.election.still_leader()
        assert one.election.failure
        one.transport.fault = Fault.NONE
        await passes(clock, 3)

        assert one.election.still_leader()
        assert not one.election.failure
        async with asyncio.timeout(60):
            await one.election.wait_leading()


async def test_a_hung_connection_does_not_hold_up_the_renewal_for_ever(leases: Leases) -> None:
    clock = VirtualClock()
    times = LeaseDurations(duration_s=2, renew_deadline_s=0.2, retry_s=0.1)
    transport = LeaseTransport(leases)
    election = LeaderElector(
        KubeClient(transport, retry=ONCE),
        clock,
        name="leader",
        namespace="ml",
        identity="one",
        times=times,
    )
    await election.acquire()
    transport.fault = Fault.HANGS
    async with asyncio.TaskGroup() as group:
        renewing = group.create_task(_error_of(election))
        for _ in range(2):
            await clock.wait_for_sleepers(1)
            await clock.advance(0.1)

    assert "not renewed in time" in renewing.result()
    assert transport.requests == 3


async def test_a_stopped_holder_gives_the_lease_back_and_a_successor_need_not_wait(
    leases: Leases, clock: VirtualClock
) -> None:
    one, two = Candidate(leases, clock, "one"), Candidate(leases, clock, "two")
    async with running(one):
        await passes(clock, 1)
    assert leases.holder(PATH) == ""
    assert not one.election.still_leader()

    await two.election.acquire()

    assert two.election.still_leader()


async def test_nobody_gives_back_what_it_does_not_hold(leases: Leases, clock: VirtualClock) -> None:
    one, two = Candidate(leases, clock, "one"), Candidate(leases, clock, "two")
    await one.election.acquire()

    await two.election.release()

    assert two.transport.requests == 0
    assert leases.holder(PATH) == "one"


async def test_a_renewal_whose_answer_the_stop_did_not_await_is_given_back_too(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one")
    await one.election.acquire()
    one.transport.fault = Fault.ANSWER_LOST
    with pytest.raises(KubeError):
        await one.election.renew()
    one.transport.fault = Fault.NONE

    await one.election.release()

    assert leases.holder(PATH) == ""


async def test_a_lease_that_another_took_meanwhile_is_not_given_back(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one")
    await one.election.acquire()
    leases.write(
        PATH,
        {**leases.stored[PATH], "spec": {**leases.stored[PATH]["spec"], "holderIdentity": "two"}},
    )

    await one.election.release()

    assert leases.holder(PATH) == "two"


async def test_giving_back_never_raises(leases: Leases, clock: VirtualClock) -> None:
    one = Candidate(leases, clock, "one")
    await one.election.acquire()
    one.transport.fault = Fault.REFUSED

    await one.election.release()

    assert not one.election.still_leader()
    assert leases.holder(PATH) == "one"


async def test_a_candidate_that_waits_knows_whether_another_leads(
    leases: Leases, clock: VirtualClock
) -> None:
    one, two = Candidate(leases, clock, "one"), Candidate(leases, clock, "two")

    def known() -> list[bool]:
        return [candidate.election.another_leads for candidate in (one, two)]

    await one.election.acquire()
    assert known() == [False, False]

    async with running(two):
        await passes(clock, 2)
        assert known() == [False, True]
        await passes(clock, 20)  # "one" never renews
        assert known() == [False, False]
        assert two.election.still_leader()


@pytest.mark.parametrize(
    ("duration_s", "renew_deadline_s", "retry_s"), [(10, 10, 2), (15, 2, 2), (15, 10, 0)]
)
def test_times_that_let_two_lead_are_refused(
    duration_s: int, renew_deadline_s: float, retry_s: float
) -> None:
    with pytest.raises(ValueError, match="want 0 < retry_s"):
        LeaseDurations(duration_s=duration_s, renew_deadline_s=renew_deadline_s, retry_s=retry_s)


def test_other_durations_keep_the_proportions_of_the_default_ones() -> None:
    assert LeaseDurations.lasting(15) == LeaseDurations()
    assert LeaseDurations.lasting(6) == LeaseDurations(
        duration_s=6, renew_deadline_s=4, retry_s=0.8
    )


def test_a_micro_time_is_utc_with_six_digits() -> None:
    east = datetime(2026, 1, 5, 14, 0, 0, 250, tzinfo=timezone(timedelta(hours=2)))

    assert micro_time(east) == "2026-01-05T12:00:00.000250Z"
    assert micro_time(datetime(2026, 1, 5, tzinfo=UTC)) == "2026-01-05T00:00:00.000000Z"


class Notes:
    """What one candidate writes on the Lease, and what it found there."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text
        self.inherited: list[tuple[Mapping[str, str], str]] = []

    def inherit(self, annotations: Mapping[str, str], *, term: str) -> None:
        self.inherited.append((dict(annotations), term))

    def annotations(self, *, term: str) -> Mapping[str, str | None]:
        return {"note": None if self.text is None else f"{self.text} in {term}"}


def noted(leases: Leases) -> str | None:
    found: str | None = leases.stored[PATH]["metadata"].get("annotations", {}).get("note")
    return found


async def test_each_write_of_the_lease_has_the_notes_of_that_moment(
    leases: Leases, clock: VirtualClock
) -> None:
    notes = Notes("first")
    one = Candidate(leases, clock, "one", notes)
    async with running(one):
        await passes(clock, 1)
        uid = leases.stored[PATH]["metadata"]["uid"]
        notes.text = "second"
        await passes(clock, 3)
        assert noted(leases) == f"second in {uid}/0"
        notes.text = None
        await one.election.renew()
        assert noted(leases) is None
        notes.text = "last"

    assert noted(leases) == f"last in {uid}/0"
    assert leases.holder(PATH) == ""


async def test_who_acquires_the_lease_gets_the_notes_and_the_term_of_the_version_that_it_replaces(
    leases: Leases, clock: VirtualClock
) -> None:
    first, second = Notes("first"), Notes("second")
    one, two = Candidate(leases, clock, "one", first), Candidate(leases, clock, "two", second)
    async with running(one):
        await passes(clock, 1)
    uid = leases.stored[PATH]["metadata"]["uid"]

    await two.election.acquire()

    assert first.inherited == [({}, "")]
    assert second.inherited == [({"note": f"first in {uid}/0"}, f"{uid}/0")]
    assert noted(leases) == f"second in {uid}/1"
    first.text = "too late"
    with pytest.raises(LeaseLost):
        await one.election.renew()
    assert noted(leases) == f"second in {uid}/1"


async def test_renewals_that_are_asked_for_together_are_one_write_and_later_ones_the_next(
    leases: Leases, clock: VirtualClock
) -> None:
    notes = Notes("0")
    one = Candidate(leases, clock, "one", notes)
    await one.election.acquire()
    before = one.transport.requests
    async with asyncio.TaskGroup() as group:
        for number in range(1, 51):
            notes.text = str(number)
            group.create_task(one.election.renew())

    assert one.transport.requests == before + 1
    assert (noted(leases) or "").startswith("50 in")


async def test_a_write_has_its_whole_time_however_long_its_caller_waited_for_its_turn(
    leases: Leases,
) -> None:
    times = LeaseDurations(duration_s=4, renew_deadline_s=2, retry_s=1)
    transport = LeaseTransport(leases)
    client = KubeClient(transport, retry=ONCE)
    one = LeaderElector(
        client, VirtualClock(), name="leader", namespace="ml", identity="one", times=times
    )
    await one.acquire()
    transport.fault = Fault.HANGS
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_error_of_renewal(one))
        second = group.create_task(_error_of_renewal(one))
        await first  # it had half of the deadline
        transport.fault = Fault.NONE

    assert (first.result(), second.result()) == ("TimeoutError", "")


async def _error_of_renewal(election: LeaderElector) -> str:
    try:
        await election.renew()
    except (KubeError, TimeoutError) as error:
        return type(error).__name__
    return ""


async def test_a_renewal_after_an_edit_of_the_lease_writes_its_notes_all_the_same(
    leases: Leases, clock: VirtualClock
) -> None:
    one = Candidate(leases, clock, "one", Notes("ours"))
    await one.election.acquire()
    held = leases.stored[PATH]
    leases.write(PATH, held | {"metadata": held["metadata"] | {"annotations": {"note": "forged"}}})

    await one.election.renew()

    assert (noted(leases) or "").startswith("ours in")
