from simulator.demo.dashboard import CardPanel, SlicePanel


def test_a_card_holds_the_sum_of_its_slices() -> None:
    card = CardPanel(
        uuid="GPU-a",
        index=0,
        model="A10",
        capacity_mib=100,
        slices=(SlicePanel(pod="a", mib=30), SlicePanel(pod="b", mib=12)),
        busy=None,
        cordoned=False,
    )

    assert card.held_mib == 42
