"""No Binding that an earlier leader sent takes effect once the next one has marked its pods."""

import asyncio
import json
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from fracgpu.names import BINDINGS_UNDER_WAY
from kube.client import KubeClient
from kube.leader_election import LeaderElector, LeaseLost
from scheduler.binding_record import BindingRecord
from tests.fakes.clock import VirtualClock
from tests.fakes.leases import Leases, LeaseTransport

TERM = "lease/3"


def inherited(text: str | None, *, pods: list[str]) -> list[str]:
    """Return which of the pods a leader is concerned with that finds *text* on the Lease."""
    record = BindingRecord(lambda: ())
    record.inherit({} if text is None else {BINDINGS_UNDER_WAY: text}, term=TERM)
    return [uid for uid in pods if record.concerns(uid)]


def written(*under_way: str, term: str = TERM) -> str | None:
    record = BindingRecord(lambda: under_way)
    record.settle(left=())
    return record.annotations(term=term)[BINDINGS_UNDER_WAY]


def test_the_next_leader_is_concerned_with_the_pods_of_unfinished_bindings_alone() -> None:
    assert inherited(written("a", "b"), pods=["a", "b", "c"]) == ["a", "b"]
    assert inherited(written(), pods=["a"]) == []


def test_where_nothing_is_recorded_that_holds_every_pod_is_concerned() -> None:
    another_term = written("a", term="lease/2")  # a version that writes none has led since
    too_many = written(*(str(number) for number in range(1_001)))
    unreadable = ["", "x", "[]", "1", "{}", json.dumps({"term": TERM, "pods": [1]}), "[" * 100_000]
    for text in (None, another_term, too_many, *unreadable):
        assert inherited(text, pods=["b"]) == ["b"], (text or "")[:40]


def test_a_thousand_pods_fit_into_an_annotation() -> None:
    uids = [f"9c3d7a5e-1b7e-4a56-8d3c-{number:012}" for number in range(1_000)]
    text = written(*uids)

    assert text is not None
    assert len(text) < 50_000  # of 256 KiB for all annotations of an object
    assert inherited(text, pods=[*uids, "other"]) == uids


@dataclass(slots=True)
class Pod:
    version: int = 0
    bound: bool = False


@dataclass(slots=True)
class Leader:
    """A replica, its record, and the pods that it has assumed."""

    election: LeaderElector
    record: BindingRecord
    assumed: set[str]


@dataclass(slots=True)
class World:
    """Pods, a Lease, and Bindings that have passed admission and may take effect at any time."""

    leases: Leases = field(default_factory=Leases)
    clock: VirtualClock = field(default_factory=VirtualClock)
    pods: dict[str, Pod] = field(default_factory=lambda: {uid: Pod() for uid in "abcd"})
    held_up: list[tuple[str, int]] = field(default_factory=list)

    async def lead(self, identity: str, *, keeps: bool, marks: bool = True) -> Leader:
        """Return a new leader; does its version keep a record, and does it live to mark pods?"""
        assumed: set[str] = set()
        record = BindingRecord(lambda: assumed)
        election = LeaderElector(
            KubeClient(LeaseTransport(self.leases)),
            self.clock,
            name="leader",
            namespace="ml",
            identity=identity,
            notes=record if keeps else None,
        )
        (stored,) = self.leases.stored.values() or [None]
        if stored is not None:  # the last leader has died, and its lease has expired
            stored["spec"]["holderIdentity"] = ""
        await election.acquire()
        if not marks:
            return Leader(election, record, assumed)
        for uid, pod in self.pods.items():
            if not pod.bound and record.concerns(uid):
                pod.version += 1
        record.settle(left=())
        return Leader(election, record, assumed)

    async def send(self, leader: Leader, uid: str) -> None:
        """Send a Binding of a pod, unless this leader has one under way."""
        if self.pods[uid].bound or uid in leader.assumed:
            return
        leader.assumed.add(uid)
        try:
            await leader.election.renew()
        except LeaseLost:
            leader.assumed.discard(uid)
            return
        self.held_up.append((uid, self.pods[uid].version))

    def arrive(self, at: int) -> bool:
        """Let a Binding take effect or be refused; return whether it took effect."""
        uid, version = self.held_up.pop(at)
        pod = self.pods[uid]
        if pod.bound or pod.version != version:
            return False
        pod.bound, pod.version = True, version + 1
        return True


SENDING = st.tuples(st.just("send"), st.sampled_from("abcd"))
ARRIVING = st.tuples(st.just("arrive"), st.integers(0, 5))
RETRYING = st.tuples(st.just("touch"), st.sampled_from("abcd"))
CHANGING = st.tuples(st.just("change"), st.booleans())
CHANGING_TWICE = st.tuples(st.just("change twice"), st.booleans())


@given(st.lists(st.one_of(SENDING, ARRIVING, RETRYING, CHANGING, CHANGING_TWICE), max_size=30))
@example([("send", "a"), ("change", False), ("send", "b"), ("change", True)])  # and back
def test_after_a_change_of_the_leader_no_earlier_binding_takes_effect(
    steps: list[tuple[str, object]],
) -> None:
    asyncio.run(_no_earlier_binding_takes_effect(steps))


async def _no_earlier_binding_takes_effect(steps: list[tuple[str, object]]) -> None:
    world = World()
    earlier: list[Leader] = []
    leader = await world.lead("0", keeps=True)
    for what, which in steps:
        if what == "send":
            await world.send(leader, str(which))
        elif what == "touch":
            world.pods[str(which)].version += 1
        elif what == "arrive" and world.held_up:
            assert isinstance(which, int)
            uid, _ = world.held_up[which % len(world.held_up)]
            world.arrive(which % len(world.held_up))
            if all(uid != other for other, _ in world.held_up):
                leader.assumed.discard(uid)  # it is answered
        elif what.startswith("change"):
            if what == "change twice":
                await world.lead("brief", keeps=bool(which), marks=False)
            earlier.append(leader)
            leader = await world.lead(str(len(earlier)), keeps=bool(which))
            await _assert_over(world, earlier)


async def _assert_over(world: World, earlier: list[Leader]) -> None:
    """Assert that nothing of the *earlier* leaders takes effect any more."""
    late, world.held_up = world.held_up, []
    for uid, version in late:
        pod = world.pods[uid]
        assert pod.bound or pod.version != version, (uid, version)
    for old in earlier:  # one that was paused writes the Lease before it sends
        await world.send(old, "a")
    assert world.held_up == []
