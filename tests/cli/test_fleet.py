"""The cards as rows, and as JSON."""

from dataclasses import replace
from datetime import timedelta

from cli.fleet import fleet_json, fleet_of
from fracgpu.cards.card import CardUuid, Health
from fracgpu.units import Mib
from tests.support.core import a_card
from tests.support.explaining import NOON, Cluster


def test_a_card_row_says_what_is_held_free_and_by_whom() -> None:
    cluster = Cluster().node("n", a_card("GPU-a", mib=24_000))
    cluster.holder("chat", "n", "GPU-a", 9_000, cores=25, leaving=True)
    foreign = {CardUuid("GPU-a"): Mib(500)}
    heat = {CardUuid("GPU-a"): 0.75}
    cluster.nodes[0] = replace(cluster.nodes[0], foreign=foreign, heat=heat, load_time=NOON)
    state = cluster.state()

    fleet = fleet_of(state.snapshot, state.pods)

    (card,) = fleet_json(fleet)["nodes"][0]["cards"]
    assert card["slices"] == [
        {
            "pod": "default/chat",
            "mib": 9_000,
            "cores": 25,
            "terminating": True,
            "limitMib": 9_000,
        }
    ]
    assert (card["heldMib"], card["freeMib"], card["foreignMib"]) == (9_000, 14_500, 500)
    assert (card["heat"], card["trouble"], card["until"]) == (0.75, "", None)
    assert (fleet.cards, fleet.held_mib, fleet.capacity_mib) == (1, 9_000, 24_000)
    cluster.nodes[0] = replace(cluster.nodes[0], load_time=NOON - timedelta(hours=1))
    state = cluster.state()
    (old,) = fleet_of(state.snapshot, state.pods).nodes[0].cards
    assert (old.heat, old.foreign_mib) == (None, 500)


def test_trouble_is_told_with_its_reason_and_its_end() -> None:
    sick = replace(a_card("GPU-a", health=Health.UNHEALTHY), health_reason="Xid 79")
    cluster = Cluster().node("n", sick, a_card("GPU-b", index=1), cordons={"GPU-b": 60})
    state = cluster.state()

    first, second = fleet_of(state.snapshot, state.pods).nodes[0].cards

    assert (first.trouble, first.until) == ("unhealthy: Xid 79", None)
    assert second.trouble == "cordoned until 12:01:00 UTC: hot"
    assert second.until is not None


def test_nodes_without_cards_are_left_out_unless_they_should_have_some() -> None:
    cluster = Cluster().node("gpu", a_card("GPU-a")).node("late").node("cpu", shared=False)
    state = cluster.state()

    rows = {node.name: node.trouble for node in fleet_of(state.snapshot, state.pods).nodes}

    assert rows == {"gpu": "", "late": "has not reported its cards"}


def test_one_node_may_be_asked_for_by_name() -> None:
    state = Cluster().node("a", a_card("GPU-a")).node("cpu", shared=False).state()

    def asked(name: str) -> list[tuple[str, str]]:
        return [
            (node.name, node.trouble)
            for node in fleet_of(state.snapshot, state.pods, node=name).nodes
        ]

    assert asked("cpu") == [("cpu", "does not share its cards")]
    assert asked("nobody") == []
