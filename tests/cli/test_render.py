"""The drawing says what the picture holds."""

import io

from rich.console import Console

from cli.render import card_line, dashboard, promises
from simulator.demo.picture import CardPicture, NodePicture, Picture, SlicePicture
from simulator.demo.verdict import Promise


def a_card(*, busy: float | None = 0.5, cordoned: bool = False, mib: int = 20160) -> CardPicture:
    return CardPicture(
        uuid="GPU-a",
        index=3,
        model="NVIDIA A10",
        capacity_mib=40320,
        slices=(SlicePicture(pod="chat-1", mib=mib),),
        busy=busy,
        cordoned=cordoned,
    )


def text(renderable: object) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_a_card_shows_its_index_its_share_and_its_heat() -> None:
    name, bar, held, heat = card_line(a_card(), hot_line=0.8)

    assert name.plain == "3 A10"
    assert bar.plain.count("·") == 16
    assert held.plain.split() == ["19.7", "GiB", "/", "39.4", "GiB"]
    assert "50%" in heat.plain


def test_unknown_heat_is_not_drawn_as_cool() -> None:
    assert card_line(a_card(busy=None), hot_line=0.8)[3].plain == "heat unknown"


def test_a_hot_card_is_red_and_a_cordoned_one_says_so() -> None:
    name, _, _, heat = card_line(a_card(busy=0.93, cordoned=True), hot_line=0.8)

    assert "set aside" in name.plain
    assert "red" in str(heat.style)


def test_the_bar_never_outgrows_its_room() -> None:
    assert len(card_line(a_card(mib=80000), hot_line=0.8)[1].plain) == 34


def test_the_screen_holds_nodes_pods_roles_and_news() -> None:
    picture = Picture(
        nodes=(NodePicture(name="gpu-node-1", cards=(a_card(),)),),
        pods_running=1,
        pods_expected=2,
        roles=(("webhook", True), ("certs", False)),
        hot_line=0.8,
        news=("  1.0s  Scheduled: chat-1",),
    )

    shown = text(dashboard(picture, elapsed_s=30, duration_s=90, step="watching"))

    for words in (
        "gpu-node-1",
        "1 of 2 pods running",
        "● webhook",
        "○ certs",
        "30 s of 90 s",
        "watching",
        "Scheduled: chat-1",
    ):
        assert words in shown


def test_a_broken_promise_stands_out_with_its_figures() -> None:
    shown = text(promises([Promise(name="no pod was lost", held=False, detail="12 of 13")]))

    assert "BROKEN" in shown
    assert "12 of 13" in shown
