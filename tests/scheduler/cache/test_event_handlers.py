"""Watch events update the ledger."""

import json
from datetime import timedelta

from structlog.testing import capture_logs

from fracgpu.cards.card import CardUuid
from fracgpu.state.node_info import read_node
from fracgpu.state.reservation import read_claims
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from tests.scheduler.harness import Harness
from tests.support.gpu import a_sharing_node
from tests.support.moves import move_of


def test_a_bound_pod_is_counted_until_it_is_deleted() -> None:
    cluster = Harness()
    cluster.run("p")
    assert cluster.held() == 1000
    cluster.delete("p")
    assert cluster.held() == 0


def test_a_deleted_node_is_gone() -> None:
    cluster = Harness()
    node = read_node(json.dumps(a_sharing_node("n")).encode())
    key = ObjectKey("", "n")
    cluster.handlers.node_changed(
        Change(type=ChangeType.DELETED, key=key, uid="n", resource_version="2", object=node)
    )

    assert cluster.ledger.node("n", now=cluster.clock.now()) is None


def test_each_change_is_news_after_the_ledger_has_it() -> None:
    cluster = Harness()
    heard: list[tuple[str, bool]] = []

    def listen(uid: str) -> None:
        known = (
            cluster.ledger.snapshot(now=cluster.clock.now()).card(CardUuid("GPU-m-0")) is not None
        )
        heard.append((uid, known))

    cluster.changes.listen(listen)
    pod = cluster.create("p")
    cluster.add_node("m", ())
    cluster.add_node("m", read_node(json.dumps(a_sharing_node("m")).encode()).cards)

    assert heard == [(pod.record.uid, False), ("", False), ("", True)]


def test_a_move_is_counted_until_it_is_deleted() -> None:
    cluster = Harness("n", "m")
    until = cluster.clock.now() + timedelta(minutes=1)
    before = cluster.changes.count

    cluster.see_move(move_of(target=("m", "GPU-m-0"), mib=8000, reserved_until=until))
    assert cluster.held("GPU-m-0") == 8000
    cluster.see_move(gone="move-1")
    assert cluster.held("GPU-m-0") == 0
    assert cluster.changes.count == before + 2


def test_a_move_that_cannot_be_read_is_logged_and_counts_as_full() -> None:
    cluster = Harness()
    body = {"metadata": {"name": "odd"}, "spec": {"target": {"node": "n", "card": "GPU-n-0"}}}
    claims = read_claims(json.dumps(body).encode())
    change = Change(
        type=ChangeType.ADDED,
        key=ObjectKey("", "odd"),
        uid="u",
        resource_version="1",
        object=claims,
    )

    with capture_logs() as logs:
        cluster.handlers.move_changed(change)

    assert cluster.held("GPU-n-0") >= 24_000
    (entry,) = logs
    assert (entry["event"], entry["move"], entry["counts_as"]) == ("move_unreadable", "odd", "full")
