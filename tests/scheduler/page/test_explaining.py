"""The few nodes that are looked at for one waiting pod."""

from fracgpu.cards.card import Card, CardUuid
from fracgpu.units import Mib
from scheduler.page.explaining import nearest_nodes
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
