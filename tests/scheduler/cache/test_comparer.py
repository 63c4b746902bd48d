"""The cache compared with a rebuild from scratch."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from msgspec import structs

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.state.allocation import CardAllocation, PodRecord
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import MovePhase
from fracgpu.state.reservation import MoveClaims, claims_of
from fracgpu.state.snapshot import PodAllocation
from fracgpu.units import Mib
from scheduler.cache.comparer import CacheComparer
from scheduler.cache.event_handlers import AnyPod
from tests.fakes.clock import NOON, VirtualClock
from tests.scheduler.harness import Harness
from tests.support.gpu import some_cards
from tests.support.moves import a_beneficiary, move_of


class CachedNodes:
    """A ledger with a hundred nodes and a pod on each, and the informer's objects for them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ledger = Ledger()
        self.matrix = NodeMatrix(self.ledger)
        self.nodes = [NodeCards(node=f"n{n}", cards=some_cards(f"n{n}")) for n in range(100)]
        self.pods = [self.a_pod(n, 1000) for n in range(100)]
        for node in self.nodes:
            self.ledger.set_node(node)
        for pod in self.pods:
            self.ledger.observe(pod.allocation)
        self.read = 0
        self.moves: list[MoveClaims] = []
        self.drifts: list[int] = []
        self.overcommitted: list[int] = []

    @staticmethod
    def a_pod(number: int, mib: int) -> BoundPod:
        holds = {CardUuid(f"GPU-n{number}-0"): CardAllocation(mib=Mib(mib))}
        return BoundPod(
            namespace="default",
            name=f"p{number}",
            allocation=PodAllocation(pod_uid=f"u{number}", node=f"n{number}", by_card=holds),
        )

    def _listed(self) -> Iterable[AnyPod]:
        for pod in self.pods:
            self.read += 1
            yield pod

    async def compare(self) -> tuple[str, ...]:
        comparer = CacheComparer(
            self.ledger,
            self.matrix,
            nodes=lambda: self.nodes,
            pods=self._listed,
            moves=lambda: self.moves,
            clock=self.clock,
            on_drift=self.drifts.append,
            on_overcommitted=self.overcommitted.append,
            every_s=60,
        )
        return await comparer.once()


async def test_cards_that_are_kept_for_a_pod_agree_until_it_is_bound() -> None:
    cached = CachedNodes()
    kept = a_beneficiary("GPU-n3-0", uid="u5", held_until=NOON + timedelta(hours=1))
    move = move_of(
        source=("n3", "GPU-n3-0"), target=("n4", "GPU-n4-0"), phase=MovePhase.DONE, beneficiary=kept
    )
    bound = cached.pods.pop(5)
    cached.ledger.remove_pod("u5")
    cached.ledger.set_claims(claims_of(move))
    assert await cached.compare() == ("n3",)  # it does not know of the Move
    cached.moves = [claims_of(move)]
    assert await cached.compare() == ()
    cached.pods.insert(5, bound)
    cached.ledger.observe(bound.allocation)
    assert await cached.compare() == ()


async def test_a_card_promised_beyond_its_memory_is_counted_and_named_whoever_bound_its_pods(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cached = CachedNodes()
    assert await cached.compare() == ()
    late = structs.replace(cached.a_pod(7, 23_001), name="late", allocation=structs.replace(
        cached.a_pod(7, 23_001).allocation, pod_uid="late"))  # fmt: skip
    cached.pods.append(late)
    cached.ledger.observe(late.allocation)

    assert await cached.compare() == ()

    assert (cached.drifts, cached.overcommitted) == ([0, 0], [0, 1])
    said = capsys.readouterr().out
    assert "card_overbooked" in said
    assert all(word in said for word in ("GPU-n7-0", "24001", "late", "u7"))


async def test_a_cache_that_is_right_agrees() -> None:
    cached = CachedNodes()

    assert await cached.compare() == ()
    assert cached.drifts == [0]


async def test_a_mib_too_much_or_too_little_is_found_and_named() -> None:
    cached = CachedNodes()
    cached.pods[7] = cached.a_pod(7, 1001)
    del cached.pods[93]

    assert await cached.compare() == ("n7", "n93")
    assert cached.drifts == [2]


async def test_a_matrix_that_lags_behind_the_ledger_is_found() -> None:
    cached = CachedNodes()
    await cached.compare()
    cached.matrix.free_mib[cached.matrix.rows["n3"], 1] += 1

    assert await cached.compare() == ("n3",)


async def test_a_node_that_is_gone_from_the_api_server_and_not_from_the_cache_is_found() -> None:
    cached = CachedNodes()
    cached.nodes.pop()

    assert await cached.compare() == ("n99",)


async def test_assumptions_are_part_of_the_fold() -> None:
    cluster = Harness()
    cluster.create(mib=1000)
    assert await cluster.bind() == ""
    matrix = NodeMatrix(cluster.ledger)
    drifts: list[int] = []
    comparer = CacheComparer(
        cluster.ledger,
        matrix,
        nodes=cluster.ledger.nodes.values,
        pods=lambda: (),
        clock=cluster.clock,
        on_drift=drifts.append,
        every_s=60,
    )

    assert cluster.ledger.assumed
    assert await comparer.once() == ()


async def test_reservations_are_part_of_the_fold_and_overcommit_nothing() -> None:
    cached = CachedNodes()
    until = cached.clock.now() + timedelta(minutes=1)
    for number in (1, 2, 3):
        move = move_of(
            f"m{number}",
            target=(f"n{number}", f"GPU-n{number}-0"),
            mib=24_000,
            reserved_until=until,
        )
        cached.ledger.set_claims(claims_of(move))
        cached.moves.append(claims_of(move))
    carrying = structs.replace(cached.a_pod(2, 1000).allocation, move="m2")
    cached.pods[2] = structs.replace(cached.pods[2], allocation=carrying)
    cached.ledger.observe(carrying)
    assumed = PodRecord(uid="new", namespace="ns", name="new")
    cached.ledger.assume(assumed, node="n3", assignment={}, until=until, move="m3")

    assert await cached.compare() == ()
    assert cached.overcommitted == [0]

    del cached.moves[0]
    assert await cached.compare() == ("n1",)
    await cached.clock.advance(60)
    assert await cached.compare() == ()


@asynccontextmanager
async def being_compared(cached: CachedNodes) -> AsyncIterator[None]:
    """Let the body run between two pieces of the pods; assert that no drift was found."""
    nothing = structs.replace(cached.a_pod(1, 1).allocation, by_card={})
    # So many that they are read in several pieces, between which requests are answered.
    idle = [
        structs.replace(cached.a_pod(1, 1), name=f"idle-{n}", allocation=nothing)
        for n in range(5_000)
    ]
    cached.pods = [*idle, *cached.pods]
    async with asyncio.TaskGroup() as group:
        comparing = group.create_task(cached.compare())
        await asyncio.sleep(0)
        assert not comparing.done()
        assert cached.read < len(cached.pods)  # what claims hold takes a second for 100,000 pods
        yield
        while not comparing.done():
            await cached.clock.advance(0.0)

    assert comparing.result() == ()
    assert await cached.compare() == ()


async def test_a_pod_that_changes_while_pods_are_read_is_no_drift() -> None:
    cached = CachedNodes()
    changed = cached.a_pod(2, 2_000)
    async with being_compared(cached):
        cached.pods = [changed if pod.name == changed.name else pod for pod in cached.pods]
        cached.ledger.observe(changed.allocation)


async def test_a_node_that_is_deleted_while_pods_are_read_is_no_drift() -> None:
    cached = CachedNodes()
    async with being_compared(cached):
        cached.nodes = [node for node in cached.nodes if node.node != "n7"]
        cached.pods = [pod for pod in cached.pods if pod.name != "p7"]
        cached.ledger.remove_pod("u7")
        cached.ledger.remove_node("n7")
