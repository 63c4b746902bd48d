"""The tables show the values they are given."""

import io
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from cli.printers.tables import card_line, coloured, dashboard, palette, promises
from cli.printers.text import Line, Tone
from simulator.demo.dashboard import CardPanel, Dashboard, NodePanel, SlicePanel, StoryLine
from simulator.demo.promises import Promise


def a_card(*, busy: float | None = 0.5, cordoned: bool = False, mib: int = 20160) -> CardPanel:
    return CardPanel(
        uuid="GPU-a",
        index=3,
        model="NVIDIA A10",
        capacity_mib=40320,
        slices=(SlicePanel(pod="chat-1", mib=mib),),
        busy=busy,
        cordoned=cordoned,
    )


def draw(card: CardPanel) -> tuple[Text, ...]:
    return card_line(card, hot_line=0.8, colours={"chat": "cyan"})


def text(renderable: object) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_a_card_shows_its_index_its_share_and_its_heat() -> None:
    name, bar, held, heat, whose = draw(a_card())

    assert name.plain == "3 A10"
    assert bar.plain.count("·") == 16
    assert held.plain.split() == ["19.7", "/", "39.4", "GiB"]
    assert "50%" in heat.plain
    assert whose.plain.strip() == "chat"


def test_unknown_heat_is_not_drawn_as_cool() -> None:
    assert draw(a_card(busy=None))[3].plain == "heat unknown"


def test_a_hot_card_is_red_and_a_cordoned_one_says_so() -> None:
    name, _, _, heat, _ = draw(a_card(busy=0.93, cordoned=True))

    assert "cordoned" in name.plain
    assert "red" in str(heat.style)


def test_the_bar_never_outgrows_its_room() -> None:
    assert len(draw(a_card(mib=80000))[1].plain) == 34


def test_the_screen_holds_nodes_pods_roles_and_event_lines() -> None:
    picture = Dashboard(
        nodes=(NodePanel(name="gpu-node-1", cards=(a_card(),)),),
        pods_running=1,
        pods_expected=2,
        roles=(("webhook", True), ("certs", False)),
        hot_line=0.8,
        event_lines=("  1.0s  Scheduled: chat-1",),
    )

    shown = text(dashboard(picture, elapsed_s=30, duration_s=90, step="watching"))

    for words in (
        "gpu-node-1",
        "1 of 2 pods running",
        "● webhook",
        "○ certs",
        "30 s of about 90 s",
        "watching",
        "Scheduled: chat-1",
    ):
        assert words in shown


def test_a_small_terminal_shows_every_card_its_heat_and_the_latest_event_lines() -> None:
    cards = tuple(replace(a_card(busy=0.93), index=index, uuid=str(index)) for index in range(4))
    picture = Dashboard(
        nodes=tuple(NodePanel(name=f"gpu-node-{n}", cards=cards) for n in range(4)),
        pods_running=13,
        pods_expected=13,
        roles=(("webhook", True), ("certs", False)),
        hot_line=0.8,
        event_lines=tuple(f"{n}.0s  Scheduled: {'a pod on a node ' * 9}" for n in range(20)),
    )
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True)
    console.print(
        dashboard(picture, elapsed_s=30, duration_s=90, step="watching " * 9, room=console.size)
    )
    out = console.file
    assert isinstance(out, io.StringIO)
    rows = Text.from_ansi(out.getvalue()).plain.rstrip("\n").split("\n")

    assert len(rows) <= 24
    assert all(len(row) <= 80 for row in rows)
    assert sum("93%" in row for row in rows) == 16
    assert rows[-1].startswith("19.0s")


MOVED = "moved: burner-1 left card gpu-node-3/0; burner-2 runs in its place on card gpu-node-3/1"
STORY = (
    StoryLine(
        "refused misspelt: fracgpu.io/fracton is '0.5'; ... did you mean fracgpu.io/fraction?",
        "refused misspelt: did you mean fracgpu.io/fraction?",
    ),
    StoryLine(MOVED, MOVED),
)


def a_story(cards: int) -> Dashboard:
    several = tuple(replace(a_card(), index=index, uuid=str(index)) for index in range(cards))
    return Dashboard(
        nodes=tuple(NodePanel(name=f"gpu-node-{n}", cards=several) for n in range(4)),
        pods_running=13,
        pods_expected=13,
        roles=(("webhook", True),),
        hot_line=0.8,
        event_lines=tuple(f"{n}.0s  Scheduled: {'a pod on a node ' * 9}" for n in range(400)),
        story=STORY,
    )


def test_refusals_and_the_move_stay_on_the_screen_whatever_happens_after_them() -> None:
    shown = text(dashboard(a_story(2), elapsed_s=30, duration_s=90, step="watching"))

    for line in STORY:
        assert line.text in shown


def test_a_small_terminal_has_what_would_work_and_both_cards() -> None:
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True)
    picture = a_story(4)
    console.print(
        dashboard(picture, elapsed_s=30, duration_s=90, step="watching", room=console.size)
    )
    out = console.file
    assert isinstance(out, io.StringIO)
    rows = Text.from_ansi(out.getvalue()).plain.rstrip("\n").split("\n")

    assert len(rows) <= 24
    assert "refused misspelt: did you mean fracgpu.io/fraction?" in [row.strip() for row in rows]
    assert any("burner-1 left card gpu-node-3/0" in row for row in rows)
    assert rows[-1].startswith("399.0s")


def test_a_broken_promise_stands_out_with_its_figures() -> None:
    shown = text(promises([Promise(name="no pod was lost", held=False, detail="12 of 13")]))

    assert "BROKEN" in shown
    assert "12 of 13" in shown


def test_each_owner_has_a_colour_of_its_own() -> None:
    names = ("chat-1", "embed-1", "train-1", "burner-1", "notebook", "legacy")
    cards = tuple(
        replace(a_card(), slices=(SlicePanel(pod=name, mib=1),), uuid=name) for name in names
    )
    picture = Dashboard(
        nodes=(NodePanel(name="n", cards=cards),),
        pods_running=0,
        pods_expected=0,
        roles=(),
        hot_line=0.8,
        event_lines=(),
    )

    assert len(set(palette(picture).values())) == len(names)


def test_a_card_of_the_demo_shows_whether_it_is_closed_or_avoided() -> None:
    closed, avoided = replace(a_card(), cordoned=True), replace(a_card(), avoided=True)

    assert draw(closed)[0].plain.endswith(" cordoned")
    assert draw(avoided)[0].plain.endswith(" avoided")


def test_a_line_has_the_colour_of_its_tone() -> None:
    drawn = coloured([Line(text="good", tone=Tone.GOOD), Line(text="plain [red]")])

    assert drawn.plain == "good\nplain [red]\n"
    assert [str(span.style) for span in drawn.spans] == ["green"]


def test_a_line_cannot_steer_the_terminal() -> None:
    drawn = coloured([Line(text="a\x1b[2Jb\u202ec\nd")])

    assert drawn.plain == "a<U+001B>[2Jb<U+202E>c<U+000A>d\n"
