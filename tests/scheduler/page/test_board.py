"""The documents follow the cluster, and cost nothing while nobody looks."""

import asyncio
from datetime import timedelta

from fracgpu.state.allocation import read_assignment
from kube.informer import ChangeType
from scheduler.extender.api import FilterResult
from scheduler.page.board import PageFacts
from tests.fakes.clock import NOON, VirtualClock
from tests.support.moves import move_of
from tests.support.page import PageCluster


async def test_only_the_node_that_changed_is_sent_again() -> None:
    cluster = PageCluster()
    for name in ("a", "b", "c"):
        cluster.node(name)
    await cluster.board.refresh()
    version = cluster.board.pieces.version

    cluster.pod("p", on="b")
    await cluster.board.refresh()

    changed = cluster.board.pieces.since(version, most_bytes=10**6)
    assert [piece.key for piece in changed] == ["node/b"]


async def test_nodes_without_shared_cards_are_not_shown() -> None:
    cluster = PageCluster()
    cluster.node("gpu")
    cluster.node("cpu", cards=())
    cluster._nodes["cpu"]["metadata"]["labels"].clear()
    cluster.node("cpu")

    await cluster.board.refresh()

    assert cluster.board.pieces.keys("node/") == ("node/gpu",)


async def test_a_node_that_is_gone_is_removed() -> None:
    cluster = PageCluster()
    cluster.node("a")
    await cluster.board.refresh()

    cluster.drop_node("a")
    await cluster.board.refresh()

    assert cluster.board.pieces.keys("node/") == ()


async def test_a_placement_under_way_is_shown_as_such() -> None:
    cluster = PageCluster()
    cluster.node("n")
    pod = cluster.pod("p")
    assignment = read_assignment('{"train": [{"card": "GPU-n-0", "mib": 1000}]}')
    cluster.core.ledger.assume(
        pod.record, node="n", assignment=assignment, until=NOON + timedelta(seconds=60)
    )

    await cluster.board.refresh()

    (held,) = cluster.document("node/n")["cards"][0]["slices"]
    assert held == {"pod": "default/p", "mib": 1000, "assumed": True}


async def test_a_pod_waits_until_it_is_bound_or_gone() -> None:
    cluster = PageCluster()
    cluster.node("n")
    for name in ("p", "q"):
        cluster.pod(name)
    await cluster.board.refresh()
    assert cluster.board.pieces.keys("waiting/") == ("waiting/default/p", "waiting/default/q")
    assert cluster.document("about")["waiting"] == 2

    cluster.pod("p", on="n")
    cluster.pod("q", what=ChangeType.DELETED)
    await cluster.board.refresh()

    assert cluster.board.pieces.keys("waiting/") == ()
    assert "waiting" not in cluster.document("about")


async def test_the_answer_to_kube_scheduler_stands_beside_the_pod() -> None:
    cluster = PageCluster()
    pod = cluster.pod("p")
    cluster.answers.note(pod, FilterResult(failed={"n": "too little free memory"}))

    await cluster.board.refresh()

    answer = cluster.document("waiting/default/p")["answer"]
    assert (answer["nodes"], answer["reason"]) == (1, "too little free memory")


async def test_where_we_make_claims_it_stands_beside_the_pod_how_far_its_claim_has_come() -> None:
    cluster = PageCluster()
    cluster.board.claim_status = lambda pod: f"no claim is made for {pod.record.name}: quota"
    cluster.pod("p")

    await cluster.board.refresh()

    assert cluster.document("waiting/default/p")["claim"] == "no claim is made for p: quota"


async def test_of_very_many_waiting_pods_those_that_wait_longest_are_shown() -> None:
    cluster = PageCluster()
    for number in range(205):
        made = (NOON - timedelta(minutes=number)).isoformat()
        cluster.pod(f"p{number}", meta={"creationTimestamp": made})

    await cluster.board.refresh()

    shown = cluster.board.pieces.keys("waiting/")
    assert len(shown) == 200
    assert "waiting/default/p204" in shown
    assert "waiting/default/p0" not in shown
    assert cluster.document("about")["waiting"] == 205


async def test_moves_come_and_go() -> None:
    cluster = PageCluster()
    cluster.move(move_of("m1"))
    await cluster.board.refresh()
    assert cluster.document("move/m1")["pod"] == "team-a/web-1"

    cluster.move(move_of("m1"), gone=True)
    await cluster.board.refresh()

    assert cluster.document("move/m1") is None


async def test_what_concerns_everything_is_one_document() -> None:
    cluster = PageCluster()
    cluster.facts = PageFacts(
        leader="b", strategy=cluster.strategy, hot_ratio=0.7, moves_served=False
    )

    await cluster.board.refresh()

    assert cluster.document("about") == {
        "leader": "b",
        "strategy": "pack",
        "hotRatio": 0.7,
        "movesServed": False,
    }


async def test_nothing_is_computed_while_nobody_looks() -> None:
    cluster = PageCluster()
    clock = cluster.clock
    assert isinstance(clock, VirtualClock)
    cluster.node("n")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.board.run())
        await clock.advance(10)
        assert cluster.board.pieces.version == 0

        async with cluster.board.watched():
            version = cluster.board.pieces.version
            assert version > 0
            cluster.pod("p", on="n")
            await clock.advance(1)
            assert cluster.board.pieces.version > version
        await clock.advance(2)
        version = cluster.board.pieces.version
        cluster.pod("q", on="n")
        await clock.advance(10)
        assert cluster.board.pieces.version == version

        async def look() -> None:
            async with cluster.board.watched():
                assert "default/q" in str(cluster.document("node/n"))

        looking = group.create_task(look())
        await clock.advance(1)
        await looking
        running.cancel()
