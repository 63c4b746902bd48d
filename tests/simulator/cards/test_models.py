from fracgpu.cards.card import NodeCards
from fracgpu.cards.card_class import card_classes
from simulator.cards.models import A10, A100_40GB, MI210, plan_nodes


def test_the_fleet_has_cards_of_both_vendors() -> None:
    plans = plan_nodes(4, 4)

    assert [plan.cards[0].model for plan in plans] == [
        A100_40GB.name,
        A100_40GB.name,
        A10.name,
        MI210.name,
    ]


def test_every_card_has_its_own_uuid_and_the_same_one_every_time() -> None:
    uuids = [card.uuid for plan in plan_nodes(3, 5) for card in plan.cards]

    assert len(set(uuids)) == 15
    assert uuids == [card.uuid for plan in plan_nodes(3, 5) for card in plan.cards]


def test_the_fleet_has_three_card_classes() -> None:
    nodes = [NodeCards(node=plan.name, cards=plan.cards) for plan in plan_nodes(4, 4)]

    assert {card_class.capacity_mib for card_class in card_classes(nodes, free_mib={})} == {
        40320,
        22480,
        65520,
    }
