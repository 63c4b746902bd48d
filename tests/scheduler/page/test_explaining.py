"""The few nodes that are looked at for one waiting pod."""

import json

from fracgpu.cards.card import Card, CardUuid
from fracgpu.explain.answers import PodVerdict
from fracgpu.explain.explanation import explain
from fracgpu.explain.subject import read_subject
from fracgpu.units import Mib
from scheduler.page.explaining import nearest_nodes, state_for
from tests.support.gpu import some_cards
from tests.support.page import PageCluster


def of_model(node: str, model: str) -> tuple[Card, ...]:
    uuid = CardUuid(f"GPU-{node}-0")
    return (Card(uuid=uuid, index=0, model=model, total_mib=Mib(24_000)),)


def test_the_nearest_nodes_fit_or_lack_least() -> None:
    cluster = PageCluster()
    cluster.node("other-model", cards=of_model("other-model", "NVIDIA T4"))
    cluster.node("full", cards=some_cards("full", count=1))
    cluster.node("fuller", cards=some_cards("fuller", count=1))
    cluster.node("fits", cards=some_cards("fits", count=1))
    cluster.pod("a", on="full", mib=22_000)
    cluster.pod("b", on="fuller", mib=23_000)
    need = cluster.pod("p", mib=4000, annotations={"fracgpu.io/model": "*A30*"}).need
    assert need is not None

    found = nearest_nodes(
        need, cluster.core.matrix, strategy=cluster.strategy, now=cluster.clock.now()
    )

    assert found == ("fits", "full", "fuller", "other-model")


def test_of_a_large_cluster_only_a_few_nodes_are_looked_at() -> None:
    cluster = PageCluster()
    for number in range(50):
        cluster.node(f"n{number:02}")
    need = cluster.pod("p", mib=100_000).need
    assert need is not None

    found = nearest_nodes(
        need, cluster.core.matrix, strategy=cluster.strategy, now=cluster.clock.now()
    )

    assert found == ("n00", "n01", "n02", "n03", "n04", "n05")


def test_the_reasons_are_those_of_fracgpu_explain() -> None:
    cluster = PageCluster()
    cluster.node("n", cards=some_cards("n", count=2))
    cluster.pod("a", on="n", card=0, mib=23_000)
    cluster.pod("b", on="n", card=1, mib=20_000)
    cluster.pod("p", mib=6000)
    subject = read_subject(json.dumps(cluster.shelf.pods["default/p"]).encode())

    state = state_for(
        subject,
        cluster.core,
        strategy=cluster.strategy,
        scheduler=subject.info.scheduler_name,
        now=cluster.clock.now(),
    )
    found = explain(subject, state)

    assert found.verdict is PodVerdict.STUCK
    (node,) = found.nodes
    assert [card.reason for card in node.cards] == ["too little free memory for 6000 MiB"] * 2
    assert [holder.pod for card in node.cards for holder in card.holders] == [
        "default/a",
        "default/b",
    ]
