"""The books against a fold from scratch."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import PodAllocation
from fracgpu.units import Mib
from scheduler.cache.comparer import CacheComparer
from scheduler.cache.event_handlers import AnyPod
from tests.fakes.clock import VirtualClock
from tests.scheduler.world import World
from tests.support.gpu import some_cards


class Books:
    """A ledger with a hundred nodes and a pod on each, and what an informer would hold of them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ledger = Ledger()
        self.board = NodeMatrix(self.ledger)
        self.nodes = [NodeCards(node=f"n{n}", cards=some_cards(f"n{n}")) for n in range(100)]
        self.pods = [self.a_pod(n, 1000) for n in range(100)]
        for node in self.nodes:
            self.ledger.set_node(node)
        for pod in self.pods:
            self.ledger.observe(pod.holds)
        self.drifts: list[int] = []
        self.overbooked: list[int] = []

    @staticmethod
    def a_pod(number: int, mib: int) -> BoundPod:
        holds = {CardUuid(f"GPU-n{number}-0"): CardAllocation(mib=Mib(mib))}
        return BoundPod(
            namespace="default",
            name=f"p{number}",
            holds=PodAllocation(pod_uid=f"u{number}", node=f"n{number}", by_card=holds),
        )

    def _listed(self) -> Iterable[AnyPod]:
        return self.pods

    async def audit(self) -> tuple[str, ...]:
        audit = CacheComparer(
            self.ledger,
            self.board,
            nodes=lambda: self.nodes,
            pods=self._listed,
            clock=self.clock,
            on_drift=self.drifts.append,
            on_overbooked=self.overbooked.append,
            every_s=60,
        )
        return await audit.once()


async def test_a_card_promised_beyond_its_memory_is_counted_and_named_whoever_bound_its_pods(
    capsys: pytest.CaptureFixture[str],
) -> None:
    books = Books()
    assert await books.audit() == ()
    late = replace(books.a_pod(7, 23_001), name="late", holds=replace(
        books.a_pod(7, 23_001).holds, pod_uid="late"))  # fmt: skip
    books.pods.append(late)
    books.ledger.observe(late.holds)

    assert await books.audit() == ()

    assert (books.drifts, books.overbooked) == ([0, 0], [0, 1])
    said = capsys.readouterr().out
    assert "card_overbooked" in said
    assert all(word in said for word in ("GPU-n7-0", "24001", "late", "u7"))


async def test_books_that_are_right_agree() -> None:
    books = Books()

    assert await books.audit() == ()
    assert books.drifts == [0]


async def test_a_mib_too_much_or_too_little_is_found_and_named() -> None:
    books = Books()
    books.pods[7] = books.a_pod(7, 1001)
    del books.pods[93]

    assert await books.audit() == ("n7", "n93")
    assert books.drifts == [2]


async def test_a_board_that_lags_behind_the_ledger_is_found() -> None:
    books = Books()
    await books.audit()
    books.board.free_mib[books.board.rows["n3"], 1] += 1

    assert await books.audit() == ("n3",)


async def test_a_node_that_is_gone_from_the_api_server_and_not_from_the_books_is_found() -> None:
    books = Books()
    books.nodes.pop()

    assert await books.audit() == ("n99",)


async def test_assumptions_are_part_of_the_fold() -> None:
    world = World()
    world.create(mib=1000)
    assert await world.bind() == ""
    board = NodeMatrix(world.ledger)
    drifts: list[int] = []
    audit = CacheComparer(
        world.ledger,
        board,
        nodes=world.ledger.nodes.values,
        pods=lambda: (),
        clock=world.clock,
        on_drift=drifts.append,
        every_s=60,
    )

    assert world.ledger.assumed
    assert await audit.once() == ()
